"""Queues committers whose commits often conflict, on an object store, by tickets.

If several transactions change the same data at once, all but one do their work in vain. So a committer that has met a
conflict, or sees a queue, draws a ticket: an object that sorts after the versions, so that every look for the head
shows it. The committer begins its next transaction when the committers ahead have committed, and so on their results.

Tickets are only advice: the version and the search for conflicts still decide. If a ticket is lost or late, or its
owner has died, that costs time and nothing else. See `docs/understand/remote-design.md`, "Tickets".
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
from txstore.observing import carried
from txstore.storage.objects.interface import Object, ObjectStore
from txstore.storage.request_threads import executor

if TYPE_CHECKING:
    from typing import Self

#: The head's version when a ticket was drawn, and the id of its owner's next commit. Tickets are served in this order.
Place: TypeAlias = tuple[int, bytes]
#: The last bytes of a commit file, and the file's length.
End: TypeAlias = tuple[bytes, int]

#: After a lost turn, a committer's new id shares this many first bytes with its old id.
_LIKE = 4
#: Seconds. If a ticket is older than the newest object by more than this, its owner has died.
_YOUNG = 60.0
#: Polls per round trip for the next version, by the number of committers ahead: one, two, and so on. Committers further
#: back sleep, and then look how far the queue has moved.
_ASKS = (8, 3, 1, 1)
#: Versions to poll at once. The second may be taken before the answer about the first arrives, and a committer that
#: learns late of one commit would learn late of the next, too.
_VERSIONS = 2
#: A committer further back sleeps for this part of the time that the committers ahead will probably take. If it woke
#: late, it would delay the others.
_EARLY = 0.6
#: Multiples of a commit's duration. A committer polls this long before it lists the queue again, because others may
#: leave the queue.
_ASKING = 6
#: Round trips that a committer without a ticket waits for a committer in the queue. Their commits may be unrelated.
_LET_PASS = 3
#: It waits in vain at most this often for the same committer, which may have died.
_IN_VAIN = 4
#: After this many consecutive commits by committers ahead, a committer expects to get the next version.
_CALLED = 2
#: During long transactions, committers poll less often: a pause is this part of the time since the last new commit.
_PAUSE = 0.05
#: Seconds that a committer sleeps at most, because others may leave the queue.
_LONGEST_SLEEP = 1.0
#: Seconds. A committer that has met no conflict for this long does not wait for others: their commits may be unrelated,
#: and committers with unrelated commits would otherwise wait for each other forever.
_MET = 60.0
#: Seconds: upper limit for a measured round trip, because a measurement includes any delay of the process.
_LONGEST_TRIP = 0.5
#: Seconds, round trips, and multiples of this process's own transaction time that the first in the queue may take. Each
#: committer waits some more trips per committer ahead: so the next in the queue is the first to continue.
_PATIENCE_SECONDS, _PATIENCE_TRIPS, _PATIENCE_TRIES, _MORE_TRIPS = 1.0, 20, 2, 4
#: Seconds. No committer waits for transactions that take longer: it can't tell whether their process has died.
_LONGEST_PATIENCE = 5.0


class Waiting(NamedTuple):
    """The committers in the queue, according to a listing."""

    places: list[Place]  # in queue order
    left: list[Place]  # tickets whose owners died long ago

    @classmethod
    def of(cls, tickets: dict[Place, Object], others: Collection[Object]) -> Waiting:
        """Build it from the tickets and the other objects of a listing. The newest object gives the present time."""
        if not tickets:
            return cls([], [])
        times = [each.modified for each in (*tickets.values(), *others) if each.modified is not None]
        newest = max(times, default=0.0)
        young, old = list[Place](), list[Place]()
        for place, ticket in tickets.items():
            (old if ticket.modified is not None and newest - ticket.modified > _YOUNG else young).append(place)
        return cls(sorted(young), old)


class Seen(NamedTuple):
    """A listing of a branch, and its time."""

    look: Look
    listed: BranchListing


class Answer(NamedTuple):
    """The answer to one poll for a version, and the time of the request."""

    version: int
    look: Look
    end: End | None  # None: the version was free, or there was an error
    is_error: bool


class VersionLog(Protocol):
    """The history whose versions committers wait for: `ObjectHeads`."""

    @property
    def shows_tickets(self) -> bool:
        """Whether a look for the head also shows the tickets."""

    def see(self, branch: str) -> Seen | None:
        """List a branch from just below the newest known commit. None if no commit is known, or the listing fails."""

    def head_in(self, branch: str, seen: Seen | None) -> Stored | None:
        """Return the newest commit from a recent listing, or look for it."""

    def head_that_was_met(self, branch: str) -> Stored | None:
        """Return the newest commit, to which the caller has just lost a version."""

    def end_of(self, branch: str, version: int) -> End | None:
        """Return the end of the file in a version. None if the version is free."""

    def note_free(self, branch: str, look: Look) -> None:
        """Record that the version above the newest commit was free."""

    def note_next(self, known: Stored, branch: str, version: int, end: End) -> Stored | None:
        """Record the file in the version above a commit; return the head. Raises `CorruptionError`, `OSError`."""


class Pace:
    """The durations that this process has measured, in seconds."""

    def __init__(self) -> None:
        self.trip = 0.0  # 0: not known yet
        self.between = 0.0  # between two commits
        self.try_ = 0.0  # from the start of a transaction to its conflict
        self.met_at: float | None = None  # the time of the last conflict
        # The committer in the queue that this one, without a ticket, has waited for, and how often in vain.
        self.let_pass: tuple[Place | None, int] = None, 0
        self._last: tuple[float, int] | None = None

    def note_trip(self, seconds: float) -> None:
        """Record a round trip. Delays make many measurements too long, so the estimate stays near the shortest."""
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
    """The queues of one repository: one for each branch."""

    def __init__(self, versions: VersionLog, objects: ObjectStore) -> None:
        self._versions = versions
        self._objects = objects
        self._paces: dict[str, Pace] = {}

    def turns(self, branch: str) -> Turns:
        """Return the turns of a committer that is about to commit to a branch, and may have to retry."""
        return Turns(self._versions, self._objects, branch, self._paces.setdefault(branch, Pace()))


class Ticket:
    """One committer's place in the queue. It is drawn and given back in the background, one request after the other."""

    def __init__(self, objects: ObjectStore, branch: str) -> None:
        self.place: Place | None = None  # a committer that loses its turn keeps its place
        self._objects = objects
        self._branch = branch
        self._is_drawn = False
        self._asked_for: Future[None] | None = None  # the last request
        self._is_refused = False
        self._process = os.getpid()

    @property
    def is_refused(self) -> bool:
        """Whether the server has refused it."""
        self._is_refused |= _has_failed(self._asked_for)
        return self._is_refused

    def draw(self, version: int, transaction: bytes) -> None:
        self.place = self.place or (version, transaction)
        if not self._is_drawn:
            self._is_drawn = True
            self._ask_for(_put, [names.ticket_path(self._branch, self.place)])

    def give_back(self) -> None:
        if self._is_drawn and self.place is not None and self._process == os.getpid():
            self._is_refused |= _has_failed(self._asked_for)
            self._ask_for(_delete, [names.ticket_path(self._branch, self.place)])
            self._is_drawn = False  # only now: before the request, an interrupt would leave the ticket

    def _ask_for(self, request: Callable[..., None], paths: list[str]) -> None:
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads
            self._asked_for = _threads().submit(carried(request), self._objects, paths, self._asked_for)


