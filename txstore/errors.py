"""Defines every public exception: one class for each response that a caller can make.

Facts are attributes. The message is built from them and says what to do next.
"""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import wraps
from opcode import opmap
from traceback import walk_tb
from types import FrameType
from typing import Any, NamedTuple, ParamSpec, TypeVar

#: Libraries between a caller and a warning.
_BETWEEN = {*sys.stdlib_module_names, "fsspec", "txstore", "xarray", "zarr"}

P = ParamSpec("P")
T = TypeVar("T")


def shown_keys(keys: Sequence[str]) -> str:
    """Return the first keys, formatted for a message."""
    return ", ".join(repr(key) for key in keys[:5]) + (", ..." if len(keys) > 5 else "")


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn, as from the line that called TxStore: behind its own frames, those of zarr, and so on."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def is_full(error: BaseException) -> bool:
    """Tell whether an error says that the disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def raise_if_full(error: BaseException) -> None:
    """If an error says that the disk or a quota is full, raise an error that says that nothing was published."""
    if isinstance(error, OSError) and is_full(error):
        told = f"{error.strerror}; nothing was published. Free some space (`txstore vacuum` may help), then try again"
        raise OSError(error.errno, told, error.filename) from error


_GENERATORS = 0x20 | 0x80 | 0x200  # `inspect`'s flags of generators and coroutines


def _is_suspended(frame: FrameType) -> bool:
    """Tell whether a frame belongs to a generator that caught the error and may continue. Clearing would close it."""
    code = frame.f_code
    return bool(code.co_flags & _GENERATORS) and code.co_code[frame.f_lasti] == opmap["YIELD_VALUE"]


def keeps_nothing(function: Callable[P, T]) -> Callable[P, T]:
    """Clear TxStore's frames in each error that a function raises, so that a kept error holds no resources.

    The traceback of an error refers to frames, and a frame to its variables. These can be snapshots, whose pins stop
    a vacuum, or maps, whose files use disk space. Frames of other packages are not changed.
    """

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        handled = sys.exception()
        try:
            return function(*arguments, **named)
        except BaseException as error:
            # In a separate function: a variable of this frame that refers to a frame below would form a cycle. The
            # cycle would keep the caller's variables until the garbage collector runs.
            _clear_frames(error, handled)
            raise

    return call


def _clear_frames(error: BaseException, handled: BaseException | None) -> None:
    """Clear TxStore's frames of an error and of its causes, up to the error that the caller is handling."""
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
                with suppress(RuntimeError):  # the frame still runs
                    frame.clear()


class TxStoreError(Exception):
    """The base class of all exceptions that TxStore defines.

    Each has a note, which a traceback shows below the message: the section of the reference with the usual causes.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"Usual causes: reference/errors#{type(self).__name__.lower()}")

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker sends its error back to the pool as a pickle. Most errors need more than their message.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[TxStoreError], args: tuple[Any, ...], facts: dict[str, Any]) -> TxStoreError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


_RETRY = "Retry on the new head: repo.run(fn) does, or rollback() and open everything again from store.latest()"


class ConflictError(TxStoreError):
    """Another commit changed data that this transaction wrote or relied on: retry on a new snapshot.

    The staged changes remain after `commit()` raises this; `rollback()` drops them and moves to the head.
    `Repository.run` retries. If processes of this transaction have overwritten each other's changes, `base` and
    `head` are None, and the message says what else to do. With `on_conflict="merge"`, `conflicts` lists the changes
    that TxStore could not merge, as in `MergeConflictError`.
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


class LabelConflictError(ConflictError):
    """Another commit changed rows with the same labels since the upsert began: decide which values are right.

    `labels` has the labels by the name of their dimension. Call `upsert` again to lay your values on top of the other
    commit's, or use `existing="keep"` to leave them.
    """

    def __init__(
        self,
        labels: Mapping[str, Sequence[object]],
        keys: Sequence[str],
        *,
        shown: str,
        base: object = None,
        head: object = None,
    ) -> None:
        self.labels = dict(labels)
        super().__init__(
            keys,
            reason=f"another commit has changed the same labels since this upsert began ({shown})",
            advice="Call it again to write your values over the other commit's; existing='keep' leaves those",
            base=base,
            head=head,
        )


#: Explains conflicts that exist only because a vacuum expired commits.
CUT = (
    "A vacuum has expired commits that show which side made a change. The sides have several best common ancestors. "
    "Where these ancestors differ, TxStore assumes that both sides changed the data."
)


