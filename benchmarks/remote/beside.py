"""A repository on an object store: what it costs in time, in objects and in requests, beside two other stores.

The server is moto's S3 on loopback, in a process of its own, and the same for all. It answers slower than one that was
written for speed, and sooner than one that is far away: what is compared is how much each store asks of it. The peers
are zarr's `FsspecStore`, over s3fs, which has no transactions, and Icechunk. All write the same 512 chunks of 16 KiB
without a codec, by one operation of zarr, then commit; and read them back as one array, from a store opened anew.

Requests are counted by a proxy between TxStore and the server. Memory is that of a process that does nothing else.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import zarr

import txstore
from benchmarks.harness import OURS, Row, Setting, finish_requests, interleaved, medians, ratio, timed
from benchmarks.peers.memory import read_status
from tests.system.remote import servers
from tests.system.remote.proxy import Proxy
from tests.system.remote.servers import BUCKET, Server

CHUNKS, CHUNK = 512, 16 << 10
MANY = 100_000
LARGE, LARGE_CHUNK = 2 << 30, 16 << 20
FSSPEC, ICECHUNK = "FsspecStore", "Icechunk"
RAW: dict[str, Any] = {"dtype": "u1", "compressors": None, "filters": None}


class Store(Protocol):
    """One store at a place that nobody else uses."""

    def __init__(self, server: Server, prefix: str) -> None: ...
    def write(self, values: np.ndarray) -> None: ...
    def read(self) -> np.ndarray: ...


def fill(store: Any, values: np.ndarray) -> None:
    array = zarr.create_array(store, name="x", shape=values.shape, chunks=(CHUNK,), **RAW)
    array[:] = values


def read(store: Any) -> np.ndarray:
    return np.asarray(zarr.open_array(store, path="x", mode="r")[:])


class TxStoreStore:
    def __init__(self, server: Server, prefix: str) -> None:
        self._url, self._options = f"s3://{BUCKET}/{prefix}", server.storage_options
        self._repo = txstore.Repository(self._url, storage_options=self._options)
        with self._repo.transaction() as store:
            zarr.create_group(store)

    def write(self, values: np.ndarray) -> None:
        with self._repo.transaction() as store:
            fill(store, values)

    def read(self) -> np.ndarray:
        return read(txstore.Repository(self._url, storage_options=self._options).snapshot())


class FsspecStoreStore:
    def __init__(self, server: Server, prefix: str) -> None:
        self._url, self._options = f"s3://{BUCKET}/{prefix}", server.storage_options
        zarr.create_group(self._store())

    def _store(self, *, read_only: bool = False) -> Any:
        return zarr.storage.FsspecStore.from_url(self._url, storage_options=self._options, read_only=read_only)

    def write(self, values: np.ndarray) -> None:
        fill(self._store(), values)

    def read(self) -> np.ndarray:
        return read(self._store(read_only=True))


class IcechunkStore:
    def __init__(self, server: Server, prefix: str) -> None:
        import icechunk

        options = server.storage_options
        self._storage = icechunk.s3_storage(
            bucket=BUCKET,
            prefix=prefix,
            region="us-east-1",
            endpoint_url=options["endpoint_url"],
            allow_http=True,
            access_key_id=options["key"],
            secret_access_key=options["secret"],
            force_path_style=True,
        )
        self._repo = icechunk.Repository.create(self._storage)
        session = self._repo.writable_session("main")
        zarr.create_group(session.store)
        session.commit("create")

    def write(self, values: np.ndarray) -> None:
        session = self._repo.writable_session("main")
        fill(session.store, values)
        session.commit("fill")

    def read(self) -> np.ndarray:
        import icechunk

        return read(icechunk.Repository.open(self._storage).readonly_session("main").store)


STORES: dict[str, type[Store]] = {OURS: TxStoreStore, FSSPEC: FsspecStoreStore, ICECHUNK: IcechunkStore}


class Bench(NamedTuple):
    setting: Setting
    server: Server

    def count(self, prefix: str) -> int:
        """Return how many objects there are below a prefix."""
        import s3fs

        options = {**self.server.storage_options, "skip_instance_cache": True, "use_listings_cache": False}
        return len(s3fs.S3FileSystem(**options).find(f"{BUCKET}/{prefix}"))


def remote(setting: Setting) -> list[Row]:
    with setting.scratch() as scratch, servers.s3(scratch) as server:
        bench = Bench(setting, server)
        return [*_side_by_side(bench), *_requests(bench), _memory(bench)]


# --- beside other stores


def _side_by_side(bench: Bench) -> Iterator[Row]:
    values = np.random.default_rng(0).integers(0, 256, CHUNKS * CHUNK, dtype="u1")
    written: dict[str, Store] = {}
    objects: dict[str, int] = {}

    def take_write(who: str) -> float:
        prefix = f"{who}-{uuid.uuid4().hex}".lower()
        store = STORES[who](bench.server, prefix)
        before = bench.count(prefix)
        with timed() as seconds:
            store.write(values)
        written[who], objects[who] = store, bench.count(prefix) - before
        return seconds()

    def take_read(who: str) -> float:
        with timed() as seconds:
            found = written[who].read()
        if not np.array_equal(found, values):
            raise AssertionError(f"{who} has not read what was written")
        return seconds()

    rounds = bench.setting.rounds(5, 1)
    for verb, take in (("write and commit", take_write), ("read back", take_read)):
        samples = interleaved({who: partial(take, who) for who in STORES}, rounds)
        for peer, target in ((FSSPEC, 5.0), (ICECHUNK, 3.0)):
            times = f"{statistics.median(samples[OURS]):.2f} s, {peer} {statistics.median(samples[peer]):.2f} s"
            yield Row(
                f"remote {verb}: {peer}",
                f"{verb} {CHUNKS} chunks of 16 KiB on S3, times as fast as {peer} ({times})",
                ratio(samples, peer, OURS),
                target,
                at_least=True,
                medians=medians(samples),
                samples=samples,
            )
        if verb.startswith("write"):
            others = ", ".join(f"{peer} {objects[peer]}" for peer in (FSSPEC, ICECHUNK))
            yield Row("remote objects", f"objects that are written then ({others})", objects[OURS], 8, "")


# --- requests


def _requests(bench: Bench) -> Iterator[Row]:
    """Count what a proxy passes on; a listing is a read."""
    many = MANY // 10 if bench.setting.quick else MANY
    prefix = f"requests-{uuid.uuid4().hex}"
    with Proxy(bench.server.port) as proxy:
        options = {**bench.server.storage_options, "endpoint_url": proxy.url}
        repo = txstore.Repository(f"s3://{BUCKET}/{prefix}", storage_options=options)
        with repo.transaction() as store:
            zarr.create_array(store, name="x", shape=(16 * many,), chunks=(16,), **RAW)
            for number in range(many):
                store[f"x/c/{number}"] = number.to_bytes(16, "little")

        finish_requests()
        with _counted(proxy) as counts:
            again = txstore.Repository(f"s3://{BUCKET}/{prefix}", storage_options=options)
            array = zarr.open_array(again.snapshot(), path="x", mode="r")
            if int.from_bytes(array[16 * 777 : 16 * 778].tobytes(), "little") != 777:
                raise AssertionError("the chunk was not found")
        what = f"requests to open a repository and read one chunk of {many:,}"
        yield _row("remote open", what, counts["reads"], 6, counts)

        reader = again.snapshot()
        _write_one_chunk(repo, 1)  # the first one of a process reads what the array is
        with _counted(proxy) as counts:
            _write_one_chunk(repo, 2)
        what = "requests that write, for a small commit and its head cache"
        yield _row("remote commit writes", what, counts["writes"], 2, counts)
        yield _row("remote commit reads", "requests that read, for a small commit", counts["reads"], 3, counts)

        with _counted(proxy) as counts:
            latest = reader.latest()
        if latest.base == reader.base:
            raise AssertionError("latest() has not found the new commit")
        yield _row("remote latest", "requests of latest()", counts["reads"], 3, counts)


def _row(name: str, what: str, measured: int, target: int, counts: dict[str, int]) -> Row:
    return Row(name, what, measured, target, "", figures=[dict(counts)])


@contextmanager
def _counted(proxy: Proxy) -> Iterator[dict[str, int]]:
    """Count the requests of a `with` block: what it gives is filled when the block has ended."""
    before, counts = proxy.counts(), {}
    yield counts
    found = {kind: number - before[kind] for kind, number in proxy.counts().items()}
    counts |= found | {"reads": found["reads"] + found["lists"], "writes": found["writes"] + found["deletes"]}


def _write_one_chunk(repo: txstore.Repository, value: int) -> None:
    """Return when the head cache is written, too, that nobody waits for."""
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[:16] = value
    for thread in threading.enumerate():
        if thread.name == "txstore head cache":
            thread.join(60)


# --- memory


def _memory(bench: Bench) -> Row:
    size = LARGE // 8 if bench.setting.quick else LARGE
    told = json.dumps([f"s3://{BUCKET}/memory-{uuid.uuid4().hex}", bench.server.storage_options, size])
    command = [sys.executable, "-m", __spec__.name]
    ran = subprocess.run(command, input=told.encode(), stdout=subprocess.PIPE, check=True)
    found = json.loads(ran.stdout)
    what = (
        f"memory above the start while {size / (1 << 30):g} GB are written in chunks of 16 MiB "
        f"({size / found['seconds'] / 1e6:.0f} MB/s)"
    )
    return Row("remote memory", what, found["above"] / (1 << 20), 512, "MiB", figures=[found])


def write_large(url: str, options: dict[str, Any], size: int) -> dict[str, float]:
    """Write in this process, and return how far its memory went above what it was when all was imported and open."""
    repo = txstore.Repository(url, storage_options=options)
    with repo.transaction() as store:
        array = zarr.create_array(store, name="x", shape=(size,), chunks=(LARGE_CHUNK,), **RAW)
    block = np.random.default_rng(0).integers(0, 256, 2 * LARGE_CHUNK, dtype="u1")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted from here
    before = _peak()
    with timed() as seconds, repo.transaction() as store:
        array = zarr.open_array(store, path="x")
        for start in range(0, size, 2 * LARGE_CHUNK):
            array[start : start + 2 * LARGE_CHUNK] = block
    return {"above": _peak() - before, "seconds": seconds()}


def _peak() -> int:
    return read_status(os.getpid())["VmHWM"]


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {"remote": remote}

if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    print(json.dumps(write_large(*json.loads(sys.stdin.read()))))
