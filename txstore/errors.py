"""Every public exception: one class for each thing that a caller can do about it.

Facts are attributes; the message is built from them and says what to do next.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import wraps
from opcode import opmap
from traceback import walk_tb
from types import FrameType
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def shown_keys(keys: Sequence[str]) -> str:
    """Return the first keys as a message shows them."""
    return ", ".join(repr(key) for key in keys[:5]) + (", ..." if len(keys) > 5 else "")


def is_full(error: BaseException) -> bool:
    """Tell whether an error says that the disk is full, or a quota used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def raise_if_full(error: BaseException) -> None:
    """If an error says that the disk is full, or a quota used up, raise one that says what became of the work."""
    if isinstance(error, OSError) and is_full(error):
        told = f"{error.strerror}; nothing was published. Make room (`txstore vacuum` may), then try again"
        raise OSError(error.errno, told, error.filename) from error


_GENERATORS = 0x20 | 0x80 | 0x200  # and coroutines: the flags of `inspect`


def _is_suspended(frame: FrameType) -> bool:
    """Tell whether a frame is a generator's that has caught the error and may go on: to clear it would close it."""
    code = frame.f_code
    return bool(code.co_flags & _GENERATORS) and code.co_code[frame.f_lasti] == opmap["YIELD_VALUE"]


def keeps_nothing(function: Callable[P, T]) -> Callable[P, T]:
    """Let what a function raises hold nothing that our calls below it have used, for as long as somebody keeps it.

    An error has its traceback, and that has the frames with all their variables: snapshots, whose pins a vacuum heeds,
    and maps, whose files take room on the disk. Frames of others stay as they are.
    """

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        handled = sys.exception()
        try:
            return function(*arguments, **named)
        except BaseException as error:
            # In a function of its own: a variable of this frame that held a frame below would close a cycle with it,
            # and keep the caller's variables, too, until the garbage collector runs.
            _clear_frames(error, handled)
            raise

    return call


def _clear_frames(error: BaseException, handled: BaseException | None) -> None:
    """Clear our frames of an error and of those that led to it, up to the one that the caller is handling."""
    seen: set[int] = {id(handled)}
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        left += [each.__cause__, each.__context__]
        for frame, _ in walk_tb(each.__traceback__):
            is_ours = str(frame.f_globals.get("__name__")).startswith("txstore.")
            if is_ours and not _is_suspended(frame):
                with suppress(RuntimeError):  # it still runs
                    frame.clear()


class TxStoreError(Exception):
    """The base of all exceptions that TxStore raises on its own account.

    Each has a note, which a traceback shows below the message: the place of the reference with the usual causes.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"Usual causes: reference/errors#{type(self).__name__.lower()}")

    def __reduce__(self) -> tuple[Any, ...]:
        # What a worker raises comes back to its pool as a pickle; most are not made of their message alone.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[TxStoreError], args: tuple[Any, ...], facts: dict[str, Any]) -> TxStoreError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


_RETRY = "Retry on the new head: repo.run(fn) does, or rollback() and open everything again from store.latest()"


class ConflictError(TxStoreError):
    """Another commit changed what this transaction wrote or relied on: retry on a new snapshot.

    What was staged is still there after `commit()` raised this; `rollback()` drops it and moves to the head.
    `Repository.run` does the retrying. Where processes of this transaction have overwritten one another, `base` and
    `head` are None, and the message says what else to do. With `on_conflict="merge"`, `conflicts` are what could
    not be put together, as those of a `MergeConflictError`.
    """

    def __init__(
        self,
        keys: Sequence[str],
        *,
        reason: str,
        advice: str = _RETRY,
        base: object = None,
        head: object = None,
        conflicts: Sequence[object] = (),
    ) -> None:
        self.keys = tuple(keys)
        self.reason = reason
        self.base = base
        self.head = head
        self.conflicts = tuple(conflicts)
        super().__init__(f"{reason}: {shown_keys(self.keys)}. {advice}")


#: What explains conflicts that a vacuum has made.
CUT = (
    "A vacuum has given up commits by which it could be told what each side has changed since both have merged others: "
    "where these others differ, both sides count as having changed it."
)


class MergeConflictError(TxStoreError):
    """Both sides of a merge have changed something that can't be put together: nothing was changed.

    `conflicts` are `txstore.merging.conflicts.Conflict`, each with the path, the kind, and what the sides have.
    `is_cut`: a vacuum has given up commits by which some of them might have been settled.
    """

    def __init__(self, conflicts: Sequence[object], *, is_cut: bool = False) -> None:
        self.conflicts = tuple(conflicts)
        self.is_cut = is_cut
        shown = "; ".join(map(str, self.conflicts[:5]))
        more = f"; and {len(self.conflicts) - 5} more" if len(self.conflicts) > 5 else ""
        super().__init__(
            f"{shown}{more}. {CUT + ' ' if is_cut else ''}Nothing was changed. Merge again with resolve={{path: "
            "'ours', 'theirs' or a function of a conflict}; this error's `conflicts` have what each side says"
        )


class NoCommonAncestorError(TxStoreError):
    """A commit that two lines of history have in common is not kept: what each has changed since can't be told."""

    def __init__(self, one: object, other: object) -> None:
        super().__init__(
            f"{one} and {other}: a vacuum has given up a commit that both have come from, or have merged. Pick the "
            "commits of one that the other lacks: repo.cherry_pick(commit). Or copy by hand what repo.diff() shows of "
            "the two: store.copy(path, path, at=commit)"
        )


