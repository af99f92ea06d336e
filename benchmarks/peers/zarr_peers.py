"""zarr's stores, Icechunk and TxStore: one interface, zarr's arrays, and several codec pipelines below it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import CACHED, NAME, Append, NotOffered, Peer
from benchmarks.peers.works import Work

#: What is configured, under the name that rows have.
PIPELINES = {
    "batched": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "fused": "zarr.core.codec_pipeline.FusedCodecPipeline",  # zarr 3.2 and later
    "zarrs": "zarrs.ZarrsCodecPipeline",
}


def create_array(store: Any, work: Work, *, rows: int | None = None) -> Any:
    import zarr

    compressors: Any = {"raw": None, "zstd": "auto", "blosc": _blosc()}[work.codec]
    shape = work.shape if rows is None else (rows, work.side)
    return zarr.create_array(
        store, name=NAME, shape=shape, chunks=work.chunk, shards=work.shard, dtype="f4", compressors=compressors
    )


def _blosc() -> Any:
    from zarr.codecs import BloscCodec

    return BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4)


class ZarrPeer(Peer):
    """A store of zarr's: what is written is there at once."""

    #: One of PIPELINES; None: zarr's configuration is left as it is.
    pipeline: ClassVar[str | None] = None

    @classmethod
    def missing(cls) -> list[str]:
        needed = ["zarrs"] if cls.pipeline == "zarrs" and find_spec("zarrs") is None else []
        return [*super().missing(), *needed]

    def __init__(self, path: Path) -> None:
        import zarr
        import zarr.core.codec_pipeline

        super().__init__(path)
        if self.pipeline is None:
            return
        module, _, name = PIPELINES[self.pipeline].rpartition(".")
        if module.startswith("zarr.") and not hasattr(zarr.core.codec_pipeline, name):
            raise NotOffered(f"zarr {zarr.__version__} has no {name}")
        zarr.config.set({"codec_pipeline.path": PIPELINES[self.pipeline]})

    def store(self, *, read_only: bool = False) -> Any:
        raise NotImplementedError

    def prepare(self) -> None:
        import zarr

        zarr.create_group(self.store())

    def write(self, work: Work, data: np.ndarray) -> None:
        self.fill(self.store(), work, data)

    def fill(self, store: Any, work: Work, data: np.ndarray) -> None:
        # Not `create_array(data=data)`, which writes chunk by chunk: this is one batch for the pipeline.
        array = create_array(store, work)
        self.check(array)
        array[:] = data

    def open(self) -> Any:
        return self.open_in(self.store(read_only=True))

    def open_in(self, store: Any, *, mode: Any = "r") -> Any:
        import zarr

        array = zarr.open_array(store, path=NAME, mode=mode)
        self.check(array)
        return array

    @contextmanager
    def appending(self, work: Work) -> Iterator[Append]:
        array = create_array(self.store(), work, rows=0)
        self.check(array)
        yield array.append

    def create(self, work: Work) -> None:
        create_array(self.store(), work)

    def write_part(self, data: np.ndarray, part: slice) -> None:
        self.open_in(self.store(), mode="r+")[part] = data[part]

    def check(self, array: Any) -> None:
        """zarr falls back to its batched pipeline without a word where a pipeline refuses a store."""
        if self.pipeline is None:
            return
        found, wanted = pipeline_of(array), PIPELINES[self.pipeline].rpartition(".")[2]
        if found != wanted:
            raise NotOffered(f"{wanted} refuses this store: zarr has taken {found}")


def pipeline_of(array: Any) -> str:
    return type(array._async_array.codec_pipeline).__name__


class Local(ZarrPeer):
    durable, processes = False, "whole chunks each"

    def store(self, *, read_only: bool = False) -> Any:
        from zarr.storage import LocalStore

        return LocalStore(self.path, read_only=read_only)


class Memory(ZarrPeer):
    durable, processes, volatile = False, "no", True

    def __init__(self, path: Path) -> None:
        from zarr.storage import MemoryStore

        super().__init__(path)
        self._store = MemoryStore()

    def store(self, *, read_only: bool = False) -> Any:
        return self._store.with_read_only(read_only)

    def create(self, work: Work) -> None:
        raise NotOffered("no other process sees its memory")


class Zip(ZarrPeer):
    durable, processes = False, "no"

    def store(self, *, read_only: bool = False) -> Any:
        from zarr.storage import ZipStore

        return ZipStore(self.path, mode="r" if read_only else "a")

    def prepare(self) -> None:
        pass  # a zip file has to be new

    def write(self, work: Work, data: np.ndarray) -> None:
        store = self.store()
        self.fill(store, work, data)
        store.close()  # writes what lies where

    def close(self, array: Any) -> None:
        array.store.close()

    def appending(self, work: Work) -> Any:
        raise NotOffered("what is in a zip file can't be replaced")

    def create(self, work: Work) -> None:
        raise NotOffered("one process at a time")


class Object(ZarrPeer):
    packages = ("obstore",)
    durable, processes = False, "whole chunks each"

    def store(self, *, read_only: bool = False) -> Any:
        from obstore.store import LocalStore
        from zarr.storage import ObjectStore

        return ObjectStore(LocalStore(self.path, mkdir=True), read_only=read_only)


