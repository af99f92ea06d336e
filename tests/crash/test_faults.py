"""Each call of the system fails in its turn: the error is clear, nothing acknowledged is lost, and everybody goes on.

Real full disks are in `tests/system/bad_input/test_full_disk.py`, transactions with a name on a disk that fails in
`tests/system/processes/test_named_deaths.py`; here it is every single call, whoever makes it.
"""

import errno
import os
import random
import sys
from collections.abc import Callable

import pytest

import txstore
from tests import reliability
from tests.crash.checking import look
from tests.crash.disk import Disk
from tests.crash.system import SYSTEM, Process, forget_all, simulated
from tests.crash.world import World
from tests.tools.inside import join_shared
from txstore.transactions.transaction import Transaction

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="the simulated system is a Linux")]

#: Of the calls of each workload and kind, so many fail, one in each run; 0: all of them.
SAMPLE = 0 if "TXSTORE_CRASH_IMAGES" in os.environ else 12

WRITING = ("write", "sync", "sync names", "rename", "link", "mkdir", "create", "truncate", "allocate", "unlink")
FAULTS = {
    "EIO": (errno.EIO, WRITING),
    "ENOSPC": (errno.ENOSPC, ("write", "rename", "link", "mkdir", "open", "allocate")),
    "EMFILE": (errno.EMFILE, ("open", "list", "map")),
    "EIO of a read": (errno.EIO, ("open", "list", "map", "stat")),
}


class Writer:
    """A process that commits, and does what the error that it is told asks for."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.told: list[BaseException] = []
        try:
            self.repo = world.open()
        except OSError as error:
            self.told.append(error)
            self.repo = world.open()

    def put(self, changes: dict[str, bytes], begin: Callable[[], Transaction] | None = None) -> None:
        """Commit once more if the first attempt failed: as it is, or, if that is refused, from the beginning."""
        for _ in range(2):
            tx = None
            try:
                tx = begin() if begin is not None else self.repo.begin()
                for key, value in changes.items():
                    tx.set(key, value)
                self.world.commit(tx, changes)
            except (OSError, txstore.TxStoreError) as error:
                self.told.append(error)
                if tx is None or not self.was_committed(tx, error, changes):
                    continue
            return

    def was_committed(self, tx: Transaction, error: BaseException, changes: dict[str, bytes]) -> bool:
        """Find out, or try again: the transaction is as it was, unless it says that it is failed."""
        assert tx.state in ("open", "failed", "of unknown outcome"), tx.state
        if isinstance(error, txstore.CommitUnknownError):
            assert tx.state == "of unknown outcome"
            return self.repo.resolve(error.commit_id) is not None
        if tx.state == "open" and tx.staged_count == len(changes):
            self.world.commit(tx, changes)
            return True
        if tx.state == "failed":
            with pytest.raises(txstore.TransactionStateError):
                tx.commit()
        tx.rollback()
        return False


def small(world: World) -> Writer:
    writer = Writer(world)
    writer.put({"a": world.value(), "b/1": world.value(900)})
    writer.put({"a": world.value(), "b/2": world.value(100)})
    return writer


def large(world: World) -> Writer:
    writer = Writer(world)
    writer.put({"a": world.value()})
    writer.put({"b": world.value(700_000), "c": world.value(700_000)})
    return writer


def cooperative(world: World) -> Writer:
    writer = Writer(world)
    writer.put({"a": world.value()})
    changes: dict[str, bytes] = {"b/0": world.value(300), "b/1": world.value(300)}

    def begin() -> Transaction:
        tx = writer.repo.begin()
        shared = tx.lifecycle.share()
        assert shared is not None
        with Process() as process:
            theirs = join_shared(world.open(), shared)
            try:
                theirs["b/1"] = changes["b/1"]
                theirs.lifecycle.seal()
            finally:
                theirs.lifecycle.end()
                process.die()
        return tx

    try:
        tx = begin()
        tx["b/0"] = changes["b/0"]
        world.commit(tx, changes)
    except (OSError, txstore.TxStoreError) as error:
        writer.told.append(error)
    return writer


def tagged(world: World) -> Writer:
    writer = Writer(world)
    writer.put({"a": world.value()})
    try:
        world.tag(writer.repo, "one", writer.repo.head().id)
    except (OSError, txstore.TxStoreError) as error:
        writer.told.append(error)
    return writer


PROGRAMS = {"small": small, "large": large, "cooperative": cooperative, "tagged": tagged}


class Fault:
    """Makes the n-th of some calls fail, once."""

    def __init__(self, number: int, code: int, calls: tuple[str, ...]) -> None:
        self.left = number
        self.code = code
        self.calls = calls
        self.site = ""

    def __call__(self, call: str, path: str, site: str) -> None:
        if call in self.calls:
            self.left -= 1
            if self.left == 0:
                self.site = site
                raise OSError(self.code, os.strerror(self.code), path)


def run(program: Callable[[World], Writer], fault: Fault, *, cut: int = sys.maxsize) -> tuple[World, Writer, Disk]:
    disk = Disk()
    SYSTEM.turn_on(disk, boot=1, seed=1)
    SYSTEM.before, SYSTEM.wants_sites, SYSTEM.writes_at_most = fault, True, cut
    world = World()
    with Process():
        writer = program(world)
        SYSTEM.before = None
        writer.put({"went on": world.value()})  # the same process, when the fault has gone
    forget_all()
    return world, writer, disk


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_fails(name: str, kind: str) -> None:
    program, (code, calls) = PROGRAMS[name], FAULTS[kind]
    with simulated(), reliability.counting("calls that fail") as counts:
        counting = Fault(1 << 30, code, calls)
        run(program, counting)
        total = (1 << 30) - counting.left
        numbers = range(1, total + 1)
        if SAMPLE:
            numbers = sorted(random.Random(f"{name} {kind}").sample(numbers, min(SAMPLE, total)))
        for number in numbers:
            fault = Fault(number, code, calls)
            try:
                world, writer, disk = run(program, fault)
                assert "went on" in world.state([promise.commit for promise in world.commits[-1:]]), writer.told
                _look(world, disk)
            except BaseException as error:
                error.add_note(f"{kind} of call {number} of {total}: {fault.site}")
                raise
            counts["faults injected"] += 1
            counts["told"] += bool(writer.told)


def _look(world: World, disk: Disk) -> None:
    """Look at it as a new process does, and as one does after a loss of power."""
    look(disk.image(), world.rebased(), boot=1, lost_power=False)


@pytest.mark.parametrize("cut", [1, 100, 511])
def test_writes_that_the_system_cuts_short(cut: int) -> None:
    with simulated():
        for name in ("small", "cooperative", "tagged"):
            world, writer, disk = run(PROGRAMS[name], Fault(1 << 30, 0, ()), cut=cut)
            assert writer.told == []
            _look(world, disk)
