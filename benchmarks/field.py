"""Several processes on one array, some of them killed: run the jobs on each store, print a table, write
`field-results.json`.

`python -m benchmarks.field --help` says what can be chosen. The exit status is 1 if TxStore has lost or torn anything.

A worker tells as soon as a write is acknowledged. The kernel keeps what it has told when the worker is killed. So the
runner knows every acknowledged write.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.own_process import Failed, Parent, Process
from benchmarks.stores import Hdf5, Icechunk, Layout, Local, Refused, Store, TensorStoreTransaction, TxStore, variant

T = TypeVar("T")

RESULTS = Path("field-results.json")
STORES: dict[str, type[Store]] = {
    kind.name: kind for kind in (TxStore, Local, Icechunk, variant(TensorStoreTransaction, "TensorStore ocdbt"), Hdf5)
}
JOBS = {
    # Several local processes: what Icechunk's issue 804 reports.
    "regions": "each process writes its own region of 4 chunks; two read beside them",
    "appends": "all processes append to one array",
}
COLUMNS = 512
#: Rows of a chunk; of a region, which has several, so that a torn write can be seen; and rows that are appended at
#: once: half a chunk, so that two processes meet in one.
CHUNK, REGION, BLOCK = 8, 32, 4


# --- the jobs: what a worker process does, until it is killed


@dataclass
class Worker:
    store: Store
    parent: Parent
    number: int

    def values(self, rows: int, sequence: int) -> np.ndarray:
        return np.full((rows, COLUMNS), code(self.number, sequence), np.int64)

    def attempt(self, action: Callable[[], T]) -> list[T]:
        """Try once; return what the action returned. Tell what the store refuses, and other errors: then nothing."""
        try:
            return [action()]
        except Refused:
            self.parent.tell(("refused", None))
        except Exception as error:  # noqa: BLE001 - what a store raises is a result
            self.parent.tell(("failed", f"{type(error).__name__} {error}".replace("\n", " ")[:200]))
        time.sleep(random.uniform(0.001, 0.01))
        return []

    def regions(self, sequence: int) -> None:
        """Write the worker's own region again and again."""
        place = slice(self.number * REGION, (self.number + 1) * REGION)
        while True:
            if self.attempt(partial(self.store.write_part, place, self.values(REGION, sequence))):
                self.parent.tell(("done", sequence))
                sequence += 1

    def appends(self, sequence: int) -> None:
        """Append blocks, as all other workers do to the same array."""
        while True:
            if self.attempt(partial(self.store.append, self.values(BLOCK, sequence))):
                self.parent.tell(("done", sequence))
            sequence += 1  # also after an error: what it has left is not what the next one writes

    def watch(self, writers: int) -> None:
        """Read one region of those that others write, and look whether it was written by one write."""
        while True:
            start = random.randrange(writers) * REGION
            for rows in self.attempt(partial(rows_of, self.store, slice(start, start + REGION))):
                self.parent.tell(("read" if len(np.unique(rows)) == 1 else "torn", None))


def code(worker: int, sequence: int) -> int:
    return (worker + 1) << 32 | sequence


def rows_of(store: Store, part: slice) -> np.ndarray:
    array = store.open(anew=False)
    found = store.read(array, part)
    store.close(array)
    return found


def work(store: str, place: Path, job: str, number: int, sequence: int, parent: Parent) -> None:
    getattr(Worker(STORES[store](place), parent, number), job)(sequence)


# --- what must be there afterwards


def check_regions(rows: np.ndarray, acknowledged: Mapping[int, list[int]]) -> Counter[str]:
    """Each region holds one write, the last one that was acknowledged or a later one."""
    found: Counter[str] = Counter()
    for worker, sequences in acknowledged.items():
        codes = np.unique(rows[worker * REGION : (worker + 1) * REGION])
        if len(codes) != 1:
            found["torn"] += 1
        if sequences and codes.min() < code(worker, sequences[-1]):
            found["lost"] += 1
    return found


def check_appends(rows: np.ndarray, acknowledged: Mapping[int, list[int]]) -> Counter[str]:
    """Each block that was acknowledged is there, once and whole."""
    found: Counter[str] = Counter()
    firsts, lasts = rows.min(axis=1), rows.max(axis=1)
    found["torn"] += int((firsts != lasts).sum())
    counts = Counter(firsts[firsts == lasts].tolist())
    for worker, sequences in acknowledged.items():
        for sequence in sequences:
            there = counts[code(worker, sequence)]
            found["lost"] += there < BLOCK
            found["twice"] += there > BLOCK
    return found


# --- the processes of one job, and what they have said


