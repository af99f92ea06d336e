"""The history of a repository on an object store: few requests, since each takes its time.

What was created there is durable, so nothing is pending and no chain of parents has to be walked. A listing that begins
right below the newest known commit tells in one request whether it is still there and what has come since. The hint is
written when there is time, not more often than `HINT_PERIOD`, and holds the end of the commit's file, too: whoever
opens the repository has the header, and as a rule the index of the run, without another request.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from txstore import processes
from txstore.errors import CommitUnknownError, CorruptionError, TxStoreError
from txstore.format import carried, commitfile, encoding, names, packfile
from txstore.format.commitfile import Footer, Header
from txstore.format.records import HINT_SIZE, Hint
from txstore.history.commit import MAIN, Stored
from txstore.history.commits import Commits
from txstore.history.identity import Identity
from txstore.history.object_writer import ObjectWriter
from txstore.storage.objects.errors import was_unanswered
from txstore.storage.objects.interface import Object
from txstore.storage.remote import RemoteStorage
from txstore.storage.request_threads import REQUESTS, executor, in_advance, in_parallel

#: Seconds between two hints of one process.
HINT_PERIOD = 1.0
#: Seconds that a process waits for its last hint when it ends.
EXIT_SECONDS = 2.0
#: So many bytes at the end of a commit file are read at once, and kept by the hint.
_TAIL = 64 << 10
_LISTED = 1000
#: Of so many groups of commits the last is read for whoever looks at the newest.
_GROUPS_FIRST = 8
#: For so many seconds nobody is expected to have followed a head, if nobody has followed the one before.
_STAYS = 1.0
#: So many slots are read at once by whoever has lost one: others may have gone on meanwhile.
_LOOKED_AT = 4
#: Seconds: what a round trip takes is measured, with all that a process may have been held up by.
_LONGEST_PAUSE = 0.1


class _Seen(NamedTuple):
    """A commit that was the head, and since when it has not been looked again."""

    commit_id: bytes
    monotonic: float
    wall: float

    @property
    def age(self) -> float:
        """Seconds since then: one of the clocks may have stood still, or been set back."""
        return max(time.monotonic() - self.monotonic, time.time() - self.wall)


class _Expected(NamedTuple):
    """A hint that was asked for before anybody has wanted it."""

    content: Future[bytes]
    asked: float
    process: int

    @property
    def is_fresh(self) -> bool:
        return self.process == os.getpid() and time.monotonic() - self.asked < _STAYS


class _RemoteIdentity(Identity):
    """`format.json`, and the hint beside it: what is asked for next of a repository."""

    def __init__(self, storage: RemoteStorage, expect_hint: Callable[[], None]) -> None:
        super().__init__(storage)
        self._expect_hint = expect_hint

    def _content(self) -> bytes:
        self._expect_hint()
        return super()._content()


class RemoteCommits(Commits):
    """The history of one repository on an object store."""

    storage: RemoteStorage
    tail_size = _TAIL
    merged_at_once = 16 << 10  # they go to the server, and may have to come from there first
    read_at_once = 128
    takes_turns = False
    may_come_late = True
    pins_are_seen = False

    def __init__(self, storage: RemoteStorage) -> None:
        super().__init__(storage)
        self.is_tidy = True  # to look for what dead processes have left takes a request: that is done by the way
        self.identity = _RemoteIdentity(storage, self._expect_hint)
        self._expected: _Expected | None = None
        self.opened_at = time.monotonic()
        self.looked_at: float | None = None  # for what dead processes have uploaded
        self._hints = _HintWriter(self)
        # Of each branch, the commit last met in a listing, and its time there.
        self._listed: dict[str, tuple[bytes, float | None]] = {}
        self._seen: dict[str, _Seen] = {}  # the head of each branch
        # Of each branch, whether others have committed between the last two looks at it.
        self._is_contended: dict[str, bool] = {}

    def new_pack(self, transaction: bytes, number: int) -> ObjectWriter:
        return ObjectWriter(self.storage, transaction, number, self.identity.id)

    def staged_path(self, transaction: bytes, number: int) -> str:
        if not number:
            return names.staging_path(transaction, number)
        return names.data_pack_path(packfile.participants_pack(transaction, number))

    # --- the head

    def head_to_follow(self, branch: str) -> Stored | None:
        newest, seen = self._newest.get(branch), self._seen.get(branch)
        is_seen = newest is not None and seen is not None and newest.header.id == seen.commit_id and seen.age < _STAYS
        if is_seen and not self._is_contended.get(branch, True):
            return newest  # the server says whether the next slot is still free
        return self.head(branch)

    def _has_seen(self, branch: str, head: Stored, since: tuple[float, float]) -> None:
        self._newest[branch] = head
        self._seen[branch] = _Seen(head.header.id, *since)

    def head(self, branch: str = MAIN) -> Stored | None:
        newest, since = self._newest.get(branch), _clocks()
        known = newest if newest is not None and newest.header.branch == branch else self._hinted(branch)
        found = self._look_above(branch, known) if known is not None else None
        if found is None:
            found = self._search(branch, None) or self.fork_point(branch)
        if newest is not None and (
            found is None
            or found.header.slot < newest.header.slot
            or (found.header.slot == newest.header.slot and found.header.id != newest.header.id)
        ):
            self.check_living(branch)
            reason = f"slot {newest.header.slot} was there and is gone: the repository was deleted or replaced"
            raise CorruptionError(names.commits_directory(branch), reason=reason)
        if found is not None:
            self._is_contended[branch] = newest is not None and newest.header.id != found.header.id
            self._has_seen(branch, found, since)
        return found

    def _look_above(self, branch: str, known: Stored) -> Stored | None:
        """Return the newest commit from a known one on; None if that is not there, and nothing above it."""
        slot = known.header.slot
        directory = names.commits_directory(branch)
        below = names.slot_name(slot - 1) if slot else ""
        listed = self.storage.objects.list_after(directory, below, _LISTED)
        if listed is None:
            return self._walk_above(branch, known)
        slots = self._slots_of(listed)
        while len(listed) == _LISTED:
            listed = self.storage.objects.list_after(directory, listed[-1].name, _LISTED) or []
            slots |= self._slots_of(listed)
        if not slots:
            return None
        top = max(slots)
        if top == slot and self._is_same(known, slots[slot]):
            return known
        stored = self.read(branch, top)
        if stored is None:
            return self._search(branch, None)  # somebody has given it back, or a vacuum has overtaken us
        if top == slot + 1 and not stored.follows(known):
            return known  # an orphan
        self._listed[branch] = stored.header.id, slots[top].modified
        return stored

    @staticmethod
    def _slots_of(listed: Iterable[Object]) -> dict[int, Object]:
        return {slot: found for found in listed if (slot := names.parse_slot(found.name)) is not None}

    def _is_same(self, known: Stored, listed: Object) -> bool:
        """Tell whether a listed object is the one that a commit was read from, and not one made in its place.

        Objects never change: one that has the length and time that it had before is the same. Its time is learned when
        it is first listed; until then its length has to do, and that it is of this repository.
        """
        if listed.size != known.footer.file_length:
            return False
        branch = known.header.branch
        met = self._listed.get(branch)
        if met is None or met[0] != known.header.id:
            met = self._listed[branch] = known.header.id, listed.modified
        return met[1] == listed.modified

    def _has_id(self, known: Stored) -> bool:
        """Tell whether a slot holds a known commit."""
        try:
            tail, _ = self.storage.read_tail(known.path, commitfile.FOOTER_SIZE)
            return Footer.decode(tail) == known.footer
        except (FileNotFoundError, encoding.MalformedError):
            return False

    def _walk_above(self, branch: str, known: Stored) -> Stored | None:
        found: Stored | None = known
        while found is not None:
            above = self.read(branch, found.header.slot + 1)
            if above is None or not above.follows(found):
                break
            found = above
        if found is known and not self._has_id(known):
            return None
        # I10: below the floor there are gaps.
        if found is not None and self.is_below_floor(branch, found.header.slot):
            return None
        return found

    def _search(self, branch: str, newest: Stored | None) -> Stored | None:
        """Find the head in a listing of all slots."""
        for slot in sorted(self.slots(branch), reverse=True):
            if (found := self.read(branch, slot)) is not None:
                return found
        return None

    def _hinted(self, branch: str) -> Stored | None:
        """Return the commit that the hint holds."""
        try:
            hint, tail = self._read_hint(branch)
        except (OSError, encoding.MalformedError):
            return None
        with contextlib.suppress(CorruptionError):
            stored = self.decode(names.commit_path(branch, hint.slot), branch, hint.slot, tail, hint.file_length)
            if stored.header.id == hint.commit_id:
                return stored
        return None  # it is only a hint

    def decode(self, path: str, branch: str, slot: int, tail: bytes, size: int) -> Stored:
        stored = super().decode(path, branch, slot, tail, size)
        self._keep(stored, tail)
        return stored

    def _keep(self, stored: Stored, tail: bytes) -> None:
        """Keep the end of a commit file, of which more is asked for next: the index of its run, and small values."""
        self.storage.cache.keep(stored.header.id, stored.footer.file_length - len(tail), tail)

    def read_hint(self, branch: str) -> Hint:
        return self._read_hint(branch)[0]

    def _expect_hint(self) -> None:
        """Ask for the hint of whoever finds the repository and reads its head next, which need not wait twice."""
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads
            content = executor("single request", REQUESTS).submit(self.storage.objects.get, names.hint_path(MAIN))
            self._expected = _Expected(content, time.monotonic(), os.getpid())

    def _read_hint(self, branch: str) -> tuple[Hint, bytes]:
        """Return the hint, and the end of the commit's file that stands behind it."""
        expected, self._expected = self._expected, None
        try:
            if branch == MAIN and expected is not None and expected.is_fresh:
                content = expected.content.result()
            else:
                content = self.storage.objects.get(names.hint_path(branch))
        finally:
            expected = None  # it has the error, whose traceback has this frame, and with it all callers and their pins
        return Hint.decode(content[:HINT_SIZE]), content[HINT_SIZE:]

    # --- what commits tell of those before them

    def carried_by_child(self, parent: Stored | None, branch: str) -> bytes:
        if parent is None or parent.header.branch != branch or not (parent.header.slot + 1) % carried.GROUP:
            return b""
        encoded = parent.header.encode()
        if commitfile.header_hash(encoded) != parent.hash:
            return b""  # there is more in it than is known here
        return carried.carry(encoded, parent.footer.encode(), self._carried_by(parent) or b"")

    def _carried_by(self, stored: Stored) -> bytes | None:
        """Return what a commit carries, if it does, and that is at hand."""
        for kind, offset, length in stored.header.sections:
            if kind == commitfile.SECTION_CARRIED:
                found = self.storage.cache.find(stored.header.id, offset, length)
                return None if found is None else bytes(found)
        return None

    def _carried(self, stored: Stored, floor: int, wanted: int | None) -> Iterator[Stored | None]:
        branch = stored.header.fork or stored.header.branch
        top = stored.header.slot - 1
        if wanted is not None:
            floor = max(floor, stored.header.slot - wanted)
        if stored.header.fork is None:
            begin = stored.header.slot - stored.header.slot % carried.GROUP
            yield from self._told_by(stored, max(begin, floor))
        else:
            begin = top - top % carried.GROUP
            yield from self._group(branch, floor, top)
        ends = range(begin - 1, floor - 1, -carried.GROUP)
        for group in in_advance(partial(self._group, branch, floor), ends, self.read_at_once, first=_GROUPS_FIRST):
            yield from group

    def _group(self, branch: str, floor: int, end: int) -> list[Stored | None]:
        """Return what is in a slot, and below it down to where its group begins."""
        last = self.read(branch, end)
        return [None] if last is None else [last, *self._told_by(last, max(end - end % carried.GROUP, floor))]

    def _told_by(self, last: Stored, first: int) -> list[Stored | None]:
        """Return the commits before one, of its branch and down to a slot: as it tells of them, or else as they are."""
        branch = last.header.branch
        found: list[Stored | None] = []
        with contextlib.suppress(encoding.MalformedError):
            for header, footer, hash_ in carried.decode_carried(self._carried_by(last) or b""):
                told = Stored(header, footer, hash_, self.branches.name_of)
                place = header.repository_id, header.branch, header.slot
                if place != (self.identity.id, branch, last.header.slot - 1) or not last.follows(told):
                    break
                if header.slot < first:
                    break
                found.append(told)
                last = told
        rest = range(last.header.slot - 1, first - 1, -1)
        return [*found, *in_parallel(partial(self.read, branch), rest)]

    # --- durability: the server's

    def pending(self, branch: str, parent: Stored | None) -> int:
        return 0

    def is_fit_parent(self, branch: str, parent: Stored | None) -> bool:
        return parent is not None

    def make_durable(self, newest: Stored | None, branch: str | None = None) -> None:
        self.identity.create(durable=True)

    def settle(self, stored: Stored) -> None:
        """It is durable since it was created."""

    # --- taking a slot

    def take_slot(self, source: str, stored: Stored) -> None:
        tail, since = self.storage.read_staged(source)[-_TAIL:], _clocks()
        super().take_slot(source, stored)
        self._has_seen(stored.header.branch, stored, since)
        self.storage.forget_staged(source)  # it is still there if the answer was lost
        self._keep(stored, tail)
        self._hints.offer(stored, tail)

    def _read_back(self, header: Header, error: OSError) -> Stored | None:
        if _is_refusal(error) and not isinstance(error, FileExistsError):
            return None  # who may not write may not be allowed to read, too: so it is not asked what is there
        if not isinstance(error, FileExistsError):
            return super()._read_back(header, error)
        branch, seen, since = header.branch, self._seen.get(header.branch), _clocks()
        self._is_contended[branch] = True
        if seen is not None:  # those who have met at a slot do not meet at the next one, too
            time.sleep(random.uniform(0, min(seen.age, _LONGEST_PAUSE)))
        line: list[Stored] = []
        try:
            for each in self.each(partial(self.read, branch), range(header.slot, header.slot + _LOOKED_AT)):
                if each is None or (line and not each.follows(line[-1])):
                    break
                line.append(each)
        except (OSError, TxStoreError):
            return super()._read_back(header, error)  # which says what is wrong
        if not line:
            return super()._read_back(header, error)
        if line[0].header.parent_id == header.parent_id and len(line) < _LOOKED_AT:
            self._has_seen(branch, line[-1], since)
            self._is_contended[branch] = False  # nobody has to look again before the next slot is offered
        return line[0]

    def _move_aside(self, orphan: Stored) -> None:
        # What would have to be deleted could be somebody else's commit by then: nothing keeps the slot as it was read.
        reason = "it does not follow the commit below it: somebody has copied or deleted objects; see verify"
        raise CorruptionError(orphan.path, reason=reason)

    def not_taken(self, header: Header, error: OSError) -> OSError | CommitUnknownError:
        if _is_refusal(error):
            return error
        # I3: the slot is empty, but the server may yet come to a request that it has not answered.
        return CommitUnknownError(header.id.hex(), reason=f"the server did not confirm it ({error})")

    def write_hint(self, stored: Stored, *, durable: bool) -> None:
        self._hints.start()


