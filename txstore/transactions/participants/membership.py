"""Makes this process a participant of a transaction, and tracks what it knows of the other participants."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping

from txstore import processes
from txstore.errors import TransactionStateError
from txstore.format import packfile
from txstore.format.keys import is_document, stored_key, stored_prefix
from txstore.format.packfile import Frame, Predecessor
from txstore.format.records import TransactionRecord
from txstore.format.regions import Region
from txstore.history.commits import Commits
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.shared import SharedTransaction
from txstore.transactions.participants.tails import Tail
from txstore.transactions.reads import ReadLog, ReadMarks
from txstore.transactions.staged_keys import StagedKeys

NOT_STAGING = -1  # the number of a process that has not staged anything in another process's transaction

#: Documents that array objects hold, each with the frame that they know. None: they know the base's document.
Held = dict[str, Link | None]


class Membership:
    """One process in one transaction. Safe in threads, and after a fork.

    The process that began the transaction is participant 0, and its pack becomes the commit file. Other processes join:
    forked children, and processes that unpickle a store. Any process can join a named transaction by its name; there,
    no process is participant 0. A joining process sees the changes staged before it joined. `follow_others` shows it
    the changes that its siblings staged since. The process that began the transaction always sees all changes.
    """

    def __init__(
        self,
        commits: Commits,
        record: TransactionRecord,
        shared: SharedTransaction | None,
        marks: ReadMarks,
        reads: ReadLog,
    ) -> None:
        self.record = record
        self.process = os.getpid()
        self.is_owner = shared is None  # this process began the transaction, which has no name
        self.shared = shared
        self.staged = StagedKeys(0 if shared is None else NOT_STAGING, commits.storage)
        self.is_inherited = False  # True: inherited by a fork, and not used in this process so far
        self.is_over = False  # this process has left the transaction, or the transaction has ended here
        self.siblings = Siblings(self.staged, marks, reads)
        self._commits = commits
        self._marks = marks
        self._reads = reads
        self._following = processes.new_rlock()
        processes.watch(self)

    def after_fork_in_child(self) -> None:
        self.is_inherited = True  # this process becomes a participant when it first uses the transaction

    @property
    def is_named(self) -> bool:
        return self.record.name is not None

    @property
    def is_participant(self) -> bool:
        """Whether this process stages into a transaction that another has begun, and will end."""
        self.follow_others()  # after a fork, it becomes one here
        return not self.is_owner and not self.is_named

    @property
    def is_shared(self) -> bool:
        """Whether other processes can join the transaction."""
        return self.shared is not None

    @property
    def is_used_here(self) -> bool:
        """Whether this process uses the transaction, and has not only inherited it by a fork."""
        return not self.is_inherited and self.process == os.getpid()

    @property
    def stages_for_another(self) -> bool:
        """Whether this process takes part in a transaction that it did not begin."""
        return self.shared is not None and not self.is_owner and not self.is_over

    def is_open(self) -> bool:
        """Tell whether the transaction that this process joined is still open."""
        try:
            if self.shared is not None:
                self.shared.check_open()
        except (OSError, TransactionStateError):
            return False
        return not self.is_over

    def check_alone(self) -> None:
        """Raise `TransactionStateError` if several processes stage into the transaction."""
        if self.shared is not None:
            raise TransactionStateError(
                "several processes stage into this transaction: move, copy and restore need one of its own, without a "
                "name, that no other process has joined",
                state="foreign",
            )

    def publish(self) -> None:
        """Write the record of the transaction, so that other processes can find and join it."""
        self.shared = SharedTransaction.publish(self._commits, self.record)

    # --- becoming a participant

    def adopt(self) -> None:
        """Make this process a participant of the transaction that it inherited."""
        with self._following:
            if not self.is_inherited:
                return
            if not self.is_over and self.shared is None:
                if self.staged:
                    raise not_shared()
                self.is_owner = False  # this process can read the transaction, but `Part.begin` refuses to stage
            elif not self.is_over:
                known: Held = {key: link for key, link in self.staged.items() if is_document(key)}
                self.shared = SharedTransaction.find(self._commits, self.record.id)
                self.is_owner = False
                self.staged.restart(NOT_STAGING)
                self.siblings = Siblings(self.staged, self._marks, self._reads)
                self._follow(joining=True)
                self.rely_on(known)
            self.process = os.getpid()
            self.is_inherited = False

    def rely_on(self, held: Held) -> None:
        """Record the documents of array objects that come from another process, or from before a fork."""
        for key, known in held.items():
            self._marks.add(key, exactly=True)
            if known is None:
                if key in self.staged:
                    self.staged.outdate(key, packfile.SEEN_BASE)
            elif (present := self.staged.present(key)) is None or present.place != known.place:
                self.staged.outdate(key, known.place)
            else:
                self.staged.was_read_again(key)  # older objects belong to other sessions, which refuse them

    # --- following the others

    def join_others(self) -> None:
        """See the changes that others have staged so far, as a joining process sees them."""
        with self._following:
            self._follow(joining=True)

    def follow_others(self) -> None:
        """See the changes that others have staged so far, as after taking a lock."""
        if self.is_inherited:
            self.adopt()
        if self.shared is not None and not self.is_over:
            with self._following:
                self._follow()

    def look_at_others(self) -> None:
        """See the changes that a reader has to see: all of them in the process that began the transaction.

        Other processes see nothing new.
        """
        if self.is_inherited:
            self.adopt()
        elif self.is_owner and self.shared is not None:
            self.follow_others()

    def _follow(self, *, joining: bool = False) -> None:
        if self.shared is not None:
            self.siblings.follow(self.shared, joining=joining)
            if not self.is_named:
                self.siblings.leave_out(self.shared)

    def close_siblings(self, shared: SharedTransaction, living: set[int], failed: set[int]) -> dict[int, int]:
        """See the last changes of others; return the participants with incomplete parts: `Siblings.close`."""
        with self._following:
            return self.siblings.close(shared, living, failed)

    def has_seen(self, seen: Mapping[int, int]) -> bool:
        """Tell whether this process has seen all frames in `seen` that count for a process that joins now."""
        return not self.is_inherited and (self.is_owner or not self.siblings.behind(seen))

    def see(self, seen: Mapping[int, int]) -> None:
        """See at least the frames that another process has seen. Raises `TransactionStateError` if some are missing."""
        self.look_at_others()
        if not self.has_seen(seen):
            self.join_others()
            if not self.has_seen(seen):
                raise TransactionStateError(
                    "what was staged when this store was pickled is not all there for this process: does it see the "
                    "same disk? On a network file system that may take some seconds: try again",
                    state="open",
                )

    # --- the end

    def close_to_all(self) -> None:
        """Stop all staging into a named transaction. Raises `TransactionStateError` if it has ended."""
        if self.shared is not None:
            self.shared.seal()

    def reopen(self) -> None:
        """Let others stage again, because no commit was made."""
        self.siblings.reopen()
        if self.shared is not None:
            try:
                if self.is_owner:
                    with self._following:
                        self.siblings.leave_out(self.shared, is_told=True)
            finally:
                self.shared.unseal()

    def check_held(self) -> None:
        """Raise `OSError` if another process may be ending the named transaction that this process is about to end."""
        if self.shared is not None:
            self.shared.check_held()

    def is_own(self, link: Link | None) -> bool:
        """Tell whether this process staged a frame."""
        return link is not None and link.participant == self.staged.me

    def label(self, participant: int) -> str:
        """Return the process of a participant, for messages."""
        if participant == self.staged.me:
            return f"process {os.getpid()} (this one)"
        return self.siblings.label(participant)


def not_shared() -> TransactionStateError:
    return TransactionStateError(
        "this transaction was begun before the fork, and could not be shared by then: stage something in it (create "
        "the arrays), in a repository that can be written, before you fork",
        state="foreign",
    )


# --- the other participants: their staged changes, and whether they live and have finished (I8)
#
# The frames in their packs are added to the staged keys. If there are several participants at the commit, the frames of
# those count that sealed their part, or that live.


class Siblings:
    """The other participants, as one process sees them. Not safe in threads."""

    def __init__(self, staged: StagedKeys, marks: ReadMarks, reads: ReadLog) -> None:
        self._staged = staged
        self._marks = marks
        self._reads = reads
        self._tails: dict[int, Tail] = {}
        self._passed_over: set[int] = set()  # participants that were dead when this process joined
        #: It has seen aborted frames, or has staged the same keys. A participant that joins now can do that work again.
        self.has_seen_given_up = False
        self._lost: dict[int, int] = {}  # that an attempt to commit found incomplete, with the last frame that counts
        self._left_out: dict[int, int] = {}  # those whose other frames this process does not show
        self._is_closed = False  # all staging has ended, and it is decided whose frames count

    # --- their staged changes

    def follow(self, shared: SharedTransaction, *, joining: bool = False) -> None:
        """Add their new staged changes. A joining process omits the frames of participants that died unfinished.

        Raises `TransactionStateError` if the transaction ends meanwhile.
        """
        if self._is_closed:  # newer frames come too late, and their writers get an error
            return
        try:
            self._follow(shared, joining=joining)
        except FileNotFoundError:  # a pack is gone since the listing: the record was deleted before it
            shared.check_open()
            raise
        finally:
            self._staged.arrange()

    def _follow(self, shared: SharedTransaction, *, joining: bool) -> None:
        others = [number for number in shared.participants() if number not in self._passed_over | {self._staged.me}]
        tails = {number: self._tails.get(number) or shared.tail(number) for number in others}
        packs = shared.packs() if others else ()
        if joining:
            news = self._read_to_join(shared, tails, packs)
        else:
            news = {number: tail.new_frames(packs) for number, tail in tails.items()}
        for number, frames in news.items():
            self._tails[number] = tails[number]
            self._add(number, frames)

    def behind(self, seen: Mapping[int, int]) -> list[int]:
        """Return the participants of which another process has seen more frames than this one.

        `seen` has the last seen frame of each. Frames that do not count for a joining process are not missed.
        """
        others = seen.keys() - self._passed_over - {self._staged.me}
        return sorted(number for number in others if not self._is_seen(number, seen[number]))

    def _is_seen(self, participant: int, sequence: int) -> bool:
        tail = self._tails.get(participant)
        return tail is not None and (tail.last >= sequence or tail.kept is not None)

    def _read_to_join(
        self, shared: SharedTransaction, tails: Mapping[int, Tail], packs: Collection[str]
    ) -> dict[int, Iterable[Frame]]:
        """Return the frames of the participants whose work counts for a process that joins now."""
        seen = {number: tail.last for number, tail in tails.items()}

        def read(number: int) -> list[Frame]:
            return list(tails[number].new_frames(packs))

        def is_dead(number: int) -> bool:
            return not tails[number].is_alive()

        # A process that joins late has many packs to read: on an object store, read them in parallel.
        each = shared.storage.dispatch.each
        news: dict[int, Iterable[Frame]] = dict(zip(tails, each(read, tails), strict=True))
        # One that has just created its file may not hold it yet: whoever has no frame counts as living.
        unsealed = [number for number, tail in tails.items() if number and tail.last >= 0 and not tail.is_sealed]
        dead = [number for number, is_so in zip(unsealed, each(is_dead, unsealed), strict=True) if is_so]
        if dead:
            packs = shared.packs()
            for number in dead:  # read again after the check: a dead participant adds no more frames after this
                news[number] = [*news[number], *read(number)]
        for number in news.keys() - {0}:
            kept = tails[number].kept
            if kept is not None:
                self.has_seen_given_up |= seen[number] > kept
            elif number in dead and not tails[number].is_sealed:
                # Another process has to repeat the work that it had not finished, without its frames.
                kept = tails[number].certain
            if kept is None:
                continue
            left_out = [frame for frame in news[number] if frame.sequence > kept]
            self.has_seen_given_up |= any(
                frame.kind in packfile.FRAMES_OF_KEYS
                and self._staged.me in self._staged.writers(_key_of(frame, tails[number].path))
                for frame in left_out
            )
            news[number] = [frame for frame in news[number] if frame.sequence <= kept]
            if kept < 0:
                self._passed_over.add(number)
                del news[number]
        return news

    def _add(self, participant: int, frames: Iterable[Frame], *, is_again: bool = False) -> None:
        for frame in frames:
            key = _key_of(frame, self._tails[participant].path)
            if frame.kind in packfile.FRAMES_READ:
                self._reads.add(frame.kind, key)
            else:
                _stage(self._staged, participant, key, frame, was_read=key in self._marks, is_again=is_again)
                if frame.kind in packfile.FRAMES_OF_KEYS and is_document(key):
                    self._staged.news.append(key)

    def leave_out(self, shared: SharedTransaction, *, is_told: bool = False) -> None:
        """Show no more work of participants that aborted it or died, as to a process that joins now (I8).

        The commit counts it as lost. `is_told`: the caller knows, so it has built nothing on what it has read of it.
        """
        if self._is_closed:
            return
        found = self._lost | self._dead(shared) | self.given_up()
        lost = {number: last for number, last in found.items() if number in self._tails.keys() - self._left_out.keys()}
        if not lost:
            return
        kept, keys, news, packs = StagedKeys(self._staged.me), set[str](), list[str](), shared.packs()
        for number, last in lost.items():
            for frame in shared.tail(number).new_frames(packs):
                key = _key_of(frame, self._tails[number].path)
                if frame.kind == packfile.FRAME_PREFIX or frame.kind in packfile.FRAMES_OF_KEYS:
                    keys.add(key)
                    if frame.kind == packfile.FRAME_PREFIX or is_document(key):
                        news.append(key)
                if frame.sequence <= last:
                    _stage(kept, number, key, frame)
        kept.arrange()
        built_on = {key for key in keys if key in self._marks and (is_document(key) or not is_told)}
        self._staged.leave_out(lost, kept, keys, built_on)
        self._staged.news += news
        self._left_out |= lost

    def _dead(self, shared: SharedTransaction) -> dict[int, int]:
        """Return the participants that have died unfinished, each with the last frame that counts.

        Where it takes a while to tell who lives, this returns none.
        """
        # A participant that has just created its file may not hold it yet: whoever has no frame yet counts as living.
        begun = {number for number, tail in self._tails.items() if number and tail.last >= 0 and not tail.is_sealed}
        unsealed = begun - {self._staged.me} - self._left_out.keys()
        if not unsealed or shared.storage.capabilities.holders_trusted:
            return {}
        dead = unsealed - shared.living(unsealed)
        for number in dead:  # read again after the check: a dead participant adds no more frames after this
            self._add(number, self._tails[number].new_frames())
        self._staged.arrange()
        return {number: tail.certain for number, tail in self._tails.items() if number in dead and not tail.is_sealed}

    def ends(self) -> dict[int, int]:
        """Return the offsets at which their frames end, by the numbers of their packs in the transaction."""
        ends: dict[int, int] = {}
        for tail in self._tails.values():
            ends |= tail.ends()
        return ends

    # --- their processes

    def label(self, participant: int) -> str:
        tail = self._tails.get(participant)
        return "the process that began" if tail is None or participant == 0 else str(tail)

    def locks_of(self, participant: int) -> int | None:
        """Return the owner word under which a sibling parks locks for the others."""
        tail = self._tails.get(participant)
        return None if tail is None else tail.about.get("locks")

    def parked_locks(self) -> list[int]:
        """Return all such owner words."""
        return [word for participant in self._tails if (word := self.locks_of(participant)) is not None]

    def attached(self, shared: SharedTransaction, here: Collection[int]) -> list[str]:
        """Return the living participants outside of this process that are in an operation, or have not left."""
        others = {
            number: tail for number, tail in self._tails.items() if number and number not in here and not tail.is_sealed
        }
        living = shared.living(others)
        return [str(tail) for number, tail in others.items() if number in living]

    def whole_or_living(self, shared: SharedTransaction, participants: Iterable[int]) -> set[int]:
        """Return the participants that sealed their part, as far as read here, and the others that live.

        A participant that writes later was alive at this time, so it need not be checked again.
        """
        sealed = {number for number, tail in self._tails.items() if tail.is_sealed}
        return sealed | shared.living(set(participants) - sealed - {0, self._staged.me})

    # --- the commit

    def close(self, shared: SharedTransaction, living: set[int], failed: Collection[int]) -> dict[int, int]:
        """Add their last staged changes after the transaction is sealed; return the participants with incomplete parts.

        The result maps a participant to the last frame up to which its part is complete; -1: no frame is certain.
        `living` are the participants that lived before the seal, or had sealed their part. `failed` are those with a
        failed write.
        """
        self._passed_over.clear()
        self._put_back(shared)
        others = [number for number in shared.participants() if number not in (0, self._staged.me)]
        packs = shared.packs()
        for participant in others:
            tail = self._tails.setdefault(participant, shared.tail(participant))
            self._add(participant, tail.new_frames(packs))
        living = living | self.whole_or_living(shared, set(others) - living)
        lost = {}
        unsealed = [participant for participant in others if not self._tails[participant].is_sealed]
        packs = shared.packs() if unsealed else ()
        for participant in unsealed:  # read again after the check: a dead participant adds no more frames after this
            self._add(participant, self._tails[participant].new_frames(packs))
        for participant in others:
            tail = self._tails[participant]
            if tail.kept is not None:
                lost[participant] = tail.kept
            elif not tail.is_sealed and (participant in failed or participant not in living):
                lost[participant] = tail.certain
        self._staged.arrange()
        self._is_closed, self._lost = True, lost
        return lost

    def _put_back(self, shared: SharedTransaction) -> None:
        """Add the frames that were left out: the commit judges all frames."""
        packs = shared.packs() if self._left_out else ()
        for number, last in list(self._left_out.items()):
            frames = [frame for frame in shared.tail(number).new_frames(packs) if frame.sequence > last]
            self._add(number, frames, is_again=True)
            del self._left_out[number]

    def killed(self, shared: SharedTransaction) -> set[int]:
        """Return the participants that died before the end of their work."""
        undone = {number for number, tail in self._tails.items() if number and not tail.is_done}
        return undone - shared.living(undone) - {self._staged.me}

    def reopen(self) -> None:
        """Follow them again: no commit was made."""
        self._is_closed = False

    def given_up(self) -> dict[int, int]:
        """Return the participants that aborted their work, each with the last frame that still counts."""
        return {number: tail.kept for number, tail in self._tails.items() if tail.kept is not None}

    def counting(self, shared: SharedTransaction, participant: int, key: str) -> Link | None:
        """Return the last frame on a key that counts of a participant that has lost later ones."""
        links = [
            _link(participant, frame)
            for frame in shared.tail(participant).new_frames()
            if frame.kind in packfile.FRAMES_OF_KEYS
            and frame.sequence <= self._lost[participant]
            and _key_of(frame, self._tails[participant].path) == key
        ]
        return links[-1] if links else None

    def lost_keys(self, lost: Mapping[int, int], whole: Callable[[str], Region]) -> list[str]:
        """Return the keys whose counting frame is from a lost participant, or that it was staging when it died.

        `whole` returns the box of a whole chunk.
        """
        keys = self._staged.lost_keys(lost, whole, self.given_up())
        unfinished = (
            (stored_key(frame.key, self._tails[number].path), _link(number, frame))
            for number in lost
            if (frame := self._tails[number].unfinished) is not None
        )
        undone = {key for key, link in unfinished if not self._staged.is_repeated(key, link, lost, whole)}
        return keys + sorted(undone.difference(keys))


def _key_of(frame: Frame, path: str) -> str:
    """Return the key or the prefix of a frame in the pack at a path."""
    return (stored_key if frame.kind in packfile.FRAMES_WITH_KEY else stored_prefix)(frame.key, path)


def _stage(staged: StagedKeys, participant: int, key: str, frame: Frame, **options: bool) -> None:
    if frame.kind == packfile.FRAME_PREFIX:
        staged.hide(key, participant, frame.sequence, frame.seen)
    elif frame.kind in packfile.FRAMES_OF_KEYS:
        staged.add(key, _link(participant, frame), later=True, **options)
    elif frame.kind == packfile.FRAME_SEAL and not isinstance(frame.seen, Predecessor):
        staged.close(participant, frame.sequence)


def _link(participant: int, frame: Frame) -> Link:
    return Link(
        participant, frame.sequence, frame.seen, frame.kind, frame.offset, frame.length, frame.checksum, frame.region
    )
