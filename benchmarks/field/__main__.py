"""Run the jobs on each store, print one table, write `field-results.json`.

`python -m benchmarks.field --help` says what can be chosen. The exit status is 1 if TxStore has lost or torn anything.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from benchmarks.field import jobs
from benchmarks.field.adapters import ADAPTERS, Adapter
from benchmarks.machine import describe_machine, file_system_of

RESULTS = Path("field-results.json")
JOBS = {
    # Several local processes: what Icechunk's issue 804 reports.
    "regions": "each process writes its own region of 4 chunks; two read beside them",
    "appends": "all processes append to one array",
    "reads": "all processes read single chunks at random",
}
_PACKAGES = ("txstore", "zarr", "icechunk", "tensorstore", "h5py")


@dataclass
class Crew:
    """The processes of one job, and what they have said."""

    store: str
    path: Path
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    acknowledged: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    running: dict[tuple[str, int], subprocess.Popen[bytes]] = field(default_factory=dict)
    listening: list[threading.Thread] = field(default_factory=list)

    def start(self, work: str, worker: int, sequence: int | None = None) -> None:
        """Start a process. It goes on above what the last one of this number may have written."""
        if sequence is None:
            sequence = max(self.acknowledged[worker], default=0) + 1000
        command = [sys.executable, "-m", "benchmarks.field", "--worker", self.store, str(self.path), work]
        process = subprocess.Popen(
            [*command, str(worker), str(sequence)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None  # for mypy
        thread = threading.Thread(target=self._listen, args=(process.stdout, worker))
        thread.start()
        self.listening.append(thread)
        self.running[work, worker] = process

    def _listen(self, lines: IO[bytes], worker: int) -> None:
        with lines:
            for line in lines:
                what, *rest = line.decode(errors="replace").split(maxsplit=1)
                self.counts[what] += 1
                if what == "done":
                    self.acknowledged[worker].append(int(rest[0]))
                elif what == "failed":
                    self.errors[rest[0].strip()] += 1

    def kill(self, work: str, worker: int) -> None:
        process = self.running.pop((work, worker))
        process.kill()
        process.wait()

    def end(self) -> None:
        for work, worker in list(self.running):
            self.kill(work, worker)
        for thread in self.listening:
            thread.join()


def measure(store: str, job: str, place: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one job, and say what became of it."""
    path = place / "data"
    adapter: Adapter = ADAPTERS[store](path)
    regions = jobs.READ_REGIONS if job == "reads" else arguments.processes if job == "regions" else 0
    adapter.create(regions * jobs.REGION)
    crew = Crew(store, path)
    for worker in range(arguments.processes):
        crew.start(job, worker)
    if job == "regions":
        for number in range(2):
            crew.start("watch", number, arguments.processes)
    while crew.counts["done"] == 0 and not crew.errors and crew.counts["refused"] < 100:
        time.sleep(0.01)  # the processes start
    before, began = crew.counts["done"], time.monotonic()
    end = began + arguments.seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, arguments.kill_every))
        if job != "reads" and left > arguments.kill_every:
            worker = random.randrange(arguments.processes)
            crew.kill(job, worker)
            crew.counts["killed"] += 1
            crew.start(job, worker)
    rate = (crew.counts["done"] - before) / (time.monotonic() - began)
    crew.end()
    found: Counter[str] = Counter(torn=crew.counts["torn"])
    try:
        if job != "reads":
            check = jobs.check_regions if job == "regions" else jobs.check_appends
            found += check(ADAPTERS[store](path), crew.acknowledged)
        damage = None
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


def show(results: list[dict[str, Any]]) -> Table:
    table = Table("job", "store", "a second", "acknowledged", "killed", "lost", "torn", "twice", "refused", "failed")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in results:
        cells = [f"{row[name]:,}" for name in ("acknowledged", "killed", "lost", "torn", "twice", "refused", "failed")]
        if row["unreadable"]:
            cells[2] = "unreadable"
        table.add_row(row["job"], row["store"], f"{row['rate']:,.1f}", *cells, end_section=row is results[-1])
    return table


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        store, path, work, worker, sequence = sys.argv[2:]
        jobs.run(store, path, work, int(worker), int(sequence))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.field", description=__doc__)
    parser.add_argument("--stores", nargs="*", choices=ADAPTERS, default=list(ADAPTERS))
    parser.add_argument("--jobs", nargs="*", choices=JOBS, default=list(JOBS))
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument(
        "--kill-every", type=float, default=1, metavar="SECONDS", help="kill one process, start another"
    )
    parser.add_argument("--directory", type=Path, help="where to write; by default a temporary directory")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 130)
    results = []
    for job in arguments.jobs:
        console.print(f"{job}: {JOBS[job]}", style="bold")
        for store in arguments.stores:
            place = Path(tempfile.mkdtemp(dir=arguments.directory))
            try:
                results.append(measure(store, job, place, arguments))
            finally:
                shutil.rmtree(place, ignore_errors=True)
    console.print(show(results))
    for row in results:
        for told, count in row["errors"].items():
            console.print(f"{row['job']}, {row['store']}: {count:,} times {told}", markup=False)
        if row["unreadable"]:
            console.print(f"{row['job']}, {row['store']}: afterwards {row['unreadable']}", markup=False)
    file_system = file_system_of(arguments.directory or Path(tempfile.gettempdir()))
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    told = {"machine": describe_machine(file_system), "versions": versions, "arguments": vars(arguments)}
    RESULTS.write_text(json.dumps(told | {"results": results}, indent=1, default=str) + "\n", encoding="utf-8")
    ours = [row for row in results if row["store"] == "TxStore"]
    return int(any(row["lost"] or row["torn"] or row["twice"] or row["unreadable"] for row in ours))


if __name__ == "__main__":
    sys.exit(main())
