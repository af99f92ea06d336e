"""Turns of those whose commits conflict by nature, on an object store: a line of tickets.

Of the transactions that change the same thing at once, all but one do their work in vain. So a committer that has met a
conflict, or sees a line, draws a ticket, an object behind the versions, which every look for the head shows. It begins
its next transaction when those before it have committed, and so on top of what they have made.

All of this is advice: the version and the search for conflicts decide, as ever. A ticket that is lost, late, or of a
process that has died, costs time and nothing else. `docs/understand/remote-design.md`, "Tickets".
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from txstore.commit import Stored
from txstore.commit_queue.group_commits import BranchListing, Look
from txstore.errors import TxStoreError
from txstore.format import names
from txstore.storage.objects.interface import Object, ObjectStore
from txstore.storage.request_threads import executor

if TYPE_CHECKING:
    from typing import Self

#: The version of the head when a ticket was drawn, and the id of the commit that it is for: in this order they have
#: turns.
Place: TypeAlias = tuple[int, bytes]
#: Bytes at the end of a commit file, and how long that is.
End: TypeAlias = tuple[bytes, int]

#: Bytes that the new id of a committer that loses its turn shares with the id that it had.
_LIKE = 4
#: Seconds. A ticket that is older than the newest object by more has lost its owner.
_YOUNG = 60.0
#: So often in a round trip those ask for the next version itself who have one before them, two, and so on. All others
#: sleep, and look how far the line has come.
_ASKS = (8, 3, 1, 1)
#: Versions that they ask for at once: the second may be taken by the time that they are told of the first, and a
#: committer that learns late of one commit would learn as late of the next.
_VERSIONS = 2
#: They sleep for this part of the time that those before them are likely to take: to come late would hold up others.
_EARLY = 0.6
#: Multiples of the time of a commit for which they ask before they look who has left: others may commit meanwhile.
_ASKING = 6
#: Round trips for which a committer outside of the line waits for one in it, whose commits may have nothing to do with
#: its own.
_LET_PASS = 3
#: But not more often than this for the same one in vain, which may have died.
_IN_VAIN = 4
#: Commits by committers ahead, one right after the other, after which a committer counts on the next version.
_CALLED = 2
#: Where transactions take long, they ask less often: a pause is this part of the time since the last commit was seen.
_PAUSE = 0.05
#: Seconds that a committer sleeps at most, since others may leave.
_LONGEST_SLEEP = 1.0
#: Seconds. A committer that has met no conflict for this long does not wait for others, which may have nothing to do
#: with its commits: otherwise committers that wait for one another for no reason would do so for ever.
_MET = 60.0
#: What a round trip takes, in seconds, at most: it is measured, with all that a process may have been held up by.
_LONGEST_TRIP = 0.5
#: Seconds, round trips, and multiples of the time of such a transaction here that the first in line may take. Each
#: other committer waits longer, by more trips for each one ahead of it: so the next in line is the first to go on.
_PATIENCE_SECONDS, _PATIENCE_TRIPS, _PATIENCE_TRIES, _MORE_TRIPS = 1.0, 20, 2, 4
#: Seconds. No committer waits for transactions that take longer: it can't tell whether their process has died.
_LONGEST_PATIENCE = 5.0


class Waiting(NamedTuple):
    """Who stands in line, as a listing has shown it."""

    places: list[Place]  # in their order
    left: list[Place]  # tickets whose owners died long ago

    @classmethod
    def of(cls, tickets: dict[Place, Object], others: Collection[Object]) -> Waiting:
        """Given the tickets in a listing, and other objects there, of which the newest says what time it is."""
        if not tickets:
            return cls([], [])
        times = [each.modified for each in (*tickets.values(), *others) if each.modified is not None]
        newest = max(times, default=0.0)
        young, old = list[Place](), list[Place]()
        for place, ticket in tickets.items():
            (old if ticket.modified is not None and newest - ticket.modified > _YOUNG else young).append(place)
        return cls(sorted(young), old)


class Seen(NamedTuple):
    """What there is of a branch, and when it was listed."""

    look: Look
    listed: BranchListing


class Answer(NamedTuple):
    """What was found in a version, and when that was asked for."""

    version: int
    look: Look
    end: End | None  # None: it was free, unless that could not be told
    is_error: bool


class VersionLog(Protocol):
    """The history whose versions are waited for: `ObjectHeads`."""

    @property
    def shows_tickets(self) -> bool:
        """Whether who looks for the head sees the tickets."""

    def see(self, branch: str) -> Seen | None:
        """List what there is from below the newest known commit on; None if none is known, or if it can't be listed."""

    def head_in(self, branch: str, seen: Seen | None) -> Stored | None:
        """Return the newest commit, as a listing of a moment ago has shown it, or look for it."""

    def head_that_was_met(self, branch: str) -> Stored | None:
        """Return the newest commit, for somebody who has just lost a version to it."""

    def end_of(self, branch: str, version: int) -> End | None:
        """Return the end of what is in a version, None if the version is free."""

    def note_free(self, branch: str, look: Look) -> None:
        """Note that the version above the newest commit was free."""

    def note_next(self, known: Stored, branch: str, version: int, end: End) -> Stored | None:
        """Note what was found in the version above a commit; return the head. Raises `CorruptionError`, `OSError`."""


