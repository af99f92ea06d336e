"""How a repository grows with its keys: index bytes, write amplification of compaction, runs, time to open.

The simulation keeps only the sizes of sorted runs, and asks the real policy (`txstore.segments.compaction`) which of
them are merged. So it takes a minute for a hundred million keys in a million commits, which no machine at hand would
fill. Beside it, real repositories of up to a million keys show whether the simulation is right, and what it takes to
open one and to read a key. It is a miss if they differ, or if opening grows with the keys.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import txstore
from benchmarks.harness import Row, Setting, fill_keys, seconds_of
from txstore.format import commitfile
from txstore.format.commitfile import RunName
from txstore.segments import compaction

#: Bytes of a run for each key, with its share of the index: of the keys of one array, as `fill_keys` writes them.
BYTES_OF_ENTRY = 16.2
#: Bytes of a frame in a commit file: of what a commit brings depends how much it merges.
BYTES_OF_FRAME = 56
#: Keys of a commit; the last pattern: all keys in one.
PATTERNS = (100, 10_000, 0)
SIMULATED = (100_000, 1_000_000, 10_000_000, 100_000_000)
REAL = 1_000_000
#: What must hold: of the simulated bytes, and of the time to open beside the smallest repository.
WITHIN, GROWTH = 0.15, 3.0
_OPENED = 9


@dataclass
class Grown:
    """What is left of a repository, and what was written for it."""

    runs: list[RunName] = field(default_factory=list)  # newest first
    own_bytes: float = 0
    merged_bytes: float = 0

    @property
    def amplification(self) -> float:
        """Bytes of runs written, for each byte of the runs of the commits themselves."""
        return (self.own_bytes + self.merged_bytes) / self.own_bytes

    @property
    def index_bytes(self) -> int:
        return sum(run.length for run in self.runs)


def simulated(keys: int, in_a_commit: int) -> Grown:
    """Let one process commit keys, a number of them at a time, as a committer on a local disk does."""
    grown = Grown()
    commits = keys // in_a_commit
    for number in range(commits):
        own = _run(in_a_commit, number)
        grown.own_bytes += own.length
        brought = own.length + in_a_commit * BYTES_OF_FRAME
        _merge(grown, compaction.merged_by_commit(grown.runs, compaction.ON_DISK, brought), number)
        grown.runs.insert(0, own)
    return grown


def _run(entries: int, number: int) -> RunName:
    return RunName(None, number + 1, number, round(entries * BYTES_OF_ENTRY) + 64, entries, number + 1)


def _merge(grown: Grown, chosen: object, number: int) -> None:
    inputs = list(chosen)  # type: ignore[call-overload]
    if not inputs:
        return
    merged = _run(sum(run.entries for run in inputs), number)
    at = grown.runs.index(inputs[0])
    grown.runs[at : at + len(inputs)] = [merged]
    grown.merged_bytes += merged.length


# --- a real one


def measured(repo: txstore.Repository) -> Grown:
    """Add up the runs that the commits have written; a merged run is also in the first commit that lists it."""
    grown, seen, commits = Grown(), set[tuple[object, ...]](), repo.engine.commits
    for stored in reversed(list(commits.chain.ancestors(commits.head("main")))):
        own = stored.header.sections[0] if stored.header.sections else None
        for run in stored.header.runs:
            place = run.inside(stored.header.name) if run.pack is None else run
            if (place.pack, place.offset) in seen:
                continue
            seen.add((place.pack, place.offset))
            if run.pack is None and own is not None and run.offset == own.offset:
                grown.own_bytes += run.length
            else:
                grown.merged_bytes += run.length
        grown.runs = list(stored.header.runs)
    return grown


def seconds_to_open(path: Path, keys: int) -> float:
    """Return the median time to open a repository anew and to read one key."""
    names = [f"position/c/{keys * number // _OPENED}" for number in range(_OPENED)]
    return statistics.median(seconds_of(lambda name=name: txstore.Repository(path).mapping()[name]) for name in names)


def keys(setting: Setting) -> list[Row]:
    figures: list[dict[str, Any]] = []
    for count in SIMULATED[: setting.rounds(len(SIMULATED), 2)]:
        for pattern in PATTERNS:
            figures.append(_figures("simulated", count, pattern, simulated(count, pattern or count)))
    off, opened = list[float](), list[float]()
    with setting.scratch() as scratch:
        for count in (size for size in SIMULATED if size <= setting.rounds(REAL, SIMULATED[0])):
            for pattern in PATTERNS if count <= SIMULATED[0] else PATTERNS[1:]:
                path = scratch / f"{count}-{pattern}.tx"
                repo = txstore.Repository(path, durability="none")
                fill_keys(repo, count, pattern or count)
                real = measured(repo)
                opened.append(1e3 * seconds_to_open(path, count))
                off.append(abs(real.index_bytes / simulated(count, pattern or count).index_bytes - 1))
                figures.append({**_figures("real", count, pattern, real), "ms to open": opened[-1]})
    what = "index bytes of real repositories"
    slowest = f"open and read one of up to {max(figure['keys'] for figure in figures if figure['of'] == 'real'):,} keys"
    return [
        Row("simulate-keys", f"{what}, off the simulated ones", max(off), WITHIN, "", figures=figures),
        Row("simulate-keys open", f"{slowest}: the slowest by the fastest", max(opened) / min(opened), GROWTH),
    ]


def _figures(of: str, keys: int, pattern: int, grown: Grown) -> dict[str, Any]:
    return {
        "of": of, "keys": keys, "keys of a commit": pattern or keys, "index MB": grown.index_bytes / 1e6,
        "runs": len(grown.runs), "header bytes": _header_bytes(grown), "write amplification": grown.amplification,
    }  # fmt: skip


def _header_bytes(grown: Grown) -> int:
    def length(*runs: RunName) -> int:
        return len(commitfile.Header(*[bytes(16)] * 4, 0, 1, 0, "main", runs=runs).encode())

    return length(*grown.runs) - length()


CASES = {"simulate-keys": keys}
