"""Many processes write one array, one process reads it: what each way of sharing costs, and what it loses.

The workload is the same for all. Each of 1, 2, 4 and 8 processes repeats, as fast as it can, one small transaction: it
fills one chunk (64 × 64 float32, 16 KiB) that no other process touches. The first process fills in the same
transaction two more, always with equal numbers; a reader opens the newest state again and again (5 ms between two
reads), and reads these two. Processes start together, each store is new, and at the end the reader looks for every
write that was acknowledged. How each store is used, and which are durable, is said in `processes_stores.py`.

Beside that table stand two promises: of 8 processes that make 500 transactions each, none is lost and none conflicts;
and 4 processes commit three times as many small durable transactions in a second as through TensorStore's OCDBT. For
the second, zarr and its codecs are left out on both sides: a transaction is the bytes of one such chunk under a key
of its own. Those rates are taken in turns, like every ratio here.

On ext4, creating a file takes up to fifty times as long where many were deleted in the last minutes, by an earlier run
or by somebody else. So nothing is deleted before the end, and each store is laid into a part of the disk of its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count, groupby
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.harness import OURS, Row, Setting, interleaved, medians, ratio, settle, spread_out
from benchmarks.processes.crew import Cell, Crew
from benchmarks.processes.picture import draw
from benchmarks.processes.stores import (
    WRITERS,
    BareFiles,
    FastenersArrays,
    FileLockArrays,
    IcechunkArrays,
    OcdbtArrays,
    OcdbtKeys,
    Store,
    TxStoreArrays,
    TxStoreKeys,
)

PROCESSES = (1, 2, 4, WRITERS)
PROCESSES_QUICK = (1, WRITERS)
PEERS: tuple[type[Store], ...] = (OcdbtArrays, IcechunkArrays, FileLockArrays, FastenersArrays)
COMMITTERS = 4


def processes(setting: Setting) -> list[Row]:
    with setting.scratch() as scratch:
        spread_out(scratch)
        cells, disjoint = _ours(setting, scratch)
        for peer in _installed(PEERS):
            try:
                with Crew(peer, WRITERS) as crew:
                    cells.extend(_side_by_side(crew, setting, scratch))
            except RuntimeError as error:  # a peer that breaks down breaks no promise of ours
                Console(stderr=True).print(escape(f"{peer.name} is left out from here on: {error}"))
        rows = [*_none_lost(cells), *disjoint, *_commits(setting, scratch)]
    console = Console(highlight=False)
    console.width = max(console.width, 124)
    console.print(_table(cells))
    if setting.picture is not None:
        console.print(draw(cells, setting.picture))
    return rows


def _place(scratch: Path, what: str) -> Path:
    """Return where a store goes: a name never used before, because its hash chooses the part of the disk."""
    return scratch / f"{what}-{scratch.name}"


def _installed(stores: Sequence[type[Store]]) -> list[type[Store]]:
    found = [store for store in stores if importlib.util.find_spec(store.package) is not None]
    missing = sorted({store.package for store in stores} - {store.package for store in found})
    if missing:
        Console(stderr=True).print(f"left out, as not installed: {', '.join(missing)} (pip install 'txstore\\[bench]')")
    return found


# --- side by side


def _side_by_side(crew: Crew, setting: Setting, scratch: Path) -> Iterator[Cell]:
    for together in PROCESSES_QUICK if setting.quick else PROCESSES:
        settle(scratch)
        path = _place(scratch, f"{crew.store.package}-{together}")
        yield crew.run(path, together, seconds=setting.rounds(20, 4) / 10)


def _ours(setting: Setting, scratch: Path) -> tuple[list[Cell], list[Row]]:
    """Measure TxStore with each number of processes; then all of them with a fixed number of transactions each."""
    each = setting.rounds(500, 50)
    with Crew(TxStoreArrays, WRITERS) as crew:
        cells = list(_side_by_side(crew, setting, scratch))
        settle(scratch)
        cell = crew.run(_place(scratch, "disjoint"), WRITERS, count=each)
    what = f"{WRITERS} processes × {each} transactions on disjoint chunks"
    return cells, [
        Row("processes-disjoint", f"{what}: lost", WRITERS * each - cell.found, 0, "lost", figures=[cell.as_dict()]),
        Row("processes-conflicts", f"{what}: in conflict", cell.conflicts, 0, "conflicts"),
    ]


def _none_lost(cells: Sequence[Cell]) -> list[Row]:
    ours = [cell for cell in cells if cell.store == OURS]
    what = f"{PROCESSES[0]} to {PROCESSES[-1]} processes"
    acknowledged, reads = sum(cell.acknowledged for cell in ours), sum(len(cell.latencies) for cell in ours)
    return [
        Row(
            "processes-lost", f"{what}, {acknowledged:,} transactions: lost",
            sum(cell.lost for cell in ours), 0, "lost", figures=[cell.as_dict() for cell in cells],
        ),
        Row("processes-torn", f"{what}, {reads:,} reads beside them: torn", sum(cell.torn for cell in ours), 0, "torn"),
    ]  # fmt: skip


def _table(cells: Sequence[Cell]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Many processes write an array, one reads")
    for column in ("", "writers", "acknowledged", "lost", "conflicts", "writes/s", "reads", "torn", "median", "p99"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for store, of_store in groupby(cells, key=lambda cell: cell.store):
        for number, cell in enumerate(of_store):
            table.add_row(
                escape(store) if number == 0 else "",
                f"{cell.processes}",
                f"{cell.acknowledged:,}",
                _alarming(cell.lost),
                f"{cell.conflicts:,}",
                f"{cell.rate:,.0f}",
                f"{len(cell.latencies):,}",
                _alarming(cell.torn),
                f"{cell.latency(50):.1f} ms",
                f"{cell.latency(99):.1f} ms",
            )
        table.add_section()
    return table


def _alarming(number: int) -> str:
    return f"[bold red]{number:,}[/]" if number else "0"


# --- small durable commits


def _commits(setting: Setting, scratch: Path) -> list[Row]:
    """Measure commits a second, through each store in turns."""
    lost = {}
    with ExitStack() as stack:
        takes = {}
        for store in _installed((TxStoreKeys, OcdbtKeys, BareFiles)):
            crew = stack.enter_context(Crew(store, COMMITTERS))
            lost[store.name] = 0
            takes[store.name] = partial(_take, crew, scratch, setting.rounds(10, 4) / 10, count(), lost)
        rates = interleaved(takes, setting.rounds(7, 1), before_each=partial(settle, scratch))
    middle = medians(rates)
    all_rates = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in middle.items())
    return [
        Row(
            "processes-commits",
            f"{COMMITTERS} processes, small durable commits: rate as a multiple of OCDBT's ({all_rates})",
            ratio(rates, OURS, OcdbtKeys.name) if OcdbtKeys.name in rates else 0.0, 3.0, at_least=True,
            medians=middle, samples=rates,
        ),
        Row("processes-commits-lost", f"{COMMITTERS} processes, small durable commits: lost", lost[OURS], 0, "lost"),
    ]  # fmt: skip


def _take(crew: Crew, scratch: Path, seconds: float, numbers: Iterator[int], lost: dict[str, int]) -> float:
    path = _place(scratch, f"{crew.store.package}-commits-{next(numbers)}")
    cell = crew.run(path, COMMITTERS, seconds=seconds, reading=False)
    lost[cell.store] += cell.lost
    return cell.rate


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {"processes": processes}
