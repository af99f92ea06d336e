"""Samples for training, in random order: ours against the same loop over zarr's LocalStore and over Icechunk.

Each reads the same chunks in the same order, mixes the same samples, and hands out the same batches, in as many
processes as a training job has workers. What is compared is the time until the last of them is done with its part of
an epoch.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import zarr
from zarr.storage import LocalStore

import txstore
from benchmarks.harness import OURS, Row, Setting, Take, interleaved, medians, ratio, timed
from txstore.loaders import Samples, SampleStream
from txstore.loaders.order import Order
from txstore.loaders.stream import WINDOW

#: Samples in a chunk, in a batch, and bytes of a data set by those of a chunk.
IN_CHUNK, IN_BATCH, DATA = 64, 32, {16 << 10: 128 << 20, 1 << 20: 512 << 20}
#: Seconds until a process that does not answer is taken for hung.
DEADLINE = 120.0
LOCAL, ICECHUNK = "LocalStore", "Icechunk"
TARGETS = {LOCAL: 1.5, ICECHUNK: 2.0}

_SPAWN = multiprocessing.get_context("spawn")


def _create(who: str, path: Path, chunk_bytes: int) -> None:
    rows = DATA[chunk_bytes] // chunk_bytes * IN_CHUNK
    data = np.random.default_rng(0).standard_normal((rows, chunk_bytes // IN_CHUNK // 4), dtype=np.float32)
    with ExitStack() as stack:
        if who == OURS:
            store: Any = stack.enter_context(txstore.Repository(path).transaction("samples"))
        elif who == LOCAL:
            store = LocalStore(path)
        else:
            import icechunk

            icechunk.set_logs_filter("error")  # a warning about local storage: nobody else writes here
            repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))
            session = repository.writable_session("main")
            stack.callback(session.commit, "samples")
            store = session.store
        zarr.create_array(store, name="x", data=data, chunks=(IN_CHUNK, data.shape[1]), compressors=None)


def _open(who: str, path: Path) -> Any:
    if who == LOCAL:
        store: Any = LocalStore(path, read_only=True)
    else:
        import icechunk

        icechunk.set_logs_filter("error")
        store = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path))).readonly_session("main").store
    return zarr.open_array(store, path="x", mode="r")


def _batches(array: Any, order: Order, epoch: int, shard: int, shards: int) -> Iterator[Any]:
    """The same as our loader does, as anybody would write it with zarr."""
    for window in order.windows(epoch, shard, shards):
        mixed = np.empty((window.length, *array.shape[1:]), array.dtype)
        for (start, stop), places in zip(window.blocks, window.places, strict=True):
            mixed[places] = array[start:stop]
        for begin in range(0, window.length, IN_BATCH):
            yield mixed[begin : begin + IN_BATCH]


def _serve(who: str, path: Path, shard: int, shards: int, pipe: Connection) -> None:
    stream = order = array = None
    samples = Samples(path, "x") if who == OURS else None
    if samples is not None:
        stream = SampleStream(samples, batch_size=IN_BATCH, num_shards=shards, shard_index=shard)
    else:
        array = _open(who, path)
        order = Order(array.shape[0], IN_CHUNK, max(1, WINDOW // (IN_CHUNK * array[:1].nbytes)), True, 0)
    pipe.send(None)
    while True:
        epoch = pipe.recv()
        count, total = 0, np.float64(0)
        if stream is not None:
            stream.set_epoch(epoch)
            batches: Iterator[Any] = (batch["x"] for batch in stream)
        else:
            assert order is not None
            batches = _batches(array, order, epoch, shard, shards)
        for batch in batches:
            count += len(batch)
            total += batch[:, 0].sum(dtype=np.float64)
        pipe.send((count, float(total)))


class _Workers:
    """Processes that go through an epoch together whenever they are told to. A context manager; ends them all."""

    def __init__(self, who: str, path: Path, count: int) -> None:
        self._members: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        self._epoch = 0
        for shard in range(count):
            ours, theirs = _SPAWN.Pipe()
            process = _SPAWN.Process(target=_serve, args=(who, path, shard, count, theirs), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))
        self._answers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process, pipe in self._members:
            process.kill()
            process.join()
            pipe.close()

    def epoch(self, expected: tuple[int, float]) -> float:
        """Return how many seconds an epoch took. Raises `RuntimeError` if anything but each sample once was read."""
        self._epoch += 1
        with timed() as seconds:
            for _, pipe in self._members:
                pipe.send(self._epoch)
            answers = self._answers()
        count, total = (sum(each) for each in zip(*answers, strict=True))
        if count != expected[0] or not np.isclose(total, expected[1]):
            raise RuntimeError(f"an epoch had {count} samples that add up to {total}, expected was {expected}")
        return seconds()

    def _answers(self) -> list[Any]:
        answers = []
        for process, pipe in self._members:
            if not pipe.poll(DEADLINE):
                raise RuntimeError(f"{process.name} does not answer")
            answers.append(pipe.recv())
        return answers


@dataclass(frozen=True)
class _Case:
    chunk_bytes: int
    workers: int

    @property
    def name(self) -> str:
        size = f"{self.chunk_bytes >> 10} KiB" if self.chunk_bytes < 1 << 20 else f"{self.chunk_bytes >> 20} MiB"
        return f"{size} chunks, {self.workers} worker{'s' if self.workers > 1 else ''}"


def _measure(case: _Case, places: dict[str, Path], rounds: int) -> list[Row]:
    first = zarr.open_array(txstore.Repository(places[OURS]).snapshot(), path="x", mode="r")[:, 0]
    expected = len(first), float(first.sum(dtype=np.float64))
    with ExitStack() as stack:
        crews = {who: stack.enter_context(_Workers(who, path, case.workers)) for who, path in places.items()}
        takes: dict[str, Take] = {who: partial(crew.epoch, expected) for who, crew in crews.items()}
        samples = interleaved(takes, rounds)
    figures = [{"store": who, "samples_per_second": expected[0] / s} for who, s in medians(samples).items()]
    return [
        Row(
            f"loaders_{case.chunk_bytes >> 10}k_{case.workers}_{peer.lower()}",
            f"samples per second against {peer}, shuffled: {case.name}",
            ratio(samples, peer, OURS),
            target,
            at_least=True,
            medians=medians(samples),
            samples=samples,
            figures=figures,
        )
        for peer, target in TARGETS.items()
    ]


def loaders(setting: Setting) -> list[Row]:
    rows = []
    for chunk_bytes in (16 << 10, 1 << 20):
        with setting.scratch() as scratch:
            places = {who: scratch / who for who in (OURS, LOCAL, ICECHUNK)}
            for who, path in places.items():
                _create(who, path, chunk_bytes)
            for workers in (1, 2):
                rows += _measure(_Case(chunk_bytes, workers), places, setting.rounds(7, 2))
    return rows


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {"loaders": loaders}
