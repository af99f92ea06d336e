"""Writing a part of a chunk as a codec pipeline does it: `Transaction.modify` with a region."""

from collections.abc import Callable
from typing import Any

import numpy as np

import txstore
from txstore.codecs.chunk_codec import ChunkCodec
from txstore.format.documents import below, describe
from txstore.format.keys import ancestors
from txstore.format.regions import Region
from txstore.transactions.transaction import Transaction


def codec_of(transaction: Transaction, key: str) -> ChunkCodec:
    described = next(found for path in ancestors(key) if (found := describe(transaction.staging.view.peek, path)))
    return ChunkCodec(described.key.rpartition("/")[2], described.content, below(described.key, key))


def region_of(*axes: slice) -> Region:
    return Region.of_box(tuple((axis.start, axis.stop) for axis in axes))


def write_part(transaction: Transaction, key: str, where: slice | tuple[slice, ...], what: Any) -> None:
    """Write elements of a chunk; `what` is a value, or a function that is given what they are."""
    selection = where if isinstance(where, tuple) else (where,)
    codec = codec_of(transaction, key)

    def change(encoded: memoryview | None) -> bytes | None:
        chunk = codec.decode(encoded)
        chunk[selection] = what(chunk[selection]) if isinstance(what, Callable) else what
        return codec.encode(chunk)

    transaction.modify(key, change, region_of(*selection))


def read_chunk(view: Any, key: str) -> list[Any]:
    """Return a chunk as it is in a transaction, which counts as reading it, or in a snapshot."""
    content = view.get_view(key)
    document = view if isinstance(view, Transaction) else None
    if document is not None:
        return codec_of(view, key).decode(content).tolist()
    described = next(found for path in ancestors(key) if (found := describe(view.get_view, path)))
    codec = ChunkCodec(described.key.rpartition("/")[2], described.content, below(described.key, key))
    return codec.decode(content).tolist()


def create(repo: txstore.Repository, **options: Any) -> None:
    """Create x, 8 elements in one chunk, 10 to 17."""
    import zarr

    options = {"shape": (8,), "chunks": (8,), "dtype": "i4", "fill_value": 0, **options}
    with repo.transaction() as store:
        z = zarr.create_array(store, name="x", **options)
        z[...] = np.arange(10, 10 + z.size, dtype="i8").reshape(z.shape).astype(z.dtype)
