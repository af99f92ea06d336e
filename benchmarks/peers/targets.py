"""What TxStore has to reach, and whether a run shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.peers.results import OURS, Cell, Results, least, ratio
from benchmarks.peers.rows import BYSTANDERS, FAR
from benchmarks.peers.tasks import BESIDE, CHANGED, MEASURED, RANDOM, REQUESTS, STORES, WITHOUT

LOCAL, MEMORY, ICECHUNK, HDF5 = "LocalStore", "MemoryStore", "Icechunk", "HDF5"
TENSORSTORE, OCDBT = "TensorStore", "TensorStore ocdbt"
EVERY_PEER = "every peer"
#: Peers that keep decoded chunks, and ours that does not sync.
CACHING, POOL, SCRATCH = "TxStore, chunk cache", "TensorStore file, cache_pool", "TxStore, durability none"
ZARRS, TRANSACTION = "LocalStore, zarrs", "TensorStore ocdbt, transaction"


@dataclass(frozen=True)
class Verdict:
    row: str
    task: str
    wanted: str
    measured: str
    ok: bool


class Aim(Protocol):
    @property
    def row(self) -> str: ...
    def judge(self, results: Results) -> Verdict:
        """Say what was measured; what is not there to be compared is a miss."""


@dataclass(frozen=True)
class Faster:
    """TxStore must be so many times as fast as the fastest of those whose names begin so; a median of ratios."""

    row: str
    task: str
    than: str
    times: float

    def judge(self, results: Results) -> Verdict:
        wanted = f"{self.times:g}x {self.than}"
        ours = results.find(self.row, self.task, OURS)
        peer = least(filter(self.means, results.of(self.row, self.task)))
        if ours is None or peer is None:
            return Verdict(self.row, self.task, wanted, "not measured", ok=False)
        found = ratio(peer, ours)
        return Verdict(self.row, self.task, wanted, f"{found:.2f}x {peer.peer}", ok=found >= self.times)

    def means(self, cell: Cell) -> bool:
        """A store of zarr's is meant with zarr's own pipelines; with `zarrs` it is one of every peer.

        MemoryStore keeps nothing when its process ends: it is no peer of what is kept on a disk. A peer with a cache of
        decoded chunks is one of ours with such a cache (`Beside`).
        """
        if self.than == EVERY_PEER:
            return not cell.peer.startswith((OURS, MEMORY)) and cell.peer != POOL
        return cell.peer.startswith(self.than) and not cell.peer.endswith("zarrs") and cell.peer != POOL


@dataclass(frozen=True)
class Beside:
    """One must be so many times as fast as one other: a median of ratios."""

    row: str
    task: str
    peer: str
    than: str
    times: float

    def judge(self, results: Results) -> Verdict:
        wanted = f"{self.peer}: {self.times:g}x {self.than}"
        one, other = (results.find(self.row, self.task, peer) for peer in (self.peer, self.than))
        if one is None or other is None:
            return Verdict(self.row, self.task, wanted, "not measured", ok=False)
        found = ratio(other, one)
        return Verdict(self.row, self.task, wanted, f"{found:.2f}x", ok=found >= self.times)


@dataclass(frozen=True)
class AtMost:
    row: str
    task: str
    peer: str
    limit: float
    unit: str = ""

    def judge(self, results: Results) -> Verdict:
        wanted = f"at most {self.limit:g} {self.unit}".rstrip()
        cell = results.find(self.row, self.task, self.peer)
        if cell is None:
            return Verdict(self.row, self.task, wanted, "not measured", ok=False)
        found = f"{cell.median:.3g} {self.unit}".rstrip()
        return Verdict(self.row, self.task, wanted, found, ok=cell.median <= self.limit)


@dataclass(frozen=True)
class NoMore:
    """TxStore must not need more of them than whoever needs the fewest of those whose names begin so."""

    row: str
    task: str
    than: str

    def judge(self, results: Results) -> Verdict:
        wanted = f"no more than {self.than}"
        ours = results.find(self.row, self.task, OURS)
        peer = least(cell for cell in results.of(self.row, self.task) if cell.peer.startswith(self.than))
        if ours is None or peer is None:
            return Verdict(self.row, self.task, wanted, "not measured", ok=False)
        return Verdict(
            self.row, self.task, wanted, f"{ours.median:g}, {peer.median:g} {peer.peer}", ok=ours.median <= peer.median
        )


@dataclass(frozen=True)
class Near:
    """The best sample of one must be within so much of the other's: where the work should be the very same."""

    row: str
    task: str
    peer: str
    than: str
    within: float

    def judge(self, results: Results) -> Verdict:
        wanted = f"within {self.within:.0%} of {self.than}"
        one, other = (results.find(self.row, self.task, peer) for peer in (self.peer, self.than))
        if one is None or other is None:
            return Verdict(self.row, self.task, wanted, "not measured", ok=False)
        found = min(one.samples) / min(other.samples) - 1
        return Verdict(self.row, self.task, wanted, f"{found:+.1%}", ok=found <= self.within)


