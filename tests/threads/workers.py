"""What one thread does until it is told to stop: operations, locks, commits and rollbacks, as chance has it."""

from __future__ import annotations

import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import zarr

import txstore
from tests.threads import layout
from tests.threads.interrupts import Signals, interrupted_after
from tests.threads.layout import BLOCK, GROWN, LIST_KEYS, NAME, ROW, THREADS, Content
from tests.threads.records import DONE, REFUSED, End, Operation, Series, Ticks, Values
from tests.threads.rules import Fault
from tests.threads.watchdog import Watchdog

T = TypeVar("T")

LOCK_TIMEOUT = 60.0
INTERRUPTED = 0.03  # of the calls of threads other than the main one


class Refusal(NamedTuple):
    """A call that raised an error of TxStore's, which says what the state of the transaction is."""

    note: Operation | End
    state: str
    told: str


@dataclass
class Shared:
    """What all threads of a round have in common."""

    repo: txstore.Repository
    store: txstore.TxStore
    watchdog: Watchdog
    signals: Signals | None  # None: nothing is interrupted
    actions: Mapping[Callable[[Worker], None], int]  # how often each is done, of all
    tick: Ticks = field(default_factory=Ticks)
    session: Series = field(default_factory=lambda: Series("session"))
    named: Series = field(default_factory=lambda: Series("named"))
    faults: list[Fault] = field(default_factory=list)
    snapshots: list[tuple[int, Content]] = field(default_factory=list)  # what was read of which commit
    holders: dict[str, int] = field(default_factory=dict)  # which thread is in a block with which lock
    stop: threading.Event = field(default_factory=threading.Event)
    refusals: list[Refusal] = field(default_factory=list)  # of the session
    interrupts: list[tuple[int, int]] = field(default_factory=list)  # when such calls began and ended
    #: Since when an interrupt may have left the transaction with a name in a state that only a rollback leads out of.
    name_broken: int = 0


class _Refused(Exception):
    """TxStore has refused a call."""

    def __init__(self, note: Operation | End) -> None:
        super().__init__(str(note))
        self.note = note


