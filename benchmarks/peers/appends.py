"""A loop that appends a chunk and commits, a thousand times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from benchmarks.harness import percentile, timed
from benchmarks.peers.fresh import Values, ask
from benchmarks.peers.peer import Peer
from benchmarks.peers.roster import PEERS
from benchmarks.peers.sampling import begin, compare
from benchmarks.peers.works import Work

_WORK = Work("append", 1, 64, "raw")


@dataclass(frozen=True)
class Appends:
    roster: ClassVar[Mapping[str, type[Peer]]] = PEERS

    commits: int
    rounds: int | None = 1
    peers: Sequence[str] = tuple(PEERS)
    units: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"append {self.commits:,} × 16 KiB, each committed"

    def measure(self, peer: str, place: Path) -> Values:
        return ask(append, peer=peer, path=str(place), commits=self.commits)


def append(peer: str, path: str, commits: int) -> Values:
    _loop(begin(PEERS[peer], f"{path}-first", _WORK), 3)
    samples = _loop(PEERS[peer](Path(path)), commits)
    return {"all": sum(samples), "median": percentile(samples, 50), "99th percentile": percentile(samples, 99)}


def _loop(store: Peer, commits: int) -> list[float]:
    store.prepare()
    data = _WORK.resized(commits).data()
    side = _WORK.side
    samples = []
    with store.appending(_WORK) as append:
        for start in range(0, len(data), side):
            with timed() as seconds:
                append(data[start : start + side])
            samples.append(seconds())
    array = store.open()
    compare(store.read(array, np.s_[:, :]), data)
    store.close(array)
    return samples