class Fsspec(ZarrPeer):
    packages = ("fsspec",)
    durable, processes = False, "whole chunks each"

    def store(self, *, read_only: bool = False) -> Any:
        from zarr.storage import FsspecStore

        return FsspecStore.from_url(f"file://{self.path}", storage_options={"auto_mkdir": True}, read_only=read_only)


class Icechunk(ZarrPeer):
    """A session for each write; what was committed is read through a session of its own."""

    packages = ("icechunk",)
    durable, processes = False, "no, on a disk"  # its own warning about local storage

    def storage(self) -> Any:
        import icechunk

        icechunk.set_logs_filter("error")
        return icechunk.local_filesystem_storage(str(self.path))

    def prepare(self) -> None:
        import icechunk
        import zarr

        session = icechunk.Repository.create(self.storage()).writable_session("main")
        zarr.create_group(session.store)
        session.commit("create")

    def write(self, work: Work, data: np.ndarray) -> None:
        import icechunk

        session = icechunk.Repository.open(self.storage()).writable_session("main")
        self.fill(session.store, work, data)
        session.commit("all")

    @contextmanager
    def appending(self, work: Work) -> Iterator[Append]:
        import icechunk

        repository = icechunk.Repository.open(self.storage())
        session = repository.writable_session("main")
        create_array(session.store, work, rows=0)
        session.commit("create")

        def append(block: np.ndarray) -> None:
            session = repository.writable_session("main")
            self.open_in(session.store, mode="r+").append(block)
            session.commit("append")

        yield append

    def create(self, work: Work) -> None:
        import icechunk

        session = icechunk.Repository.open(self.storage()).writable_session("main")
        create_array(session.store, work)
        session.commit("create")

    def write_part(self, data: np.ndarray, part: slice) -> None:
        import icechunk

        session = icechunk.Repository.open(self.storage()).writable_session("main")
        self.open_in(session.store, mode="r+")[part] = data[part]
        session.commit("part", rebase_with=icechunk.ConflictDetector())

    def open(self) -> Any:
        import icechunk

        return self.open_in(icechunk.Repository.open(self.storage()).readonly_session("main").store)


class TxStore(ZarrPeer):
    """As `zarr.open` has it by itself, whatever the pipeline is called."""

    name = "TxStore"
    durable, processes = True, "yes"

    def prepare(self) -> None:
        import zarr

        with self.repository().transaction() as store:
            zarr.create_group(store)

    def repository(self) -> Any:
        import txstore

        return txstore.Repository(self.path)

    def write(self, work: Work, data: np.ndarray) -> None:
        with self.repository().transaction("all") as store:
            self.fill(store, work, data)

    def open(self) -> Any:
        return self.open_in(self.repository().snapshot())

    @contextmanager
    def appending(self, work: Work) -> Iterator[Append]:
        import txstore

        session = txstore.TxStore(self.path)
        array = create_array(session, work, rows=0)
        session.commit("create")

        def append(block: np.ndarray) -> None:
            array.append(block)
            session.commit("append")

        yield append

    def create(self, work: Work) -> None:
        with self.repository().transaction("create") as store:
            create_array(store, work)

    def write_part(self, data: np.ndarray, part: slice) -> None:
        with self.repository().transaction("part") as store:
            self.open_in(store, mode="r+")[part] = data[part]


class CachingTxStore(TxStore):
    """With a cache of decoded chunks."""

    name = "TxStore, chunk cache"

    def repository(self) -> Any:
        import txstore

        return txstore.Repository(self.path, chunk_cache=CACHED)


class ScratchTxStore(TxStore):
    """Without a sync, as the stores that do not sync."""

    name = "TxStore, durability none"
    durable = False

    def repository(self) -> Any:
        import txstore

        return txstore.Repository(self.path, durability="none")


class PlainTxStore(TxStore):
    """With a pipeline of zarr's own."""

    def __init__(self, path: Path) -> None:
        os.environ["TXSTORE_PIPELINE"] = "off"
        super().__init__(path)


def _variants(kind: type[ZarrPeer], name: str, pipelines: tuple[str, ...]) -> list[type[Peer]]:
    return [
        type(f"{kind.__name__}_{pipeline}", (kind,), {"name": f"{name}, {pipeline}", "pipeline": pipeline})
        for pipeline in pipelines
    ]


ZARR_PEERS: list[type[Peer]] = [
    TxStore,
    CachingTxStore,
    ScratchTxStore,
    *_variants(PlainTxStore, "TxStore", ("batched", "fused")),
    *_variants(Local, "LocalStore", ("batched", "fused", "zarrs")),
    *_variants(Memory, "MemoryStore", ("batched", "fused")),
    *_variants(Zip, "ZipStore", ("batched", "fused")),
    *_variants(Object, "ObjectStore", ("batched", "fused", "zarrs")),
    *_variants(Fsspec, "FsspecStore", ("batched", "fused")),
    *_variants(Icechunk, "Icechunk", ("batched", "fused")),
]
