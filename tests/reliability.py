"""How much was tried, and how often it failed: `python -m tests.reliability FOLDER` prints it as a table.

Tests add to counts, each under the name of a line of the table. Where TXSTORE_RELIABILITY_JSON names a file, each
process of a test run leaves its counts there, also when a test has failed; `make reliability` runs the long ones.
"""

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class Line(NamedTuple):
    """What a line of the table shows: counts are named as the tests name them."""

    name: str
    tried: str  # the count that says how often
    caught: str = ""  # the count that has to be equal to it; by default there must be no "failures"


LINES = (
    Line("power lost", "images looked at"),
    Line("killed, then power lost", "images looked at"),
    Line("calls that fail", "faults injected"),
    Line("seeded bugs", "planted", caught="caught"),
    Line("processes killed", "kills"),
    Line("isolation", "transactions"),
    Line("bit flips", "bits turned"),
    Line("fuzz", "inputs"),
)
FAILURES = "failures"

_counts: dict[str, Counter[str]] = {}


def add(what: str, counts: Counter[str]) -> None:
    """Add to what has been counted, and write it: a JSON object for each line of the table, by what was tried."""
    _counts.setdefault(what, Counter()).update(counts)
    path = os.environ.get("TXSTORE_RELIABILITY_JSON")
    if path:
        # Each process of a parallel run has a file of its own.
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        with open(f"{path}.{worker}" if worker else path, "w") as file:
            json.dump(table(), file, indent=2)


@contextlib.contextmanager
def counting(what: str) -> Iterator[Counter[str]]:
    """Add what is counted meanwhile, one failure among it if an error is raised."""
    counts: Counter[str] = Counter()
    try:
        yield counts
    except BaseException:
        counts[FAILURES] += 1
        raise
    finally:
        add(what, counts)


def table() -> dict[str, dict[str, int]]:
    return {what: dict(sorted(found.items())) for what, found in sorted(_counts.items())}


def collect(folder: Path) -> dict[str, Counter[str]]:
    """Return the counts of all files in a folder."""
    found: dict[str, Counter[str]] = {}
    for path in sorted(folder.iterdir()):
        for what, counts in json.loads(path.read_text()).items():
            found.setdefault(what, Counter()).update(counts)
    return found


def misses(found: dict[str, Counter[str]]) -> list[str]:
    """Return what is not as it has to be, a line that was not tried among it."""
    missed = []
    for line in LINES:
        counts = found.get(line.name, Counter())
        if not counts[line.tried]:
            missed.append(f"{line.name}: not tried")
        elif failed(line, counts):
            missed.append(f"{line.name}: {failed(line, counts):,} of {counts[line.tried]:,}")
    lines = {line.name for line in LINES}
    return missed + [f"{what}: {counts[FAILURES]:,}" for what, counts in found.items() if what not in lines]


def failed(line: Line, counts: Counter[str]) -> int:
    return counts[FAILURES] + (counts[line.tried] - counts[line.caught] if line.caught else 0)


def show(found: dict[str, Counter[str]]) -> Table:
    shown = Table("what was tried", "how often", "", "failures", title="Reliability", caption="failures must be 0")
    for column in (1, 3):
        shown.columns[column].justify = "right"
    for line in LINES:
        counts = found.get(line.name, Counter())
        rest = [name for name in counts if name not in (line.tried, line.caught, FAILURES)]
        details = ", ".join(f"{counts[name]:,} {name}" for name in sorted(rest))
        count = failed(line, counts) if counts[line.tried] else "not tried"
        style = "red" if count else None
        what = f"{line.tried}, of which {counts[line.caught]:,} {line.caught}" if line.caught else line.tried
        what = f"{what} ({details})" if details else what
        shown.add_row(line.name, f"{counts[line.tried]:,}", what, str(count), style=style)
    return shown


def main() -> int:
    found = collect(Path(sys.argv[1]))
    Console(width=None if sys.stdout.isatty() else 120).print(show(found))
    missed = misses(found)
    for miss in missed:
        print(miss)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
