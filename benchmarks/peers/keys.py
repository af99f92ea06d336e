"""Arrays of very many small chunks: how long it takes to write them, and to open one and read a chunk.

Each is opened in new processes, which have used the same library on another array.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from benchmarks.harness import timed
from benchmarks.peers.fresh import Values, ask
from benchmarks.peers.peer import Peer
from benchmarks.peers.roster import PEERS
from benchmarks.peers.sampling import begin, compare
from benchmarks.peers.works import Work

_SIDE = 4
_OPENED = 3


@dataclass(frozen=True)
class Keys:
    roster: ClassVar[Mapping[str, type[Peer]]] = PEERS

    keys: int
    peers: Sequence[str]
    rounds: int | None = 1
    units: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.keys:,} keys"

    def measure(self, peer: str, place: Path) -> Values:
        order = {"peer": peer, "path": str(place), "keys": self.keys}
        written = ask(write_keys, **order)
        opened = [ask(open_among_keys, **order)["open"] for _ in range(_OPENED)]
        return {**written, "open, read one chunk": statistics.median(opened)}


def _work(keys: int) -> Work:
    return Work("keys", keys, _SIDE, "raw")


def write_keys(peer: str, path: str, keys: int) -> Values:
    work = _work(keys)
    store, data = begin(PEERS[peer], path, work), work.data()
    store.prepare()
    with timed() as seconds:
        store.write(work, data)
    return {"write": seconds()}


def open_among_keys(peer: str, path: str, keys: int) -> Values:
    store = begin(PEERS[peer], path, _work(keys))
    part = np.s_[keys // 3 * _SIDE : keys // 3 * _SIDE + _SIDE, :]
    with timed() as seconds:
        array = store.open()
        found = store.read(array, part)
        store.close(array)
    compare(found, _work(keys).data()[part])
    return {"open": seconds()}
