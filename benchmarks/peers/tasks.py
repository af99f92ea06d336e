"""What the stores are asked to do: of each task, what measures it, and what runs in a process of its own for that."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import compare, percentile, timed
from benchmarks.memory import peak_of, resident_peak
from benchmarks.own_process import Parent, Values, ask, together
from benchmarks.peers.works import Work
from benchmarks.simulated.s3_stub import S3Stub, move_away
from benchmarks.stores import PEERS, REMOTE, Bucket, Layout, Local, Memory, Object, Store, ZarrStore, create_array

STORED, REQUESTS, LOST = "stored", "requests", "chunks lost"
RANDOM, LINE, STRIDED = "200 random chunks", "one line across all chunks", "strided"
RESIDENT = ", resident"
LATE = 30  # milliseconds of a request to the bucket

#: By a store, at a place, and what else a row says: one sample of each task.
Measure = Callable[..., Values]


def in_one(peer: str, place: Path, task: Callable[..., Values], **order: Any) -> Values:
    """Measure a task that one process does."""
    answer: Values = ask(task, peer=peer, place=place, **order)
    return answer


# --- how a sample is taken: warmed up, compared with what was written, and the median of a few


def begin(kind: type[Store], place: Any, work: Work) -> Store:
    """Return the store at its place, after a small array of the same kind at another place.

    What a library loads or starts at its first use is not for a write or a read to pay.
    """
    warm, small = kind(place.with_name(f"{place.name}-warm-{os.getpid()}")), work.resized(8)
    warm.prepare()
    warm.write(small, small.data())
    _read_whole(warm, small.data())
    return kind(place)


def _filled(peer: str, place: Path, work: Work) -> tuple[Store, np.ndarray]:
    """Return a store that has what another process has written, and the data."""
    store, data = begin(PEERS[peer], place, work), work.data()
    if store.volatile:
        store.prepare()
        store.write(work, data)
    return store, data


def _read_whole(store: Store, data: np.ndarray) -> float:
    """Open the array and read all of it."""
    with timed() as seconds:
        found = store.read_once(np.s_[:, :])
    compare(found, data)
    return seconds()


def _median_of(take: Callable[[], float], *, at_most: int = 3, enough: float = 0.5) -> float:
    """Take samples, fewer where they are long."""
    began = time.monotonic()
    samples = [take()]
    while len(samples) < at_most and time.monotonic() - began < enough:
        samples.append(take())
    return statistics.median(samples)


# --- whole arrays: written and committed in one process, read in another, as a whole and in parts


def whole(peer: str, place: Path, work: Work, parts: Sequence[str]) -> Values:
    found = in_one(peer, place, write, work=work)
    if not PEERS[peer].volatile:
        files = [place, *place.rglob("*")]
        found[STORED] = sum(path.stat().st_size for path in files if path.is_file()) / (1 << 20)
    if not PEERS[peer].only_writes:
        found |= ask(read, peer=peer, place=place, work=work, parts=parts)
    if work.files <= 1024:  # large, and few files: before its pages are written to the disk
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    return found


def write(peer: str, place: Path, work: Work) -> Values:
    store, data = begin(PEERS[peer], place, work), work.data()
    store.prepare()
    with timed() as seconds:
        store.write(work, data)
    return {"write": seconds()}


def read(peer: str, place: Path, work: Work, parts: Sequence[str]) -> Values:
    """Read as a whole, from a store that is opened anew; then what else is asked for, from an open one."""
    store, data = _filled(peer, place, work)
    found = {"read": _median_of(lambda: _read_whole(store, data))}
    selections = {RANDOM: work.random_chunks(200), LINE: [np.s_[:, 5]], STRIDED: [np.s_[::7, ::3]]}
    array = store.open()

    def read_parts(part: str) -> float:
        with timed() as seconds:
            values = [store.read(array, selection) for selection in selections[part]]
        for selection, each in zip(selections[part], values, strict=True):
            compare(each, data[selection])
        return seconds()

    for part in parts:
        found[part] = _median_of(lambda part=part: read_parts(part))  # type: ignore[misc]
    store.close(array)
    return found


# --- a small array of ten chunks, read again and again from one array object: what an operation costs by itself


def read_again(peer: str, place: Path, codec: str, warm: int = 30, reads: int = 200) -> Values:
    work = Work("small", 10, 64, codec)
    store, data = begin(PEERS[peer], place, work), work.data()
    store.prepare()
    store.write(work, data)
    array = store.open()
    samples = []
    for _ in range(warm + reads):
        with timed() as seconds:
            found = store.read(array, np.s_[:, :])
        samples.append(seconds())
    compare(found, data)
    store.close(array)
    return {"read": statistics.median(samples[warm:])}


# --- a loop that appends a chunk and commits


def append(peer: str, place: Path, commits: int) -> Values:
    work = Work("append", 1, 64, "raw")
    _append(begin(PEERS[peer], place.with_name(f"{place.name}-first"), work), work.resized(3))
    samples = _append(PEERS[peer](place), work.resized(commits))
    return {"all": sum(samples), "median": percentile(samples, 50), "99th percentile": percentile(samples, 99)}


def _append(store: Store, work: Work) -> list[float]:
    store.prepare()
    data = work.data()
    samples = []
    with store.appending(work.resized(1)) as append:
        for start in range(0, len(data), work.side):
            with timed() as seconds:
                append(data[start : start + work.side])
            samples.append(seconds())
    _read_whole(store, data)
    return samples


# --- arrays of very many small chunks, each opened in new processes, which have used the same library on another array

_SIDE = 4


def among_keys(peer: str, place: Path, keys: int, opened: int = 3) -> Values:
    found = in_one(peer, place, write, work=_keys(keys))
    each = [in_one(peer, place, open_among_keys, keys=keys)["open"] for _ in range(opened)]
    return {**found, "open, read one chunk": statistics.median(each)}


def _keys(keys: int) -> Work:
    return Work("keys", keys, _SIDE, "raw")


def open_among_keys(peer: str, place: Path, keys: int) -> Values:
    store = begin(PEERS[peer], place, _keys(keys))
    part = np.s_[keys // 3 * _SIDE : keys // 3 * _SIDE + _SIDE, :]
    with timed() as seconds:
        found = store.read_once(part)
    compare(found, _keys(keys).data()[part])
    return {"open": seconds()}


# --- an array on S3, where each request takes its time: how long reading takes, and how many requests
# The server is new for each sample. Writing is not timed, nor is it late.


def remote(peer: str, place: Path, chunks: int) -> Values:
    with S3Stub() as stub:
        order = {"peer": peer, "bucket": Bucket(stub.port, place.name), "chunks": chunks}
        ask(write_far, **order)
        found: Values = ask(read_far, **order)
        return found


def write_far(peer: str, bucket: Bucket, chunks: int) -> None:
    work, store = Work("remote", chunks, 64, "zstd"), REMOTE[peer](bucket)
    store.prepare()
    store.write(work, work.data())


def read_far(peer: str, bucket: Bucket, chunks: int) -> Values:
    work = Work("remote", chunks, 64, "zstd")
    data, store = work.data(), begin(REMOTE[peer], bucket, work)
    move_away(bucket.port, LATE / 1e3)
    with timed() as seconds:
        found = store.read_once(np.s_[:, :])
    requests = move_away(bucket.port).requests
    compare(found, data)
    return {"read": seconds(), REQUESTS: requests}


# --- one array written by several processes at the same time, each its part of the chunks, each in its own way


def crowd(peer: str, place: Path, work: Work, counts: Sequence[int]) -> Values:
    """From the moment that the first one begins to that at which the last one has committed."""
    found: Values = {LOST: 0}
    for count in counts:
        order = {"peer": peer, "place": place.with_name(f"{place.name}-{count}"), "work": work}
        ask(create, **order)
        rows = work.shape[0] // count
        parts = [slice(number * rows, (number + 1) * rows) for number in range(count)]
        told = together(write_a_part, [order | {"part": part} for part in parts])
        task = f"{count} process{'es' if count > 1 else ''}"
        found[task] = max(one["ended"] for one in told) - min(one["began"] for one in told)
        found[LOST] += ask(count_lost, **order)
    return found


def create(peer: str, place: Path, work: Work) -> None:
    store = PEERS[peer](place)
    store.prepare()
    store.create(work)


def write_a_part(peer: str, place: Path, work: Work, part: slice, parent: Parent) -> Values:
    store, data = begin(PEERS[peer], place, work), work.data()
    parent.meet()
    began = time.monotonic()
    store.write_part(part, data[part])
    return {"began": began, "ended": time.monotonic()}


def count_lost(peer: str, place: Path, work: Work) -> int:
    found = PEERS[peer](place).read_once(np.s_[:, :]).reshape(work.chunks, -1)
    return int((found != work.data().reshape(found.shape)).any(axis=1).sum())


# --- how far memory goes above what it was, and above the array itself, while all of an array is written or read
# Pages of files that a process has mapped are shown beside it, as "resident".

MEASURED = ("4096 × 16 KiB, zstd", "512 × 1 MiB, raw", "512 × 1 MiB, zstd", "32 × 16 MiB, zstd")


def memory(peer: str, place: Path, work: Work) -> Values:
    found = {}
    for task in ["write"] if PEERS[peer].only_writes else ["write", "read"]:
        own, resident = ask(peaks, peer=peer, place=place, work=work, task=task)
        found |= {task: max(own, 0) / (1 << 20), f"{task}{RESIDENT}": max(resident, 0) / (1 << 20)}
    return found


def peaks(peer: str, place: Path, work: Work, task: str) -> tuple[int, int]:
    """Return the bytes of the process's own, and resident ones, above what there was, and above what is read."""
    store, data = begin(PEERS[peer], place, Work("small", 8, 64, work.codec)), work.data()
    if task == "write" or store.volatile:
        store.prepare()
    if task == "read" and store.volatile:
        store.write(work, data)
    found, own = list[np.ndarray](), list[int]()

    def write_or_read() -> None:
        if task == "write":
            store.write(work, data)
        else:
            found.append(store.read_once(np.s_[:, :]))

    resident = resident_peak(lambda: own.append(peak_of(write_or_read)))
    for values in found:
        compare(values, data)
    return own[0] - len(found) * data.nbytes, resident - len(found) * data.nbytes


