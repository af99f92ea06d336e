"""Locks bytes of a file for one committer at a time; the kernel frees them with their holder. Says who holds them.

The committer that holds the lock locks one byte of the file; the next in the queue locks another. They are locks of
the open file description, so they exclude threads, too. The kernel does not say which process has such a lock, so the
holder writes its name behind these bytes.

A stopped process keeps the lock. A process that waits longer than `WARN_AFTER` seconds gets a warning that names the
holder, and stops waiting at its own timeout.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import filelock

from txstore import processes
from txstore._native import local
from txstore.errors import CommitTimeoutError, CommitWaitWarning, warn
from txstore.format import encoding

if sys.platform == "linux":
    import fcntl

if sys.platform == "linux":
    import fcntl

if TYPE_CHECKING:
    from typing import Self

if sys.platform == "linux":
    import fcntl


#: Seconds after which a wait is no longer silent.
WARN_AFTER = 5.0
#: Seconds between two tries to take a lock that no thread can wait for.
_POLL = 0.02

# What the file says of a holder, a JSON object, and where.
ABOUT_SIZE = 256
_ABOUT_TURN, _ABOUT_NEXT = 64, 64 + ABOUT_SIZE
UNKNOWN = "a process that does not say who it is"


@cache
def this_user() -> str:
    """Return `user@host` of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # containers run as users that have no name
        user = str(os.getuid())
    return f"{user}@{platform.node()}".encode(errors="replace").decode()


