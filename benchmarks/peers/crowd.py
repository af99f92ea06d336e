"""One array written by 1, 2, 4 and 8 processes at the same time, each its part of the chunks, each in its own way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.fresh import Process, Values, ask
from benchmarks.peers.peer import Peer
from benchmarks.peers.roster import PEERS
from benchmarks.peers.sampling import begin
from benchmarks.peers.works import WORKS, Work

_LOST = "chunks lost"


def _task(processes: int) -> str:
    return f"{processes} process{'es' if processes > 1 else ''}"


@dataclass(frozen=True)
class Crowd:
    roster: ClassVar[Mapping[str, type[Peer]]] = PEERS

    work: Work
    processes: Sequence[int] = (1, 2, 4, 8)
    rounds: int | None = 1
    peers: Sequence[str] = tuple(PEERS)
    units: dict[str, str] = field(default_factory=lambda: {_LOST: "chunks"})

    @property
    def name(self) -> str:
        return f"{self.work.name}: written by several processes"

    def measure(self, peer: str, place: Path) -> Values:
        """From the moment that the first one begins to that at which the last one has committed."""
        found: dict[str, float] = {_LOST: 0}
        for processes in self.processes:
            order = {"peer": peer, "path": f"{place}-{processes}", "work": self.work.name}
            ask(create, **order)
            found[_task(processes)] = self._write(order, processes)
            found[_LOST] += ask(count_lost, **order)["lost"]
        return found

    def _write(self, order: dict[str, Any], processes: int) -> float:
        rows = self.work.shape[0] // processes
        parts = [(number * rows, (number + 1) * rows) for number in range(processes)]
        with ExitStack() as stack:
            together = [stack.enter_context(Process(write_a_part, meets=True, **order, part=part)) for part in parts]
            for process in together:
                process.wait_until_ready()
            for process in together:
                process.go()
            told = [process.answer() for process in together]
        return float(max(one["ended"] for one in told) - min(one["began"] for one in told))


# --- in a process of its own


def create(peer: str, path: str, work: str) -> Values:
    store = PEERS[peer](Path(path))
    store.prepare()
    store.create(WORKS[work])
    return {}


def write_a_part(peer: str, path: str, work: str, part: tuple[int, int], meet: Callable[[], object]) -> Values:
    chosen = WORKS[work]
    store, data = begin(PEERS[peer], path, chosen), chosen.data()
    meet()
    began = time.monotonic()
    store.write_part(data, slice(*part))
    return {"began": began, "ended": time.monotonic()}


def count_lost(peer: str, path: str, work: str) -> Values:
    chosen = WORKS[work]
    store = PEERS[peer](Path(path))
    array = store.open()
    found = store.read(array, np.s_[:, :]).reshape(chosen.chunks, -1)
    store.close(array)
    return {"lost": int((found != chosen.data().reshape(found.shape)).any(axis=1).sum())}
