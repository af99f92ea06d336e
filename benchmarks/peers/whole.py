"""Whole arrays: written and committed in one process, read in another, as a whole and in parts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.harness import timed
from benchmarks.peers.fresh import Values, ask
from benchmarks.peers.peer import Peer
from benchmarks.peers.roster import PEERS
from benchmarks.peers.sampling import begin, compare, median_of, read_whole
from benchmarks.peers.works import WORKS, Work

STORED = "stored"
RANDOM, LINE, STRIDED = "200 random chunks", "one line across all chunks", "strided"
_RANDOM = 200
_LINE = np.s_[:, 5]
_STRIDES = np.s_[::7, ::3]


@dataclass(frozen=True)
class WholeArray:
    roster: ClassVar[Mapping[str, type[Peer]]] = PEERS

    work: Work
    parts: Sequence[str] = ()
    peers: Sequence[str] = tuple(PEERS)
    rounds: int | None = None
    units: dict[str, str] = field(default_factory=lambda: {STORED: "MiB"})

    @property
    def name(self) -> str:
        return self.work.name

    def measure(self, peer: str, place: Path) -> Values:
        order = {"peer": peer, "path": str(place), "work": self.work.name}
        found = ask(write, **order)
        if not PEERS[peer].volatile:
            found[STORED] = _size(place) / (1 << 20)
        if not PEERS[peer].only_writes:
            found |= ask(read, **order, parts=self.parts)
        if self.work.files <= 1024:
            _delete(place)  # large, and few files: before its pages are written to the disk
        return found


def _size(place: Path) -> int:
    files = [place, *place.rglob("*")]
    return sum(path.stat().st_size for path in files if path.is_file())


def _delete(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


# --- in a process of its own


def write(peer: str, path: str, work: str) -> Values:
    chosen = WORKS[work]
    store, data = begin(PEERS[peer], path, chosen), chosen.data()
    store.prepare()
    with timed() as seconds:
        store.write(chosen, data)
    return {"write": seconds()}


def read(peer: str, path: str, work: str, parts: list[str]) -> Values:
    """Read as a whole, from a store that is opened anew; then what else is asked for, from an open one."""
    chosen = WORKS[work]
    store, data = begin(PEERS[peer], path, chosen), chosen.data()
    if store.volatile:
        store.prepare()
        store.write(chosen, data)
    found = {"read": median_of(lambda: read_whole(store, data))}
    array = store.open()
    for part in parts:
        selections = {RANDOM: chosen.random_chunks(_RANDOM), LINE: [_LINE], STRIDED: [_STRIDES]}[part]
        found[part] = median_of(lambda selections=selections: _read_parts(store, array, data, selections))  # type: ignore[misc]
    store.close(array)
    return found


def _read_parts(store: Peer, array: Any, data: np.ndarray, selections: Sequence[Any]) -> float:
    with timed() as seconds:
        found = [store.read(array, selection) for selection in selections]
    for selection, values in zip(selections, found, strict=True):
        compare(values, data[selection])
    return seconds()
