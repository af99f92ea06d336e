"""Random histories: processes that make them, of which some are killed in the middle, and a loop that checks them."""

import argparse
import itertools
import multiprocessing
import os
import random
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import zarr

from tests.tools.arrays import HAS_RECTILINEAR

#: What is imported when it is first needed: each process would do so anew, which takes longer than its work.
LATE = [
    "txstore.repository", "txstore.store", "txstore.deriving.derivation", "txstore.labels.upsert",
    "txstore.labels.window", "txstore.merging.three_way", "dask.array", "distributed",
]  # fmt: skip
#: Does the work of one process in one history, given the path of the repository and a seed; returns a report.
Work = Callable[[str, str], Any]


class WrongError(Exception):
    """A history that the model does not explain."""


class FailedError(WrongError):
    """What a worker has met: its traceback."""


def serve(connection: Connection, work: Work) -> None:
    """Do what comes, until nothing comes any more."""
    if HAS_RECTILINEAR:
        zarr.config.set({"array.rectilinear_chunks": True})
    while (task := connection.recv()) is not None:
        try:
            connection.send(work(*task))
        except Exception:  # noqa: BLE001 - the parent tells of it
            connection.send(FailedError(traceback.format_exc()))


class Crew:
    """Some processes; one that was killed is replaced."""

    def __init__(self, work: Work, *, workers: int = 4, killed: int = 200) -> None:
        """`killed`: in so many of a thousand histories, one process is killed."""
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([*LATE, work.__module__])
        self.work, self.killed = work, killed
        self.members = [self.member() for _ in range(workers)]

    def member(self) -> tuple[Any, Connection]:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=serve, args=(theirs, self.work), daemon=True)
        process.start()
        return process, ours

    def run(self, path: Path, seed: int, drawn: random.Random) -> list[Any]:
        """Return the reports of those that were not killed. Raises `FailedError`."""
        for number, (_, connection) in enumerate(self.members):
            connection.send((str(path), f"{seed}/{number}"))
        others = [each for _, each in self.members]
        if drawn.randrange(1000) < self.killed:
            which = drawn.randrange(len(self.members))
            process, connection = self.members[which]
            connection.poll(drawn.random() * 0.4)
            process.kill()
            process.join()
            connection.close()
            others.remove(connection)
            self.members[which] = self.member()
        reports = [each.recv() for each in others]
        for report in reports:
            if isinstance(report, FailedError):
                raise report
        return reports

    def close(self) -> None:
        for process, connection in self.members:
            connection.send(None)
            process.join()


def repeat(history: Callable[[Path, int], Counter[str]], count: int, seed: int) -> Counter[str]:
    """Make and check histories, each in a directory of its own, which stays if `history` raises."""
    counts: Counter[str] = Counter()
    for number in range(seed, seed + count):
        directory = Path(tempfile.mkdtemp())
        try:
            counts += history(directory, number)
        except Exception as error:
            error.add_note(f"seed {number}, {directory}")
            raise
        shutil.rmtree(directory)
        if number % 100 == 99:
            print(number + 1 - seed, dict(counts), flush=True)
    return counts


def main(histories: Callable[[int, int], Counter[str]], description: str | None, count: int) -> int:
    """Make as many histories as the command line says, `count` by default. Raises `FailedError`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--histories", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many histories at once")
    arguments = parser.parse_args()
    first, last = arguments.seed, arguments.seed + arguments.histories
    borders = [first + (last - first) * job // arguments.jobs for job in range(arguments.jobs + 1)]
    counts: Counter[str] = Counter()
    for each in _jobs(histories, borders):
        counts += each
    print(f"{arguments.histories} histories, 0 wrong: {dict(sorted(counts.items()))}")
    return 0


def _jobs(histories: Callable[[int, int], Counter[str]], borders: list[int]) -> Iterator[Counter[str]]:
    """Yield what the histories between each two borders have counted. Raises what the first wrong one has told."""
    context = multiprocessing.get_context("spawn")
    processes: dict[Connection, Any] = {}
    for start, stop in itertools.pairwise(borders):
        ours, theirs = context.Pipe()
        processes[ours] = context.Process(target=_job, args=(theirs, histories, stop - start, start))
        processes[ours].start()
    try:
        while processes:
            for ended in wait([*processes]):
                assert isinstance(ended, Connection)
                told = ended.recv()
                if isinstance(told, FailedError):
                    raise told
                processes.pop(ended).join()
                yield told
    finally:
        for process in processes.values():
            process.terminate()


def _job(connection: Connection, histories: Callable[[int, int], Counter[str]], count: int, seed: int) -> None:
    try:
        connection.send(histories(count, seed))
    except Exception:  # noqa: BLE001 - the parent tells of it
        connection.send(FailedError(traceback.format_exc()))