# --- other stores in a process that has imported txstore: the same codec pipeline as without it, and the same time

WITHOUT, BESIDE = "without txstore", "txstore imported"
STORES: dict[str, type[ZarrStore]] = {"LocalStore": Local, "MemoryStore": Memory, "ObjectStore": Object}
CHANGED = "pipelines that have changed"
_SHAPE, _CHUNK, _SHARD = (64 * 64, 64), (64, 64), (32 * 64, 64)


def bystanders(peer: str, place: Path, processes: int = 3) -> Values:
    """Return the best times, which tell of what has to be done, not of what else went on."""
    found = [ask(stand_by, place=f"{place}-{number}", beside=peer == BESIDE) for number in range(processes)]
    best = {task: min(one[task] for one in found) for task in found[0]}
    return best | {CHANGED: max(one[CHANGED] for one in found)}


def stand_by(place: str, beside: bool, times: int = 40) -> Values:
    without = {name: pipelines_of(_array(kind, f"{place}-before-{name}")) for name, kind in STORES.items()}
    if beside:
        import txstore.store  # noqa: F401
    elif "txstore" in sys.modules:
        raise AssertionError("somebody has imported txstore")
    data = np.random.default_rng(0).standard_normal(_SHAPE, dtype=np.float32).round(2)
    found: Values = {CHANGED: 0}
    for name, kind in STORES.items():
        array = _array(kind, f"{place}-after-{name}")
        found[CHANGED] += pipelines_of(array) != without[name]
        works = {"write": lambda array=array: array.__setitem__(..., data), "read": lambda array=array: array[:]}
        for task, work in works.items():
            samples = []
            for _ in range(times):
                with timed() as seconds:
                    work()
                samples.append(seconds())
            found[f"{task}, {name}"] = min(samples)
    return found


def _array(kind: type[ZarrStore], place: str) -> Any:
    """Sharded, since a shard has a pipeline of its own for its chunks."""
    return create_array(kind(Path(place)).store(), Layout(_SHAPE, _CHUNK, codec="zstd", shard=_SHARD))


def pipelines_of(array: Any) -> list[str]:
    """Return the classes of an array's pipeline and of those below it."""
    outer = array._async_array.codec_pipeline
    inner = [codec.codec_pipeline for codec in outer if hasattr(codec, "codec_pipeline")]
    return [f"{type(one).__module__}.{type(one).__qualname__}" for one in (outer, *inner)]
