"""What TxStore has to reach, and whether a run shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.peers.results import OURS, Cell, Results, fastest, ratio

TENSORSTORE = "TensorStore"
#: Peers that keep nothing when their process ends: no store to compare a durable one with.
IN_MEMORY = "MemoryStore"
EVERY_PEER = "every peer"


@dataclass(frozen=True)
class Target:
    """In this task TxStore must be so many times as fast as the fastest of the peers whose names begin so."""

    row: str
    task: str
    than: str
    times: float


@dataclass(frozen=True)
class Limit:
    """What was measured for TxStore must not be more than that."""

    row: str
    task: str
    at_most: float
    unit: str


@dataclass(frozen=True)
class Verdict:
    row: str
    task: str
    target: str
    measured: str
    ok: bool


def _both(row: str, write: dict[str, float], read: dict[str, float]) -> list[Target | Limit]:
    return [
        Target(row, task, than, times)
        for task, wanted in (("write", write), ("read", read))
        for than, times in wanted.items()
    ]


LOCAL, OCDBT, HDF5, ICECHUNK = "LocalStore", "TensorStore ocdbt", "HDF5", "Icechunk"
TARGETS: list[Target | Limit] = [
    *_both(
        "4096 × 16 KiB, raw",
        {OCDBT: 1.4, HDF5: 1.2, LOCAL: 10, ICECHUNK: 8},
        {TENSORSTORE: 1.1, HDF5: 1, ICECHUNK: 10},
    ),
    *_both("4096 × 16 KiB, zstd", {OCDBT: 1, LOCAL: 3}, {TENSORSTORE: 1, HDF5: 2, LOCAL: 5}),
    *_both("4096 × 16 KiB, blosc", {LOCAL: 3}, {LOCAL: 4}),
    *_both("512 × 1 MiB, raw", {EVERY_PEER: 1}, {EVERY_PEER: 1}),
    *_both("512 × 1 MiB, zstd", {EVERY_PEER: 1}, {EVERY_PEER: 1}),
    *_both("4096 × 16 KiB in 16 shards, zstd", {LOCAL: 5, TENSORSTORE: 1}, {LOCAL: 5, TENSORSTORE: 1}),
    Target("4096 × 16 KiB in 16 shards, zstd", "random", LOCAL, 5),
    Target("4096 × 16 KiB in 16 shards, zstd", "random", TENSORSTORE, 1),
    *(
        Target(f"4096 × 16 KiB, {codec}", "random", than, times)
        for codec in ("raw", "zstd")
        for than, times in ((LOCAL, 3.0), (TENSORSTORE, 1.0))
    ),
]


def judge(results: Results, targets: Sequence[Target | Limit] = TARGETS) -> list[Verdict]:
    """Return a verdict for each target whose row was run; what could not be compared was missed."""
    rows = {row for row, _ in results.tasks()} | {skipped.row for skipped in results.skipped}
    return [_judge(results, target) for target in targets if target.row in rows]


def _judge(results: Results, target: Target | Limit) -> Verdict:
    ours = results.find(target.row, target.task, OURS)
    if isinstance(target, Limit):
        wanted = f"at most {target.at_most:g} {target.unit}"
        found = "not measured" if ours is None else f"{ours.median:.3g} {target.unit}"
        return Verdict(target.row, target.task, wanted, found, ours is not None and ours.median <= target.at_most)
    wanted = f"{target.times:g}x {target.than}"
    peer = fastest(filter(_chosen(target.than), results.of(target.row, target.task)))
    if ours is None or peer is None:
        return Verdict(target.row, target.task, wanted, "not measured", False)
    found = ratio(peer, ours)
    return Verdict(target.row, target.task, wanted, f"{found:.2f}x {peer.peer}", found >= target.times)


def _chosen(than: str) -> Callable[[Cell], bool]:
    """zarr's stores are meant with zarr's own pipelines: `zarrs` is a peer by itself, for every peer."""
    if than == EVERY_PEER:
        return lambda cell: not cell.peer.startswith((OURS, IN_MEMORY))
    return lambda cell: cell.peer.startswith(than) and not cell.peer.endswith("zarrs")
