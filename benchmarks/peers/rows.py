"""The rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from benchmarks.peers.appends import Appends
from benchmarks.peers.bystanders import Bystanders
from benchmarks.peers.crowd import Crowd
from benchmarks.peers.keys import Keys
from benchmarks.peers.memory import Memory
from benchmarks.peers.peer import Peer
from benchmarks.peers.remote import Remote
from benchmarks.peers.small import SmallArray
from benchmarks.peers.whole import LINE, RANDOM, STRIDED, WholeArray
from benchmarks.peers.works import SHARDED, WORKS

#: One of each kind, where all of their pipelines would tell nothing new.
MAIN = (
    "TxStore", "LocalStore, fused", "ObjectStore, fused", "Icechunk, fused",
    "TensorStore file", "TensorStore ocdbt", "HDF5",
)  # fmt: skip
#: Who writes a file for each chunk: a million of them would take an hour.
FILES = ("LocalStore, fused", "ObjectStore, fused", "TensorStore file")
CROWD = (
    "TxStore", "LocalStore, fused", "LocalStore, zarrs", "Icechunk, fused",
    "TensorStore file", "TensorStore ocdbt", "TensorStore ocdbt, transaction",
)  # fmt: skip


class Row(Protocol):
    #: Whose names are in it is a peer; other names are the row's own.
    roster: ClassVar[Mapping[str, type[Peer]]]

    @property
    def name(self) -> str: ...
    @property
    def peers(self) -> Sequence[str]: ...
    @property
    def units(self) -> dict[str, str]:
        """By task; seconds where nothing else is said."""

    @property
    def rounds(self) -> int | None:
        """At most so many, where one has many samples in itself, or takes long."""

    def measure(self, peer: str, place: Path) -> dict[str, float]:
        """Take one sample of each task; the place is new, and nobody else's."""


def make_rows(*, quick: bool, keys: int) -> dict[str, Row]:
    whole = {name: WholeArray(work, (RANDOM, LINE, STRIDED)) for name, work in WORKS.items()}
    for name, work in WORKS.items():
        if work is SHARDED:
            whole[name] = WholeArray(work, (RANDOM,))
        elif work.codec == "blosc" or work.chunks <= 32:
            whole[name] = WholeArray(work, (), rounds=3)
    counts = [10**power for power in range(3, 8) if 10**power <= keys]
    rows: list[Row] = [
        *whole.values(),
        SmallArray("raw"),
        SmallArray("zstd"),
        *(
            Memory(WORKS[f"{sizes}, {codec}"], MAIN)
            for sizes in ("4096 × 16 KiB", "512 × 1 MiB", "32 × 16 MiB")
            for codec in ("raw", "zstd")
        ),
        Remote(),
        Bystanders(),
        Appends(50 if quick else 1000),
        Crowd(WORKS["4096 × 16 KiB, zstd"], (1, 2) if quick else (1, 2, 4, 8), peers=CROWD),
        *(Keys(count, [peer for peer in MAIN if count <= 10**4 or peer not in FILES]) for count in counts),
    ]
    return {row.name: row for row in rows}
