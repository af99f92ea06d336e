"""The stores that are measured, each through the array interface that is its own: on the disk, or in a bucket.

To add a store, write a class with these methods, and put it into `PEERS` or `REMOTE`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import zarr
import zarr.codecs
import zarr.core.codec_pipeline
import zarr.storage

from benchmarks.own_process import NotOffered
from benchmarks.simulated.s3_stub import BUCKET

NAME = "x"  # of the array
REGION = "us-east-1"
#: Bytes of decoded chunks that a caching store keeps: more than any array has of which parts are read.
CACHED = 256 << 20
#: zarr has ten requests under way at a time unless it is told otherwise; a bucket at some distance wants this many.
_MANY = 128
#: What is configured, under the name that rows have.
PIPELINES = {
    "batched": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "fused": "zarr.core.codec_pipeline.FusedCodecPipeline",  # zarr 3.2 and later
    "zarrs": "zarrs.ZarrsCodecPipeline",
}

#: Appends a block along the first axis, and makes others see it.
Append = Callable[[np.ndarray], object]


class Layout(NamedTuple):
    """An array of two dimensions, or of one."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dtype: str = "f4"
    codec: str = "raw"  # or "zstd", "blosc"
    shard: tuple[int, ...] | None = None


class Bucket(NamedTuple):
    """A place in a bucket, on a server of this machine."""

    port: int
    name: str  # the prefix of all keys

    def with_name(self, name: str) -> Bucket:
        return self._replace(name=name)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.name}"

    @property
    def options(self) -> dict[str, Any]:
        client = {"region_name": REGION}
        return {"key": "key", "secret": "secret", "endpoint_url": self.endpoint, "client_kwargs": client}