class MergeConflictError(TxStoreError):
    """Both sides of a merge made changes that TxStore can't merge: nothing was changed.

    `conflicts` are `txstore.merging.merge_conflicts.Conflict`: each has the path, the kind and the value of each side.
    `is_cut`: a vacuum has expired commits that might have settled some of the conflicts.
    """

    def __init__(self, conflicts: Sequence[object], *, is_cut: bool = False) -> None:
        self.conflicts = tuple(conflicts)
        self.is_cut = is_cut
        shown = "; ".join(map(str, self.conflicts[:5]))
        more = f"; and {len(self.conflicts) - 5} more" if len(self.conflicts) > 5 else ""
        has_rows = any(getattr(each, "kind", None) == "append" for each in self.conflicts)
        super().__init__(
            f"{shown}{more}. {CUT + ' ' if is_cut else ''}Nothing was changed. Merge again with resolve={{path: "
            "'ours', 'theirs' or a function of a conflict}; this error's `conflicts` have the value of each side"
            + (". To undo rows behind which others were appended, go by label: `upsert` (undo.md)" if has_rows else "")
        )


class NoCommonAncestorError(TxStoreError):
    """A vacuum expired the common ancestor of two histories, so TxStore can't tell what each has changed since."""

    def __init__(self, one: object, other: object) -> None:
        super().__init__(
            f"{one} and {other}: a vacuum has expired their common ancestor, or a commit that both have merged. Apply "
            "the commits that one of them lacks: repo.cherry_pick(commit). Or look at the differences with repo.diff() "
            "and copy nodes: store.copy(path, path, at=commit)"
        )


class Violation(NamedTuple):
    """One place where a commit would break a constraint."""

    constraint: str
    where: str  # a path or key
    reason: str


class ConstraintError(TxStoreError):
    """The commit would break constraints of the repository: nothing was published.

    The staged changes remain after `commit()` raises this, so you can correct them. If the error leaves a `with` block,
    the block rolls back. `violations` are tuples of `constraint` (its name), `where` (a path or key) and `reason`.
    """

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        shown = "; ".join(f"{name}: {where or '/'!r}: {reason}" for name, where, reason in self.violations[:5])
        more = f"; and {len(self.violations) - 5} more" if len(self.violations) > 5 else ""
        super().__init__(
            f"{shown}{more}. Nothing was published. Unless a `with` block has rolled back, the staged changes remain: "
            "correct them and commit again. repo.constraints lists the declared constraints"
        )


class ViewError(TxStoreError):
    """A view can't derive its outputs: nothing was published. `view` is its name.

    As after `ConstraintError`, the staged changes remain unless a `with` block has rolled back.
    """

    def __init__(self, view: str, reason: str) -> None:
        self.view, self.reason = view, reason
        super().__init__(
            f"the view {view!r} can't be derived: {reason}. Nothing was published: correct this and commit again, or "
            f"drop the view: del repo.views[{view!r}]"
        )


class StaleArrayError(ConflictError):
    """An array or group object is older than a change by another writer: reopen it, as the message says.

    If the change is committed, reopen from `store.latest()`. If another participant of the same transaction staged
    it, reopen through the same store.
    """

    def __init__(
        self, path: str, *, reason: str, advice: str = "take store.latest() (or a new transaction) and open it again"
    ) -> None:
        self.path = path
        super().__init__([path], reason=reason)
        self.args = (f"{reason}: {path!r}. Objects opened through this store may hold its old metadata: {advice}",)


class LockTimeoutError(TxStoreError, TimeoutError):
    """Another transaction holds locks that this call needs, and did not release them in time: wait longer, or stop.

    The call that raises this keeps none of the locks that it asked for. Locks from earlier calls are still held.
    """

    def __init__(self, keys: Sequence[str], holder: str) -> None:
        self.keys = tuple(keys)
        self.holder = holder
        super().__init__(
            f"could not lock {shown_keys(self.keys)} in time: held by {holder}. Wait longer with lock_timeout=; if "
            "that does not help, look for a deadlock: two transactions that lock step by step in opposite orders"
        )


class LockRegionError(TxStoreError, ValueError):
    """TxStore can't lock this selection: the message says what to lock instead."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path or '/'!r}: {reason}")


class CommitTimeoutError(TxStoreError, TimeoutError):
    """Another process commits, or does maintenance, for longer than `commit_timeout`: try again, or end that process.

    Nothing was published. The staged changes remain after `commit()` raises this. If the error leaves a `with` block,
    the block rolls back.
    """

    def __init__(self, url: str, what: str, holder: str, timeout: float) -> None:
        self.url = url
        self.holder = holder
        self.timeout = timeout
        super().__init__(
            f"{url}: {holder} has {what}, and did not release it in {timeout:g} s (commit_timeout=). Nothing was "
            "published. Unless a `with` block has rolled back, the staged changes remain: call commit() again. If that "
            "process is stopped or hangs, end it: that releases what it holds"
        )


class LocksUnavailableError(TxStoreError):
    """This repository has no chunk-key locks: the message says why. `Repository.run` retries instead of locking."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: no locks: {reason}. Without locks, use optimistic retry: repo.run(fn)")


