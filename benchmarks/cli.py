"""Run the benchmarks, print a table, write `benchmark-results.json`; the exit status is 1 if a promise is not kept."""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.cases import arrays, commits, distance, following, keys, large, loaders, locks, remote, writers
from benchmarks.harness import Row, Setting
from benchmarks.machine import describe_machine, file_system_of, versions
from benchmarks.pages import amount, bound, publish
from benchmarks.pictures import PANELS, draw_far_away

RESULTS = Path("benchmark-results.json")
FAR_AWAY = RESULTS.with_name("benchmark-distance.svg")
BENCHMARKS = {
    **arrays.CASES,
    **commits.CASES,
    **distance.CASES,
    **large.CASES,
    **keys.CASES,
    **following.CASES,
    **loaders.CASES,
    **locks.CASES,
    **remote.CASES,
    **writers.CASES,
}


def main() -> int:
    arguments = _parse()
    console = Console(stderr=True, highlight=False)
    if arguments.publish:
        publish(json.loads(RESULTS.read_text(encoding="utf-8")))
        return 0
    directory = arguments.directory.resolve()
    file_system = file_system_of(directory)
    if file_system in ("tmpfs", "ramfs"):
        console.print(f"{directory} is in memory ({file_system}), where being durable costs nothing: use --directory")
        return 2
    chosen = _choose(arguments.only)
    if not chosen:
        console.print(f"no such benchmark; there are {', '.join(BENCHMARKS)}")
        return 2
    setting = Setting(directory, quick=arguments.quick)
    rows: list[Row] = []
    machine = describe_machine(file_system)
    for name in chosen:
        began = time.monotonic()
        measured = BENCHMARKS[name](setting)
        rows += measured
        for row in measured:
            verdict = "[green]pass[/]" if row.ok else "[bold red]MISS[/]"
            console.print(f"{verdict} {amount(row.measured, row.unit):>10}  {escape(row.what)}")
        console.print(f"[dim]{name}: {time.monotonic() - began:.0f} s[/]")
        _write_results(rows, machine, quick=arguments.quick)  # each time: what was measured outlives an interrupt
    Console(highlight=False).print(_table(rows, quick=arguments.quick))
    if any(row.name in PANELS for row in rows):
        console.print(draw_far_away([row.as_dict() for row in rows], FAR_AWAY))
    return 0 if all(row.ok for row in rows) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help=f"one or part of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller repositories: to see that it runs")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="where to write; by default here")
    parser.add_argument("--publish", action="store_true", help="put what the last run has found into the documents")
    return parser.parse_args()


def _choose(only: list[str] | None) -> list[str]:
    """Return the benchmarks with these names, or, of what is no name, those that contain it."""
    if not only:
        return list(BENCHMARKS)
    return [
        name for name in BENCHMARKS if any(name == part or (part in name and part not in BENCHMARKS) for part in only)
    ]


def _table(rows: list[Row], *, quick: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="quick: too few samples to judge by" if quick else None)
    for column, justify in (("what", "left"), ("measured", "right"), ("must reach", "right"), ("", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(
            escape(row.what),
            amount(row.measured, row.unit),
            bound(row.target, row.unit, at_least=row.at_least),
            "pass" if row.ok else "[bold red]MISS[/]",
        )
    return table


def _write_results(rows: list[Row], machine: dict[str, Any], *, quick: bool) -> None:
    results = {
        "time": datetime.now(UTC).isoformat(),
        "quick": quick,
        "ok": all(row.ok for row in rows),
        "machine": machine | {"load_after": os.getloadavg()},
        "versions": versions(),
        "rows": [row.as_dict() for row in rows],
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
