"""Samples: several arrays of one commit whose first dimension counts the same things."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import zarr
from zarr.api.asynchronous import open_array
from zarr.errors import BaseZarrError

from txstore.commit import MAIN, Commit
from txstore.errors import SchemaError
from txstore.history.find import At
from txstore.pipeline import made_own
from txstore.repository import Repository
from txstore.sessions.calling_thread import result_of
from txstore.store import TxStore

#: Most bytes that are read together, and most chunks; and most blocks: their order then fits in a gigabyte.
_MOST_BYTES, _MOST_CHUNKS, _MOST_BLOCKS = 64 << 30, 1 << 20, 1 << 27

#: One sample, or a batch of samples: values by array name.
Sample = dict[str, Any]


class Field(NamedTuple):
    """One array's part of a sample: its dtype, and its shape without the first dimension."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Samples:
    """Arrays of one commit with equal first dimensions: sample i is row i of each.

    The constructor finds the commit once. A process that gets a pickle of this object, or inherits it by a fork, reads
    the same commit. For any other process, pass the id: `Samples(url, arrays, at=samples.commit.id)`.

    Parameters
    ----------
    source : str, PathLike or Repository
        Where the repository is.
    arrays : str, list of str, or dict
        Paths of arrays, or `{name: path}`. The samples use the names.
    at, branch, tag
        The commit, as in `Repository.snapshot`; by default the newest.
    expect : dict, optional
        The required types: `{name: (dtype, shape of one sample)}`, such as the `schema` of other samples.
    storage_options : dict, optional
        Options of the URL's fsspec file system.

    Raises
    ------
    SchemaError
        An array is missing, differs from `expect`, or the lengths differ: the message lists all faults.
    RepositoryNotFoundError, CommitNotFoundError, SnapshotExpiredError
        The commit does not exist.
    CodecRefusedError
        An array has a codec that TxStore does not run on its own.

    Examples
    --------
    >>> import numpy as np, tempfile, txstore, zarr
    >>> from txstore.loaders import Samples, SampleStream
    >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
    >>> with repo.transaction("training data") as store:
    ...     x = zarr.create_array(store, name="x", data=np.zeros((10, 3), "f4"), chunks=(2, 3))
    ...     y = zarr.create_array(store, name="y", data=np.arange(10), chunks=(2,))
    >>> samples = Samples(repo, ["x", "y"])
    >>> len(samples), samples.schema["x"].shape
    (10, (3,))
    >>> sorted(int(sample["y"]) for sample in SampleStream(samples, seed=1))
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Repository,
        arrays: str | Sequence[str] | Mapping[str, str],
        *,
        at: At | None = None,
        branch: str = MAIN,
        tag: str | None = None,
        expect: Mapping[str, tuple[Any, Sequence[int]]] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(source, Repository):
            if storage_options:
                raise ValueError("storage_options belong to the Repository: give them to it, not to the samples")
            repository = source
        else:
            repository = Repository(source, storage_options=storage_options)
        paths = _named(arrays)
        store = repository.snapshot(at, branch=branch, tag=tag)
        if store.base is None:
            raise SchemaError(repository.url, ["nothing was committed yet"])
        self.url = repository.url
        self.commit: Commit = store.base
        found = dict(zip(paths, result_of(_open(store, list(paths.values()))), strict=True))
        self.arrays: dict[str, zarr.Array[Any]] = {name: array for name, array in found.items() if array is not None}
        for array in self.arrays.values():
            made_own(array)
        faults = [f"there is no array at {paths[name]!r}" for name, array in found.items() if array is None]
        gone = paths.keys() - self.arrays.keys()
        faults += _faults(self.arrays, {name: each for name, each in (expect or {}).items() if name not in gone})
        if faults:
            raise SchemaError(f"{self.url}, commit {self.commit}", faults)

    def __len__(self) -> int:
        return int(next(iter(self.arrays.values())).shape[0])

    def __repr__(self) -> str:
        return f"<Samples {len(self)} of {', '.join(self.arrays)} in {self.url} {self.commit}>"

    @property
    def schema(self) -> dict[str, Field]:
        """The fields of a sample, by name."""
        return _schema(self.arrays)

    @property
    def sample_bytes(self) -> int:
        """The number of bytes of a decoded sample."""
        return max(1, sum(field.dtype.itemsize * math.prod(field.shape) for field in self.schema.values()))

    def block_length(self, most: int) -> int:
        """Return the number of successive samples to read together, so that each chunk is read once.

        That is the length of the chunks, or of the shards if a shard has at most `most` bytes. If arrays differ, it is
        the least common multiple. If a block would have more than `most` bytes, it is the chunk length of the array
        with the largest samples: longer chunks of the other arrays are then read several times.

        Raises `SchemaError` if a block is too large to read, or there are too many blocks to order. The number and size
        of the samples come from the arrays' metadata documents, which may be wrong.
        """
        rows = max(1, most // self.sample_bytes)
        chunks = [int(array.chunks[0]) for array in self.arrays.values()]
        shards = [int((array.shards or array.chunks)[0]) for array in self.arrays.values()]
        sizes = [math.prod(field.shape) * field.dtype.itemsize for field in self.schema.values()]
        length = next(
            (length for length in (math.lcm(*shards), math.lcm(*chunks)) if length <= rows),
            chunks[sizes.index(max(sizes))],
        )
        length = max(1, min(length, len(self)))
        if length * self.sample_bytes > _MOST_BYTES:
            reason = f"{length} samples must be read at once, which is {length * self.sample_bytes} bytes"
            raise SchemaError(self.url, [f"{reason}; the limit is {_MOST_BYTES} bytes: use smaller chunks"])
        for name, array in self.arrays.items():
            sides = zip((length, *array.shape[1:]), array.chunks, strict=True)
            count = math.prod(-(-extent // side) for extent, side in sides)
            if count > _MOST_CHUNKS:
                reason = f"{length} samples of {name!r}, which must be read at once, lie in {count} chunks"
                raise SchemaError(self.url, [f"{reason}; the limit is {_MOST_CHUNKS}: use larger chunks"])
        if len(self) > length * _MOST_BLOCKS:
            reason = f"{len(self)} samples, read {length} at a time, are more than {_MOST_BLOCKS} blocks"
            raise SchemaError(self.url, [f"{reason}: use longer chunks"])
        return length


def _named(arrays: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(arrays, str):
        arrays = [arrays]
    paths = dict(arrays) if isinstance(arrays, Mapping) else {path: path for path in arrays}
    if not paths:
        raise ValueError("samples need at least one array: give its path")
    return paths


async def _open(store: TxStore, paths: Sequence[str]) -> list[zarr.Array[Any] | None]:
    """Return the arrays, None for a missing one. All of them take one call to zarr's event loop."""
    opened = await asyncio.gather(
        *(open_array(store=store, path=path, mode="r") for path in paths), return_exceptions=True
    )
    arrays: list[zarr.Array[Any] | None] = []
    for one in opened:
        if isinstance(one, BaseException) and not isinstance(one, BaseZarrError | FileNotFoundError):
            raise one
        arrays.append(None if isinstance(one, BaseException) else zarr.Array(one))
    return arrays