class Violation(NamedTuple):
    """Where a commit would break a constraint."""

    constraint: str
    where: str  # a path or key
    reason: str


class ConstraintError(TxStoreError):
    """The commit would break constraints of the repository: nothing was published.

    What was staged is still there after `commit()` raised this, to be mended; a `with` block that it leaves rolls back.
    `violations` are tuples of `constraint` (its name), `where` (a path or key) and `reason`.
    """

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        shown = "; ".join(f"{name}: {where or '/'!r}: {reason}" for name, where, reason in self.violations[:5])
        more = f"; and {len(self.violations) - 5} more" if len(self.violations) > 5 else ""
        super().__init__(
            f"{shown}{more}. Nothing was published. Where a `with` block has not rolled back, what was staged is still "
            "there, to be mended and committed again. repo.constraints says what is declared"
        )


class StaleArrayError(ConflictError):
    """An array or group object is older than a change by somebody else: reopen it, as the message says.

    From `store.latest()` if it was committed; through the same store if another participant of the same transaction has
    staged it.
    """

    def __init__(
        self, path: str, *, reason: str, advice: str = "take store.latest() (or a new transaction) and open it again"
    ) -> None:
        self.path = path
        super().__init__([path], reason=reason)
        self.args = (f"{reason}: {path!r}. Objects opened through this store may hold its old metadata: {advice}",)


class LockTimeoutError(TxStoreError, TimeoutError):
    """Somebody else holds locks that this call wanted, and did not give them up in time: wait longer, or give up.

    The call that raised this holds none of what it wanted; what was held before it is still held.
    """

    def __init__(self, keys: Sequence[str], holder: str) -> None:
        self.keys = tuple(keys)
        self.holder = holder
        super().__init__(
            f"could not lock {shown_keys(self.keys)} in time: held by {holder}. Wait longer with lock_timeout=; if "
            "that does not help, look for a deadlock: two transactions that lock step by step in opposite orders"
        )


class LockRegionError(TxStoreError, ValueError):
    """What was to be locked can't be, as it is: the message says what to lock instead."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path or '/'!r}: {reason}")


class CommitTimeoutError(TxStoreError, TimeoutError):
    """Somebody else is committing, or at maintenance, for longer than `commit_timeout` allows: try again, or end them.

    Nothing was published. What was staged is still there after `commit()` raised this; a `with` block that it leaves
    rolls back.
    """

    def __init__(self, url: str, what: str, holder: str, timeout: float) -> None:
        self.url = url
        self.holder = holder
        self.timeout = timeout
        super().__init__(
            f"{url}: {holder} has {what}, and did not give it up in {timeout:g} s (commit_timeout=). Nothing was "
            "published: where a `with` block has not rolled back, what was staged is still there, and commit() can be "
            "called again. If that process is stopped or hangs, end it: what it has goes with it"
        )


class LocksUnavailableError(TxStoreError):
    """There can be no chunk-key locks here: the message says why. `Repository.run` retries instead of locking."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: no locks: {reason}. Without locks, use optimistic retry: repo.run(fn)")