class Ahead:
    """The committers ahead of one committer, as far as it knows."""

    def __init__(self, objects: ObjectStore, branch: str, pace: Pace) -> None:
        self.places: list[Place] = []
        self.version = 0  # the last known one of the head
        self._objects = objects
        self._branch = branch
        self._pace = pace
        self._news = time.monotonic()  # when this committer last saw a new commit
        self._served: set[bytes] = set()  # the first bytes of the ids of commits that it has seen
        self._given_up: set[Place] = set()  # committers that did not use their turn
        self._first: tuple[Place, float] | None = None  # the first in the queue, and since when

    @property
    def far(self) -> int:
        """The number of committers between this one and the first ones, which poll for the next version."""
        return len(self.places) - len(_ASKS)

    def stand_behind(self, seen: Seen, place: Place | None) -> None:
        """Take the committers ahead of a place from a listing. None: all that wait."""
        versions, waiting = seen.listed.versions, Waiting.of(seen.listed.tickets, seen.listed.versions.values())
        self._delete(waiting.left)
        self.places = [each for each in waiting.places if place is None or each < place]
        self._note(max(versions, default=self.version))

    def see(self, head: Stored | None) -> None:
        """Note a commit: its committer, and that of its parent, wait no more."""
        if head is not None:
            self._served |= {head.header.id[:_LIKE], head.header.parent_id[:_LIKE]}
            self._note(head.header.version)

    def _note(self, version: int) -> None:
        if version != self.version:
            self.version, self._news = version, time.monotonic()
        self._pace.note_version(version)
        self.places = [
            each for each in self.places if each[1][:_LIKE] not in self._served and each not in self._given_up
        ]
        first = self.places[0] if self.places else None
        if first is None:
            self._first = None
        elif self._first is None or self._first[0] != first:
            self._first = first, time.monotonic()

    def has_lost_patience(self) -> bool:
        """Tell whether the committers ahead have not used their turns in time: then they have died."""
        if self._first is None:
            return False
        patience = self._pace.patience + (len(self.places) - 1) * _MORE_TRIPS * self._pace.trip
        if time.monotonic() - self._first[1] <= patience:
            return False
        self._given_up.update(self.places)
        self._delete(self.places)
        self.places = []
        return True

    def _delete(self, places: Collection[Place]) -> None:
        if places:
            paths = [names.ticket_path(self._branch, each) for each in places]
            with contextlib.suppress(RuntimeError):
                _threads().submit(_delete, self._objects, paths)

    def pause(self, seconds: float) -> float:
        """Return how long to sleep, in seconds: longer if nothing has happened for long."""
        return min(max(seconds, _PAUSE * (time.monotonic() - self._news)), _LONGEST_SLEEP)