def _schema(arrays: Mapping[str, zarr.Array[Any]]) -> dict[str, Field]:
    return {name: Field(np.dtype(array.dtype), tuple(array.shape[1:])) for name, array in arrays.items()}


def _faults(
    arrays: Mapping[str, zarr.Array[Any]], expected: Mapping[str, tuple[Any, Sequence[int]]] | None
) -> list[str]:
    """Return the faults of the existing arrays."""
    scalars = [name for name, array in arrays.items() if not array.ndim]
    if scalars:
        return [f"{name!r} has no dimension that could count samples" for name in scalars]
    faults = []
    lengths = {name: array.shape[0] for name, array in arrays.items()}
    faults += [f"{name!r} has more samples than can be counted" for name in lengths if lengths[name] > sys.maxsize]
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        faults.append(f"the first dimensions differ: {shown}")
    schema = _schema(arrays)
    for name, (dtype, shape) in (expected or {}).items():
        wanted = Field(np.dtype(dtype), tuple(shape))
        if name in schema and schema[name] != wanted:
            faults.append(
                f"a sample of {name!r} is {schema[name].dtype} {schema[name].shape}, "
                f"expected was {wanted.dtype} {wanted.shape}"
            )
        elif name not in schema:
            faults.append(f"{name!r} is expected, and not among the arrays that were asked for")
    return faults
