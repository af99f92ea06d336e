"""The rows: what is measured, of whom, and how one sample of it is taken."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.peers.fresh import ask
from benchmarks.peers.roster import PEERS
from benchmarks.peers.works import SHARDED, WORKS, Work

SELECTIONS = ("random", "line", "strided")


class Row(Protocol):
    name: str

    @property
    def peers(self) -> Sequence[str]: ...
    @property
    def units(self) -> dict[str, str]: ...
    def measure(self, peer: str, place: Path) -> dict[str, float]:
        """Take one sample of each task; the place is new, and nobody else's."""


@dataclass(frozen=True)
class WholeArray:
    """Write all of it and commit, in one process; read all of it, and parts, in another."""

    work: Work
    selections: Sequence[str] = ()
    peers: Sequence[str] = tuple(PEERS)
    units: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.work.name

    def measure(self, peer: str, place: Path) -> dict[str, float]:
        order = {"peer": peer, "path": str(place), "work": self.work.name}
        found = ask("write", **order)
        if not PEERS[peer].only_writes:
            found |= ask("read", **order, selections=self.selections)
        if self.work.files <= 1024:
            _delete(place)  # large, and few files: before its pages are written to the disk
        return found


def _delete(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


ROWS: dict[str, Row] = {
    row.name: row
    for row in [
        *(
            WholeArray(work, SELECTIONS if work.codec != "blosc" and work.chunks > 32 else ())
            for work in WORKS.values()
            if work is not SHARDED
        ),
        WholeArray(SHARDED, ("random",)),
    ]
}
