"""How much was tried: counts that tests add to, written to the file that TXSTORE_RELIABILITY_JSON names."""

from __future__ import annotations

import json
import os
from collections import Counter

from tests.crash.harness import Counts

_counts: dict[str, Counter[str]] = {}


def add(what: str, counts: Counts | Counter[str]) -> None:
    """Add to what has been counted, and write it: a JSON object for each line of the table, by what was tried."""
    found = counts if isinstance(counts, Counter) else counts.as_numbers()
    _counts.setdefault(what, Counter()).update(found)
    path = os.environ.get("TXSTORE_RELIABILITY_JSON")
    if path:
        # Each process of a parallel run has a file of its own.
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        with open(f"{path}.{worker}" if worker else path, "w") as file:
            json.dump(table(), file, indent=2)


def table() -> dict[str, dict[str, int]]:
    return {what: dict(sorted(found.items())) for what, found in sorted(_counts.items())}
