"""Compares two runs of zarr's test suite: what fails only with the plugin is our fault, and the exit status is 1."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def outcomes(report: Path) -> dict[str, str]:
    """Return "passed", "failed" or "skipped" for each test of a JUnit report."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def main() -> int:
    plain, ours = (outcomes(Path(each)) for each in sys.argv[1:3])
    worse = sorted(name for name, outcome in ours.items() if outcome == "failed" and plain.get(name) != "failed")
    lost = sorted(plain.keys() - ours.keys())
    for kind, found in (("zarr as it is", plain), ("in the caller's thread", ours)):
        counts = {outcome: list(found.values()).count(outcome) for outcome in ("passed", "failed", "skipped")}
        print(f"{kind}: {', '.join(f'{count:,} {outcome}' for outcome, count in counts.items())}")
    for name in worse:
        print(f"fails only in the caller's thread: {name}")
    for name in lost:
        print(f"was not run: {name}")
    return 1 if worse or lost or not ours else 0


if __name__ == "__main__":
    sys.exit(main())