class Store:
    """One store at a place that nobody else uses."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()  # without which it is skipped
    #: Whether what it has acknowledged survives a loss of power.
    durable: ClassVar[bool]
    #: What several processes that write one array at the same time may do.
    processes: ClassVar[str]
    #: It ends with its process.
    volatile: ClassVar[bool] = False
    #: It shares another store's files, and adds nothing to reading them.
    only_writes: ClassVar[bool] = False

    def __init__(self, place: Path | Bucket) -> None:
        self.place: Any = place

    @classmethod
    def missing(cls) -> list[str]:
        return [package for package in cls.packages if find_spec(package) is None]

    def prepare(self) -> None:
        """Make what an array is put into. Not timed."""

    def create(self, layout: Layout) -> object:
        """Create the array, for several processes to write into."""
        raise NotOffered("one process at a time")

    def write(self, layout: Layout, data: np.ndarray) -> None:
        """Create the array, write all of it, and make others see it."""
        raise NotImplementedError

    def write_part(self, part: slice, values: np.ndarray) -> None:
        """Replace some of the rows, beside other processes that write others, and make them seen."""
        raise NotOffered("one process at a time")

    def appending(self, layout: Layout) -> AbstractContextManager[Append]:
        """Create the array, with no rows yet, to append to; nobody else does."""
        raise NotOffered("it can't append")

    def open(self) -> Any:
        """Open the array as it is now, to read it, with all that it takes."""
        raise NotImplementedError

    def read(self, array: Any, selection: Any) -> np.ndarray:
        return np.asarray(array[selection])

    def close(self, array: Any) -> None:
        """Let go of what `open` has returned."""

    def read_once(self, selection: Any) -> np.ndarray:
        array = self.open()
        found = self.read(array, selection)
        self.close(array)
        return found


# --- zarr's stores, Icechunk and TxStore: zarr's arrays, and several codec pipelines below them


def create_array(store: Any, layout: Layout, *, rows: int | None = None) -> Any:
    blosc = zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4)
    compressors: Any = {"raw": None, "zstd": "auto", "blosc": blosc}[layout.codec]
    shape = layout.shape if rows is None else (rows, *layout.shape[1:])
    return zarr.create_array(
        store, name=NAME, shape=shape, chunks=layout.chunk, shards=layout.shard, dtype=layout.dtype,
        compressors=compressors,
    )  # fmt: skip


class ZarrStore(Store):
    """A store of zarr's: what is written is there at once."""

    #: One of PIPELINES; None: zarr's configuration is left as it is.
    pipeline: ClassVar[str | None] = None
    #: How many requests zarr has under way; None: as it is configured.
    concurrency: ClassVar[int | None] = None

    def __init__(self, place: Path | Bucket) -> None:
        super().__init__(place)
        if self.concurrency is not None:
            zarr.config.set({"async.concurrency": self.concurrency})
        if self.pipeline is None:
            return
        module, _, name = PIPELINES[self.pipeline].rpartition(".")
        if module.startswith("zarr.") and not hasattr(zarr.core.codec_pipeline, name):
            raise NotOffered(f"zarr {zarr.__version__} has no {name}")
        zarr.config.set({"codec_pipeline.path": PIPELINES[self.pipeline]})

    def store(self, *, read_only: bool = False) -> Any:
        raise NotImplementedError

    def lay(self) -> None:
        """Make what is there before anything can be written."""

    def begin(self) -> tuple[Any, Callable[[], object]]:
        """Return a store of zarr's to write to, and what makes others see it."""
        return self.store(), lambda: None

    def newest(self) -> Any:
        """Return a store of zarr's to read from, opened anew."""
        return self.store(read_only=True)

    def prepare(self) -> None:
        self.lay()
        store, commit = self.begin()
        zarr.create_group(store)
        commit()

    def create(self, layout: Layout) -> None:
        store, commit = self.begin()
        create_array(store, layout)
        commit()

    def write(self, layout: Layout, data: np.ndarray) -> None:
        # Not `create_array(data=data)`, which writes chunk by chunk: this is one batch for the pipeline.
        store, commit = self.begin()
        array = create_array(store, layout)
        self.check(array)
        array[:] = data
        commit()

    def write_part(self, part: slice, values: np.ndarray) -> None:
        store, commit = self.begin()
        self.open_in(store, mode="r+")[part] = values
        commit()

    @contextmanager
    def appending(self, layout: Layout) -> Iterator[Append]:
        array = create_array(self.store(), layout, rows=0)
        self.check(array)
        yield array.append

    def open(self) -> Any:
        return self.open_in(self.newest())

    def open_in(self, store: Any, *, mode: Any = "r") -> Any:
        array = zarr.open_array(store, path=NAME, mode=mode)
        self.check(array)
        return array

    def check(self, array: Any) -> None:
        """zarr falls back to its batched pipeline without a word where a pipeline refuses a store."""
        if self.pipeline is None:
            return
        found, wanted = type(array._async_array.codec_pipeline).__name__, PIPELINES[self.pipeline].rpartition(".")[2]
        if found != wanted:
            raise NotOffered(f"{wanted} refuses this store: zarr has taken {found}")


class Local(ZarrStore):
    name = "LocalStore"
    durable, processes = False, "whole chunks each"

    def store(self, *, read_only: bool = False) -> Any:
        return zarr.storage.LocalStore(self.place, read_only=read_only)


class Memory(ZarrStore):
    durable, processes, volatile = False, "no", True

    def __init__(self, place: Path | Bucket) -> None:
        super().__init__(place)
        self._store = zarr.storage.MemoryStore()

    def store(self, *, read_only: bool = False) -> Any:
        return self._store.with_read_only(read_only)


class Zip(ZarrStore):
    durable, processes = False, "no"

    def store(self, *, read_only: bool = False) -> Any:
        return zarr.storage.ZipStore(self.place, mode="r" if read_only else "a")

    def prepare(self) -> None:
        pass  # a zip file has to be new

    def begin(self) -> tuple[Any, Callable[[], object]]:
        store = self.store()
        return store, store.close  # which writes what lies where

    def close(self, array: Any) -> None:
        array.store.close()

    def appending(self, layout: Layout) -> Any:
        raise NotOffered("what is in a zip file can't be replaced")