class Wait:
    """One wait for a lock: what it is for, and when it ends at the latest."""

    def __init__(self, url: str, what: str, timeout: float | None, holder: Callable[[], str] = lambda: UNKNOWN) -> None:
        self._url = url
        self._what = what
        self._timeout = timeout
        self._begun = time.monotonic()
        self._is_warned = False
        self.holder = holder  # quick: no other thread is told anything while it runs

    @property
    def left(self) -> float | None:
        """Seconds; None: it need not end."""
        return None if self._timeout is None else max(0.0, self._begun + self._timeout - time.monotonic())

    @property
    def warned_at(self) -> float:
        return self._begun + WARN_AFTER

    def warn(self, holder: str) -> None:
        self._is_warned = True
        told = (
            f"{self._url}: waiting for {self._what}, which {holder} has. If that is stopped or hangs, end it, and this "
            "goes on; commit_timeout= limits such waits"
        )
        with contextlib.suppress(CommitWaitWarning):  # where warnings are errors: this thread has no handler for it
            warn(told, CommitWaitWarning)

    def over(self) -> CommitTimeoutError:
        return CommitTimeoutError(self._url, self._what, self.holder(), self._timeout or 0.0)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Warn if the block takes long."""
        try:
            if not self._is_warned:
                _watch.add(self)
            yield
        finally:
            _watch.remove(self)


class _Watch:
    """A thread that warns of the waits of all others; there is one while anybody waits, and a little longer."""

    def __init__(self) -> None:
        self._lock = processes.new_lock()
        self._waits: dict[int, Wait] = {}
        self._runs = False
        processes.watch(self)

    def add(self, wait: Wait) -> None:
        with self._lock:
            self._waits[id(wait)] = wait
            if not self._runs:
                threading.Thread(target=self._run, name="txstore waits", daemon=True).start()
                self._runs = True

    def remove(self, wait: Wait) -> None:
        with self._lock:
            self._waits.pop(id(wait), None)

    def _run(self) -> None:
        pause = WARN_AFTER
        while True:
            time.sleep(pause)
            now = time.monotonic()
            with self._lock:
                due = [(wait, wait.holder()) for wait in self._waits.values() if wait.warned_at <= now]
                for wait, _ in due:
                    del self._waits[id(wait)]
                self._runs = bool(self._waits)
                if self._runs:
                    pause = min(wait.warned_at for wait in self._waits.values()) - now
            for wait, holder in due:
                wait.warn(holder)
            if not self._runs:
                return

    def after_fork_in_child(self) -> None:
        self._waits, self._runs = {}, False


_watch = _Watch()


# --- Linux

if sys.platform == "linux":

    def lock_of(kind: int, start: int, length: int) -> bytes:
        """Return what the kernel is told of a lock on a range of a file; of length 0: to the end."""
        return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)

    ALL = lock_of(fcntl.F_WRLCK, 0, 0)
    TURN, NEXT = lock_of(fcntl.F_WRLCK, 0, 1), lock_of(fcntl.F_WRLCK, 1, 1)
    _NO_TURN, _NO_NEXT = lock_of(fcntl.F_UNLCK, 0, 1), lock_of(fcntl.F_UNLCK, 1, 1)
    _NOTHING = lock_of(fcntl.F_UNLCK, 0, 0)

    def take(descriptor: int, url: str, path: str, timeout: float | None, prepare: Callable[[], object] | None) -> None:
        """Have the turn at a file until `leave`; if there was a queue, `prepare` is called by who is the next.

        Raises `CommitTimeoutError`; `leave` is to be called then, too.
        """
        wait: Wait | None = None
        if prepare is not None and not try_lock(descriptor, NEXT):
            wait = Wait(url, path, timeout, lambda: _holder(descriptor))
            wait_for_lock(descriptor, NEXT, wait)
            _tell(descriptor, _ABOUT_NEXT)
            prepare()
        if not try_lock(descriptor, TURN):
            _tell(descriptor, _ABOUT_NEXT)
            wait_for_lock(descriptor, TURN, wait or Wait(url, path, timeout, lambda: _holder(descriptor)))
        if prepare is not None:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _NO_NEXT)
        _tell(descriptor, _ABOUT_TURN)

    def pass_on(descriptor: int) -> None:
        """Give up the turn, and no other lock of the file (`line`)."""
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _NO_TURN)

    def leave(descriptor: int) -> None:
        # Closing is not enough: a child that was forked meanwhile has the description open, too.
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _NOTHING)

    def try_lock(descriptor: int, lock: bytes) -> bool:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def wait_for_lock(descriptor: int, lock: bytes, wait: Wait) -> None:
        """Lock a range that others have locked, for the open file description. Raises `CommitTimeoutError`."""
        with wait.watched():
            if wait.left is None:
                # In this thread, which the kernel wakes: a hand-over from another one would double the time of a turn.
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, lock)
            elif not (wait.left and _Waiter.lock(descriptor, lock, wait.left)):
                raise wait.over()

    def lock_within(descriptor: int, lock: bytes, timeout: float) -> bool:
        """Lock a range for the open file description, behind those that wait already. Return whether it is locked."""
        return try_lock(descriptor, lock) or (timeout > 0 and _Waiter.lock(descriptor, lock, timeout))

    class _Waiter:
        """A thread that waits for a lock, since nothing ends a wait in the kernel but the lock, or a signal.

        A caller that times out leaves it behind: it gives the lock back when it has got it.
        """

        _left_behind: ClassVar[set[_Waiter]] = set()

        def __init__(self, descriptor: int, lock: bytes) -> None:
            self._descriptor = os.dup(descriptor)  # of the same description, and so with the same locks
            self._lock = lock
            self._decided = processes.new_lock()
            self._done = threading.Event()
            self._given_up = False
            self._error: OSError | None = None
            status = os.fstat(descriptor)
            self._of = status.st_dev, status.st_ino
            processes.watch(self)

        @classmethod
        def lock(cls, descriptor: int, lock: bytes, timeout: float) -> bool:
            waiter = cls(descriptor, lock)
            if any(waiter._of == other._of for other in list(cls._left_behind)):
                # One that was left behind waits still: another would be one more for each try.
                waiter._close()
                return _poll(partial(try_lock, descriptor, lock), timeout)
            try:
                threading.Thread(target=waiter._run, name="txstore lock", daemon=True).start()
                waiter._done.wait(timeout)
            finally:
                has_lock = waiter._give_up()
            if waiter._error is not None:
                raise waiter._error
            return has_lock

        def _run(self) -> None:
            try:
                fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLKW, self._lock)
            except OSError as error:
                self._error = error
            finally:
                with self._decided:
                    self._done.set()
                    if self._given_up:
                        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _NOTHING)
                self._left_behind.discard(self)
                self._close()

        def _give_up(self) -> bool:
            """Return whether the lock is there; if not, it will not stay."""
            with self._decided:
                if not self._done.is_set():
                    self._given_up = True
                    self._left_behind.add(self)
                return not self._given_up

        def _close(self) -> None:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

        def after_fork_in_child(self) -> None:
            self._close()
            self._left_behind.discard(self)

    def whose_turn(descriptor: int) -> str | None:
        """Return the lock's holder as the file names it; None if it is free. The file may be open for reading only."""
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, TURN)
        return None if struct.unpack_from("h", found)[0] == fcntl.F_UNLCK else _holder(descriptor)

    def _holder(descriptor: int) -> str:
        """Return the process that is waited for, as the file names it."""
        for lock, offset in ((TURN, _ABOUT_TURN), (NEXT, _ABOUT_NEXT)):
            try:
                found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, lock)
                kind: int = struct.unpack_from("h", found)[0]
                if kind == fcntl.F_RDLCK:  # which no process of ours takes
                    return "a program that only reads"
                if kind != fcntl.F_UNLCK:
                    return told(os.pread(descriptor, ABOUT_SIZE, offset))
            except OSError:
                break
        return UNKNOWN