class Polls:
    """The requests of one committer for the next versions, and their answers."""

    def __init__(self, versions: VersionLog, branch: str, pace: Pace) -> None:
        self.ends: dict[int, End] = {}  # the ends of commit files, by version
        self._versions = versions
        self._branch = branch
        self._pace = pace
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def wait_for(self, version: int, ahead: Ahead, until: float) -> bool:
        """Return True when a version is taken. False at `until` of `time.monotonic`, or after an error."""
        count = len(ahead.places)
        while time.monotonic() < until:
            look = Look.now()
            for each in range(version, version + min(count, _VERSIONS)):
                if each not in self.ends:
                    _askers().submit(self._ask, each, look, self._answers)
            ends = look.monotonic + ahead.pause(self._pace.trip / _ASKS[count - 1])
            with contextlib.suppress(queue.Empty):
                while version not in self.ends and (left := ends - time.monotonic()) > 0:
                    if not self._hear(version, self._answers.get(timeout=left)):
                        return False  # the next look raises the error
            if version in self.ends:
                return True
        return False

    def _hear(self, version: int, answer: Answer) -> bool:
        """Record the answer about a version; return False if it is an error."""
        if answer.end is not None:
            self.ends[answer.version] = answer.end
        elif answer.version == version and not answer.is_error:
            self._versions.note_free(self._branch, answer.look)
        return not answer.is_error

    def forget(self) -> None:
        """Drop all pending answers."""
        self._answers, self.ends = queue.SimpleQueue(), {}

    def _ask(self, version: int, look: Look, answers: queue.SimpleQueue[Answer]) -> None:
        """Poll a version once. Of several answers about one version, the caller decodes only one."""
        if answers is not self._answers:
            return  # the committer no longer waits for this answer
        end, is_error = None, False
        try:
            end = self._versions.end_of(self._branch, version)
        except (OSError, TxStoreError):  # the answer keeps no error: it would keep this thread's frames
            is_error = True
        self._pace.note_trip(time.monotonic() - look.monotonic)
        answers.put(Answer(version, look, end, is_error))


