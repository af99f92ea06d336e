"""Processes that lock, write, unlock and are killed at random moments, in one and in two process-id namespaces.

The oracle is exact. Whoever holds a key's lock writes his stamp into the key's place of a shared array, and clears it
before he unlocks. So a place that is stamped when its lock is granted was left by somebody who died holding it, and the
grant must say so; and a stamp that has changed while its lock was held, or parked, was written by somebody who had no
right to. In the end every lock is to be had.

TXSTORE_KILL_ROUNDS says how many processes are killed.
"""

import contextlib
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.tools.lock_clients import TimedOut, native, open_table

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="futexes and OFD locks")]

ROUNDS = int(os.environ.get("TXSTORE_KILL_ROUNDS", "90"))
PLACES = 24
PATIENCE = 60  # seconds: who waits that long waits for ever
COUNTERS = ("grants", "dirty", "dirty and stamped", "parked", "forks")


def key(place: int) -> str:
    return f"position/c/{place}"


class Shared:
    """The array, one row of counters a worker, and a log of what must not be."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        size = 8 * (PLACES + workers * len(COUNTERS))
        with open(folder / "stamps", "a+b") as file:
            file.truncate(size)
            self.map = mmap.mmap(file.fileno(), size)
        self.numbers = memoryview(self.map).cast("Q")

    def stamp(self, place: int) -> int:
        return self.numbers[place]

    def set_stamp(self, place: int, stamp: int) -> None:
        self.numbers[place] = stamp

    def count(self, worker: int, counter: str) -> None:
        self.numbers[PLACES + worker * len(COUNTERS) + COUNTERS.index(counter)] += 1

    def counted_by(self, worker: int, counter: str) -> int:
        return self.numbers[PLACES + worker * len(COUNTERS) + COUNTERS.index(counter)]

    def counted(self, counter: str) -> int:
        return sum(self.numbers[PLACES + COUNTERS.index(counter) :: len(COUNTERS)])

    def complain(self, what: str) -> None:
        os.write(self.log, f"{os.getpid()}: {what}\n".encode())


class Worker:
    """What one thread of one process does. Only its process counts in its row."""

    def __init__(self, shared: Shared, number: int, table: Any) -> None:
        self.shared = shared
        self.number = number
        self.table = table
        self.owner = table.owner()
        self.other = table.owner()
        self.chance = random.Random()
        self.stamp = self.chance.getrandbits(63) | 1

    def delay(self) -> None:
        if self.chance.random() < 0.2:
            time.sleep(self.chance.random() ** 3 * 0.005)

    def transact(self) -> None:
        places = self.chance.sample(range(PLACES), self.chance.choice([1, 1, 2, 3, 8]))
        timeout = 0 if self.chance.random() < 0.1 else PATIENCE
        try:
            dirty = self.owner.acquire([key(place) for place in places], timeout)
        except TimedOut as error:
            if timeout:
                self.shared.complain(f"waited for ever for {error.keys}, held by {error.holder}")
            return
        self.shared.count(self.number, "grants")
        for place in places:
            self.shared.count(self.number, "dirty") if key(place) in dirty else None
            if self.shared.stamp(place) and key(place) not in dirty:
                self.shared.complain(f"place {place} was granted as clean but is stamped")
            if self.shared.stamp(place):
                self.shared.count(self.number, "dirty and stamped")
            self.delay()
            self.shared.set_stamp(place, self.stamp)
        self.delay()
        if self.chance.random() < 0.2:
            self.hand_over(places)
        for place in places:
            self.clear(place)
            self.delay()
        self.owner.release([key(place) for place in places])

    def clear(self, place: int) -> None:
        if self.shared.stamp(place) != self.stamp:
            self.shared.complain(f"the stamp of place {place} was changed")
        self.shared.set_stamp(place, 0)

    def hand_over(self, places: list[int]) -> None:
        """Park the locks, take them under another owner of the transaction, and back again."""
        self.shared.count(self.number, "parked")
        keys = [key(place) for place in places]
        self.owner.park(keys)
        self.delay()
        if self.other.acquire(keys, PATIENCE, [self.owner.parked]):
            self.shared.complain("what was parked came dirty")
        self.delay()
        self.other.park(keys, to=self.owner.parked)
        self.delay()
        if self.owner.acquire(keys, PATIENCE):
            self.shared.complain("what was parked came dirty")

    def fork(self) -> None:
        """A child does a few of its own, and may outlive its parent."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # there is another thread
            child = os.fork()
        if child == 0:
            with ended_process():
                worker = Worker(self.shared, self.number, self.table)
                for _ in range(5):
                    worker.transact()
        self.shared.count(self.number, "forks")


