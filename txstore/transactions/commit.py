"""The end of a transaction: its commit, from top to bottom, or its rollback.

The values lie in files below `.staging/` already, one of each process that stages. The process that commits appends to
its own file: a run, which lists the keys that the commit changes and where their values lie, a header, which names the
parent and the runs below, and a footer. Then it renames the file to `commits/BRANCH/VERSION`, where the rename replaces
nothing: **this is the commit** (I2). Readers see none of it before, and all of it afterwards. The files of other
processes become data packs: before the rename, each gets a second name in `packs/`.

A process that dies before the rename has committed nothing. The kernel frees the locks on its staged files, so that
later committers and vacuums find and delete these files. A vacuum deletes names in `packs/` to which no commit refers.
If the process dies after the rename, the commit is made. Before the sync of the directory, a loss of power may undo it,
but nobody has been told of it: whoever follows it makes its name durable first (I1).

An attempt that fails keeps what is staged, and the locks of chunk keys, until the next attempt or the rollback.

On a disk, committers take turns under a lock. Each leaves the lock as soon as it has written its header, and joins a
queue, so that several sync at once; in the order of the queue they rename. On an object store, the rename is the
creation of an object of that name, which succeeds once. No committer waits for another there: they meet at the version.

A `Draft` is what the commit will contain on top of a given head. A `NewCommit` is its file, which tries to take a
version.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
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
from txstore.format.records import SERIALIZABLE
from txstore.format.regions import WHOLE, Region
from txstore.history.full_disk import Spare
from txstore.history.group_commits import PROPOSED
from txstore.history.new_commit import LostPlaceError, SyncFailedError
from txstore.history.snapshot import Snapshot
from txstore.observing import carried
from txstore.steps import step
from txstore.storage.request_threads import executor
from txstore.transactions.draft import FEW, Draft
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.own_part import Part
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.reclaim import look_by_the_way
from txstore.transactions.participants.shared import SharedTransaction
from txstore.transactions.view import View

_log = logging.getLogger(__name__)

_HOW_TO_LEAVE = (
    "Each leaves by leaving its `with` block. A store that has staged in none has done its part when you say so "
    "(`with store: pass`), when it and its arrays are gone (`del`), or when its process ends"
)
#: Number of committers in one process that look for the head at the same time, each during its uploads.
_LOOKS = 8
#: Seconds in which other processes can hardly commit anything.
_MOMENT = 0.05


@keeps_nothing
def commit(tx: Lifecycle, message: str | None, *, allow_lost: bool) -> Snapshot | None:
    """Commit the staged changes: see `Transaction.commit`."""
    url, branch = tx.commits.storage.url, tx.commits.branches.name_of(tx.staging.record.branch)
    with observing.span("commit", url=url, branch=branch) as span:
        try:
            made = _commit(tx, message, allow_lost=allow_lost)
        except ConflictError as error:
            _log.debug("%s: commit conflicts: %s", url, error)
            observing.count("commit.conflicts", 1)
            if tx.staging.has_erased:  # I12: the erasure did not see what this process has uploaded only then
                with suppress(OSError):
                    roll_back(tx)
            raise
        if made is not None and made.stored is not None:
            stored, commit = made.stored, made.stored.commit
            _log.debug("%s: commit %s (%s)", url, commit, commit.id)
            if observing.observer is not None:
                observing.count("io.staged", stored.header.statistics.bytes_set)
                observing.count("io.written", stored.footer.file_length + sum(each.end for each in stored.header.packs))
            span.tell(commit=commit.id, version=commit.version, unchanged=tx.unchanged)
    return made


def _commit(tx: Lifecycle, message: str | None, *, allow_lost: bool) -> Snapshot | None:
    staging, attempt = tx.staging, object()
    if tx.state == "open":
        _check_may_end(tx, "committed")
    told = staging.record.message if message is None else message
    is_wanted = not tx.needs_change and bool(told or staging.record.properties)
    draft: Draft | None = None
    stored: Stored | None = None
    result: Snapshot | None = None
    try:
        # From now on, no process begins a write. Decide whose writes count: not those of a process that died before it
        # was done (I8). Two that wrote one key without knowing of each other conflict (I7).
        tx.begin_commit(attempt)
        close_parts(staging.part, staging.view, allow_lost=allow_lost)
        _check_alone(tx, "committed")  # check again: now no process can join any more

        # Publish them. A merge always makes a commit, even without changes.
        if staging.count or is_wanted or staging.other_parent is not None:
            staging.is_unsettled = True
            draft = Draft(tx, told or "")
            try:
                stored = _publish(draft, is_wanted=is_wanted)
            except LostPlaceError:
                # Nothing was published: the committer ahead in the queue has made no commit; or, on an object store,
                # another was faster than this large one, whose values are uploaded by themselves now. Begin anew.
                draft = Draft(tx, told or "")
                stored = _publish(draft, is_wanted=is_wanted, may_queue=False)
            if stored is not None:
                result = tx.snapshots.made(stored, draft.head)
                tx.settled = draft.merges.besides

    # After an error, the transaction has failed, is open as before, or is of unknown outcome.
    except SyncFailedError as error:  # before the rename: after it, `CommitUnknownError` is raised
        _go_on(tx, draft)
        tx.fail(error.cause)  # I9: no retry, because the data may be lost
        raise_if_full(error.cause)
        raise error.cause from None
    except BaseException as error:
        if tx.attempt is not attempt:  # the transaction was not open, or another thread commits it
            raise
        # `proposed` from just before the rename on, unless the version is known to be free, or another commit's.
        if draft is None or not draft.file.proposed:
            _go_on(tx, draft)
            raise_if_full(error)
            raise
        # I2: a file that may have taken a version is never rewritten, even after an interrupt. I3: delete nothing.
        tx.state = "of unknown outcome"
        if isinstance(error, OSError | CorruptionError):
            raise CommitUnknownError(staging.record.id.hex(), reason=f"it can't be read back ({error})") from error
        raise
    finally:
        if tx.attempt is attempt:
            tx.attempt = None

    # From now on, read staged values from the commit, and delete what is left below `.staging/`. Release the locks
    # last: then others may write these keys.
    tx.state = "committed"
    tx.unchanged = draft is None or draft.changes_nothing
    try:
        staging.settle(staging.view.base if result is None else result)
    finally:
        tx.end()
        tx.release_locks()
    return result


@step("commit")
def _publish(draft: Draft, *, is_wanted: bool, may_queue: bool = True) -> Stored | None:
    """Return the new commit. None if all staged values equal the base's, unless a commit `is_wanted` even so.

    `may_queue`: it may follow a commit that has no version yet. If that is never made, this raises `LostPlaceError`.

    Raises `ConflictError`, `ConstraintError`, and the errors of `NewCommit`. After `CommitUnknownError` it is unknown
    whether the commit was published; after any other error it was not. The staged changes remain.
    """
    with draft.explaining(), draft.holding_sources():
        # 1. Merge chunks that several processes wrote in part (I7). Write the commit's run after its values, without
        #    values that equal the base.
        draft.write()
        if draft.changes_nothing and not is_wanted:
            return None

        # 2. Where committers take turns: look for conflicts with known commits, and for broken constraints, before
        #    others wait for this one. Skip this if the check is so short that they hardly wait. Where they don't, look
        #    for the head during uploads.
        looked: Future[Stored | None] | None = None
        if not draft.commits.store.takes_turns:
            looked = _begin_look(draft) if draft.own_run.packs else None
        elif not _is_fresh(draft):
            draft.check()

        # 3. Sometimes compact runs of the head, if they are small compared with the data of this commit.
        draft.merge_runs(draft.head)
        look_by_the_way(draft.commits, is_large=bool(draft.own_run.packs))

        # 4. Make large files durable before others wait for this commit, and give the participants' packs their names:
        #    what a commit refers to is durable before the commit (I1).
        draft.file.prepare(draft.head.stored)
        if looked is not None:
            wait([looked])  # on an error, `catch_up` meets and raises it again

        # 5. and 6. Wait for a turn, and take a version: below.
        stored = _take_version(draft, queues=may_queue and draft.may_queue)

        # 7. The name is durable before the caller hears of the commit (I1). Others may commit meanwhile.
        return draft.file.settled(stored)


@step("publish")
def _take_version(draft: Draft, *, queues: bool) -> Stored:
    with draft.file.in_turn(draft.catch_up, queues=queues) as queue:
        for turn in draft.file.turns(queue):
            try:
                # 5. Move to the parent: the head, or what the last committer in the queue is about to make. Merge,
                #    derive, check (I5, I11). The header names the parent.
                head = draft.catch_up() if turn.ahead is None else draft.move_to(draft.snapshots.ahead(turn.ahead))
                draft.file.follow(head.stored)
                turn.write_header(head.stored, draft.contents(head))
            except SyncFailedError:
                raise
            except Exception as error:
                if turn.ahead is None:
                    raise
                raise LostPlaceError from error  # the error may come from a parent that will not be made
            # 6. Sync the file; wait until the parent has its version; rename the file. What has a version is whole,
            #    even after a loss of power (I1). If another commit has the version, try the next one.
            if turn.take():
                break
    return turn.stored


def _is_fresh(draft: Draft) -> bool:
    """Tell whether other processes can hardly have committed since the base, and the conflict check is short."""
    staging, view = draft.staging, draft.view
    return (
        time.monotonic() - staging.began < _MOMENT
        and len(view.staged) <= FEW
        and draft.file.end <= PROPOSED
        and not (staging.members.is_shared or view.reflinks.any or view.staged.prefixes)
        and not (staging.declared or draft.base.declared)
        and staging.record.isolation != SERIALIZABLE
        and staging.settle_conflicts is None
        and staging.other_parent is None
    )


def _begin_look(draft: Draft) -> Future[Stored | None] | None:
    # These threads are separate from those for single requests: a look may wait for such requests.
    with suppress(RuntimeError):  # the interpreter ends, and starts no more threads
        return executor("look for the head", _LOOKS).submit(carried(draft.commits.head), draft.file.branch)
    return None


def check(tx: Lifecycle) -> None:
    """Do all that comes before a commit is published: see `Transaction.check`."""
    draft: Draft | None = None
    tx.begin_commit(object())
    try:
        close_parts(tx.staging.part, tx.staging.view, allow_lost=False)
        draft = Draft(tx, tx.staging.record.message or "")
        draft.write()
        draft.check()
    finally:
        _go_on(tx, draft)
        tx.attempt = None


def _go_on(tx: Lifecycle, draft: Draft | None) -> None:
    """Return to the state before the attempt to commit."""
    try:
        if draft is not None:
            draft.file.withdraw_packs()
        with suppress(OSError):
            tx.staging.members.reopen()
    finally:
        tx.staging.is_unsettled = False
        tx.state = "open"


# --- the rollback


def roll_back(tx: Lifecycle) -> None:
    """Drop the staged changes: see `Transaction.rollback`."""
    spare = Spare(tx.commits, tx.staging.record.branch)
    try:
        _roll_back(tx, spare)
    finally:
        spare.restore()


def _roll_back(tx: Lifecycle, spare: Spare) -> None:
    if tx.state == "committing" and tx.attempt is None:
        # An interrupt came while a commit was being aborted.
        tx.state = "of unknown outcome" if tx.staging.is_unsettled else "failed"
    if tx.may_end:
        _check_may_end(tx, "rolled back")
        if tx.staging.members.is_named:
            try:
                _close_to_all(tx, "rolled back")
            except OSError as error:
                if not is_full(error):
                    raise
                # On an object store, the end needs two small files. After that, much is deleted.
                spare.delete_head_cache()
                spare.delete_guard()
                _close_to_all(tx, "rolled back")
    with tx.guard:
        if tx.may_end:
            tx.state = "rolled back"
    if tx.state == "rolled back":
        tx.finish_writes()
        tx.staging.discard()
        tx.end()
    if tx.attempt is None:
        # Also after a commit that an interrupt stopped before it did this: a kept error may keep this object alive.
        tx.release_locks()


def _check_may_end(tx: Lifecycle, how: str) -> None:
    if tx.staging.members.is_participant:
        raise TransactionStateError(
            f"this transaction is {how} by the process that began it: here, just return", state="foreign"
        )
    _check_alone(tx, how)


def _check_alone(tx: Lifecycle, how: str) -> None:
    if not tx.staging.members.is_named:
        return
    if others := tx.staging.part.others_at_work() or tx.staging.part.others_alive():
        raise TransactionStateError(
            f"{tx.staging.record.name!r} can be {how} when all have left: {', '.join(others)} may still stage into it. "
            f"{_HOW_TO_LEAVE}",
            state="open",
        )


def _close_to_all(tx: Lifecycle, how: str) -> None:
    """Stop all staging. Raises `TransactionStateError` if another process ended the transaction or joined it."""
    tx.staging.members.close_to_all()
    try:
        _check_alone(tx, how)
    except BaseException:
        tx.staging.members.reopen()
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
        left = staged.settle(lost | dict.fromkeys(killed, -1), are_equal, left_out, among=broken)
        broken = [key for key in broken if key in left or not _is_repeated(view, key, killed)]
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


def _is_repeated(view: View, key: str, killed: Collection[int]) -> bool:
    """Tell whether a key has what the killed participants wrote: nobody knows who of them and the others was first."""
    links, now = [link for link in view.staged.links(key) if link.participant in killed], view.as_known(key)
    try:
        return not any(view.merger(key).differ(view.value(link), now, link.region) for link in links)
    except NotMergeableError:
        return all(view.value(link) == now for link in links)


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