class Object(ZarrStore):
    packages = ("obstore",)
    durable, processes = False, "whole chunks each"

    def store(self, *, read_only: bool = False) -> Any:
        obstore = import_module("obstore.store")
        if not isinstance(self.place, Bucket):
            return zarr.storage.ObjectStore(obstore.LocalStore(self.place, mkdir=True), read_only=read_only)
        bucket = obstore.S3Store(
            BUCKET, prefix=self.place.name, endpoint=self.place.endpoint, access_key_id="key",
            secret_access_key="secret", region=REGION, virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )  # fmt: skip
        return zarr.storage.ObjectStore(bucket, read_only=read_only)


class Fsspec(ZarrStore):
    packages = ("fsspec", "s3fs")
    durable, processes = False, "whole chunks each"

    def store(self, *, read_only: bool = False) -> Any:
        is_remote = isinstance(self.place, Bucket)
        url = self.place.url if is_remote else f"file://{self.place}"
        options = self.place.options if is_remote else {"auto_mkdir": True}
        return zarr.storage.FsspecStore.from_url(url, storage_options=options, read_only=read_only)


class Icechunk(ZarrStore):
    """A session for each write, rebased on what others have committed meanwhile."""

    name = "Icechunk"
    packages = ("icechunk",)
    durable, processes = False, "no, on a disk"  # its own warning about local storage

    def storage(self) -> Any:
        import_module("icechunk").set_logs_filter("error")
        if not isinstance(self.place, Bucket):
            return import_module("icechunk").local_filesystem_storage(str(self.place))
        return import_module("icechunk").s3_storage(
            bucket=BUCKET, prefix=self.place.name, region=REGION, endpoint_url=self.place.endpoint, allow_http=True,
            access_key_id="key", secret_access_key="secret", force_path_style=True,
        )  # fmt: skip

    def repository(self) -> Any:
        return import_module("icechunk").Repository.open(self.storage())

    @cached_property
    def kept(self) -> Any:
        """What this process writes to."""
        return self.repository()

    def lay(self) -> None:
        import_module("icechunk").Repository.create(self.storage())

    def begin(self) -> tuple[Any, Callable[[], object]]:
        session = self.kept.writable_session("main")
        return session.store, lambda: session.commit("change", rebase_with=import_module("icechunk").ConflictDetector())

    def newest(self) -> Any:
        return self.repository().readonly_session("main").store

    @contextmanager
    def appending(self, layout: Layout) -> Iterator[Append]:
        store, commit = self.begin()
        create_array(store, layout, rows=0)
        commit()

        def append(block: np.ndarray) -> None:
            store, commit = self.begin()
            self.open_in(store, mode="r+").append(block)
            commit()

        yield append


class TxStore(ZarrStore):
    """As `zarr.open` has it by itself, whatever the pipeline is called."""

    name = "TxStore"
    durable, processes = True, "yes"
    #: Of the repository.
    options: ClassVar[dict[str, Any]] = {}

    def repository(self) -> Any:
        import txstore

        if isinstance(self.place, Bucket):
            return txstore.Repository(self.place.url, storage_options=self.place.options, **self.options)
        return txstore.Repository(self.place, **self.options)

    @cached_property
    def kept(self) -> Any:
        """What this process writes to."""
        return self.repository()

    def begin(self) -> tuple[Any, Callable[[], object]]:
        store = self.kept.transaction("change")
        return store, store.commit

    def newest(self) -> Any:
        return self.repository().snapshot()

    def write_part(self, part: slice, values: np.ndarray) -> None:
        self.kept.run(lambda store: self.open_in(store, mode="r+").__setitem__(part, values))

    @contextmanager
    def appending(self, layout: Layout) -> Iterator[Append]:
        import txstore

        session = txstore.TxStore(self.kept)
        array = create_array(session, layout, rows=0)
        session.commit("create")

        def append(block: np.ndarray) -> None:
            array.append(block)
            session.commit("append")

        yield append