@dataclass
class Crew:
    store: str
    place: Path
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    acknowledged: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    running: dict[tuple[str, int], tuple[Process, threading.Thread]] = field(default_factory=dict)
    killed: list[Process] = field(default_factory=list)

    def start(self, job: str, number: int, sequence: int | None = None) -> None:
        """Start a process. It goes on above what the last one of this number may have written."""
        if sequence is None:
            sequence = max(self.acknowledged[number], default=0) + 1000
        process = Process(work, store=self.store, place=self.place, job=job, number=number, sequence=sequence)
        thread = threading.Thread(target=self._listen, args=(process, number))
        thread.start()
        self.running[job, number] = process, thread

    def _listen(self, process: Process, number: int) -> None:
        try:
            while True:
                what, told = process.hear()
                self.counts[what] += 1
                if what == "done":
                    self.acknowledged[number].append(told)
                elif what == "failed":
                    self.errors[told] += 1
        except Failed as why:
            if process not in self.killed:
                self.errors[str(why)] += 1

    def kill(self, job: str, number: int) -> None:
        process, thread = self.running.pop((job, number))
        self.killed.append(process)
        process.kill()
        thread.join()

    def end(self) -> None:
        for job, number in list(self.running):
            self.kill(job, number)


def measure(store: str, job: str, place: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one job, and say what became of it."""
    made = STORES[store](place / "data")
    made.prepare()
    made.create(Layout((arguments.processes * REGION if job == "regions" else 0, COLUMNS), (CHUNK, COLUMNS), "i8"))
    crew = Crew(store, place / "data")
    for number in range(arguments.processes):
        crew.start(job, number)
    if job == "regions":
        for number in range(2):
            crew.start("watch", number, arguments.processes)
    while crew.counts["done"] == 0 and not crew.errors and crew.counts["refused"] < 100:
        time.sleep(0.01)  # the processes start
    before, began = crew.counts["done"], time.monotonic()
    end = began + arguments.seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, arguments.kill_every))
        if left > arguments.kill_every:
            number = random.randrange(arguments.processes)
            crew.kill(job, number)
            crew.counts["killed"] += 1
            crew.start(job, number)
    rate = (crew.counts["done"] - before) / (time.monotonic() - began)
    crew.end()
    found: Counter[str] = Counter(torn=crew.counts["torn"])
    damage = None
    try:
        check = check_regions if job == "regions" else check_appends
        found += check(rows_of(STORES[store](place / "data"), slice(None)), crew.acknowledged)
    except Exception as error:  # noqa: BLE001 - what a store raises about its own data is a result
        damage = f"{type(error).__name__}: {error}"[:300]
    return {
        "store": store,
        "job": job,
        "rate": rate,
        "acknowledged": sum(map(len, crew.acknowledged.values())),
        "killed": crew.counts["killed"],
        **{name: found[name] for name in ("lost", "torn", "twice")},
        "refused": crew.counts["refused"],
        "failed": sum(crew.errors.values()),
        "errors": dict(crew.errors.most_common(3)),
        "unreadable": damage,
    }


def main() -> int:
    from rich.console import Console
    from rich.table import Table

    from benchmarks.machine import describe_machine, file_system_of, versions

    parser = argparse.ArgumentParser(prog="python -m benchmarks.field", description=__doc__)
    parser.add_argument("--stores", nargs="*", choices=STORES, default=list(STORES))
    parser.add_argument("--jobs", nargs="*", choices=JOBS, default=list(JOBS))
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--kill-every", type=float, default=1, metavar="SECONDS", help="kill one, start another")
    parser.add_argument("--directory", type=Path, help="where to write; by default a temporary directory")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 130)
    results = []
    table = Table("job", "store", "a second", "acknowledged", "killed", "lost", "torn", "twice", "refused", "failed")
    for column in table.columns[2:]:
        column.justify = "right"
    for job in arguments.jobs:
        console.print(f"{job}: {JOBS[job]}", style="bold")
        for store in arguments.stores:
            place = Path(tempfile.mkdtemp(dir=arguments.directory))
            try:
                row = measure(store, job, place, arguments)
            finally:
                shutil.rmtree(place, ignore_errors=True)
            results.append(row)
            counts = (row[name] for name in ("acknowledged", "killed", "lost", "torn", "twice", "refused", "failed"))
            cells = [f"{count:,}" for count in counts]
            if row["unreadable"]:
                cells[2] = "unreadable"
            table.add_row(job, store, f"{row['rate']:,.1f}", *cells)
    console.print(table)
    for row in results:
        for told, count in row["errors"].items():
            console.print(f"{row['job']}, {row['store']}: {count:,} times {told}", markup=False)
        if row["unreadable"]:
            console.print(f"{row['job']}, {row['store']}: afterwards {row['unreadable']}", markup=False)
    machine = describe_machine(file_system_of(arguments.directory or Path(tempfile.gettempdir())))
    told = {"machine": machine, "versions": versions(), "arguments": vars(arguments), "results": results}
    RESULTS.write_text(json.dumps(told, indent=1, default=str) + "\n", encoding="utf-8")
    ours = [row for row in results if row["store"] == "TxStore"]
    return int(any(row["lost"] or row["torn"] or row["twice"] or row["unreadable"] for row in ours))


if __name__ == "__main__":
    sys.exit(main())
