"""Makes one table of what `make clients` has found, and says which tools failed or were slow without a reason.

`python -m tests.clients.table GROUP...` prints it; with `--publish` it goes into the documents instead.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.pages import filled
from tests.clients.trials import LOCAL, OURS, UNSYNCED

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build/clients"
PAGE = ROOT / "docs/reference/works-with.md"
#: TxStore may take this many times as long as a LocalStore; above it, the table wants a reason.
SLOW = 1.5


@dataclass(frozen=True)
class Row:
    """What the tests of one tool have found."""

    tool: str
    version: str
    group: str
    code: str
    works: list[str]
    limits: list[tuple[str, str]]
    slower: str
    times: list[dict[str, dict[str, float]]]
    failed: list[str]

    def ratio(self, what: str, store: str = OURS) -> float | None:
        """Return how many times as long as a LocalStore a store takes to `write` or `read`, all tests together."""
        seconds = [each[what] for each in self.times if each[what]]
        return sum(each[store] for each in seconds) / sum(each[LOCAL] for each in seconds) if seconds else None

    @property
    def faults(self) -> list[str]:
        """What is wrong with TxStore here: a test that failed, or time that nothing explains."""
        faults = [f"{self.tool}: {test} failed" for test in self.failed]
        for what in ("write", "read"):
            ratio = self.ratio(what)
            if ratio is not None and ratio > SLOW and not self.reason(what):
                faults.append(f"{self.tool}: to {what} takes {ratio:.2f} times as long as over LocalStore")
        return faults

    def reason(self, what: str) -> str:
        """Return why TxStore takes longer: as the test says, or because of the syncs, without which it does not."""
        unsynced = self.ratio(what, UNSYNCED)
        if what == "write" and unsynced is not None and unsynced <= SLOW:
            return f"the commit is synced: {unsynced:.2f}× without"
        return self.slower

    def cells(self) -> list[str]:
        ratios = {what: self.ratio(what) for what in ("write", "read")}
        remarks = [f"{limit} ({whose})" for limit, whose in self.limits]
        remarks += dict.fromkeys(
            self.reason(what) for what, ratio in ratios.items() if ratio is not None and ratio > SLOW
        )
        return [
            f"{self.tool} {self.version}{' **fails**' if self.failed else ''}",
            f"`{self.code}`",
            "; ".join(remark for remark in dict.fromkeys(remarks) if remark),
            ", ".join(f"{ratio:.2f}" for ratio in ratios.values() if ratio is not None) or "–",
        ]


def read(groups: list[str]) -> tuple[list[Row], list[str]]:
    """Return the rows of all groups, and what is wrong outside of any row."""
    rows, faults = [], []
    for group in groups:
        path = RESULTS / f"{group}.json"
        if not path.exists():
            faults.append(f"{group}: no results; run `make clients WHAT={group}`")
            continue
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows += [Row(tool=name, group=group, **row) for name, row in found["tools"].items()]
        told = {test for row in found["tools"].values() for test in row["failed"]}
        faults += [f"{group}: {test} failed" for test in found["failed"] if test not in told]
    return rows, faults


def table(rows: list[Row]) -> str:
    head = ["tool", "the line", "limits, and whose; reasons for time", "write, read"]
    lines = [head, ["---", "---", "---", "---:"], *(row.cells() for row in rows)]
    escaped = [[cell.replace("|", r"\|") for cell in cells] for cells in lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="+")
    parser.add_argument("--publish", action="store_true", help="put the table into the documents")
    arguments = parser.parse_args()
    rows, faults = read(arguments.groups)
    faults += [fault for row in rows for fault in row.faults]
    if arguments.publish and not faults:
        text = f"{len(rows)} tools, {datetime.now():%Y-%m-%d}.\n\n{table(rows)}"
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), text, "make clients"), encoding="utf-8")
    else:
        print(table(rows))
    print(f"{len(rows)} tools, {len(faults)} faults", *faults, sep="\n", file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