@contextlib.contextmanager
def ended_process() -> Any:
    try:
        yield
    finally:
        os._exit(0)


def work(folder: Path, number: int, workers: int, parent: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    shared = Shared(folder, workers)
    table = open_table(folder / "chunks", slots=4096)

    def repeat(worker: Worker) -> None:
        while os.getppid() == parent:
            worker.transact()

    try:
        threading.Thread(target=repeat, args=(Worker(shared, number, table),), daemon=True).start()
        worker = Worker(shared, number, table)
        while os.getppid() == parent:
            for _ in range(3):
                worker.transact()
            if worker.chance.random() < 0.05:
                worker.fork()
            if worker.chance.random() < 0.1:
                worker.owner.fence()
                worker.owner.close()
                worker.owner = table.owner()
    except BaseException as error:  # noqa: BLE001 - the test is told
        shared.complain(repr(error))


def drive(folder_name: str, first: int, count: int, workers: int, rounds: int) -> None:
    """Keep so many workers running, kill and stop them at random; print when done."""
    folder, chance, parent = Path(folder_name), random.Random(), os.getpid()
    shared = Shared(folder, workers)
    children: dict[int, int] = {}
    enough: dict[int, int] = {}

    def start(number: int) -> None:
        child = os.fork()
        if child == 0:
            with ended_process():
                work(folder, number, workers, parent)
        children[number] = child
        # Killed while it starts, or when it has come to something, however slow the machine is.
        more = 0 if chance.random() < 0.5 else chance.randrange(1, 8)
        enough[number] = shared.counted_by(number, "grants") + more

    try:
        for number in range(first, first + count):
            start(number)
        for _ in range(rounds):
            number = chance.choice(list(children))
            deadline = time.monotonic() + PATIENCE
            while shared.counted_by(number, "grants") < enough[number] and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(chance.random() ** 2 * 0.02)
            if chance.random() < 0.1:
                os.kill(children[number], signal.SIGSTOP)
                time.sleep(0.03)
                os.kill(children[number], signal.SIGCONT)
            os.kill(children[number], signal.SIGKILL)
            os.waitpid(children[number], 0)
            start(number)
    finally:
        for child in children.values():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    print(json.dumps({"kills": rounds, "pid": parent}))


DRIVER = (
    "import sys; from tests.system.processes.test_locktable_kills import drive; "
    "drive(sys.argv[1], *map(int, sys.argv[2:]))"
)


def torture(folder: Path, prefixes: list[list[str]]) -> Shared:
    """Run one driver of three workers behind each prefix, and see what they complained of."""
    native()
    workers = 3 * len(prefixes)
    shared = Shared(folder, workers)
    root = Path(__file__).parents[3]
    rounds = max(1, ROUNDS // len(prefixes))
    drivers = [
        subprocess.Popen(
            [*prefix, sys.executable, "-c", DRIVER, folder, str(3 * at), "3", str(workers), str(rounds)],
            cwd=root,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
            stdout=subprocess.PIPE,
            text=True,
        )
        for at, prefix in enumerate(prefixes)
    ]
    try:
        for driver in drivers:
            output, _ = driver.communicate(timeout=120 + ROUNDS)
            assert driver.returncode == 0
            assert json.loads(output)["kills"] == rounds
    finally:
        for driver in drivers:
            driver.kill()
            driver.communicate()
    assert (folder / "log").read_text() == ""
    return shared


def check_the_end(folder: Path, shared: Shared) -> None:
    owner = open_table(folder / "chunks").owner()
    dirty = owner.acquire([key(place) for place in range(PLACES)], PATIENCE)
    assert {key(place) for place in range(PLACES) if shared.stamp(place)} <= set(dirty)
    assert shared.counted("grants") > ROUNDS
    assert shared.counted("dirty and stamped") > 0  # else it was no test
    assert shared.counted("parked") > 0
    print({counter: shared.counted(counter) for counter in COUNTERS})


@pytest.mark.timeout(600 + 10 * ROUNDS)
def test_kills(tmp_path):
    check_the_end(tmp_path, torture(tmp_path, [[]]))


@pytest.mark.timeout(600 + 10 * ROUNDS)
def test_kills_in_two_namespaces(tmp_path):
    prefix = ["unshare", "--pid", "--fork", "--kill-child"]
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("unshare is not permitted here")
    check_the_end(tmp_path, torture(tmp_path, [[], prefix]))