class LocksLostError(ConflictError):
    """This transaction has lost locks that it held: roll back and run it again."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(keys, reason="the lock file was deleted or replaced, or the locks were taken away")
        self.args = (
            f"{self.reason}: another process may have changed {shown_keys(self.keys)}. Call rollback() and run it "
            "again: repo.run(fn) does both",
        )


class ParticipantLostError(TxStoreError):
    """A process that staged into this transaction died before it finished, or failed: redo its work, then commit.

    Nothing was published. The staged changes remain.
    """

    def __init__(self, participants: Sequence[str], keys: Sequence[str]) -> None:
        self.participants = tuple(participants)
        self.keys = tuple(keys)
        super().__init__(
            f"{', '.join(self.participants)} died in the middle of the work on {shown_keys(self.keys)} (an operation, "
            "or a `with` block), or a block or a write of it failed: do that work again, then commit. "
            "commit(allow_lost=True) commits the staged part of it as it is"
        )


class CommitUnknownError(TxStoreError):
    """TxStore can't tell whether the commit was made: look for its id in the log before you write again."""

    def __init__(self, commit_id: str, *, reason: str) -> None:
        self.commit_id = commit_id
        super().__init__(
            f"{reason}: it is unknown whether commit {commit_id} is durable. Look it up with repo.resolve()"
        )


class CorruptionError(TxStoreError):
    """Stored bytes differ from the bytes that were written: stop and run `verify`. Wrong data is never returned."""

    def __init__(self, path: str, *, reason: str, offset: int | None = None, key: str | None = None) -> None:
        self.path = path
        self.offset = offset
        self.key = key
        self.reason = reason
        where = path + (f" at byte {offset}" if offset is not None else "")
        what = f" (key {key!r})" if key is not None else ""
        super().__init__(f"{where}{what}: {reason}. Run txstore verify --repair, or restore the file from a backup")


class WrongFileTypeError(CorruptionError, OSError):
    """A repository has a link, a FIFO or a directory where only a file can be, or the other way round.

    TxStore did not follow, open or change it. Any user who may write the directory may have put it there.
    """

    def __init__(self, path: str, *, found: str, wanted: str) -> None:
        self.found = found
        self.wanted = wanted
        super().__init__(path, reason=f"this is {found}, where only {wanted} can be; TxStore did not touch it")


class SnapshotExpiredError(TxStoreError):
    """The commit was removed by a vacuum: take `latest()`."""

    def __init__(self, commit: str) -> None:
        self.commit = commit
        super().__init__(f"commit {commit} is no longer kept: take store.latest()")


class ErasedError(TxStoreError):
    """`Repository.erase` has erased this value for good. TxStore never reads it as a missing key or a fill value.

    `by` (the user) and `time` (an aware datetime) are of the erasure. They are None if its record can't be read. Until
    the erasure is over, nothing is restored from commits that it is about, and no branch starts at one.
    """

    def __init__(self, key: str, by: str | None = None, time: datetime | None = None, *, is_over: bool = True) -> None:
        self.key = key
        self.by = by
        self.time = time
        who = "" if by is None or time is None else f" by {by} on {time.isoformat(timespec='seconds')}"
        super().__init__(
            f"{key!r} was erased{who}, at every commit: it can't be restored. repo.erasures() has the record"
            if is_over
            else f"{key!r}, or rows of it, are being erased{who}: try again when repo.erasures() says that this has "
            "ended; if it was interrupted, erase it again"
        )


class ErasureError(TxStoreError):
    """TxStore can't erase these paths yet. The message says what to do first, and whether anything was changed."""

    def __init__(self, paths: Sequence[str], reason: str) -> None:
        self.paths = tuple(paths)
        self.reason = reason
        super().__init__(f"{shown_keys(self.paths)} can't be erased: {reason}")


class ErasureTimeoutError(ErasureError, TimeoutError):
    """A process still reads the data to erase, or has an older transaction open: wait, or end that process.

    `holders` names these processes.
    """

    def __init__(self, paths: Sequence[str], holders: Sequence[str], *, done: str = "Nothing was changed") -> None:
        self.holders = tuple(holders)
        super().__init__(
            paths,
            f"{'; '.join(self.holders)}. {done}. Close these, or wait longer with timeout=, then erase again",
        )


