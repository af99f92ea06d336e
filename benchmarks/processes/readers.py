"""What writers cost a reader: its time beside four that commit flat out, against four that just write files.

Any four processes that write and sync take processor time and the disk from a reader. What is compared is what the
commits add to that. The two crews work in turns, in phases of a second or two, and the reader does the same in each: it
opens the newest commit and reads one chunk with zarr.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import txstore
from benchmarks.harness import OURS, Row, Setting, interleaved, medians, percentile, ratio, settle
from benchmarks.local.commits import BareWrites

WRITERS = 4
CHUNKS = 100
BARE = "write and fsync"
_IDLE, _COMMITS, _FILES, _END = range(4)  # what the crews are to do
_SPAWN = multiprocessing.get_context("spawn")
_PATIENCE = 60.0  # seconds until the crews are up, or at rest


def _commit(path: str, number: int) -> Callable[[], object]:
    repo = txstore.Repository(path)
    chunk = bytes(800)
    count = 0

    def commit() -> None:
        nonlocal count
        with repo.begin("append") as transaction:
            transaction[f"written/{number}/c/{count}"] = chunk
        count += 1

    return commit


def _write(path: str, number: int) -> Callable[[], object]:
    return BareWrites(Path(path).parent / f"bare-{number}").take


def _work(path: str, number: int, duty: int, order: Any, done: Any, at_rest: Any) -> None:
    act = (_commit if duty == _COMMITS else _write)(path, number)
    while order.value != _END:
        if order.value == duty:
            at_rest[number] = False
            act()
            done[number] += 1
        else:
            at_rest[number] = True
            time.sleep(0.002)


class Crews:
    """Both crews: at most one of them works."""

    def __init__(self, path: Path) -> None:
        self._order = _SPAWN.RawValue(ctypes.c_int, _IDLE)
        self.done = {duty: _SPAWN.RawArray(ctypes.c_long, WRITERS) for duty in (_COMMITS, _FILES)}
        self._at_rest = {duty: _SPAWN.RawArray(ctypes.c_bool, WRITERS) for duty in (_COMMITS, _FILES)}
        self._processes = [
            _SPAWN.Process(
                target=_work,
                args=(str(path), number, duty, self._order, self.done[duty], self._at_rest[duty]),
                daemon=True,
            )
            for duty in (_COMMITS, _FILES)
            for number in range(WRITERS)
        ]

    @contextmanager
    def started(self) -> Iterator[Crews]:
        for process in self._processes:
            process.start()
        try:
            self._await_rest()
            yield self
        finally:
            self._order.value = _END
            for process in self._processes:
                process.join(5)
                process.kill()
                process.join()

    @contextmanager
    def working(self, duty: int) -> Iterator[None]:
        self._order.value = duty
        time.sleep(0.1)
        yield
        self._order.value = _IDLE
        self._await_rest()

    def _await_rest(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not all(map(all, self._at_rest.values())):
            if time.monotonic() > deadline:
                raise TimeoutError("a writer does not come to rest")
            time.sleep(0.005)


class Reader:
    """Opens the newest commit and reads one chunk, with zarr."""

    def __init__(self, path: Path) -> None:
        self._repo = txstore.Repository(path)
        with self._repo.transaction("create") as store:
            zarr.create_array(store, name="read", data=np.arange(100.0 * CHUNKS), chunks=(100,), compressors=None)
        self._number = 0

    def take(self) -> float:
        self._number = (self._number + 37) % CHUNKS
        began = time.perf_counter()
        array = zarr.open_array(self._repo.snapshot(), path="read", mode="r")
        value = array[100 * self._number]
        seconds = time.perf_counter() - began
        if value != 100.0 * self._number:
            raise AssertionError(f"read {value} in chunk {self._number}")
        return seconds


def beside(setting: Setting) -> list[Row]:
    phases, length = setting.rounds(8, 3), setting.rounds(2, 1)
    taken: dict[str, list[list[float]]] = {OURS: [], BARE: []}
    with setting.scratch() as scratch:
        reader = Reader(scratch / "data.tx")
        with Crews(scratch / "data.tx").started() as crews:

            def phase(who: str, duty: int) -> float:
                found = []
                with crews.working(duty):
                    end = time.monotonic() + length
                    while time.monotonic() < end:
                        found.append(reader.take())
                taken[who].append(found)
                return percentile(found, 50)

            takes = {OURS: lambda: phase(OURS, _COMMITS), BARE: lambda: phase(BARE, _FILES)}
            middle = interleaved(takes, phases, before_each=lambda: settle(scratch))
            commits, files = (sum(crews.done[duty]) for duty in (_COMMITS, _FILES))
    tails = {who: [percentile(found, 99) for found in phases_of[1:]] for who, phases_of in taken.items()}
    seconds = (phases + 1) * (length + 0.1)
    what = f"a reader beside {WRITERS} writers ({commits / seconds:,.0f} commits/s)"
    than = f"time beside {WRITERS} processes that {BARE} ({files / seconds:,.0f} files/s)"
    return [
        Row(
            "reader", f"{what}, median: {than}",
            ratio(middle, OURS, BARE), 1.3, medians=medians(middle), samples=middle,
        ),
        Row(
            "reader-tail", f"{what}, 99th percentile: {than}",
            ratio(tails, OURS, BARE), 2.0, medians=medians(tails), samples=tails,
        ),
    ]  # fmt: skip


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {"readers": beside}