def _is_refusal(error: OSError) -> bool:
    """Tell whether the server has said that it has not created an object, and will not."""
    return isinstance(error, FileExistsError | PermissionError | FileNotFoundError) and not was_unanswered(error)


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.time()


_writers: weakref.WeakSet[_HintWriter] = weakref.WeakSet()


class _HintWriter:
    """Writes the newest hint in the background: nobody waits for it, and not every commit has one."""

    def __init__(self, commits: RemoteCommits) -> None:
        self._commits = commits
        self._lock = processes.new_lock()
        self._offered: dict[str, tuple[Stored, bytes]] = {}  # by branch
        self._thread: threading.Thread | None = None  # None: nothing is being written, and nothing is going to be
        self._last = -HINT_PERIOD
        processes.watch(self)
        _writers.add(self)

    def after_fork_in_child(self) -> None:
        self._offered, self._thread = {}, None  # they are the parent's

    def offer(self, stored: Stored, tail: bytes) -> None:
        with self._lock:
            self._offered[stored.header.branch] = stored, tail

    def start(self) -> None:
        with self._lock:
            if not self._offered or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="txstore hint", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter is ending, or there can be no more threads: the hint can do without
                self._thread = None

    def finish(self, timeout: float) -> None:
        """Wait a moment for the last hint when the process ends: who commits once and ends has one, too."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while offered := self._next():
            for stored, tail in offered:
                self._write(stored, tail)

    def _next(self) -> list[tuple[Stored, bytes]]:
        wait = self._last + HINT_PERIOD - time.monotonic()
        if wait > 0:
            threading.main_thread().join(wait)  # the last hint is not put off when the process ends
        with self._lock:
            offered, self._offered = list(self._offered.values()), {}
            if not offered:
                self._thread = None
        return offered

    def _write(self, stored: Stored, tail: bytes) -> None:
        self._last = time.monotonic()
        content = self._commits.hint(stored, durable=True).encode() + tail
        with contextlib.suppress(OSError, RuntimeError):  # the commit stands whatever becomes of the hint
            self._commits.storage.objects.put(names.hint_path(stored.header.branch), [content])


@atexit.register
def _finish_hints() -> None:
    for writer in list(_writers):
        writer.finish(EXIT_SECONDS)
