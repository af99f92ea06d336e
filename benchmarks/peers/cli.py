"""TxStore beside its peers: measure, keep the results as JSON, say what they show; the exit status is 1 on a miss."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.harness import spread_out
from benchmarks.machine import describe_machine, file_system_of, versions
from benchmarks.peers.publish import publish
from benchmarks.peers.report import measured
from benchmarks.peers.results import OURS, Results, load
from benchmarks.peers.rows import make_rows, take_rounds
from benchmarks.peers.targets import judge

ROOT = Path(__file__).parents[2]
RESULTS = Path("benchmark-peers.json")
ROUNDS, ROUNDS_QUICK = 3, 1


def main() -> int:
    arguments = _parse()
    console = Console(highlight=False)
    console.width = max(console.width, 150)
    if arguments.show or arguments.publish:
        results = load(arguments.output)
    elif (taken := _measure(arguments)) is not None:
        results = taken
    else:
        return 2
    if arguments.publish:
        publish(results, ROOT)
    _show(console, results)
    return 0 if all(verdict.ok for verdict in judge(results)) else 1


def _measure(arguments: argparse.Namespace) -> Results | None:
    """Return what was measured; the file has it after each row, for whoever can't wait."""
    console = Console(stderr=True, highlight=False)
    offered = make_rows(quick=arguments.quick, keys=arguments.keys)
    rows = [row for name, row in offered.items() if _is_chosen(name, arguments.rows)]
    if not rows:
        console.print(f"no such row; there are {'; '.join(offered)}")
        return None
    directory = arguments.directory.resolve()
    file_system = file_system_of(directory)
    if file_system in ("tmpfs", "ramfs"):
        console.print(f"{directory} is in memory ({file_system}): nothing is durable there; use --directory")
        return None
    rounds = arguments.rounds or (ROUNDS_QUICK if arguments.quick else ROUNDS)
    results = Results(_about(file_system, rounds, quick=arguments.quick))
    with TemporaryDirectory(prefix="benchmark-", dir=directory) as scratch:
        spread_out(Path(scratch))
        for row in rows:
            began = time.monotonic()
            take_rounds(results, row, Path(scratch), rounds=rounds, only=arguments.peers or ())
            results.save(arguments.output)
            console.print(f"{row.name}: {time.monotonic() - began:.0f} s")
    return results


def _show(console: Console, results: Results) -> None:
    for row in dict.fromkeys(row for row, _ in results.tasks()):
        tasks = [task for name, task in results.tasks() if name == row]
        shown = Table("", title=row, title_justify="left", box=box.SIMPLE_HEAD)
        for task in tasks:
            shown.add_column(task, justify="right")
        for peer in dict.fromkeys(cell.peer for cell in results.of(row, tasks[0])):
            cells = (results.find(row, task, peer) for task in tasks)
            style = "bold" if peer == OURS else None
            shown.add_row(peer, *("–" if cell is None else measured(cell) for cell in cells), style=style)
        console.print(shown)
    for skipped in results.skipped:
        console.print(f"{skipped.row}: {skipped.peer} is left out: {skipped.why}", markup=False)
    shown = Table("row", "", "must reach", "measured", "", title="What it has to show", box=box.SIMPLE_HEAD)
    for verdict in judge(results):
        ok = "ok" if verdict.ok else "[bold red]MISS[/]"
        shown.add_row(verdict.row, verdict.task, verdict.wanted, verdict.measured, ok)
    console.print(shown)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rows", action="append", metavar="PART", help="those whose names contain it; several times")
    parser.add_argument("--peers", action="append", metavar="PART", help="those whose names contain it; several times")
    parser.add_argument("--rounds", type=int, help=f"by default {ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="one round: to see that it runs")
    parser.add_argument("--keys", type=int, default=10**5, metavar="N", help="up to so many; by default 100,000")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="where to write; by default here")
    parser.add_argument("--output", type=Path, default=RESULTS, help=f"the results; by default {RESULTS}")
    parser.add_argument("--show", action="store_true", help="measure nothing: show what the results say")
    parser.add_argument("--publish", action="store_true", help="as --show; puts them into the documents, too")
    return parser.parse_args()


def _is_chosen(name: str, parts: list[str] | None) -> bool:
    return not parts or any(part in name for part in parts)


def _about(file_system: str, rounds: int, *, quick: bool) -> dict[str, object]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "rounds": rounds,
        "machine": describe_machine(file_system),
        "versions": versions(),
    }
