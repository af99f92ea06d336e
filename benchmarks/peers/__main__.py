"""TxStore beside its peers: measure, keep the results as JSON, say what they show; the exit status is 1 on a miss."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.harness import spread_out
from benchmarks.machine import describe_machine, file_system_of, versions
from benchmarks.peers.results import Results, load
from benchmarks.peers.rows import make_rows
from benchmarks.peers.run import run
from benchmarks.peers.targets import judge

RESULTS = Path("benchmark-peers.json")
ROUNDS, ROUNDS_QUICK = 5, 1


def main() -> int:
    arguments = _parse()
    console = Console(highlight=False)
    if arguments.show:
        results = load(arguments.output)
    else:
        offered = make_rows(quick=arguments.quick, keys=arguments.keys)
        rows = [row for name, row in offered.items() if _is_chosen(name, arguments.rows)]
        if not rows:
            console.print(f"no such row; there are {'; '.join(offered)}")
            return 2
        rounds = arguments.rounds or (ROUNDS_QUICK if arguments.quick else ROUNDS)
        directory = arguments.directory.resolve()
        file_system = file_system_of(directory)
        if file_system in ("tmpfs", "ramfs"):
            console.print(
                f"{directory} is in memory ({file_system}), where being durable costs nothing: use --directory"
            )
            return 2
        results = Results(_about(file_system, rounds, quick=arguments.quick))
        with TemporaryDirectory(prefix="benchmark-", dir=directory) as scratch:
            spread_out(Path(scratch))
            run(results, rows, Path(scratch), rounds=rounds, only=arguments.peers or ())
        results.save(arguments.output)
    verdicts = judge(results)
    for task in results.tasks():
        shown = ", ".join(f"{cell.peer} {cell.median:.3g} {cell.unit}" for cell in results.of(*task))
        console.print(f"{' / '.join(task)}: {shown}", markup=False)
    for skipped in results.skipped:
        console.print(f"{skipped.row}: {skipped.peer} is left out: {skipped.why}", markup=False)
    table = Table("row", "", "must reach", "measured", "", box=None)
    for verdict in verdicts:
        ok = "ok" if verdict.ok else "[bold red]MISS[/]"
        table.add_row(verdict.row, verdict.task, verdict.wanted, verdict.measured, ok)
    console.print(table)
    return 0 if all(verdict.ok for verdict in verdicts) else 1


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


if __name__ == "__main__":
    sys.exit(main())
