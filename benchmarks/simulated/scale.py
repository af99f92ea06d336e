"""How a repository grows with its keys: index bytes, write amplification of compaction, runs, time to open.

    python -m benchmarks.simulated.scale [--keys 10000000] [--quick]

The simulation keeps only the sizes of sorted runs, and asks the real policy (`txstore.segments.compaction`) which of
them are merged. So it takes a minute for a hundred million keys in a million commits, which no machine at hand would
fill. Beside it, real repositories of up to `--keys` keys show whether the simulation is right, and what it takes to
open one and to read a key. The exit status is 1 if they differ, or if opening grows with the keys.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import txstore
from txstore.commit import Stored
from txstore.format import commitfile
from txstore.format.commitfile import RunName
from txstore.segments import compaction

#: Bytes of a run for each key, with its share of the index: of the keys of one array, as `_fill` writes them.
BYTES_OF_ENTRY = 16.2
#: Bytes of a frame in a commit file: of what a commit brings depends how much it merges.
BYTES_OF_FRAME = 56
#: Keys of a commit; the last pattern: all keys in one.
PATTERNS = (100, 10_000, 0)
SIMULATED = (100_000, 1_000_000, 10_000_000, 100_000_000)
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


def filled(path: Path, keys: int, in_a_commit: int) -> txstore.Repository:
    repo = txstore.Repository(path, durability="none")
    for first in range(0, keys, in_a_commit):
        with repo.begin("fill") as transaction:
            for number in range(first, first + in_a_commit):
                transaction[f"position/c/{number}"] = number.to_bytes(8, "little")
    return repo


def measured(repo: txstore.Repository) -> Grown:
    """Add up the runs that the commits have written; a merged run is also in the first commit that lists it."""
    grown, seen = Grown(), set[tuple[object, ...]]()
    for stored in reversed(list(_commits(repo))):
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


def _commits(repo: txstore.Repository) -> Iterator[Stored]:
    commits = repo.engine.commits
    return commits.chain.ancestors(commits.head("main"))


def seconds_to_open(path: Path, keys: int) -> float:
    """Return the median time to open a repository anew and to read one key."""
    samples = []
    for number in range(_OPENED):
        began = time.perf_counter()
        txstore.Repository(path).mapping()[f"position/c/{keys * number // _OPENED}"]
        samples.append(time.perf_counter() - began)
    return statistics.median(samples)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000, help="of the largest real repository")
    parser.add_argument("--quick", action="store_true", help="small ones: to see that it runs")
    given = parser.parse_args(arguments)
    largest, sizes = (100_000, SIMULATED[:2]) if given.quick else (given.keys, SIMULATED)
    print(
        "simulated: keys, keys of a commit, index bytes (of a key), runs, their bytes in a header, write amplification"
    )
    for keys in sizes:
        for pattern in PATTERNS:
            grown = simulated(keys, pattern or keys)
            size = f"{grown.index_bytes / 1e6:>9,.1f} MB ({grown.index_bytes / keys:.1f})"
            runs = f"{len(grown.runs):>3}  {_header_bytes(grown):>6,}"
            print(f"{keys:>11,}  {pattern or 'all':>7}  {size}  {runs}  {grown.amplification:>5.2f}")
    print("measured (simulated): keys, keys of a commit, index bytes, runs, write amplification, open and read")
    misses, opened = list[str](), list[float]()
    with TemporaryDirectory(dir=".") as folder:
        for keys in (size for size in SIMULATED if size <= largest):
            for pattern in PATTERNS if keys <= 100_000 else PATTERNS[1:]:
                in_a_commit = pattern or keys
                path = Path(folder) / f"{keys}-{pattern}.tx"
                real, model = measured(filled(path, keys, in_a_commit)), simulated(keys, in_a_commit)
                opened.append(seconds_to_open(path, keys))
                size = f"{real.index_bytes / 1e6:.2f} ({model.index_bytes / 1e6:.2f}) MB"
                runs = f"{len(real.runs)} ({len(model.runs)})  {real.amplification:.2f} ({model.amplification:.2f})"
                print(f"{keys:>11,}  {pattern or 'all':>7}  {size}  {runs}  {opened[-1] * 1e3:.2f} ms")
                if abs(real.index_bytes / model.index_bytes - 1) > WITHIN:
                    misses.append(f"{keys:,} keys, {pattern or 'all'} in a commit: the simulated bytes are wrong")
    if max(opened) > GROWTH * min(opened):
        misses.append(f"opening takes {min(opened) * 1e3:.2f} to {max(opened) * 1e3:.2f} ms: it grows with the keys")
    for miss in misses:
        print("MISS", miss)
    return 1 if misses else 0


def _header_bytes(grown: Grown) -> int:
    header = commitfile.Header(*[bytes(16)] * 4, 0, 1, 0, "main")
    with_runs = commitfile.Header(*[bytes(16)] * 4, 0, 1, 0, "main", runs=tuple(grown.runs))
    return len(with_runs.encode()) - len(header.encode())


if __name__ == "__main__":
    sys.exit(main())
