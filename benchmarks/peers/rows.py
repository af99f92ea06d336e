"""The rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from benchmarks.peers.appends import Appends
from benchmarks.peers.bystanders import Bystanders
from benchmarks.peers.crowd import Crowd
from benchmarks.peers.keys import Keys
from benchmarks.peers.memory import MEASURED, Memory
from benchmarks.peers.peer import Peer
from benchmarks.peers.remote import Remote
from benchmarks.peers.roster import PEERS
from benchmarks.peers.small import SmallArray
from benchmarks.peers.whole import LINE, RANDOM, STRIDED, WholeArray
from benchmarks.peers.works import SHARDED, WORKS

#: Who is in what TxStore has to show.
CORE = (
    "TxStore", "TxStore, chunk cache", "TxStore, durability none",
    "LocalStore, batched", "LocalStore, fused", "LocalStore, zarrs", "MemoryStore, fused", "Icechunk, fused",
    "TensorStore file", "TensorStore file, cache_pool", "TensorStore ocdbt", "TensorStore ocdbt, transaction", "HDF5",
)  # fmt: skip
#: And one of each kind. All pipelines are beside one another in the first row.
EVERY_KIND = (*CORE, "ZipStore, fused", "ObjectStore, fused", "ObjectStore, zarrs", "FsspecStore, fused")
FEW = ("TxStore", "LocalStore, fused", "Icechunk, fused", "TensorStore file", "TensorStore ocdbt", "HDF5")
#: Who writes a file for each chunk: a million of them would take an hour.
FILES = ("LocalStore, fused", "TensorStore file")
SEVERAL_PROCESSES = (
    "TxStore", "LocalStore, fused", "LocalStore, zarrs", "Icechunk, fused", "TensorStore file", "TensorStore ocdbt",
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
    counts = [10**power for power in range(3, 8) if 10**power <= keys]
    rows: list[Row] = [
        WholeArray(WORKS["4096 × 16 KiB, raw"], (RANDOM,), tuple(PEERS)),
        WholeArray(WORKS["4096 × 16 KiB, zstd"], (RANDOM, LINE, STRIDED), CORE),
        WholeArray(WORKS["4096 × 16 KiB, blosc"], (), CORE),
        WholeArray(SHARDED, (RANDOM,), CORE),
        WholeArray(WORKS["512 × 1 MiB, raw"], (), EVERY_KIND),
        WholeArray(WORKS["512 × 1 MiB, zstd"], (), EVERY_KIND),
        WholeArray(WORKS["512 × 1 MiB, blosc"], (), FEW, rounds=2),
        *(WholeArray(WORKS[f"32 × 16 MiB, {codec}"], (), FEW, rounds=1) for codec in ("raw", "zstd", "blosc")),
        SmallArray("raw"),
        SmallArray("zstd"),
        Remote(),
        *(Memory(WORKS[work], FEW) for work in MEASURED),
        Bystanders(),
        Appends(50 if quick else 1000, peers=CORE),
        Crowd(WORKS["4096 × 16 KiB, zstd"], (1, 2) if quick else (1, 2, 4, 8), peers=SEVERAL_PROCESSES),
        *(Keys(count, [peer for peer in FEW if count <= 10**4 or peer not in FILES]) for count in counts),
    ]
    return {row.name: row for row in rows}