class Worker:
    """One thread. After each error it opens everything anew."""

    def __init__(self, shared: Shared, number: int, seed: int) -> None:
        self.shared = shared
        self.number = number
        self.counts: Counter[str] = Counter()
        self.chance = random.Random(seed * 1000 + number)
        self.is_main = number == 0
        self.arrays: dict[str, Any] = {}
        self.value = 0
        self.is_unsettled = False  # something that was interrupted may still be under way
        self.rolls_back = False

    def run(self) -> None:
        try:
            while not self.shared.stop.is_set():
                self.step()
        except BaseException:  # noqa: BLE001 - it is told at the end of the round
            self.shared.faults.append(Fault("unexpected", f"thread {self.number}: {traceback.format_exc()}"))
        finally:
            self.shared.stop.set()
            self.arrays.clear()

    def step(self) -> None:
        try:
            if self.rolls_back or (self.is_unsettled and self.chance.random() < 0.5):
                self.rollback()
            elif self.is_unsettled:
                self.commit()
            else:
                self.chance.choices(list(self.shared.actions), list(self.shared.actions.values()))[0](self)
        except _Refused:
            self.arrays.clear()
        except KeyboardInterrupt:
            self.arrays.clear()

    # --- calls

    def next(self) -> int:
        self.value += 1
        return self.value * THREADS + self.number

    @contextmanager
    def noting(self, kind: str, note: Operation | End) -> Iterator[None]:
        """Note when a call begins and ends, and what comes of it. Now and then it is interrupted."""
        shared, signals = self.shared, self.shared.signals
        interrupted: AbstractContextManager[None] = nullcontext()
        if signals is not None and self.is_main:
            interrupted = signals.may_come()
        elif signals is not None and self.chance.random() < INTERRUPTED:
            interrupted = interrupted_after(self.chance.randrange(1 << self.chance.randrange(1, 10)))
        try:
            with shared.watchdog.over(kind), interrupted:
                yield
        except KeyboardInterrupt:
            self.counts[f"{kind}: interrupted"] += 1
            if isinstance(note, End):
                note.end = shared.tick()
            raise
        except txstore.TxStoreError as error:
            note.end, note.outcome = shared.tick(), REFUSED
            self.counts[f"{kind}: {type(error).__name__}"] += 1
            raise _Refused(note) from error
        note.end, note.outcome = shared.tick(), DONE
        self.counts[kind] += 1

    @contextmanager
    def in_session(self, kind: str, note: Operation | End) -> Iterator[None]:
        try:
            with self.noting(kind, note):
                yield
        except KeyboardInterrupt:
            self.is_unsettled = True
            self.shared.interrupts.append((note.begin, self.shared.tick()))
            raise
        except _Refused as refused:
            if refused.note is note:  # else it was of a call in this one, and judged there
                self.judge(note, refused.__cause__)
            raise

    def judge(self, note: Operation | End, error: BaseException | None) -> None:
        """Find out what to do after an error; whether it may be is told at the end of the round."""
        state = "conflict" if isinstance(error, txstore.ConflictError) else getattr(error, "state", "none")
        may_wait = state in ("conflict", "failed") and not isinstance(note, End)
        self.rolls_back = not may_wait or self.chance.random() < 0.5
        self.shared.refusals.append(Refusal(note, state, _told(error)))

    def operation(self, kind: str, call: Callable[[Operation], T], wrote: tuple[str, int] | None = None) -> T:
        note = Operation(self.number, kind, self.shared.tick(), wrote)
        self.shared.session.operations.append(note)
        with self.in_session(kind, note):
            return call(note)

    def open(self, name: str) -> Any:
        return self.operation("open", lambda _: zarr.open_array(self.shared.store, path=name, mode="r+"))

    def array(self, name: str) -> Any:
        """Return an array that this thread goes on using, or one that it has just opened."""
        if name not in self.arrays or self.chance.random() < 0.1:
            self.arrays[name] = self.open(name)
        return self.arrays[name]

    def read(self, kind: str, call: Callable[[], Content]) -> None:
        def read(note: Operation) -> None:
            note.read = call()

        self.operation(kind, read)

    def somebody(self) -> int:
        return self.chance.randrange(THREADS)

    # --- operations

    def write_whole(self) -> None:
        array, value = self.array(f"w{self.number}"), self.next()
        self.operation("write", lambda _: array.__setitem__(slice(None), value), (f"r/w/{self.number}", value))

    def read_whole(self) -> None:
        number = self.somebody()
        array = self.array(f"w{number}")
        self.read("read", lambda: {f"r/w/{number}": layout.distinct(array[:])})

    def write_unlocked(self) -> None:
        array, value, first = self.array("h"), self.next(), 4 * self.number
        quarter = slice(first, first + 4)
        self.operation("write", lambda _: array.__setitem__(quarter, value), (f"r/h/{self.number}", value))

    def read_elements(self) -> None:
        array = self.array("e")

        def read() -> Content:
            values = array[:]
            return {f"r/e/{number}": (int(values[number]),) for number in range(THREADS)}

        self.read("read", read)

    def read_lists(self) -> None:
        array = self.array("l")

        def read() -> Content:
            rows = array[:]
            return {key: tuple(row[row != 0].tolist()) for key, row in zip(LIST_KEYS, rows, strict=True)}

        self.read("read", read)

    def write_element(self) -> None:
        array, value = self.array("e"), self.next()
        with self.locked("e", self.number, "e"):
            wrote = f"r/e/{self.number}", value
            self.operation("write", lambda _: array.__setitem__(self.number, value), wrote)
            self.commit_in_block("e")

    def append_to_list(self) -> None:
        array, value = self.array("l"), self.next()
        key = self.chance.choice(LIST_KEYS)
        number = int(key[-1])

        def read(note: Operation) -> Values:
            row = array[number]
            note.read[key] = tuple(row[row != 0].tolist())
            return note.read[key]

        def append(note: Operation) -> None:
            note.knew = there
            array[number, len(there)] = value

        with self.locked("l", np.s_[number], key):
            there = self.operation("read", read)
            if len(there) < ROW:
                self.operation("append", append, (key, value))
            self.commit_in_block(key)

    @contextmanager
    def locked(self, path: str, selection: Any, key: str) -> Iterator[None]:
        """Lock what `key` stands for, and see that nobody else is in such a block."""
        shared = self.shared
        with (
            self.in_session("lock", Operation(self.number, "lock", shared.tick())),
            shared.store.lock(path, selection, timeout=LOCK_TIMEOUT),
        ):
            try:
                holder = shared.holders.setdefault(key, self.number)
                if holder != self.number:
                    shared.faults.append(Fault("no exclusion", f"threads {holder} and {self.number} both lock {key}"))
                yield
            finally:
                self.is_out(key)

    def is_out(self, key: str) -> None:
        if self.shared.holders.get(key) == self.number:
            del self.shared.holders[key]

    def commit_in_block(self, key: str) -> None:
        """Commit now and then, which gives the locks up."""
        if self.chance.random() < 0.1:
            self.is_out(key)
            self.commit()

    def append_rows(self) -> None:
        array, value = self.array(f"g{self.number}"), self.next()
        if array.shape[0] < GROWN:
            rows = np.full(BLOCK, value)
            self.operation("append", lambda _: array.append(rows), (f"r/g/{self.number}", value))

    def read_rows(self) -> None:
        # Nobody else opens it: after a rollback, older array objects would not be told from the new one (I6).
        array = self.array(f"g{self.number}")
        self.operation("read", lambda _: array[:])

    def resize(self) -> None:
        array, value = self.array(f"s{self.number}"), self.next()
        self.operation("resize", lambda _: array.resize((value,)), (f"r/s/{self.number}", value))

    def read_shape(self) -> None:
        name = f"s{(number := self.somebody())}"
        self.read("open", lambda: {f"r/s/{number}": zarr.open_array(self.shared.store, path=name, mode="r+").shape})

    def set_attribute(self) -> None:
        path, value = f"a{self.number}", self.next()
        group = self.operation("open", lambda _: zarr.open_group(self.shared.store, path=path, mode="r+"))
        wrote = f"r/a/{self.number}", value
        self.operation("attribute", lambda _: group.attrs.__setitem__("value", value), wrote)

    def read_attribute(self) -> None:
        path = f"a{(number := self.somebody())}"

        def read() -> Content:
            return {f"r/a/{number}": (zarr.open_group(self.shared.store, path=path, mode="r+").attrs["value"],)}

        self.read("open", read)

    def create_anew(self) -> None:
        number, value = self.number, self.next()
        self.operation("create", lambda _: layout.recreate(self.shared.store, number, value), (f"r/c/{number}", value))

    def read_created(self) -> None:
        number = self.somebody()
        try:
            array = self.open(f"c{number}")
        except FileNotFoundError:
            return  # it is being created anew
        self.read("read", lambda: {f"r/c/{number}": layout.distinct(array[:])})

    def set_key(self) -> None:
        key, value = f"d/{self.number}", self.next()
        self.operation(
            "store[key] = value",
            lambda _: self.shared.store.__setitem__(key, b"%d" % value),
            (f"r/d/{self.number}", value),
        )

    def get_key(self) -> None:
        number = self.somebody()
        self.read("store[key]", lambda: {f"r/d/{number}": (int(self.shared.store[f"d/{number}"]),)})

    def read_snapshot(self) -> None:
        """Read one commit, through a store of its own."""
        number = self.somebody()
        with self.in_session("snapshot", Operation(self.number, "snapshot", self.shared.tick())):
            snapshot = self.shared.repo.snapshot()
            array = zarr.open_array(snapshot, path=f"w{number}", mode="r")
            found = {f"r/w/{number}": layout.distinct(array[:])}
        self.shared.snapshots.append((snapshot.base.seq, found))

    # --- ends

    def commit(self) -> None:
        self.end("commit", self.shared.store.commit)

    def rollback(self) -> None:
        self.end("rollback", lambda _: self.shared.store.rollback())

    def end(self, what: str, call: Callable[[str], Any]) -> None:
        shared = self.shared
        note = End(self.number, what, shared.tick())
        note.message = f"{what} of thread {self.number} at {note.begin}"
        shared.session.ends.append(note)
        with self.in_session(what, note):
            commit = call(note.message)
        note.seq = None if commit is None else commit.seq
        self.is_unsettled = self.rolls_back = False

    # --- the transaction with a name

    def stage_by_name(self) -> None:
        value, first = self.next(), 4 * self.number
        note = Operation(self.number, "entry", self.shared.tick(), (f"r/n/{self.number}", value))
        self.shared.named.operations.append(note)
        is_inside = False
        try:
            with self.noting("entry", note), self.shared.repo.transaction(name=NAME) as store:
                is_inside = True
                array = zarr.open_array(store, path="n", mode="r+")
                array[first : first + 4] = value
                is_inside = False  # what is left is to leave
        except _Refused as refused:
            error = refused.__cause__
            if is_inside or not isinstance(error, txstore.TransactionStateError):
                self.shared.faults.append(Fault("put out", f"{note}: {_told(error)}"))
            raise
        except KeyboardInterrupt:
            self.shared.name_broken = self.shared.tick()
            raise

    def end_by_name(self) -> None:
        shared = self.shared
        what = self.chance.choices(("commit", "rollback"), (5, 5 if shared.name_broken else 1))[0]
        note = End(self.number, what, shared.tick())
        note.message = f"{what} of {NAME!r} by thread {self.number} at {note.begin}"
        shared.named.ends.append(note)
        try:
            with self.noting(f"{what} by name", note), shared.repo.transaction(name=NAME) as store:
                if what == "commit":
                    commit = store.commit(note.message)
                    note.seq = None if commit is None else commit.seq
                else:
                    store.rollback()
        except _Refused as refused:
            error = refused.__cause__
            may_be = isinstance(error, txstore.TransactionStateError) or (
                shared.name_broken > 0 and isinstance(error, txstore.ConflictError | txstore.ParticipantLostError)
            )
            if not may_be:
                shared.faults.append(Fault("unexpected", f"{note}: {_told(error)}"))
            raise
        except KeyboardInterrupt:
            shared.name_broken = shared.tick()
            raise
        if what == "rollback" and note.begin > shared.name_broken:
            shared.name_broken = 0


#: How often each is done, of all.
ACTIONS = {
    Worker.write_whole: 10,
    Worker.read_whole: 10,
    Worker.write_unlocked: 2,
    Worker.read_elements: 4,
    Worker.read_lists: 4,
    Worker.write_element: 6,
    Worker.append_to_list: 8,
    Worker.append_rows: 2,
    Worker.read_rows: 1,
    Worker.resize: 1,
    Worker.read_shape: 1,
    Worker.set_attribute: 1,
    Worker.read_attribute: 1,
    Worker.create_anew: 1,
    Worker.read_created: 1,
    Worker.set_key: 6,
    Worker.get_key: 6,
    Worker.read_snapshot: 2,
    Worker.stage_by_name: 3,
    Worker.end_by_name: 1,
    Worker.commit: 8,
    Worker.rollback: 1,
}


def _told(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"
