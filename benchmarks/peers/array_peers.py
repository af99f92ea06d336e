"""TensorStore and HDF5, through their own arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.peers.peer import CACHED, NAME, Append, NotOffered, Peer
from benchmarks.peers.works import Work

_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CODECS: dict[str, list[Any]] = {
    "raw": [],
    "zstd": [{"name": "zstd", "configuration": {"level": 0, "checksum": False}}],
    "blosc": [
        {
            "name": "blosc",
            "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0},
        }
    ],
}


def metadata(work: Work) -> dict[str, Any]:
    """Return what zarr would have written for the same array."""
    codecs = [_BYTES, *_CODECS[work.codec]]
    if work.shard is not None:
        inner = {"chunk_shape": work.chunk, "codecs": codecs, "index_codecs": [_BYTES, {"name": "crc32c"}]}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    return {
        "shape": work.shape,
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": work.shard or work.chunk}},
        "codecs": codecs,
        "fill_value": 0.0,
    }


class TensorStoreFile(Peer):
    """A file for each chunk, synced."""

    name = "TensorStore file"
    packages = ("tensorstore",)
    durable, processes = True, "each chunk whole"

    def keys(self) -> dict[str, Any]:
        return {"driver": "file", "path": f"{self.path}/{NAME}/"}

    def open_array(self, **options: Any) -> Any:
        import tensorstore

        return tensorstore.open({"driver": "zarr3", "kvstore": self.keys()}, **options).result()

    def create_array(self, work: Work, **changed: Any) -> Any:
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": self.keys(), "metadata": metadata(work) | changed}
        return tensorstore.open(spec, create=True).result()

    def write(self, work: Work, data: np.ndarray) -> None:
        self.create_array(work).write(data).result()

    def open(self) -> Any:
        return self.open_array(open=True, read=True)

    def read(self, array: Any, selection: Any) -> np.ndarray:
        return np.asarray(array[selection].read().result())

    @contextmanager
    def appending(self, work: Work) -> Iterator[Append]:
        array = self.create_array(work, shape=(0, work.side))
        rows = 0

        def append(block: np.ndarray) -> None:
            nonlocal array, rows
            end = rows + len(block)
            array = array.resize(exclusive_max=(end, work.side), expand_only=True).result()
            array[rows:end].write(block).result()
            rows = end

        yield append

    def create(self, work: Work) -> None:
        self.create_array(work)

    def write_part(self, data: np.ndarray, part: slice) -> None:
        self.open_array(open=True)[part].write(data[part]).result()


class TensorStoreCache(TensorStoreFile):
    """With a cache of decoded chunks, which takes what it has as it is."""

    name = "TensorStore file, cache_pool"

    def open(self) -> Any:
        import tensorstore

        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHED}})
        return self.open_array(open=True, read=True, context=context, recheck_cached_data=False)


class TensorStoreOcdbt(TensorStoreFile):
    """A B+tree of values; each write is a commit."""

    name = "TensorStore ocdbt"
    processes = "yes"

    def keys(self) -> dict[str, Any]:
        return {"driver": "ocdbt", "base": f"file://{self.path}/", "path": f"{NAME}/"}


class TensorStoreTransaction(TensorStoreOcdbt):
    """All of it in one atomic transaction."""

    name = "TensorStore ocdbt, transaction"
    only_writes = True

    def write(self, work: Work, data: np.ndarray) -> None:
        import tensorstore

        array = self.create_array(work)
        with tensorstore.Transaction(atomic=True) as transaction:
            array.with_transaction(transaction).write(data).result()

    @contextmanager
    def appending(self, work: Work) -> Iterator[Append]:
        import tensorstore

        array = self.create_array(work, shape=(0, work.side))
        rows = 0

        def append(block: np.ndarray) -> None:
            nonlocal rows
            end = rows + len(block)
            with tensorstore.Transaction(atomic=True) as transaction:
                larger = array.with_transaction(transaction).resize(exclusive_max=(end, work.side), expand_only=True)
                larger.result()[rows:end].write(block).result()
            rows = end

        yield append

    def write_part(self, data: np.ndarray, part: slice) -> None:
        import tensorstore

        array = self.open_array(open=True)
        with tensorstore.Transaction(atomic=True) as transaction:
            array.with_transaction(transaction)[part].write(data[part]).result()


class Hdf5(Peer):
    """One file, the newest format. It has gzip where others have zstd, and no blosc without a plugin."""

    name = "HDF5"
    packages = ("h5py",)
    durable, processes = False, "no"

    def write(self, work: Work, data: np.ndarray) -> None:
        if work.shard is not None:
            raise NotOffered("HDF5 has no shards")
        if work.codec == "blosc":
            raise NotOffered("h5py has no blosc without a plugin")
        import h5py

        compression = None if work.codec == "raw" else "gzip"
        with h5py.File(self.path, "w", libver="latest") as file:
            file.create_dataset(NAME, work.shape, "f4", chunks=work.chunk, compression=compression)[...] = data

    @contextmanager
    def appending(self, work: Work) -> Iterator[Append]:
        import h5py

        with h5py.File(self.path, "w", libver="latest") as file:
            array = file.create_dataset(NAME, (0, work.side), "f4", chunks=work.chunk, maxshape=(None, work.side))

            def append(block: np.ndarray) -> None:
                rows = len(array)
                array.resize(rows + len(block), axis=0)
                array[rows:] = block
                file.flush()

            yield append

    def open(self) -> Any:
        import h5py

        return h5py.File(self.path, "r")[NAME]

    def close(self, array: Any) -> None:
        array.file.close()


ARRAY_PEERS: list[type[Peer]] = [TensorStoreFile, TensorStoreCache, TensorStoreOcdbt, TensorStoreTransaction, Hdf5]