class Pace:
    """How fast things go, as far as this process has seen it. In seconds."""

    def __init__(self) -> None:
        self.trip = 0.0  # 0: not known yet
        self.between = 0.0  # two commits
        self.try_ = 0.0  # from the beginning of a transaction to its conflict
        self.met_at: float | None = None  # others whose commits are in conflict
        # For whom who is outside of the line has waited, and how often in vain.
        self.let_pass: tuple[Place | None, int] = None, 0
        self._last: tuple[float, int] | None = None

    def note_trip(self, seconds: float) -> None:
        """Few are faster than they should be, and many slower."""
        self.trip = min(seconds, 1.2 * self.trip or seconds, _LONGEST_TRIP)
        self.between = self.between or 1.5 * self.trip

    def note_version(self, version: int) -> None:
        now = time.monotonic()
        if self._last is not None and version > self._last[1]:
            each = (now - self._last[0]) / (version - self._last[1])
            each = min(max(each, self.trip), _LONGEST_SLEEP)
            self.between = min(each, 1.1 * self.between)
        if self._last is None or version > self._last[1]:
            self._last = now, version

    @property
    def patience(self) -> float:
        tries = min(_PATIENCE_TRIES * self.try_, _LONGEST_PATIENCE)
        return max(_PATIENCE_SECONDS, _PATIENCE_TRIPS * self.trip, tries)

    @property
    def has_met_others(self) -> bool:
        return self.met_at is not None and time.monotonic() - self.met_at < _MET


class Tickets:
    """The lines of one repository: one for each branch."""

    def __init__(self, versions: VersionLog, objects: ObjectStore) -> None:
        self._versions = versions
        self._objects = objects
        self._paces: dict[str, Pace] = {}

    def turns(self, branch: str) -> Turns:
        """Return the turns of somebody who is about to commit to a branch, again and again if need be."""
        return Turns(self._versions, self._objects, branch, self._paces.setdefault(branch, Pace()))


