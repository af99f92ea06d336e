"""What TxStore has to reach, and whether a run shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.peers.results import OURS, Cell, Results, least, ratio
from benchmarks.peers.rows import BYSTANDERS, FAR
from benchmarks.peers.tasks import BESIDE, CHANGED, MEASURED, RANDOM, REQUESTS, STORES, WITHOUT
from benchmarks.peers.works import SHARDED

LOCAL, MEMORY, ICECHUNK, HDF5 = "LocalStore", "MemoryStore", "Icechunk", "HDF5"
TENSORSTORE, OCDBT = "TensorStore", "TensorStore ocdbt"
EVERY_PEER, NOT_MEASURED = "every peer", "not measured"
#: Peers that keep decoded chunks, and ours that does not sync.
CACHING, POOL, SCRATCH = "TxStore, chunk cache", "TensorStore file, cache_pool", "TxStore, durability none"
ZARRS, TRANSACTION = "LocalStore, zarrs", "TensorStore ocdbt, transaction"

Wanted = Mapping[str, float]  # times, by the name of a peer


class Verdict(NamedTuple):
    row: str
    task: str
    wanted: str
    measured: str
    ok: bool


class Aim(NamedTuple):
    """What must be reached at a task of a row; what is not there to be compared is a miss."""

    row: str
    task: str
    who: str
    #: The best of those that it means is what is compared; without one it is the same cell twice.
    than: str
    wanted: str
    #: Says what was measured, and whether that is enough.
    compare: Callable[[Cell, Cell], tuple[str, bool]]

    def judge(self, results: Results) -> Verdict:
        one = results.find(self.row, self.task, self.who)
        meant = (cell for cell in results.of(self.row, self.task) if is_meant(self.than, cell))
        other = least(meant) if self.than else one
        measured, ok = (NOT_MEASURED, False) if one is None or other is None else self.compare(one, other)
        return Verdict(self.row, self.task, self.wanted, measured, ok)


def is_meant(than: str, cell: Cell) -> bool:
    """A store of zarr's is meant with zarr's own pipelines; with `zarrs` it is one of every peer.

    MemoryStore keeps nothing when its process ends: it is no peer of what is kept on a disk. A peer with a cache of
    decoded chunks is meant only by its whole name, and so is a pipeline that is not zarr's.
    """
    if than == EVERY_PEER:
        return not cell.peer.startswith((OURS, MEMORY)) and cell.peer != POOL
    return cell.peer == than or (cell.peer.startswith(than) and not cell.peer.endswith("zarrs") and cell.peer != POOL)


def faster(row: str, task: str, than: str, times: float, who: str = OURS) -> Aim:
    """One must be so many times as fast as the fastest of those whose names begin so; a median of ratios."""

    def compare(one: Cell, other: Cell) -> tuple[str, bool]:
        found, best = ratio(other, one), "" if other.peer == than else f" {other.peer}"
        return f"{found:.2f}x{best}", found >= times

    return Aim(row, task, who, than, f"{'' if who == OURS else f'{who}: '}{times:g}x {than}", compare)


def near(row: str, task: str, who: str, than: str, within: float) -> Aim:
    """The best sample of one must be within so much of the other's: where the work should be the very same."""

    def compare(one: Cell, other: Cell) -> tuple[str, bool]:
        found = min(one.samples) / min(other.samples) - 1
        return f"{found:+.1%}", found <= within

    return Aim(row, task, who, than, f"within {within:.0%} of {than}", compare)


def at_most(row: str, task: str, who: str, limit: float, unit: str = "") -> Aim:
    wanted = f"at most {limit:g} {unit}".rstrip()
    return Aim(row, task, who, "", wanted, lambda cell, _: (f"{cell.median:.3g} {unit}".rstrip(), cell.median <= limit))


def no_more(row: str, task: str, than: str) -> Aim:
    """TxStore must not need more of them than whoever needs the fewest of those whose names begin so."""

    def compare(ours: Cell, peer: Cell) -> tuple[str, bool]:
        return f"{ours.median:g}, {peer.median:g} {peer.peer}", ours.median <= peer.median

    return Aim(row, task, OURS, than, f"no more than {than}", compare)


def _faster(row: str, write: Wanted = {}, read: Wanted = {}, parts: Wanted = {}) -> list[Aim]:  # noqa: B006 - not changed
    each = (("write", write), ("read", read), (RANDOM, parts))
    return [faster(row, task, than, times) for task, wanted in each for than, times in wanted.items()]


_PARTS: dict[str, float] = {LOCAL: 4, TENSORSTORE: 1.2}
AIMS: list[Aim] = [
    *_faster(
        "4096 × 16 KiB, raw", {OCDBT: 1.4, LOCAL: 10, ICECHUNK: 8}, {TENSORSTORE: 1.1, HDF5: 1, ICECHUNK: 10}, _PARTS
    ),
    *_faster("4096 × 16 KiB, zstd", {OCDBT: 1.2, LOCAL: 3}, {TENSORSTORE: 1.3, HDF5: 2, LOCAL: 5}, _PARTS),
    *_faster("4096 × 16 KiB, blosc", write={LOCAL: 3}, read={LOCAL: 4}),
    *_faster("512 × 1 MiB, raw", read={EVERY_PEER: 1}),
    *_faster("512 × 1 MiB, zstd", write={EVERY_PEER: 1}, read={EVERY_PEER: 1}),
    *_faster(SHARDED.name, {LOCAL: 5, TENSORSTORE: 1.5}, {LOCAL: 5, TENSORSTORE: 1}, {LOCAL: 5, TENSORSTORE: 1.2}),
    *(
        faster(f"4096 × 16 KiB, {codec}", RANDOM, than, times, CACHING)
        for codec in ("raw", "zstd")
        for than, times in {POOL: 1, HDF5: 0.3}.items()
    ),
    faster("4096 × 16 KiB, raw", "write", TRANSACTION, 1.2),
    *(faster("4096 × 16 KiB, raw", task, f"{MEMORY}, fused", 1) for task in ("write", "read")),
    faster("4096 × 16 KiB, raw", "write", HDF5, 1, SCRATCH),
    faster("512 × 1 MiB, raw", "write", ZARRS, 1, SCRATCH),
    faster("512 × 1 MiB, raw", "write", "TensorStore file", 2),
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
