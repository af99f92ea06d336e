"""Ends a transaction: commits it, or rolls it back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from txstore import observing
from txstore.codecs.chunk_codec import NotMergeableError
from txstore.commit import Stored
from txstore.errors import (
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    ParticipantLostError,
    TransactionStateError,
    is_full,
    keeps_nothing,
    raise_if_full,
)
from txstore.format import packfile
from txstore.format.documents import DocumentChange, compare_documents, is_left
from txstore.format.regions import WHOLE, Region
from txstore.history.commits import Commits
from txstore.history.full_disk import Spare
from txstore.history.publisher import LostPlaceError, SyncFailedError
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.transactions.committer import Committer
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.locking import Locking
from txstore.transactions.own_part import Part
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.shared import SharedTransaction
from txstore.transactions.staging import Staging
from txstore.transactions.view import View

_log = logging.getLogger(__name__)

_HOW_TO_LEAVE = (
    "Each leaves by leaving its `with` block. A store that has staged in none has done its part when you say so "
    "(`with store: pass`), when it and its arrays are gone (`del`), or when its process ends"
)


class Ending:
    """The end of one transaction. `release` releases the resources that it holds in this process."""

    def __init__(
        self,
        commits: Commits,
        snapshots: Snapshots,
        staging: Staging,
        lifecycle: Lifecycle,
        locking: Locking,
        release: Callable[[], object],
    ) -> None:
        self.unchanged = False  # whether the commit changed nothing, even if it was made because of its message
        self.needs_change = False  # the message alone is no reason for a commit: an earlier commit already has it
        #: The keys for which the commit merged staged values with those of other commits.
        self.settled: Collection[str] = ()
        self._commits = commits
        self._snapshots = snapshots
        self._staging = staging
        self._lifecycle = lifecycle
        self._locking = locking
        self._release = release

    @keeps_nothing
    def commit(self, message: str | None, *, allow_lost: bool) -> Snapshot | None:
        """Commit the staged changes: `Transaction.commit`."""
        record, url = self._staging.record, self._commits.storage.url
        with observing.span("commit", url=url, branch=self._commits.branches.name_of(record.branch)) as span:
            try:
                made = self._commit(message, allow_lost=allow_lost)
            except ConflictError as error:
                _log.debug("%s: commit conflicts: %s", url, error)
                observing.count("commit.conflicts", 1)
                raise
            commit = None if made is None else made.commit
            if made is not None and commit is not None:
                _log.debug("%s: commit %s (%s)", url, commit, commit.id)
                if observing.observer is not None and made.stored is not None:
                    header = made.stored.header
                    observing.count("io.staged", header.statistics.bytes_set)
                    observing.count(
                        "io.written", made.stored.footer.file_length + sum(each.end for each in header.packs)
                    )
                span.tell(commit=commit.id, version=commit.version, unchanged=self.unchanged)
        return made

    def _commit(self, message: str | None, *, allow_lost: bool) -> Snapshot | None:
        staging, lifecycle, attempt = self._staging, self._lifecycle, object()
        if lifecycle.state == "open":
            self._check_may_end("committed")
        told = staging.record.message if message is None else message
        is_wanted = not self.needs_change and bool(told or staging.record.properties)
        result: Snapshot | None = None
        committer: Committer | None = None
        stored: Stored | None = None
        try:
            # From now on, no process begins a write. Decide whose writes count.
            lifecycle.begin_commit(attempt)
            close_parts(staging.part, staging.view, allow_lost=allow_lost)
            self._check_alone("committed")  # check again: now no process can join any more

            # The committer makes the commit. A merge always makes a commit, even without changes.
            if staging.count or is_wanted or staging.other_parent is not None:
                arguments = self._commits, self._snapshots, staging, self._locking.locks, told or ""
                committer = Committer(*arguments)
                staging.is_unsettled = True
                try:
                    stored = committer.run(is_wanted=is_wanted)
                except LostPlaceError:
                    committer = Committer(*arguments, may_queue=False)
                    stored = committer.run(is_wanted=is_wanted)
                if stored is not None:
                    result = self._snapshots.made(stored, committer.head)
                    self.settled = committer.merges.besides
        except SyncFailedError as error:
            self._go_on(committer)
            lifecycle.fail(error.cause)  # I9: no retry, because the data may be lost
            raise_if_full(error.cause)
            raise error.cause from None
        except BaseException as error:
            if lifecycle.attempt is not attempt:
                raise
            if committer is None or not committer.publisher.proposed:
                self._go_on(committer)
                raise_if_full(error)
                raise
            # I2: a file that may have taken a version is never rewritten, even after an interrupt. I3: delete nothing.
            lifecycle.state = "of unknown outcome"
            if isinstance(error, OSError | CorruptionError):
                raise CommitUnknownError(staging.record.id.hex(), reason=f"it can't be read back ({error})") from error
            raise
        finally:
            if lifecycle.attempt is attempt:
                lifecycle.attempt = None

        # From now on, read staged values from the commit. Release the locks last: then others may write these keys.
        lifecycle.state = "committed"
        self.unchanged = committer is None or committer.changes_nothing
        try:
            staging.settle(staging.view.base if result is None else result)
        finally:
            self._release()
            self._locking.release()
        return result

    def check(self) -> None:
        """Do all that comes before a commit is published: `Transaction.check`."""
        staging, lifecycle, attempt = self._staging, self._lifecycle, object()
        committer: Committer | None = None
        lifecycle.begin_commit(attempt)
        try:
            close_parts(staging.part, staging.view, allow_lost=False)
            told = staging.record.message or ""
            committer = Committer(self._commits, self._snapshots, staging, self._locking.locks, told)
            committer.check()
        finally:
            self._go_on(committer)
            lifecycle.attempt = None

    def _go_on(self, committer: Committer | None) -> None:
        """Return to the state before the attempt to commit."""
        try:
            if committer is not None:
                committer.publisher.withdraw_packs()
            with suppress(OSError):
                self._staging.members.reopen()
        finally:
            self._staging.is_unsettled = False
            self._lifecycle.state = "open"

    def roll_back(self) -> None:
        """Drop the staged changes: `Transaction.rollback`."""
        spare = Spare(self._commits, self._staging.record.branch)
        try:
            self._roll_back(spare)
        finally:
            spare.restore()

    def _roll_back(self, spare: Spare) -> None:
        if self._lifecycle.state == "committing" and self._lifecycle.attempt is None:
            # An interrupt came while a commit was being aborted.
            self._lifecycle.state = "of unknown outcome" if self._staging.is_unsettled else "failed"
        if self._lifecycle.may_end:
            self._check_may_end("rolled back")
            if self._staging.members.is_named:
                try:
                    self._close_to_all("rolled back")
                except OSError as error:
                    if not is_full(error):
                        raise
                    # On an object store, the end needs two small files. After that, much is deleted.
                    spare.delete_head_cache()
                    spare.delete_guard()
                    self._close_to_all("rolled back")
        with self._lifecycle.lock:
            if self._lifecycle.may_end:
                self._lifecycle.state = "rolled back"
        if self._lifecycle.state == "rolled back":
            self._lifecycle.finish_writes()
            self._staging.discard()
            self._release()
        if self._lifecycle.attempt is None:
            # Also after a commit that an interrupt stopped before it did this: a kept error may keep this object alive.
            self._locking.release()

    def _check_may_end(self, how: str) -> None:
        if self._staging.members.is_participant:
            raise TransactionStateError(
                f"this transaction is {how} by the process that began it: here, just return", state="foreign"
            )
        self._check_alone(how)

    def _check_alone(self, how: str) -> None:
        if not self._staging.members.is_named:
            return
        here = self._staging.part.others_at_work()
        others = here or self._staging.part.others_alive()
        if others:
            raise TransactionStateError(
                f"{self._staging.record.name!r} can be {how} when all have left: {', '.join(others)} may still stage "
                f"into it. {_HOW_TO_LEAVE}",
                state="open",
            )

    def _close_to_all(self, how: str) -> None:
        """Stop all staging. Raises `TransactionStateError` if another process ended the transaction or joined it."""
        self._staging.members.close_to_all()
        try:
            self._check_alone(how)
        except BaseException:
            self._staging.members.reopen()
            raise


# --- whose work counts, and what the commit refuses of it (I7, I8)

_TAKE_TURNS = (
    "Trying again alone does not help. Roll back, and either align the work with the chunks, so that no two processes "
    "write one, or let them take turns: each reads and writes its part within `with store.lock(path, selection)`"
)
_LOCKED_TOO_LATE = (
    "They take locks, but what one of them wrote comes from what it had read before it held the lock, and others have "
    "written since. Roll back, and let each read under the lock what it changes there: within "
    "`with store.lock(path, selection)`, from an array that is opened there if it may have been resized"
)
_UNKNOWN_TO_EACH_OTHER = "several processes of this transaction wrote these keys without knowing of each other's writes"


def close_parts(part: Part, view: View, *, allow_lost: bool = False) -> None:
    """Stop all staging, and decide whose frames count.

    Raises `ParticipantLostError` (I8) and `ConflictError` (I7). If no commit is made, call `Membership.reopen`.
    """
    members, staged = part.members, view.staged
    members.follow_others()  # before the seal: a process that the seal refuses may end at once
    if (shared := members.shared) is None:
        return
    living = members.siblings.whole_or_living(shared, shared.participants())
    shared.seal()
    failed = {other.members.staged.me for other in part.all_in_this_process() if other.has_failed}
    lost = members.close_siblings(shared, living, failed)

    def are_equal(one: Link, other: Link) -> bool:
        return view.read(one) == view.read(other)

    def whole(key: str) -> Region:
        try:
            return view.merger(key).whole
        except NotMergeableError:
            return WHOLE

    siblings = members.siblings
    given_up = siblings.given_up()
    # What is shown leaves these out, but for what was built on them before (I8).
    left_out = given_up if members.is_named else lost
    broken = staged.settle(lost, are_equal, left_out, whole=whole)
    if broken and (killed := siblings.killed(shared)):  # other processes may have repeated their tasks
        broken = staged.settle(lost | dict.fromkeys(killed, -1), are_equal, left_out, among=broken)
    lost_keys = siblings.lost_keys(lost, whole)
    lost_keys += [key for key in _built_on_lost(part, view, shared, lost) if key not in lost_keys]
    if allow_lost:  # except keys whose values a loss of power destroyed, because they were never synced
        lost_keys = [key for key in lost_keys if _is_damaged(view, key)]
    if lost and not lost_keys:
        _log.info("participants that died, whose work is dropped: %s", ", ".join(map(siblings.label, lost)))
    if lost_keys:
        raise ParticipantLostError([siblings.label(number) for number in lost], lost_keys)
    if broken:
        raise ConflictError(
            broken,
            reason=_UNKNOWN_TO_EACH_OTHER + "".join(_told_of_regions(view, key) for key in broken[:1]),
            advice=_LOCKED_TOO_LATE if all(_have_locked(part, key) for key in broken) else _TAKE_TURNS,
        )


def _built_on_lost(part: Part, view: View, shared: SharedTransaction, lost: Mapping[int, int]) -> set[str]:
    """Return the documents of which others left a lost change undone, or kept it and changed others (I8).

    Who changes an attribute or appends writes the shape that it has seen, too: the rows of the lost one may be missing.
    """
    found, siblings = set[str](), part.members.siblings
    for key, left, kept, is_kept in view.staged.documents_on_lost(lost):
        own = siblings.counting(shared, left.participant, key)
        before: list[Link | None] = [*kept, own] if own is not None else [*kept] or [None]  # None: the base's
        after = view.content(key, left)
        contents, now = [view.content(key, link) for link in before], view.content(key, view.staged.get(key))
        changes = {compare_documents(key, content, after) for content in contents}
        has_grown = is_kept and changes.isdisjoint((DocumentChange.NONE, DocumentChange.ATTRIBUTES))
        if has_grown or all(is_left(content, after, now, is_kept=is_kept) for content in contents):
            found.add(key)
    return found


def _told_of_regions(view: View, key: str) -> str:
    """Return the regions of a key that at least two processes wrote in part, as text for a message."""
    regions = [str(link.region) for link in view.staged.links(key) if link.region is not WHOLE]
    return f" (of {key!r} {', '.join(regions)})" if len(regions) > 1 else ""


def _have_locked(part: Part, key: str) -> bool:
    """Tell whether the processes that wrote a key have locked anything. For the owner this is unknown."""
    staged, siblings = part.members.staged, part.members.siblings
    writers = staged.writers(key) - {0}
    mine = staged.me in writers and not part.announced
    return bool(writers) and not mine and all(siblings.locks_of(writer) is not None for writer in writers - {staged.me})


def _is_damaged(view: View, key: str) -> bool:
    try:
        for link in view.staged.layers(key) or filter(None, [view.staged.get(key)]):
            if link.kind in packfile.REF_OF_FRAME:
                view.read(link)
    except CorruptionError:
        return True
    return False