class Turns:
    """The turns of one who commits: no ticket is drawn unless others wait, or were met. A context manager."""

    def __init__(self, versions: VersionLog, objects: ObjectStore, branch: str, pace: Pace) -> None:
        self.id = os.urandom(16)  # of the next transaction
        self._versions = versions
        self._objects = objects
        self.branch = branch
        self._pace = pace
        self._began = 0.0
        self._at = 0  # the version of the head, as it was last seen
        self._took = 0.0  # the last look, in seconds: a server that has much to do is asked less
        self._news = time.monotonic()  # when another commit was seen
        self._place: Place | None = None  # of the ticket: a committer that loses its turn keeps its place
        self._is_drawn = False
        self._asked_for: Future[None] | None = None  # the last request for the ticket
        self._is_refused = False  # by the server
        self._process = os.getpid()
        self._served: set[bytes] = set()  # how the ids of the commits begin that were seen here
        self._given_up: set[Place] = set()  # whose turn has come to nothing
        self._ahead: list[Place] = []
        self._was_first = False  # in line, when it began
        self._looked: Future[Seen | None] | None = None  # while it tried to commit
        self._called = 0  # commits in a row by committers ahead of it
        self._first: tuple[Place, float] | None = None  # in line, and since when, as far as is known here
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._ends: dict[int, End] = {}  # what was found in versions

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back()
        self._forget()

    def next(self, until: float) -> Stored | None:
        """Return the head when it is this one's turn, or at a time by `time.monotonic`. Raises `OSError`."""
        self._called = 0
        head = self._meet() if self._was_first else self._look()
        if head is not None and self._ahead and self._place is None:
            head = self._let_pass(head, until)
        while self._ahead and time.monotonic() < until and not self._has_lost_patience():
            if self._far > 0:
                time.sleep(self._pause(max(self._far * self._pace.between * _EARLY, self._took / 2)))
                head = self._look()
            else:
                head = (head and self._next(head, _ASKING * self._pace.between)) or self._look()
        if head is None:
            head = self._versions.head_in(self.branch, None)
        self._forget()
        self._was_first = self._place is not None and not self._ahead
        self._began = time.monotonic()
        return head

    def _let_pass(self, head: Stored, until: float) -> Stored:
        """Let one of those in line commit, once, before one that is outside of it; return the head.

        They learn of each commit a trip later than its committer does. Beside a process that commits in a row they
        would always come too late.
        """
        first, passed = self._ahead[0], None
        before, in_vain = self._pace.let_pass
        in_vain = in_vain if first == before else 0
        if in_vain < _IN_VAIN:
            passed = self._next(head, min(_LET_PASS * self._pace.trip, until - time.monotonic()))
            self._pace.let_pass = first, in_vain + 1 if passed is None else 0
        self._ahead = []
        return passed or head

    def about_to_commit(self) -> None:
        """Let others see that this one has had its turn: the version is taken while the ticket is deleted.

        Somebody outside of the line may take that version. Where this is likely, the ticket stays until the commit is
        made, so that no other committer takes the turn for over. Meanwhile this one looks who is in line.
        """
        self._looked = None
        if self._called >= _CALLED:
            self._give_back()
        elif self._place is not None:
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads
                self._looked = _threads().submit(self._versions.see, self.branch)

    def lost(self) -> bool:
        """Stand in line from now on, since the transaction has met a conflict; return False if that can't be done."""
        # What was staged under the last one may be deleted yet. It begins as that did: so others know it by its ticket.
        self.id = self.id[:_LIKE] + os.urandom(16 - _LIKE)
        self._is_refused |= _has_failed(self._asked_for)
        if not self._versions.shows_tickets or self._is_refused:
            return False
        self._pace.met_at = time.monotonic()
        self._pace.try_ = self._pace.met_at - self._began
        self._draw(self._at)
        return True

    # --- the own ticket

    def _draw(self, version: int) -> None:
        self._place = self._place or (version, self.id)
        if not self._is_drawn:
            self._is_drawn = True
            self._ask_for(_put, [names.ticket_path(self.branch, self._place)])

    def _give_back(self) -> None:
        if self._is_drawn and self._place is not None and self._process == os.getpid():
            self._is_refused |= _has_failed(self._asked_for)
            self._ask_for(_delete, [names.ticket_path(self.branch, self._place)])
            self._is_drawn = False  # not before: an interrupt would leave the ticket

    def _ask_for(self, request: Callable[..., None], paths: list[str]) -> None:
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads
            self._asked_for = _threads().submit(request, self._objects, paths, self._asked_for)

    # --- those before it

    @property
    def _far(self) -> int:
        """How many stand between this committer and the ones that ask for the next version."""
        return len(self._ahead) - len(_ASKS)

    def _look(self) -> Stored | None:
        """Look who is in line; return the head, or None if the line is long enough to read it later."""
        began = time.monotonic()
        seen = self._versions.see(self.branch)
        self._took = time.monotonic() - began
        if seen is not None:
            self._pace.note_trip(self._took)
            self._stand_behind(seen)
            if self._ahead and self._place is None:
                if self._pace.has_met_others:
                    self._draw(self._at)
                else:
                    self._ahead = self._ahead[:1]
            if self._far > 0:
                return None
        head = self._versions.head_in(self.branch, seen)
        self._see(head)
        return head

    def _meet(self) -> Stored | None:
        """Return the head for the first in line, who has lost a version, and so has read what is there."""
        looked, self._looked = self._looked, None
        if looked is not None:
            wait([looked])
            # Not raised: the error would have this frame, and with it all that have called it.
            seen = None if _has_failed(looked) else looked.result()
            if seen is not None:
                self._stand_behind(seen)
        head = self._versions.head_that_was_met(self.branch)
        self._see(head)
        return head

    def _stand_behind(self, seen: Seen) -> None:
        """Note who is in line before this one."""
        versions, waiting = seen.listed.versions, Waiting.of(seen.listed.tickets, seen.listed.versions.values())
        self._delete(waiting.left)
        self._ahead = [each for each in waiting.places if self._place is None or each < self._place]
        self._note(max(versions, default=self._at))

    def _see(self, head: Stored | None) -> None:
        if head is not None:
            self._served |= {head.header.id[:_LIKE], head.header.parent_id[:_LIKE]}
            self._note(head.header.version)

    def _note(self, version: int) -> None:
        """Note how far the line has come."""
        if version != self._at:
            self._at, self._news = version, time.monotonic()
        self._pace.note_version(version)
        self._ahead = [
            each for each in self._ahead if each[1][:_LIKE] not in self._served and each not in self._given_up
        ]
        first = self._ahead[0] if self._ahead else None
        if first is None:
            self._first = None
        elif self._first is None or self._first[0] != first:
            self._first = first, time.monotonic()

    def _has_lost_patience(self) -> bool:
        """Tell whether those before this one have had their turns, and made nothing of them: they have died."""
        if self._first is None:
            return False
        patience = self._pace.patience + (len(self._ahead) - 1) * _MORE_TRIPS * self._pace.trip
        if time.monotonic() - self._first[1] <= patience:
            return False
        self._given_up.update(self._ahead)
        self._delete(self._ahead)
        self._ahead = []
        return True

    def _delete(self, places: Collection[Place]) -> None:
        if places:
            paths = [names.ticket_path(self.branch, each) for each in places]
            with contextlib.suppress(RuntimeError):
                _threads().submit(_delete, self._objects, paths)

    def _pause(self, seconds: float) -> float:
        return min(max(seconds, _PAUSE * (time.monotonic() - self._news)), _LONGEST_SLEEP)

    # --- the next commit

    def _next(self, head: Stored, seconds: float) -> Stored | None:
        """Return the head when others have taken the versions above; None if that takes so long."""
        version, ahead = head.header.version + 1, len(self._ahead)
        looks = time.monotonic() + seconds
        try:
            while time.monotonic() < looks:
                look = Look.now()
                for each in range(version, version + min(ahead, _VERSIONS)):
                    if each not in self._ends:
                        _askers().submit(self._ask, each, look, self._answers)
                ends = look.monotonic + self._pause(self._pace.trip / _ASKS[ahead - 1])
                with contextlib.suppress(queue.Empty):
                    while version not in self._ends and (left := ends - time.monotonic()) > 0:
                        if not self._hear(version, self._answers.get(timeout=left)):
                            return None  # the next look says what is wrong
                if version in self._ends:
                    return self._seen(head)
        except (OSError, TxStoreError, RuntimeError):
            return None  # as above; or the interpreter ends, and starts no more threads
        return None

    def _hear(self, version: int, answer: Answer) -> bool:
        """Note what was found in a version; return whether that could be told."""
        if answer.end is not None:
            self._ends[answer.version] = answer.end
        elif answer.version == version and not answer.is_error:
            self._versions.note_free(self.branch, answer.look)
        return not answer.is_error

    def _seen(self, head: Stored) -> Stored | None:
        """Return the last of the commits that were found right above the head."""
        newest: Stored | None = head
        while newest is not None and (end := self._ends.pop(newest.header.version + 1, None)) is not None:
            newest = self._versions.note_next(newest, self.branch, newest.header.version + 1, end)
            before = len(self._ahead)
            self._see(newest)
            self._called = self._called + 1 if len(self._ahead) < before else 0
        return newest

    def _forget(self) -> None:
        """Wait for no answer any more."""
        self._answers, self._ends = queue.SimpleQueue(), {}

    def _ask(self, version: int, look: Look, answers: queue.SimpleQueue[Answer]) -> None:
        """Ask once, and leave it at that: several answers come, and one of them is to be decoded."""
        if answers is not self._answers:
            return  # this process has stopped waiting for it
        end, is_error = None, False
        try:
            end = self._versions.end_of(self.branch, version)
        except (OSError, TxStoreError):  # not kept: it has the frames of this thread
            is_error = True
        self._pace.note_trip(time.monotonic() - look.monotonic)
        answers.put(Answer(version, look, end, is_error))


def _has_failed(request: Future[Any] | None) -> bool:
    return request is not None and request.done() and request.exception() is not None


def _put(objects: ObjectStore, paths: Collection[str], after: Future[None] | None = None) -> None:
    if after is not None:
        wait([after])
    for path in paths:
        objects.put(path, [b"waiting"])


def _delete(objects: ObjectStore, paths: Collection[str], after: Future[None] | None = None) -> None:
    if after is not None:
        wait([after])
    with contextlib.suppress(OSError):  # others do so when they have waited for it, and so does a vacuum
        objects.delete(list(paths))


def _threads() -> ThreadPoolExecutor:
    return executor("ticket", 4)


def _askers() -> ThreadPoolExecutor:
    return executor("next version", 16)