class LocksLostError(ConflictError):
    """Locks that this transaction held are no longer its own: roll back and run it again."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(keys, reason="the lock file was deleted or replaced, or the locks were taken away")
        self.args = (
            f"{self.reason}: somebody else may have changed {shown_keys(self.keys)}. rollback() and run it again: "
            "repo.run(fn) does",
        )


class ParticipantLostError(TxStoreError):
    """A process that staged into this transaction died before it was done, or failed: do its work again, then commit.

    Nothing was published, and what is staged is still there.
    """

    def __init__(self, participants: Sequence[str], keys: Sequence[str]) -> None:
        self.participants = tuple(participants)
        self.keys = tuple(keys)
        super().__init__(
            f"{', '.join(self.participants)} died in the middle of the work on {shown_keys(self.keys)} (an operation, "
            "or a `with` block), or gave it up when a block or a write failed: do that work again, then commit. "
            "commit(allow_lost=True) takes what is staged all the same"
        )


class CommitUnknownError(TxStoreError):
    """The commit may or may not have happened: look for its id in the log before you write again."""

    def __init__(self, commit_id: str, *, reason: str) -> None:
        self.commit_id = commit_id
        super().__init__(
            f"{reason}: it is unknown whether commit {commit_id} is durable. Look it up with repo.resolve()"
        )


class CorruptionError(TxStoreError):
    """Stored bytes are not what was written: stop and run `verify`. Wrong data is never returned."""

    def __init__(self, path: str, *, reason: str, offset: int | None = None, key: str | None = None) -> None:
        self.path = path
        self.offset = offset
        self.key = key
        self.reason = reason
        where = path + (f" at byte {offset}" if offset is not None else "")
        what = f" (key {key!r})" if key is not None else ""
        super().__init__(f"{where}{what}: {reason}. Run repo.verify(repair=True), or restore the file from a backup")


class WrongFileTypeError(CorruptionError, OSError):
    """Something else lies in a repository than can: a link, a FIFO, a directory in the place of a file.

    It was neither followed nor opened, nor changed. Any user who may write the directory may have put it there.
    """

    def __init__(self, path: str, *, found: str, wanted: str) -> None:
        self.found = found
        self.wanted = wanted
        super().__init__(path, reason=f"this is {found}, where only {wanted} can be; it was left alone")


class SnapshotExpiredError(TxStoreError):
    """The commit was removed by a vacuum: take `latest()`."""

    def __init__(self, commit: str) -> None:
        self.commit = commit
        super().__init__(f"commit {commit} is no longer kept: take store.latest()")


class ErasedError(TxStoreError):
    """What is asked for was erased, for good, with `Repository.erase`: never a missing key, and never a fill value.

    `by` and `time` (when, aware) are those of the erasure; None where its record was not at hand.
    """

    def __init__(self, key: str, by: str | None = None, time: datetime | None = None) -> None:
        self.key = key
        self.by = by
        self.time = time
        who = "" if by is None or time is None else f" by {by} on {time.isoformat(timespec='seconds')}"
        super().__init__(
            f"{key!r} was erased{who}, at every commit: there is no way back. repo.erasures has the record"
        )


class ErasureError(TxStoreError):
    """Something can't be erased as it is asked for: nothing was changed, and the message says what to do first."""

    def __init__(self, paths: Sequence[str], reason: str) -> None:
        self.paths = tuple(paths)
        self.reason = reason
        super().__init__(f"{shown_keys(self.paths)} can't be erased: {reason}")


class ErasureTimeoutError(ErasureError, TimeoutError):
    """Somebody still reads what is to be erased, or has a transaction open that began before: wait, or end them.

    `holders` says who.
    """

    def __init__(self, paths: Sequence[str], holders: Sequence[str], *, done: str = "Nothing was changed") -> None:
        self.holders = tuple(holders)
        super().__init__(
            paths,
            f"{'; '.join(self.holders)}. {done}. Close what is open, or wait longer with timeout=, and do it again",
        )


class BackupError(TxStoreError):
    """A repository can't be backed up to this place: choose another."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: no backup of the repository can go here: {reason}")


class BarePathError(TxStoreError):
    """zarr, or what calls it, was about to delete a repository by its path, or a part of it: write to a store instead.

    Nothing was deleted. It is raised by zarr's own stores in a process that has imported TxStore, in others it is not.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        super().__init__(
            f"{url} is a TxStore repository: to overwrite its path, or one below it (mode='w', overwrite=True), would "
            "delete it, or a part of it, with its history. Nothing was deleted. Write to a store, which keeps the "
            "history: `with txstore.Repository(path).transaction() as store:`, and in it zarr.open(store, mode='w') or "
            "ds.to_zarr(store, mode='w'). If the repository is to go, delete its directory first"
        )


class BackupErasureError(BackupError):
    """To go on, the backup would erase values in the copy: look at the erasures, then ask for it.

    `erasures` are the records that the copy does not have yet, `values` is how many values they are about. Nothing was
    changed.
    """

    def __init__(self, url: str, erasures: Sequence[object], values: int) -> None:
        self.erasures = tuple(erasures)
        self.values = values
        shown = "; ".join(map(str, self.erasures[:5]))
        more = f"; and {len(self.erasures) - 5} more" if len(self.erasures) > 5 else ""
        super().__init__(
            url,
            f"the repository has records of erasures that the copy does not have: {shown}{more}. Here they would "
            f"destroy {values:,} values, for good, and nothing was changed yet. If these erasures were meant, run it "
            "again with erase=True (--erase). If not, somebody else has put them below erased/: keep this copy, and "
            "delete the records there",
        )