def _faster(row: str, **tasks: dict[str, float]) -> list[Aim]:
    names = {"random": RANDOM}
    return [
        Faster(row, names.get(task, task), than, times)
        for task, wanted in tasks.items()
        for than, times in wanted.items()
    ]


_RANDOM: dict[str, float] = {LOCAL: 4, TENSORSTORE: 1.2}

AIMS: list[Aim] = [
    *_faster(
        "4096 × 16 KiB, raw",
        write={OCDBT: 1.4, LOCAL: 10, ICECHUNK: 8},
        read={TENSORSTORE: 1.1, HDF5: 1, ICECHUNK: 10},
        random=_RANDOM,
    ),
    *_faster(
        "4096 × 16 KiB, zstd",
        write={OCDBT: 1.2, LOCAL: 3},
        read={TENSORSTORE: 1.3, HDF5: 2, LOCAL: 5},
        random=_RANDOM,
    ),
    *_faster("4096 × 16 KiB, blosc", write={LOCAL: 3}, read={LOCAL: 4}),
    *_faster("512 × 1 MiB, raw", read={EVERY_PEER: 1}),
    *_faster("512 × 1 MiB, zstd", write={EVERY_PEER: 1}, read={EVERY_PEER: 1}),
    *_faster(
        "4096 × 16 KiB in 16 shards, zstd",
        write={LOCAL: 5, TENSORSTORE: 1.5},
        read={LOCAL: 5, TENSORSTORE: 1},
        random={LOCAL: 5, TENSORSTORE: 1.2},
    ),
    *(
        Beside(f"4096 × 16 KiB, {codec}", RANDOM, CACHING, than, times)
        for codec in ("raw", "zstd")
        for than, times in {POOL: 1, HDF5: 0.3}.items()
    ),
    Beside("4096 × 16 KiB, raw", "write", OURS, TRANSACTION, 1.2),
    Beside("4096 × 16 KiB, raw", "write", SCRATCH, HDF5, 1),
    Beside("512 × 1 MiB, raw", "write", SCRATCH, ZARRS, 1),
    Beside("512 × 1 MiB, raw", "write", OURS, "TensorStore file", 2),
    *_faster("10 × 16 KiB, raw", read={f"{MEMORY}, fused": 1}),
    *_faster("10 × 16 KiB, zstd", read={f"{MEMORY}, fused": 1}),
    *_faster(FAR, read={"ObjectStore": 1, ICECHUNK: 1}),
    *(NoMore(FAR, REQUESTS, than) for than in ("ObjectStore", ICECHUNK)),
    *(AtMost(f"peak memory, {work}", task, OURS, 64, "MiB") for work in MEASURED for task in ("write", "read")),
    AtMost(BYSTANDERS, CHANGED, BESIDE, 0),
    *(Near(BYSTANDERS, f"{task}, {store}", BESIDE, WITHOUT, 0.02) for store in STORES for task in ("write", "read")),
]


def judge(results: Results, aims: Sequence[Aim] = AIMS) -> list[Verdict]:
    """Return a verdict on each aim whose row was run."""
    rows = {row for row, _ in results.tasks()} | {skipped.row for skipped in results.skipped}
    return [aim.judge(results) for aim in aims if aim.row in rows]