class BackupError(TxStoreError):
    """TxStore can't back up the repository to this place: choose another."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: no backup of the repository can go here: {reason}")


class BarePathError(TxStoreError):
    """zarr, or its caller, was about to delete a repository, or a part of it, by its path: write to a store instead.

    Nothing was deleted. zarr's own stores raise this only in a process that has imported TxStore.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        super().__init__(
            f"{url} is a TxStore repository: overwriting its path, or one below it (mode='w', overwrite=True), would "
            "delete it, or a part of it, with its history. Nothing was deleted. Write to a store, which keeps the "
            "history: `with txstore.Repository(path).transaction() as store:`, and in it zarr.open(store, mode='w') or "
            "ds.to_zarr(store, mode='w'). To delete the repository, delete its directory first"
        )


class BackupErasureError(BackupError):
    """The backup would erase values in the copy: look at the erasures, then run it with `erase=True`.

    `erasures` are the records that the copy does not have yet; `values` is the number of values that they cover.
    Nothing was changed.
    """

    def __init__(self, url: str, erasures: Sequence[object], values: int) -> None:
        self.erasures = tuple(erasures)
        self.values = values
        shown = "; ".join(map(str, self.erasures[:5]))
        more = f"; and {len(self.erasures) - 5} more" if len(self.erasures) > 5 else ""
        super().__init__(
            url,
            f"the repository has records of erasures that the copy does not have: {shown}{more}. Here they would "
            f"destroy {values:,} values, for good. Nothing was changed yet. If you intended these erasures, run it "
            "again with erase=True (--erase). If not, another person has put these records below erased/: keep this "
            "copy, and delete the records there",
        )


class PublishError(TxStoreError):
    """TxStore can't publish a plain copy to this place: the message says what to do."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: no plain copy can be kept here: {reason}")


class CheckoutError(TxStoreError):
    """A directory can't be checked out to, or committed: the message says what to do. No file was changed."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: {reason}")


class CodecRefusedError(TxStoreError, ValueError):
    """An array has codecs that TxStore does not run on its own: allow them, or read the array with zarr.

    `codecs` are their names. It is empty if the codecs in the array's document are invalid.
    """

    def __init__(self, path: str, codecs: Sequence[str]) -> None:
        self.path = path
        self.codecs = tuple(codecs)
        if codecs:
            self.reason = (
                f"TxStore does not run the codecs {shown_keys(codecs)} on its own, as a codec can run any code. If you "
                f"trust them, and their data, set TXSTORE_CODECS={','.join(codecs)}; zarr itself reads all codecs"
            )
        else:
            self.reason = "the codecs in its document are invalid, so TxStore decodes nothing"
        super().__init__(f"{path!r}: {self.reason}")


class SourceError(TxStoreError, ValueError):
    """TxStore can't import this source as it is: the message says why, and what you can do."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: {reason}")


class SchemaError(TxStoreError, ValueError):
    """The arrays do not have the samples that the loader asks for: the message lists every fault."""

    def __init__(self, url: str, faults: Sequence[str]) -> None:
        self.url = url
        self.faults = tuple(faults)
        super().__init__(f"{url}: {'; '.join(self.faults)}. Change the loader's arguments, or choose another commit")


class SourceChangedError(SourceError):
    """A file with foreign values has changed since the references were imported: import them again."""

    def __init__(self, url: str, expected: str, found: str) -> None:
        self.expected = expected
        self.found = found
        super().__init__(
            url,
            f"values of a repository lie in this file, which has changed: it was {expected}, and now {found}. Restore "
            "the old file, or import the references to it again",
        )


class ExportError(TxStoreError):
    """TxStore can't export the commit to this place, or in this form: the message says what to choose."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: {reason}")


class RepositoryNotFoundError(TxStoreError):
    """There is no repository here: look at the path.

    This is no `FileNotFoundError`: zarr, fsspec and xarray treat that as a missing key, and continue without it.
    """

    def __init__(
        self,
        url: str,
        *,
        reason: str = "there is no TxStore repository here; look at the path",
        creatable: bool = False,
    ) -> None:
        self.url = url
        self.creatable = creatable  # a writer may create a repository here
        super().__init__(f"{url}: {reason}")


