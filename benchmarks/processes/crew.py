"""A crew: writer processes and one reader that write and read a store together, as often as they are told to.

The processes are started once and wait for orders, so that no start of an interpreter is measured. Each cell of the
measurement has a store of its own, and begins at a barrier that all who take part have reached with the store open.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.harness import percentile
from benchmarks.processes.stores import MOST, ConflictedError, ReadableStore, Store, Write

#: Seconds between two reads, and seconds until a process that does not answer is taken for hung.
PAUSE, DEADLINE = 0.005, 120.0

_SPAWN = multiprocessing.get_context("spawn")  # forking a process in which such stores have run threads is not safe


@dataclass(frozen=True)
class Cell:
    """What came of some processes writing to one store for a while."""

    store: str
    processes: int
    acknowledged: int
    found: int
    conflicts: int
    seconds: float
    torn: int
    latencies: Sequence[float] = field(repr=False)  # of the reads, in seconds

    @property
    def lost(self) -> int:
        return self.acknowledged - self.found

    @property
    def rate(self) -> float:
        """Transactions acknowledged in a second."""
        return self.acknowledged / self.seconds

    def latency(self, percent: float) -> float:
        """Return a percentile of the reads, in milliseconds."""
        return percentile(self.latencies, percent) * 1e3 if self.latencies else float("nan")

    def as_dict(self) -> dict[str, float | str]:
        return {
            "store": self.store,
            "processes": self.processes,
            "acknowledged": self.acknowledged,
            "found": self.found,
            "lost": self.lost,
            "conflicts": self.conflicts,
            "writes_per_second": self.rate,
            "reads": len(self.latencies),
            "torn_reads": self.torn,
            "read_median_ms": self.latency(50),
            "read_p99_ms": self.latency(99),
        }


@dataclass(frozen=True)
class _Create:
    path: Path


@dataclass(frozen=True)
class _Write:
    path: Path
    writer: int
    party: int  # how many meet at the barrier
    seconds: float
    count: int


@dataclass(frozen=True)
class _Read:
    path: Path
    party: int


@dataclass(frozen=True)
class _Find:
    path: Path
    acknowledged: tuple[int, ...]  # by each writer


@dataclass(frozen=True)
class _Written:
    acknowledged: int
    conflicts: int
    seconds: float


class Crew:
    """Writers of one store, and one process that creates, reads and checks it. A context manager; ends them all."""

    def __init__(self, store: type[Store], writers: int) -> None:
        self.store = store
        # Kept: what backs a barrier goes when the process that made it lets go of it.
        self._barriers = {party: _SPAWN.Barrier(party) for party in range(1, writers + 2)}
        self._members: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        for number in range(writers + 1):
            ours, theirs = _SPAWN.Pipe()
            name = f"{store.name}: {f'writer {number}' if number < writers else 'reader'}"
            process = _SPAWN.Process(target=_serve, args=(store, theirs, self._barriers), name=name, daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))
        self._reader = writers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process, connection in self._members:
            process.kill()
            process.join()
            connection.close()

    def run(
        self, path: Path, processes: int, *, seconds: float = DEADLINE / 2, count: int = MOST, reading: bool = True
    ) -> Cell:
        """Let so many processes write to a new store at `path`, for so long or so often.

        Raises `RuntimeError` if one of them ends or does not answer.
        """
        self._tell(self._reader, _Create(path))
        self._answer(self._reader)
        party = processes + reading
        for writer in range(processes):
            self._tell(writer, _Write(path, writer, party, seconds, count))
        if reading:
            self._tell(self._reader, _Read(path, party))
        written: list[_Written] = [self._answer(writer) for writer in range(processes)]
        torn, latencies = 0, []
        if reading:
            self._tell(self._reader, None)
            torn, latencies = self._answer(self._reader)
        acknowledged = tuple(one.acknowledged for one in written)
        self._tell(self._reader, _Find(path, acknowledged))
        return Cell(
            store=self.store.name,
            processes=processes,
            acknowledged=sum(acknowledged),
            found=self._answer(self._reader),
            conflicts=sum(one.conflicts for one in written),
            seconds=max(one.seconds for one in written),
            torn=torn,
            latencies=latencies,
        )

    def _tell(self, member: int, order: object) -> None:
        self._members[member][1].send(order)

    def _answer(self, member: int) -> object:
        process, connection = self._members[member]
        if not connection.poll(DEADLINE):
            raise RuntimeError(f"{process.name} has not answered for {DEADLINE:.0f} s")
        try:
            return connection.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError(f"{process.name} has ended: its error stands above") from None


# --- in the processes


def _serve(store: type[Store], connection: Connection, barriers: Mapping[int, Barrier]) -> None:
    while True:
        order = connection.recv()
        connection.send(_carry_out(order, store(order.path), connection, barriers))


def _carry_out(order: object, store: Store, connection: Connection, barriers: Mapping[int, Barrier]) -> object:
    match order:
        case _Create():
            return store.create()
        case _Write():
            write = store.open_to_write(order.writer)
            barriers[order.party].wait(DEADLINE)
            return _write(write, order)
        case _Read():
            store.read_pair()
            barriers[order.party].wait(DEADLINE)
            return _read(store, connection)
        case _Find():
            return sum(store.count_found(writer, count) for writer, count in enumerate(order.acknowledged))
        case _:
            raise TypeError(f"no such order: {order!r}")


def _write(write: Write, order: _Write) -> _Written:
    acknowledged = conflicts = 0
    began = time.perf_counter()
    end = began + order.seconds
    while acknowledged < order.count and time.perf_counter() < end:
        try:
            write(acknowledged)
        except ConflictedError:
            conflicts += 1  # and the same again
        else:
            acknowledged += 1
    return _Written(acknowledged, conflicts, time.perf_counter() - began)


def _read(store: ReadableStore, connection: Connection) -> tuple[int, list[float]]:
    """Read until told to stop; return how many reads were torn, and how long each took."""
    torn, latencies = 0, []
    while not connection.poll(PAUSE):
        began = time.perf_counter()
        pair = store.read_pair()
        latencies.append(time.perf_counter() - began)
        torn += bool(pair.min() != pair.max())
    connection.recv()
    return torn, latencies
