"""A repository on an object store: what it costs in time, in objects and in requests, beside two other stores.

The server is moto's S3 on loopback, in a process of its own, and the same for all. It answers slower than one that was
written for speed, and sooner than one that is far away: what is compared is how much each store asks of it. The peers
are zarr's `FsspecStore`, over s3fs, which has no transactions, and Icechunk. All write the same 512 chunks of 16 KiB
without a codec, by one operation of zarr, then commit; and read them back as one array, from a store opened anew.

Requests are counted by a proxy between TxStore and the server. Memory is that of a process that does nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import zarr

import txstore
from benchmarks.harness import OURS, Row, Setting, faster, finish_requests, interleaved, medians, timed
from benchmarks.memory import resident_peak
from benchmarks.own_process import Values, ask
from benchmarks.stores import Bucket, Fsspec, Icechunk, Layout, TxStore, ZarrStore
from tests.system.remote import servers
from tests.system.remote.proxy import Proxy
from tests.system.remote.servers import BUCKET, Server

CHUNKS, CHUNK = 512, 16 << 10
MANY = 100_000
LARGE, LARGE_CHUNK = 2 << 30, 16 << 20
FSSPEC, ICECHUNK = "FsspecStore", "Icechunk"
KINDS: dict[str, type[ZarrStore]] = {OURS: TxStore, FSSPEC: Fsspec, ICECHUNK: Icechunk}
RAW: dict[str, Any] = {"dtype": "u1", "compressors": None, "filters": None}


def remote(setting: Setting) -> list[Row]:
    with setting.scratch() as scratch, servers.s3(scratch) as server:
        return [*_side_by_side(setting, server), *_requests(setting, server), _memory(setting, server)]


def _bucket(server: Server, name: str) -> Bucket:
    options = server.storage_options
    return Bucket(server.port, f"{name}-{uuid.uuid4().hex}".lower(), BUCKET, options["key"], options["secret"])


def _count(bucket: Bucket) -> int:
    """Return how many objects there are."""
    import s3fs

    files = s3fs.S3FileSystem(**bucket.options, skip_instance_cache=True, use_listings_cache=False)
    return len(files.find(bucket.url.removeprefix("s3://")))


# --- beside other stores


def _side_by_side(setting: Setting, server: Server) -> Iterator[Row]:
    values = np.random.default_rng(0).integers(0, 256, CHUNKS * CHUNK, dtype="u1")
    written: dict[str, Bucket] = {}
    objects: dict[str, int] = {}

    def take_write(who: str) -> float:
        bucket = written[who] = _bucket(server, who)
        store = KINDS[who](bucket)
        store.prepare()
        before = _count(bucket)
        with timed() as seconds:
            store.write(Layout((CHUNKS * CHUNK,), (CHUNK,), "u1"), values)
        objects[who] = _count(bucket) - before
        return seconds()

    def take_read(who: str) -> float:
        store = KINDS[who](written[who])
        with timed() as seconds:
            found = store.read(store.open(), slice(None))
        if not np.array_equal(found, values):
            raise AssertionError(f"{who} has not read what was written")
        return seconds()

    for verb, take in (("write and commit", take_write), ("read back", take_read)):
        samples = interleaved({who: partial(take, who) for who in KINDS}, setting.rounds(5, 1))
        took = medians(samples)
        for peer, target in ((FSSPEC, 5.0), (ICECHUNK, 3.0)):
            times = f"{took[OURS]:.2f} s, {peer} {took[peer]:.2f} s"
            what = f"{verb} {CHUNKS} chunks of 16 KiB on S3, times as fast as {peer} ({times})"
            yield faster(f"remote {verb}: {peer}", what, samples, OURS, peer, target)
        if verb.startswith("write"):
            others = ", ".join(f"{peer} {objects[peer]}" for peer in (FSSPEC, ICECHUNK))
            yield Row("remote objects", f"objects that are written then ({others})", objects[OURS], 8, "")


# --- requests


def _requests(setting: Setting, server: Server) -> Iterator[Row]:
    """Count what a proxy passes on; a listing is a read."""
    many = MANY // 10 if setting.quick else MANY
    with Proxy(server.port) as proxy:
        place = TxStore(_bucket(server, "requests")._replace(port=int(proxy.url.rpartition(":")[2])))
        repo = place.repository()
        with repo.transaction() as store:
            zarr.create_array(store, name="x", shape=(16 * many,), chunks=(16,), **RAW)
            for number in range(many):
                store[f"x/c/{number}"] = number.to_bytes(16, "little")

        finish_requests()
        with _counted(proxy) as counts:
            again = place.repository()
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
    finish_requests()


# --- memory


def _memory(setting: Setting, server: Server) -> Row:
    size = setting.rounds(LARGE, LARGE // 16)
    found = ask(write_large, bucket=_bucket(server, "memory"), size=size)
    speed = f"{size / found['seconds'] / 1e6:.0f} MB/s"
    what = f"memory above the start while {size / (1 << 30):g} GB are written in chunks of 16 MiB ({speed})"
    return Row("remote memory", what, found["above"] / (1 << 20), 512, "MiB", figures=[found])


def write_large(bucket: Bucket, size: int) -> Values:
    """Write in this process, and return how far its memory went above what it was when all was imported and open."""
    repo = TxStore(bucket).repository()
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(size,), chunks=(LARGE_CHUNK,), **RAW)
    block = np.random.default_rng(0).integers(0, 256, 2 * LARGE_CHUNK, dtype="u1")

    def write() -> None:
        with repo.transaction() as store:
            array = zarr.open_array(store, path="x")
            for start in range(0, size, 2 * LARGE_CHUNK):
                array[start : start + 2 * LARGE_CHUNK] = block

    with timed() as seconds:
        above = resident_peak(write)
    return {"above": above, "seconds": seconds()}


CASES = {"remote": remote}