else:

    def take(
        descriptor: int,
        url: str,
        path: str,
        timeout: float | None,
        prepare: Callable[[], object] | None,  # noqa: ARG001 - no process knows that it is the next
    ) -> None:
        lock_file(descriptor, Wait(url, path, timeout, lambda: told(os.pread(descriptor, ABOUT_SIZE, _ABOUT_TURN))))
        _tell(descriptor, _ABOUT_TURN)

    def leave(descriptor: int) -> None:
        filelock.unlock_descriptor(descriptor)

    def whose_turn(descriptor: int) -> str | None:  # noqa: ARG001 - to ask would be to lock
        return None


def lock_file(descriptor: int, wait: Wait) -> None:
    """Lock a whole file, where there are no locks of an open file description. Raises `CommitTimeoutError`."""
    if not try_file(descriptor):
        with wait.watched():
            if wait.left is None:
                filelock.lock_descriptor(descriptor)
            elif not _poll(partial(try_file, descriptor), wait.left):
                raise wait.over()


def try_file(descriptor: int) -> bool:
    """Lock a whole file for as long as its open file description lives, unless another has it."""
    return filelock.lock_descriptor(descriptor, blocking=False)


def _poll(is_locked: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not is_locked():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


# --- who it is


def _tell(descriptor: int, offset: int) -> None:
    try:
        os.pwrite(descriptor, about(), offset)
    except OSError:  # a full disk: then the others are not told
        return


def about() -> bytes:
    """Return the entry by which this process names itself to waiting processes: up to `ABOUT_SIZE` bytes."""
    return b'%b, "since": %d}\0' % (_this_process(os.getpid()), time.time())


@cache
def _this_process(pid: int) -> bytes:
    return f'{{"pid": {pid}, "who": {json.dumps(this_user()[:50], ensure_ascii=False)}'.encode()


def told(about: bytes) -> str:
    """Return the entry of a holder. Any user who can write the repository may have written it."""
    try:
        said = json.loads(about.partition(b"\0")[0])
        pid, who, since = int(said["pid"]), str(said["who"]), time.localtime(float(said["since"]))
    except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
        return UNKNOWN
    shown = "".join(sign if sign.isprintable() else "?" for sign in who[:100])
    return f"process {pid} of {shown} since {time.strftime('%Y-%m-%d %H:%M:%S', since)}"


# --- the queue: committers that have released the lock sync side by side, each finishes after the one ahead of it
#
# So they finish in the order in which they held the lock. A place in the queue is a byte of the file, locked until its
# holder leaves or dies. A committer takes its place while it holds the lock: behind the last one, or the first
# place if the queue is empty.
#
# The file also names the last committer and describes its commit. Readers use this entry only while the byte of that
# place is locked. So the entry of a dead process misleads no reader.


#: The byte of the first place, and how many there are.
_FIRST, _MOST = 1 << 32, 1 << 40
#: Offsets: the place that was given last, and the entries of the last places, in a ring of the third number.
_LAST, _ENTRIES, _KEPT = 1024, 2048, 64
_NUMBER = struct.Struct("<Q")
_HEAD = struct.Struct("<IQH")  # checksum of what follows, place, length of what is said
_SAID = 128
_ENTRY = _SAID + ABOUT_SIZE


class SyncQueue:
    """The queue at one file, for a process whose turn it is there. It ends with the turn: `leave`."""

    def __init__(self, descriptor: int, url: str, path: str, timeout: float | None) -> None:
        self._descriptor = descriptor
        self._new_wait = partial(Wait, url, path, timeout, self._first_member)
        self._ahead: int | None = None  # the place that is waited for before this one

    def last(self) -> bytes | None:
        """Return the entry of the last committer in the queue, which `join` will follow; None if the queue is empty.

        Waits for a committer that has written no entry. Raises `CommitTimeoutError`.
        """
        self._ahead = None
        if self._taken(0, _MOST) is None:
            return None
        place = int.from_bytes(os.pread(self._descriptor, _NUMBER.size, _LAST), "little")
        said = self._said(place)
        if said is not None and place < _MOST - 1 and self._taken(place, 1) is not None:
            self._ahead = place
            return said
        self.drain()
        return None

    def drain(self) -> None:
        """Wait until the queue is empty. Raises `CommitTimeoutError`."""
        self._ahead = None
        self._wait_for(0, _MOST)

    def join(self, said: bytes) -> None:
        """Take the last place and release the lock. If the disk is full, keep the lock: others then wait longer."""
        place = 0 if self._ahead is None else self._ahead + 1
        fields = _HEAD.pack(0, place, len(said))[encoding.CHECKSUM.size :] + said
        entry = encoding.CHECKSUM.pack(encoding.crc32c(fields)) + fields
        if not try_lock(self._descriptor, lock_of(fcntl.F_WRLCK, _FIRST + place, 1)):
            return  # by a program that is none of ours
        try:
            os.pwrite(self._descriptor, entry.ljust(_SAID, b"\0") + about(), _offset(place))
            os.pwrite(self._descriptor, _NUMBER.pack(place), _LAST)
        except OSError:
            return
        pass_on(self._descriptor)

    def wait(self) -> None:
        """Wait until the one ahead has left. Raises `CommitTimeoutError`."""
        if self._ahead is not None:
            self._wait_for(self._ahead, 1)

    def _wait_for(self, place: int, length: int) -> None:
        if self._taken(place, length) is None:
            return
        shared = lock_of(fcntl.F_RDLCK, _FIRST + place, length)
        try:
            wait_for_lock(self._descriptor, shared, self._new_wait())
        finally:
            freed = lock_of(fcntl.F_UNLCK, _FIRST + place, length)
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, freed)

    def _taken(self, place: int, length: int) -> int | None:
        """Return one of `length` places that another committer holds, None if there is none."""
        asked = lock_of(fcntl.F_RDLCK, _FIRST + place, length)
        kind, _, start = struct.unpack_from("hhq", fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else max(start - _FIRST, place)

    def _said(self, place: int) -> bytes | None:
        entry = os.pread(self._descriptor, _SAID, _offset(place))
        if len(entry) < _SAID:
            return None
        checksum, number, length = _HEAD.unpack_from(entry)
        end = _HEAD.size + length
        if end > _SAID or number != place or encoding.crc32c(entry[encoding.CHECKSUM.size : end]) != checksum:
            return None
        return entry[_HEAD.size : end]

    def _first_member(self) -> str:
        """Return the first committer in the queue, for which all others wait."""
        place = stop = self._taken(0, _MOST)
        while stop:
            stop = self._taken(0, stop)
            place = place if stop is None else stop
        if place is None:
            return UNKNOWN
        return told(os.pread(self._descriptor, ABOUT_SIZE, _offset(place) + _SAID))


def _offset(place: int) -> int:
    return _ENTRIES + place % _KEPT * _ENTRY


# --- turns of the committers of one machine that have met conflicts: they repeat their work one after the other
#
# A committer that commits quickly would otherwise win against one that pauses between its tries, again and again. From
# its first conflict until its commit, a committer holds a byte of the file. The kernel serves those that wait for the
# byte in the order in which they came. If its holder dies, the byte is free.
#
# This is advice: the commit lock and the search for conflicts still decide (I2, I5). So nobody waits long for a holder
# whose work takes long, and perhaps is in conflict with other work.


#: The bytes of branches: one of 2^32 behind the places of the commit queue, by the branch's id.
_FIRST_TURN = 1 << 41
#: A committer waits for others as long as so many of its own tries take, but at least and at most so many seconds. Then
#: it tries without the turn, and pauses between its tries.
_PATIENCE_TRIES, _LEAST_PATIENCE, _LONGEST_PATIENCE = 20, 3.0, 30.0
#: Seconds for which a process that has met a conflict takes the turn before its first try, too.
_MET = 60.0


#: When a process has met a conflict on a branch the last time, and how long it waits for others, by the branch's id.
MetConflicts: TypeAlias = dict[str, tuple[float, float]]


class RetryTurn:
    """The turn of one committer at a branch. A context manager."""

    def __init__(self, open_file: Callable[[], local.Descriptor], branch: str, met: MetConflicts) -> None:
        """`met` is of all committers of this process."""
        self._open = open_file
        self._branch = branch
        self._met = met
        self._descriptor: local.Descriptor | None = None

    def __enter__(self) -> Self:
        when, patience = self._met.get(self._branch, (-_MET, 0.0))
        if time.monotonic() - when < _MET:
            self._take(patience)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            try:
                leave(self._descriptor.fileno())
            finally:
                self._descriptor.close()

    def lost(self, tried: float, until: float) -> bool:
        """Take the turn after a conflict, at the time `until` of `time.monotonic` at the latest.

        `tried`: when the try began. Return whether this committer has the turn.
        """
        now = time.monotonic()
        patience = min(max(_PATIENCE_TRIES * (now - tried), _LEAST_PATIENCE), _LONGEST_PATIENCE)
        self._met[self._branch] = now, patience
        return self._descriptor is not None or self._take(min(patience, until - now))

    def _take(self, timeout: float) -> bool:
        descriptor = self._open()
        place = _FIRST_TURN + encoding.crc32c(self._branch.encode())
        if lock_within(descriptor.fileno(), lock_of(fcntl.F_WRLCK, place, 1), timeout):
            self._descriptor = descriptor
            return True
        descriptor.close()
        self._met.pop(self._branch, None)  # the next one does not wait in vain
        return False