class PublishError(TxStoreError):
    """A plain copy can't be kept at this place: the message says what to do about it."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: no plain copy can be kept here: {reason}")


class CodecRefusedError(TxStoreError, ValueError):
    """An array has codecs that TxStore does not run on its own: allow them, or read the array with zarr.

    `codecs` are their names; none, if the array's document names no codecs that make sense.
    """

    def __init__(self, path: str, codecs: Sequence[str]) -> None:
        self.path = path
        self.codecs = tuple(codecs)
        if codecs:
            self.reason = (
                f"TxStore does not run the codecs {shown_keys(codecs)} on its own, as a codec may do anything. If you "
                f"trust them, and what they decode, set TXSTORE_CODECS={','.join(codecs)}; zarr itself reads all codecs"
            )
        else:
            self.reason = "the codecs in its document make no sense, so that nothing is decoded"
        super().__init__(f"{path!r}: {self.reason}")


class SourceError(TxStoreError, ValueError):
    """This can't be imported as it is: the message says why, and what can be done."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: {reason}")


class SchemaError(TxStoreError, ValueError):
    """Arrays do not hold samples as they are asked for: the message names everything that is wrong."""

    def __init__(self, url: str, faults: Sequence[str]) -> None:
        self.url = url
        self.faults = tuple(faults)
        super().__init__(f"{url}: {'; '.join(self.faults)}. Change what is asked for, or choose another commit")


class SourceChangedError(SourceError):
    """A file that values lie in is not the one that was referred to: import the references again."""

    def __init__(self, url: str, expected: str, found: str) -> None:
        self.expected = expected
        self.found = found
        super().__init__(
            url,
            f"values of a repository lie in this file, which has changed: it was {expected}, and now {found}. Put back "
            "what it was, or import the references to it again",
        )


class ExportError(TxStoreError):
    """A commit can't be exported to this place, or in this form: the message says what to choose."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: {reason}")


class RepositoryNotFoundError(TxStoreError):
    """There is no repository here: look at the path.

    This is no `FileNotFoundError`: zarr, fsspec and xarray take that for a key that is missing, and go on without it.
    """

    def __init__(
        self,
        url: str,
        *,
        reason: str = "there is no TxStore repository here; look at the path",
        creatable: bool = False,
    ) -> None:
        self.url = url
        self.creatable = creatable  # a writer may create one here
        super().__init__(f"{url}: {reason}")


class CommitNotFoundError(TxStoreError, LookupError):
    """No such version, commit id, tag, branch or date: look at `repo.log()`, `repo.tags` and `repo.branches`."""

    def __init__(self, what: str, *, advice: str) -> None:
        self.what = what
        super().__init__(f"{what}: {advice}")


class NodeNotFoundError(TxStoreError, KeyError):
    """There is no array or group at this path, or not the kind that is needed: look at the path."""

    def __init__(self, path: str, wanted: str = "array or group", found: str = "absent") -> None:
        self.path = path
        self.wanted = wanted
        self.found = found
        there = "there is nothing" if found == "absent" else f"it is {'an' if found[0] in 'au' else 'a'} {found}"
        super().__init__(f"no {wanted} at {path!r}: {there}; look at the path")

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr


class UnsupportedFormatError(TxStoreError):
    """The repository was written by a newer TxStore: upgrade."""

    def __init__(self, path: str, *, found: str, supported: str) -> None:
        self.path = path
        self.found = found
        self.supported = supported
        super().__init__(f"{path}: has {found}, this version of txstore supports {supported}: upgrade txstore")


class TransactionStateError(TxStoreError):
    """The call does not fit the state of the transaction: the message says what has to be done first."""

    def __init__(self, message: str, *, state: str) -> None:
        self.state = state
        super().__init__(message)


class KeyFormatError(TxStoreError, ValueError):
    """The key, branch or tag name is not one that can be stored: the message says what is wrong with it."""


class CommitWaitWarning(UserWarning):
    """A commit has waited for a while for somebody else who is committing, or at maintenance: the message says who."""


class UncommittedChangesWarning(UserWarning):
    """Staged writes were dropped because they were not committed."""


class ClockWarning(UserWarning):
    """A commit is dated later than it is now by this machine's clock: one of two clocks is wrong."""


class UnequalLengthsWarning(UserWarning):
    """A commit lets an array grow along a dimension, and leaves another as long as both were: the message says which.

    `left` has a tuple for each array that is left behind: its path, that of the array that has grown, the dimension,
    its axis there, and the lengths of that one before and after.
    """

    def __init__(self, left: Sequence[tuple[str, str, str, int, tuple[int, int]]]) -> None:
        self.left = tuple(left)
        path, grown, dimension, axis, (before, after) = self.left[0]
        more = f", and {len(self.left) - 1} more" if len(self.left) > 1 else ""
        advice = "append to both in one transaction"
        if not axis:
            advice += f"; constraints.EqualLength([{grown!r}, {path!r}]) makes this an error at every commit"
        super().__init__(
            f"{grown!r} grows along {dimension!r} from {before} to {after}, and {path!r}{more} does not: {advice}"
        )