class PlainTxStore(TxStore):
    """With a pipeline of zarr's own."""

    def __init__(self, place: Path | Bucket) -> None:
        os.environ["TXSTORE_PIPELINE"] = "off"
        super().__init__(place)


# --- TensorStore and HDF5, through their own arrays


def metadata(layout: Layout) -> dict[str, Any]:
    """Return what zarr writes for the same array."""
    written = create_array(zarr.storage.MemoryStore(), layout).metadata.to_dict()
    return {name: written[name] for name in ("shape", "data_type", "chunk_grid", "codecs", "fill_value")}


class TensorStoreFile(Store):
    """A file for each chunk, synced."""

    name = "TensorStore file"
    packages = ("tensorstore",)
    durable, processes = True, "each chunk whole"

    def base(self) -> Any:
        """Return where all of it lies."""
        if not isinstance(self.place, Bucket):
            return {"driver": "file", "path": f"{self.place}/"}
        return {
            "driver": "s3", "bucket": BUCKET, "endpoint": self.place.endpoint, "path": f"{self.place.name}/",
            "aws_region": REGION, "aws_credentials": {"type": "anonymous"},
        }  # fmt: skip

    def keys(self) -> dict[str, Any]:
        base = self.base()
        return base | {"path": f"{base['path']}{NAME}/"}

    def open_array(self, **options: Any) -> Any:
        return import_module("tensorstore").open({"driver": "zarr3", "kvstore": self.keys()}, **options).result()

    def create(self, layout: Layout, **changed: Any) -> Any:
        spec = {"driver": "zarr3", "kvstore": self.keys(), "metadata": metadata(layout) | changed}
        return import_module("tensorstore").open(spec, create=True).result()

    def write(self, layout: Layout, data: np.ndarray) -> None:
        self.create(layout).write(data).result()

    def write_part(self, part: slice, values: np.ndarray) -> None:
        self.open_array(open=True)[part].write(values).result()

    def open(self) -> Any:
        return self.open_array(open=True, read=True)

    def read(self, array: Any, selection: Any) -> np.ndarray:
        return np.asarray(array[selection].read().result())

    @contextmanager
    def appending(self, layout: Layout) -> Iterator[Append]:
        array = self.create(layout, shape=(0, *layout.shape[1:]))
        rows = 0

        def append(block: np.ndarray) -> None:
            nonlocal array, rows
            array, rows = self.append_at(array, rows, block), rows + len(block)

        yield append

    def append_at(self, array: Any, rows: int, block: np.ndarray) -> Any:
        """Add rows to an array that has so many; return the array to add to next."""
        larger = array.resize(exclusive_max=(rows + len(block), *block.shape[1:]), expand_only=True).result()
        larger[rows:].write(block).result()
        return larger


class TensorStoreCache(TensorStoreFile):
    """With a cache of decoded chunks, which takes what it has as it is."""

    name = "TensorStore file, cache_pool"

    def open(self) -> Any:
        context = import_module("tensorstore").Context({"cache_pool": {"total_bytes_limit": CACHED}})
        return self.open_array(open=True, read=True, context=context, recheck_cached_data=False)


class TensorStoreOcdbt(TensorStoreFile):
    """A B+tree of values; each write is a commit."""

    name = "TensorStore ocdbt"
    processes = "yes"

    def keys(self) -> dict[str, Any]:
        return {"driver": "ocdbt", "base": self.base(), "path": f"{NAME}/"}


class TensorStoreTransaction(TensorStoreOcdbt):
    """All that is written at once is in one atomic transaction."""

    name = "TensorStore ocdbt, transaction"
    only_writes = True

    def write(self, layout: Layout, data: np.ndarray) -> None:
        array = self.create(layout)
        with import_module("tensorstore").Transaction(atomic=True) as transaction:
            array.with_transaction(transaction).write(data).result()

    def append_at(self, array: Any, rows: int, block: np.ndarray) -> Any:
        with import_module("tensorstore").Transaction(atomic=True) as transaction:
            super().append_at(array.with_transaction(transaction), rows, block)
        return array


