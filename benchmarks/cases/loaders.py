"""Samples for training, in random order: ours against the same loop over zarr's LocalStore and over Icechunk.

Each reads the same chunks in the same order, mixes the same samples, and hands out the same batches, in as many
processes as a training job has workers. What is compared is the time until the last of them is done with its part of
an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import OURS, Row, Setting, Take, faster, interleaved, medians, timed
from benchmarks.own_process import Parent, Process
from benchmarks.stores import Icechunk, Layout, Local, Store, TxStore
from txstore.loaders import Samples, SampleStream
from txstore.loaders.order import Order
from txstore.loaders.stream import WINDOW

#: Samples in a chunk, in a batch, and bytes of a data set by those of a chunk.
IN_CHUNK, IN_BATCH, DATA = 64, 32, {16 << 10: 128 << 20, 1 << 20: 512 << 20}
KINDS: dict[str, type[Store]] = {OURS: TxStore, "LocalStore": Local, "Icechunk": Icechunk}
TARGETS = {"LocalStore": 1.5, "Icechunk": 2.0}


def _batches(array: Any, order: Order, epoch: int, shard: int, shards: int) -> Iterator[Any]:
    """The same as our loader does, as anybody would write it with zarr."""
    for window in order.windows(epoch, shard, shards):
        mixed = np.empty((window.length, *array.shape[1:]), array.dtype)
        for (start, stop), places in zip(window.blocks, window.places, strict=True):
            mixed[places] = array[start:stop]
        for begin in range(0, window.length, IN_BATCH):
            yield mixed[begin : begin + IN_BATCH]


def _epochs(who: str, place: Path, shard: int, shards: int) -> Callable[[int], Iterator[Any]]:
    """Return what gives the batches of an epoch."""
    if who == OURS:
        stream = SampleStream(Samples(place, "x"), batch_size=IN_BATCH, num_shards=shards, shard_index=shard)

        def ours(epoch: int) -> Iterator[Any]:
            stream.set_epoch(epoch)
            return (batch["x"] for batch in stream)

        return ours
    array = KINDS[who](place).open()
    order = Order(array.shape[0], IN_CHUNK, max(1, WINDOW // (IN_CHUNK * array[:1].nbytes)), True, 0)
    return lambda epoch: _batches(array, order, epoch, shard, shards)


def serve(who: str, place: Path, shard: int, shards: int, epochs: int, parent: Parent) -> None:
    batches = _epochs(who, place, shard, shards)
    for epoch in range(1, epochs + 1):
        parent.meet()
        count, total = 0, np.float64(0)
        for batch in batches(epoch):
            count += len(batch)
            total += batch[:, 0].sum(dtype=np.float64)
        parent.tell((count, float(total)))


def _epoch(crew: list[Process], expected: tuple[int, float]) -> float:
    """Return how many seconds an epoch took. Raises `RuntimeError` if anything but each sample once was read."""
    for each in crew:
        each.hear()  # it is ready
    with timed() as seconds:
        for each in crew:
            each.go()
        answers = [each.hear() for each in crew]
    count, total = (sum(each) for each in zip(*answers, strict=True))
    if count != expected[0] or not np.isclose(total, expected[1]):
        raise RuntimeError(f"an epoch had {count} samples that add up to {total}, expected was {expected}")
    return seconds()


def _measure(chunk_bytes: int, workers: int, scratch: Path, expected: tuple[int, float], rounds: int) -> list[Row]:
    with ExitStack() as stack:
        takes: dict[str, Take] = {}
        for who in KINDS:
            order = {"who": who, "place": scratch / who, "shards": workers, "epochs": rounds + 1}
            crew = [stack.enter_context(Process(serve, **order, shard=shard)) for shard in range(workers)]
            takes[who] = partial(_epoch, crew, expected)
        samples = interleaved(takes, rounds)
    figures = [{"store": who, "samples_per_second": expected[0] / s} for who, s in medians(samples).items()]
    size = f"{chunk_bytes >> 10} KiB" if chunk_bytes < 1 << 20 else f"{chunk_bytes >> 20} MiB"
    case = f"shuffled: {size} chunks, {workers} worker{'s' if workers > 1 else ''}"
    return [
        faster(
            f"loaders_{chunk_bytes >> 10}k_{workers}_{peer.lower()}", f"samples per second against {peer}, {case}",
            samples, OURS, peer, target, figures=figures,
        )
        for peer, target in TARGETS.items()
    ]  # fmt: skip


def loaders(setting: Setting) -> list[Row]:
    rows = []
    for chunk_bytes, size in DATA.items():
        samples = size // chunk_bytes * IN_CHUNK // setting.rounds(1, 16)
        shape = (samples, chunk_bytes // IN_CHUNK // 4)
        data = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        with setting.scratch() as scratch:
            for who, kind in KINDS.items():
                store = kind(scratch / who)
                store.prepare()
                store.write(Layout(shape, (IN_CHUNK, shape[1])), data)
            expected = len(data), float(data[:, 0].sum(dtype=np.float64))
            for workers in (1, 2):
                rows += _measure(chunk_bytes, workers, scratch, expected, setting.rounds(7, 1))
    return rows


CASES = {"loaders": loaders}