class CommitNotFoundError(TxStoreError, LookupError):
    """No such version, commit id, tag, branch or date: look at `repo.log()`, `repo.tags` and `repo.branches`."""

    def __init__(self, what: str, *, advice: str) -> None:
        self.what = what
        super().__init__(f"{what}: {advice}")


class NodeNotFoundError(TxStoreError, KeyError):
    """There is no array or group at this path, or the node has the wrong kind: look at the path."""

    def __init__(self, path: str, wanted: str = "array or group", found: str = "absent") -> None:
        self.path = path
        self.wanted = wanted
        self.found = found
        there = "there is nothing" if found == "absent" else f"it is {'an' if found[0] in 'au' else 'a'} {found}"
        super().__init__(f"no {wanted} at {path!r}: {there}; look at the path")

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError's own would return the message's repr


class FeedNotFoundError(TxStoreError, KeyError):
    """There is no feed with this name on the branch."""

    def __init__(self, feed: str, branch: str) -> None:
        self.feed = feed
        self.branch = branch
        super().__init__(f"feed {feed!r} on branch {branch!r}: there is none; list(repo.feeds) has all")

    def __str__(self) -> str:  # KeyError would show the repr
        return str(self.args[0]) if self.args else ""


class FeedMovedError(TxStoreError):
    """Another worker has moved the feed: drop this work with `rollback()`, and begin at what is pending now."""

    def __init__(self, feed: str, reason: str) -> None:
        self.feed = feed
        self.reason = reason
        super().__init__(
            f"feed {feed!r}: {reason}. Nothing was committed: roll this transaction back, and take what is pending now "
            f"from repo.feeds[{feed!r}]"
        )


class FeedExpiredError(TxStoreError):
    """It is too late for this feed: commits that it has not seen are gone. Start anew with `feed.reset()`."""

    def __init__(self, feed: str, reason: str) -> None:
        self.feed = feed
        self.reason = reason
        super().__init__(
            f"feed {feed!r} is too late: {reason}. Start anew: make what it feeds from a whole snapshot, and reset the "
            f"feed to that commit: repo.feeds[{feed!r}].reset(commit, store=store)"
        )


class UnsupportedFormatError(TxStoreError):
    """The repository was written by a newer TxStore: upgrade."""

    def __init__(self, path: str, *, found: str, supported: str) -> None:
        self.path = path
        self.found = found
        self.supported = supported
        told = f"{path}: has {found}, this version of txstore supports {supported}: upgrade txstore"
        super().__init__(f"{told}. If no newer one has written it, it is damaged: run txstore verify --repair")


class TransactionStateError(TxStoreError):
    """The transaction's state does not allow this call: the message says what to do first."""

    def __init__(self, message: str, *, state: str) -> None:
        self.state = state
        super().__init__(message)


class MisalignedError(TxStoreError, ValueError):
    """A commit extends an array along a dimension, and other arrays of its group don't fit it any more.

    `left` has a tuple for each array that had the same length and did not grow: its path, the path of the array that
    grew, the dimension, the dimension's axis in the array that grew, and that array's lengths before and after.
    `relabelled` has a tuple for each coordinate whose labels the commit changes under values that were there before:
    its path, and the path of the array that grew along another dimension.
    """

    def __init__(
        self,
        *,
        left: Sequence[tuple[str, str, str, int, tuple[int, int]]] = (),
        relabelled: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.left, self.relabelled = tuple(left), tuple(relabelled)
        if self.left:
            path, grown, dimension, axis, (before, after) = self.left[0]
            more = f", and {len(self.left) - 1} more" if len(self.left) > 1 else ""
            message = (
                f"{grown!r} grows along {dimension!r} from {before} to {after}, and {path!r}{more} does not: append to "
                "both in one transaction"
            )
            if not axis:
                message += f" (constraints.EqualLength([{grown!r}, {path!r}]) asks that of every writer)"
        else:
            coordinate, grown = self.relabelled[0]
            message = (
                f"{grown!r} grows, and {coordinate!r} gets other labels, which are wrong for what {grown!r} has "
                "already: append along the same labels (xarray's reindex_like brings values to them)"
            )
        super().__init__(f"{message}; or commit(allow_misaligned=True), if that is meant")


class KeyFormatError(TxStoreError, ValueError):
    """TxStore can't store this key, branch or tag name: the message says what is wrong with it."""


class CommitWaitWarning(UserWarning):
    """A commit or an erasure waits: the message says for what. An erasure may wait for its own process."""


class UncommittedChangesWarning(UserWarning):
    """TxStore dropped staged writes because no process committed them."""


class ClockWarning(UserWarning):
    """The time of a commit is later than this machine's clock: one of two clocks is wrong."""