class Hdf5(Store):
    """One file, locked while a process has it open. It has gzip where others have zstd."""

    name = "HDF5"
    packages = ("h5py",)
    durable, processes = False, "no"

    def _made(self, layout: Layout, **options: Any) -> Any:
        """Return an array in a new file, which is open."""
        if layout.shard is not None:
            raise NotOffered("HDF5 has no shards")
        if layout.codec == "blosc":
            raise NotOffered("h5py has no blosc without a plugin")
        options |= {"chunks": layout.chunk, "compression": None if layout.codec == "raw" else "gzip"}
        return (
            import_module("h5py")
            .File(self.place, "w", libver="latest")
            .create_dataset(NAME, dtype=layout.dtype, **options)
        )

    def write(self, layout: Layout, data: np.ndarray) -> None:
        array = self._made(layout, shape=layout.shape)
        array[...] = data
        self.close(array)

    @contextmanager
    def appending(self, layout: Layout) -> Iterator[Append]:
        rest = layout.shape[1:]
        array = self._made(layout, shape=(0, *rest), maxshape=(None, *rest))

        def append(block: np.ndarray) -> None:
            rows = len(array)
            array.resize(rows + len(block), axis=0)
            array[rows:] = block
            array.file.flush()

        yield append
        self.close(array)

    def open(self) -> Any:
        return import_module("h5py").File(self.place, "r")[NAME]

    def close(self, array: Any) -> None:
        array.file.close()


# --- who takes part


def variant(kind: type[Store], name: str, **attributes: Any) -> type[Store]:
    return type(kind.__name__, (kind,), {"name": name, **attributes})


def _variants(kind: type[ZarrStore], name: str, *pipelines: str) -> list[type[Store]]:
    needed = {"zarrs": (*kind.packages, "zarrs")}
    return [
        variant(kind, f"{name}, {each}", pipeline=each, packages=needed.get(each, kind.packages)) for each in pipelines
    ]


def _remote(kind: type[ZarrStore], name: str, pipeline: str, at_once: int | None = None) -> type[Store]:
    called = f"{name}, {pipeline}" + (f", {at_once} at once" if at_once else "")
    says = "yes" if kind is Icechunk else kind.processes
    return variant(kind, called, pipeline=pipeline, concurrency=at_once, durable=True, processes=says)


def _named(*kinds: type[Store]) -> dict[str, type[Store]]:
    return {kind.name: kind for kind in kinds}


PEERS = _named(
    TxStore,
    variant(TxStore, "TxStore, chunk cache", options={"chunk_cache": CACHED}),
    variant(TxStore, "TxStore, durability none", options={"durability": "none"}, durable=False),
    *_variants(PlainTxStore, "TxStore", "batched", "fused"),
    *_variants(Local, "LocalStore", "batched", "fused", "zarrs"),
    *_variants(Memory, "MemoryStore", "batched", "fused"),
    *_variants(Zip, "ZipStore", "batched", "fused"),
    *_variants(Object, "ObjectStore", "batched", "fused", "zarrs"),
    *_variants(Fsspec, "FsspecStore", "batched", "fused"),
    *_variants(Icechunk, "Icechunk", "batched", "fused"),
    TensorStoreFile,
    TensorStoreCache,
    TensorStoreOcdbt,
    TensorStoreTransaction,
    Hdf5,
)
REMOTE = _named(
    TxStore,
    _remote(PlainTxStore, "TxStore", "fused"),
    _remote(Object, "ObjectStore", "fused"),
    _remote(Object, "ObjectStore", "fused", _MANY),
    _remote(Object, "ObjectStore", "batched", _MANY),
    _remote(Fsspec, "FsspecStore", "fused"),
    _remote(Icechunk, "Icechunk", "fused"),
    _remote(Icechunk, "Icechunk", "fused", _MANY),
    variant(TensorStoreFile, "TensorStore"),
    TensorStoreOcdbt,
)
