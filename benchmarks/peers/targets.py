"""What TxStore has to reach, and whether a run shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Aim:
    """What must be reached at a task of a row; what is not there to be compared is a miss."""

    row: str
    task: str
    wanted: str
    #: What is compared: these, and with `than` the best of those that it means.
    peers: Sequence[str]
    #: Says what was measured, and whether that is enough.
    compare: Callable[..., tuple[str, bool]]
    than: str | None = None

    def judge(self, results: Results) -> Verdict:
        cells = [results.find(self.row, self.task, peer) for peer in self.peers]
        if self.than is not None:
            meant = (cell for cell in results.of(self.row, self.task) if is_meant(self.than, cell))
            cells.append(least(meant))
        measured, ok = ("not measured", False) if None in cells else self.compare(*cells)
        return Verdict(self.row, self.task, self.wanted, measured, ok)


def is_meant(than: str, cell: Cell) -> bool:
    """A store of zarr's is meant with zarr's own pipelines; with `zarrs` it is one of every peer.

    MemoryStore keeps nothing when its process ends: it is no peer of what is kept on a disk. A peer with a cache of
    decoded chunks is one of ours with such a cache (`beside`).
    """
    if than == EVERY_PEER:
        return not cell.peer.startswith((OURS, MEMORY)) and cell.peer != POOL
    return cell.peer.startswith(than) and not cell.peer.endswith("zarrs") and cell.peer != POOL


def faster(row: str, task: str, than: str, times: float) -> Aim:
    """TxStore must be so many times as fast as the fastest of those whose names begin so; a median of ratios."""

    def compare(ours: Cell, peer: Cell) -> tuple[str, bool]:
        return f"{ratio(peer, ours):.2f}x {peer.peer}", ratio(peer, ours) >= times

    return Aim(row, task, f"{times:g}x {than}", [OURS], compare, than)


def beside(row: str, task: str, peer: str, than: str, times: float) -> Aim:
    """One must be so many times as fast as one other: a median of ratios."""

    def compare(one: Cell, other: Cell) -> tuple[str, bool]:
        return f"{ratio(other, one):.2f}x", ratio(other, one) >= times

    return Aim(row, task, f"{peer}: {times:g}x {than}", [peer, than], compare)


def near(row: str, task: str, peer: str, than: str, within: float) -> Aim:
    """The best sample of one must be within so much of the other's: where the work should be the very same."""

    def compare(one: Cell, other: Cell) -> tuple[str, bool]:
        found = min(one.samples) / min(other.samples) - 1
        return f"{found:+.1%}", found <= within

    return Aim(row, task, f"within {within:.0%} of {than}", [peer, than], compare)


def at_most(row: str, task: str, peer: str, limit: float, unit: str = "") -> Aim:
    def compare(cell: Cell) -> tuple[str, bool]:
        return f"{cell.median:.3g} {unit}".rstrip(), cell.median <= limit

    return Aim(row, task, f"at most {limit:g} {unit}".rstrip(), [peer], compare)


def no_more(row: str, task: str, than: str) -> Aim:
    """TxStore must not need more of them than whoever needs the fewest of those whose names begin so."""

    def compare(ours: Cell, peer: Cell) -> tuple[str, bool]:
        return f"{ours.median:g}, {peer.median:g} {peer.peer}", ours.median <= peer.median

    return Aim(row, task, f"no more than {than}", [OURS], compare, than)


def _faster(row: str, **tasks: dict[str, float]) -> list[Aim]:
    names = {"random": RANDOM}
    return [
        faster(row, names.get(task, task), than, times)
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
        beside(f"4096 × 16 KiB, {codec}", RANDOM, CACHING, than, times)
        for codec in ("raw", "zstd")
        for than, times in {POOL: 1, HDF5: 0.3}.items()
    ),
    beside("4096 × 16 KiB, raw", "write", OURS, TRANSACTION, 1.2),
    *(beside("4096 × 16 KiB, raw", task, OURS, f"{MEMORY}, fused", 1) for task in ("write", "read")),
    beside("4096 × 16 KiB, raw", "write", SCRATCH, HDF5, 1),
    beside("512 × 1 MiB, raw", "write", SCRATCH, ZARRS, 1),
    beside("512 × 1 MiB, raw", "write", OURS, "TensorStore file", 2),
    *_faster("10 × 16 KiB, raw", read={f"{MEMORY}, fused": 1}),
    *_faster("10 × 16 KiB, zstd", read={f"{MEMORY}, fused": 1}),
    *_faster(FAR, read={"ObjectStore": 1, ICECHUNK: 1}),
    *(no_more(FAR, REQUESTS, than) for than in ("ObjectStore", ICECHUNK)),
    *(at_most(f"peak memory, {work}", task, OURS, 64, "MiB") for work in MEASURED for task in ("write", "read")),
    at_most(BYSTANDERS, CHANGED, BESIDE, 0),
    *(near(BYSTANDERS, f"{task}, {store}", BESIDE, WITHOUT, 0.02) for store in STORES for task in ("write", "read")),
]


def judge(results: Results, aims: Sequence[Aim] = AIMS) -> list[Verdict]:
    """Return a verdict on each aim whose row was run."""
    rows = {row for row, _ in results.tasks()} | {skipped.row for skipped in results.skipped}
    return [aim.judge(results) for aim in aims if aim.row in rows]