class Turns:
    """The turns of one committer. It draws a ticket only if others wait, or after a conflict. A context manager."""

    def __init__(self, versions: VersionLog, objects: ObjectStore, branch: str, pace: Pace) -> None:
        self.id = os.urandom(16)  # of the next transaction
        self.branch = branch
        self._versions = versions
        self._pace = pace
        self._ticket = Ticket(objects, branch)
        self._ahead = Ahead(objects, branch, pace)
        self._polls = Polls(versions, branch, pace)
        self._began = 0.0
        self._took = 0.0  # duration of the last look, in seconds: a busy server gets fewer requests
        self._was_first = False  # in the queue, when the transaction began
        self._looked: Future[Seen | None] | None = None  # a look during its commit
        self._called = 0  # consecutive commits by committers ahead of it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ticket.give_back()
        self._polls.forget()

    def next(self, until: float) -> Stored | None:
        """Return the head at this committer's turn, or at the time `until` of `time.monotonic`. Raises `OSError`."""
        self._called, ahead = 0, self._ahead
        head = self._meet() if self._was_first else self._look()
        if head is not None and ahead.places and self._ticket.place is None:
            head = self._let_pass(head, until)
        while ahead.places and time.monotonic() < until and not ahead.has_lost_patience():
            if ahead.far > 0:
                time.sleep(ahead.pause(max(ahead.far * self._pace.between * _EARLY, self._took / 2)))
                head = self._look()
            else:
                head = (head and self._next(head, _ASKING * self._pace.between)) or self._look()
        if head is None:
            head = self._versions.head_in(self.branch, None)
        self._polls.forget()
        self._was_first = self._ticket.place is not None and not ahead.places
        self._began = time.monotonic()
        return head

    def _let_pass(self, head: Stored, until: float) -> Stored:
        """Wait once for a committer in the queue, though this one has no ticket; return the head.

        Committers in the queue learn of a commit one trip later than its committer. Without this wait, a process that
        commits again and again would always be faster.
        """
        first, passed = self._ahead.places[0], None
        before, in_vain = self._pace.let_pass
        in_vain = in_vain if first == before else 0
        if in_vain < _IN_VAIN:
            passed = self._next(head, min(_LET_PASS * self._pace.trip, until - time.monotonic()))
            self._pace.let_pass = first, in_vain + 1 if passed is None else 0
        self._ahead.places = []
        return passed or head

    def about_to_commit(self) -> None:
        """Show others that this committer uses its turn: delete the ticket while the commit takes its version.

        A committer without a ticket may take that version. If this is likely, the ticket stays until the commit is
        made, so that the others don't think that the turn is over. Meanwhile this committer lists the queue.
        """
        self._looked = None
        if self._called >= _CALLED:
            self._ticket.give_back()
        elif self._ticket.place is not None:
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads
                self._looked = _threads().submit(carried(self._versions.see), self.branch)

    def lost(self) -> bool:
        """Join the queue after a conflict of the transaction. Return False if that is not possible."""
        # A new id: data staged under the old one may still be deleted. The first bytes stay, so others know the ticket.
        self.id = self.id[:_LIKE] + os.urandom(16 - _LIKE)
        if self._ticket.is_refused or not self._versions.shows_tickets:
            return False
        self._pace.met_at = time.monotonic()
        self._pace.try_ = self._pace.met_at - self._began
        self._ticket.draw(self._ahead.version, self.id)
        return True

    def _look(self) -> Stored | None:
        """List the queue; return the head, or None if the queue is so long that the head can be read later."""
        began, ahead = time.monotonic(), self._ahead
        seen = self._versions.see(self.branch)
        self._took = time.monotonic() - began
        if seen is not None:
            self._pace.note_trip(self._took)
            ahead.stand_behind(seen, self._ticket.place)
            if ahead.places and self._ticket.place is None:
                if self._pace.has_met_others:
                    self._ticket.draw(ahead.version, self.id)
                else:
                    ahead.places = ahead.places[:1]
            if ahead.far > 0:
                return None
        head = self._versions.head_in(self.branch, seen)
        ahead.see(head)
        return head

    def _meet(self) -> Stored | None:
        """Return the head for the first in the queue. It has lost a version, and so has already read the head."""
        looked, self._looked = self._looked, None
        if looked is not None:
            wait([looked])
            # Do not raise: the error would keep this frame, and all calling frames.
            seen = None if _has_failed(looked) else looked.result()
            if seen is not None:
                self._ahead.stand_behind(seen, self._ticket.place)
        head = self._versions.head_that_was_met(self.branch)
        self._ahead.see(head)
        return head

    def _next(self, head: Stored, seconds: float) -> Stored | None:
        """Return the head when others have taken the next versions. None if that takes longer than `seconds`."""
        try:
            if self._polls.wait_for(head.header.version + 1, self._ahead, time.monotonic() + seconds):
                return self._seen(head)
        except (OSError, TxStoreError, RuntimeError):
            return None  # the next look raises it; or the interpreter ends and starts no more threads
        return None

    def _seen(self, head: Stored) -> Stored | None:
        """Return the last of the commits found directly above the head."""
        newest: Stored | None = head
        while newest is not None and (end := self._polls.ends.pop(newest.header.version + 1, None)) is not None:
            newest = self._versions.note_next(newest, self.branch, newest.header.version + 1, end)
            before = len(self._ahead.places)
            self._ahead.see(newest)
            self._called = self._called + 1 if len(self._ahead.places) < before else 0
        return newest


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
    with contextlib.suppress(OSError):  # other committers delete it when they stop waiting, and so does a vacuum
        objects.delete(list(paths))


def _threads() -> ThreadPoolExecutor:
    return executor("ticket", 4)


def _askers() -> ThreadPoolExecutor:
    return executor("next version", 16)
