"""Checks a commit out to a directory of plain Zarr, and commits what programs have changed in it.

For programs that take a directory and no store. The commit is based on the commit that was checked out: what others
have committed since is merged with it, element by element, or in conflict with it. Only files whose status has changed
are read.

A file beside the directory says which commit it has, and the status of each of its files. It does not lie in the
directory, because programs empty a directory before they write an array into it. As git's index does, it holds what
tells a changed file from an unchanged one without reading it: length, times and inode.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fsspec.core import split_protocol

from txstore.commit import MAIN, Commit
from txstore.errors import CheckoutError, CommitNotFoundError, ConflictError, ConstraintError
from txstore.format.consolidated import (
    decoded,
    is_consolidated,
    is_marked,
    may_be_consolidated,
    plain_document,
    with_mark,
)
from txstore.format.keys import ancestors, directory_prefix, encode_key, is_document, node_of_document
from txstore.history.changes import common_ancestor, differing
from txstore.history.erasures import read_erasures
from txstore.history.find import At
from txstore.history.snapshot import Snapshot
from txstore.interchange.destinations import LocalDestination, bits_of_copies, check_outside, check_tree, in_parallel
from txstore.interchange.zarr_arrays import DEBRIS
from txstore.merging.merge_commits import settle
from txstore.progress import Progress
from txstore.storage.objects.urls import public

if TYPE_CHECKING:
    from txstore.store import OpenedRepository


#: The most files, and about the most bytes, that a thread writes at a time.
_FILES_AT_A_TIME, _BYTES_AT_A_TIME = 256, 8 << 20


@dataclass(frozen=True, slots=True)
class Checkout:
    """What a checkout has written."""

    commit: Commit
    files: int
    bytes: int  # of all files
    written: int  # files that were created, replaced or deleted; the others were as they are in the commit


def checkout(
    repo: OpenedRepository,
    directory: str | os.PathLike[str],
    *,
    at: At | None = None,
    branch: str = MAIN,
    tag: str | None = None,
    path: str = "",
    progress: Progress | None = None,
) -> Checkout:
    """See `Repository.checkout`."""
    snapshot = repo.mapping(at, branch=branch, tag=tag)
    commit = snapshot.commit
    if commit is None:
        raise CommitNotFoundError(repo.url, advice="there is no commit yet, so there is nothing to check out")
    path = directory_prefix(path).rstrip("/")
    work = _Work(repo, directory)
    with work.target.alone():
        state, statuses = work.read_state(), work.statuses()
        if state is None or not statuses:
            if statuses:
                key = next(iter(statuses))
                raise work.refused(f"it holds something else ({key!r}): choose an empty or a new place")
            state, consolidated = CheckoutState(repo.id, branch, path, None, erasures=work.ended_erasures()), []
        else:
            work.check_same(state, path)
            work.check_erasures(state)
            work.finish(state, statuses)
            changes = work.changes(state, statuses)
            consolidated = changes.consolidated
            if changes.any():
                raise work.refused(
                    f"it has changes that are in no commit ({changes}): commit_directory() makes one of them; "
                    "or check out to another place"
                )
        state.branch = branch
        return work.update(state, snapshot, statuses, consolidated=consolidated, progress=progress)


def commit_directory(
    repo: OpenedRepository,
    directory: str | os.PathLike[str],
    message: str | None = None,
    *,
    branch: str | None = None,
    properties: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Commit | None:
    """See `Repository.commit_directory`."""
    work = _Work(repo, directory)
    if not os.path.isdir(work.target.url) or (state := work.read_state()) is None:
        raise work.refused("nothing was checked out here: checkout() does that; import_from() takes what is new")
    with work.target.alone():
        work.check_same(state, state.path)
        work.check_erasures(state)
        statuses = work.statuses()
        done = work.finish(state, statuses)
        if state.commit is None:
            raise work.refused("its checkout was interrupted: run checkout() again")
        changes = work.changes(state, statuses)
        if not changes.any():
            return done
        if not changes.statuses:
            raise work.refused("it is empty: delete in a transaction what is to be deleted, or run checkout() again")
        made = work.commit(state, changes, state.branch if branch is None else branch, message, properties)
        meant = [*changes.set, *changes.deleted]
        work.update(state, made, statuses, meant, consolidated=changes.consolidated, progress=progress)
        return made.commit


class _Changes(NamedTuple):
    set: list[str]
    deleted: list[str]
    consolidated: list[str]
    """Files with consolidated metadata, which would go stale: the next update replaces or deletes them."""
    statuses: dict[str, Status]
    """The status of each file, from before it was read."""

    def any(self) -> bool:
        return bool(self.set or self.deleted)

    def __str__(self) -> str:
        keys = sorted([*self.set, *self.deleted])
        return f"{keys[0]!r}" if len(keys) == 1 else f"{keys[0]!r} and {len(keys) - 1} more"


class _Work:
    """One call for one directory."""

    def __init__(self, repo: OpenedRepository, directory: str | os.PathLike[str]) -> None:
        protocol, path = split_protocol(os.fspath(directory))
        if protocol not in (None, "file", "local"):
            raise ValueError(f"{public(os.fspath(directory))!r} is no local directory: export() writes to URLs")
        self._repo = repo
        at_most = bits_of_copies(repo.engine.storage)
        self.target = LocalDestination(path, durable=False, at_most=at_most, refused=CheckoutError, has_temporary=False)
        self.refused = partial(CheckoutError, self.target.url)
        self._written: Mapping[str, Status | None] = {}
        check_outside(self.target, repo.url)

    def read_state(self) -> CheckoutState | None:
        state = read_state(self.target.url)
        if state is not None:
            self._written = state.files
        return state

    def check_same(self, state: CheckoutState, path: str) -> None:
        if state.repository != self._repo.id:
            raise self.refused("it was checked out of another repository: open that one, or choose a new place")
        if state.path != path:
            raise self.refused(f"{state.path or '/'!r} was checked out here, not {path or '/'!r}: choose a new place")

    def ended_erasures(self) -> list[str]:
        return [each.id for each in read_erasures(self._repo.engine.storage) if each.finished is not None]

    def check_erasures(self, state: CheckoutState) -> None:
        """Refuse a directory with values that were erased since: a commit would bring them back."""
        ended, prefix = self.ended_erasures(), directory_prefix(state.path)
        is_whole = state.commit is not None and state.to is None
        for erasure in read_erasures(self._repo.engine.storage):
            if erasure.id not in state.erasures and (
                not is_whole or any(erasure.covers(prefix + key) for key in state.files)
            ):
                raise self.refused(
                    "values that it has may have been erased since from all commits: check out to a new place, make "
                    "your changes there, and delete this directory"
                )
        state.erasures = ended

    def _snapshot(self, commit: str | None) -> Snapshot:
        return self._repo.engine.snapshots.of(None) if commit is None else self._repo.mapping(commit)

    # --- what has changed

    def statuses(self) -> dict[str, Status]:
        """Return the status of each file, so that a later change of a file changes its status."""
        found = self._statuses()
        if pause := until_settled(found.values()):
            time.sleep(pause)
            found = self._statuses()
        return found

    def _statuses(self) -> dict[str, Status]:
        """Return them without what programs leave behind, unless a checkout has written a file of that name."""
        found = self.target.statuses()
        return {key: status_of(each) for key, each in found if key in self._written or not DEBRIS.fullmatch(key)}

    def changes(self, state: CheckoutState, statuses: dict[str, Status]) -> _Changes:
        """Return what was changed in the directory since its commit. Reads only files whose status differs."""
        base, prefix = self._snapshot(state.commit), directory_prefix(state.path)
        suspects = [key for key, status in statuses.items() if not state.is_unchanged(key, status)]
        found = _Changes([], [key for key in state.files if key not in statuses], [], statuses)
        for key, content in in_parallel(self._read, suspects, lambda key: statuses[key][0]):
            before = base.get_view(prefix + key)
            if before is None or not _is_same(key, content, bytes(before)):
                found.set.append(key)
            if _has_block(key, content) and (before is None or content != bytes(before)):
                found.consolidated.append(key)
        return found

    def _read(self, key: str) -> bytes:
        encode_key(key)
        content = self.target.read(key)
        if content is None:
            raise self.refused(f"{key!r} is no regular file, or has just gone: links, pipes and the like have no value")
        return content

    # --- the commit

    def commit(
        self,
        state: CheckoutState,
        changes: _Changes,
        branch: str,
        message: str | None,
        properties: Mapping[str, Any] | None,
    ) -> Snapshot:
        """Commit changes, merged with what others have committed since the commit that was checked out."""
        engine, prefix = self._repo.engine, directory_prefix(state.path)
        base = self._snapshot(state.commit)
        self._check_in_branch(base, branch)
        message = message or f"changes of the directory {os.path.basename(self.target.url)}"
        transaction = engine.begin(
            base, branch=engine.branch(branch), message=message, properties=properties, settle_conflicts=settle
        )
        was_on, state.branch = state.branch, branch
        taken = {key: changes.statuses[key] for key in changes.set}
        state.pending[transaction.id] = dict.fromkeys(changes.deleted) | taken
        write_state(self.target.url, state)
        try:
            self.check_erasures(state)  # again: an erasure that is in no record yet waits for the transaction
            nodes = _nodes_gone(changes)
            for node in nodes:
                transaction.delete_dir(prefix + node)
            for key in changes.deleted:
                if nodes.isdisjoint(ancestors(key)):
                    transaction.pop(prefix + key, None)
            for key, content in in_parallel(self._read, changes.set, lambda key: changes.statuses[key][0]):
                before = base.get_view(prefix + key)
                if before is not None and _has_block(key, bytes(before)):
                    transaction[prefix + key] = with_mark(key, content)
                else:
                    transaction[prefix + key] = content
            made = transaction.commit()
        except (ConflictError, ConstraintError):
            del state.pending[transaction.id]
            state.branch = was_on
            write_state(self.target.url, state)
            raise
        finally:
            transaction.rollback()
        assert made is not None  # it has a message
        state.take(transaction.id)
        return made

    def _check_in_branch(self, base: Snapshot, branch: str) -> None:
        engine = self._repo.engine
        head = engine.newest(engine.branch(branch)).stored
        assert base.stored is not None
        met = None if head is None else common_ancestor(engine.commits, base.stored, head)
        if met is None or met.hash != base.stored.hash:
            raise self.refused(
                f"branch {branch!r} does not have {base.commit}, which was checked out here: begin a branch with it, "
                f"repo.branches['name'] = repo.commit({base.stored.commit.id!r}), and commit to that one"
            )

    def finish(self, state: CheckoutState, statuses: dict[str, Status]) -> Commit | None:
        """Finish what an interrupted call has begun; return the commit that it has made, if any."""
        made, meant = None, dict[str, Status | None]()
        for commit in list(state.pending):
            if (made := self._repo.resolve(commit)) is not None:
                meant = state.pending[commit]
                state.take(commit)
                state.to = made.id
                break
        if state.to is not None:
            known = {key: status for key, status in statuses.items() if state.is_unchanged(key, status)}
            self.update(state, self._snapshot(state.to), known, meant)
            statuses.clear()
            statuses.update(self.statuses())
        return made

    # --- the files

    def update(
        self,
        state: CheckoutState,
        new: Snapshot,
        known: Mapping[str, Status],
        meant: Iterable[str] = (),
        *,
        consolidated: Iterable[str] = (),
        progress: Progress | None = None,
    ) -> Checkout:
        """Bring the files to a new commit. A file that was changed since its status was `known` stays as it is.

        `meant` are the files that the new commit was to take: it may have other values for them than the directory,
        such as outputs of views. Files with consolidated metadata become plain documents, or are deleted.
        """
        assert new.commit is not None
        state.to = new.commit.id
        write_state(self.target.url, state)
        old, prefix = self._snapshot(state.commit), directory_prefix(state.path)
        lengths = dict(self._differences(old, new, state.path))
        lengths |= {key: new.size_of(prefix + key) for key in meant if key not in lengths and not is_consolidated(key)}
        lengths |= {key: None if is_consolidated(key) else 0 for key in consolidated if key not in lengths}
        gone = dict.fromkeys((key for key, length in lengths.items() if length is None), 0)
        there = {key: length for key, length in lengths.items() if length is not None}
        check_tree(self.target, there)
        files = _Files(self.target, old, new, prefix, known)
        total, done, written = sum(there.values()), 0, 0
        for sizes in gone, there:  # a directory may take the place of a file, or a file that of a directory
            for batch, brought in in_parallel(files.bring, _batches(sizes), partial(_length, sizes)):
                for key, each in zip(batch, brought, strict=True):
                    if each.is_gone:
                        state.files.pop(key, None)
                    else:
                        state.files[key] = each.status
                    written += each.is_written
                done += _length(sizes, batch)
                if progress is not None:
                    progress(done, total)
        state.commit, state.to = new.commit.id, None
        state.pending.clear()
        write_state(self.target.url, state)
        held = sum(status[0] for status in state.files.values() if status is not None)
        return Checkout(new.commit, len(state.files), held, written)

    def _differences(self, old: Snapshot, new: Snapshot, path: str) -> Iterator[tuple[str, int | None]]:
        """Yield the keys, from a path on, whose values differ, and the length of each new value, None if deleted."""
        prefix = directory_prefix(path)
        if old.stored is None:
            keys: Iterable[str] = new.keys_below(path)
        else:
            assert new.stored is not None
            engine = self._repo.engine
            base = engine.snapshots.of(common_ancestor(engine.commits, old.stored, new.stored))
            keys = (each.key for each in differing(old, new, path, base))
        for key in keys:
            if not is_consolidated(key):
                yield key.removeprefix(prefix), new.size_of(key)


class _Brought(NamedTuple):
    """What has become of a file."""

    status: Status | None
    """At the new commit. None: a program has changed it, so that the next commit has to read it."""
    is_written: bool = False  # or deleted
    is_gone: bool = False


@dataclass
class _Files:
    """The files of a checkout, while they are brought from one commit to another."""

    _target: LocalDestination
    _old: Snapshot
    _new: Snapshot
    _prefix: str
    _known: Mapping[str, Status]

    def bring(self, batch: Sequence[str]) -> list[_Brought]:
        """Bring files to the new commit."""
        found: list[_Brought] = []
        for path, keys in groupby(batch, key=_directory_of):
            values = [(key, self._value(self._new, key)) for key in keys]
            if all(value is None for _, value in values):
                found += [self._remove(key) for key, _ in values]
            else:
                with self._target.directory(path, create=True) as directory:
                    found += [self._bring(directory, key, value) for key, value in values]
        return found

    def _bring(self, directory: int, key: str, value: bytes | None) -> _Brought:
        if value is None:
            return self._remove(key)
        name = key.rpartition("/")[2]
        found = self._target.read_in(directory, name)
        if found is not None:
            content, status = found[0], status_of(found[1])
            if _is_same(key, content, value) and (content == value or not _has_block(key, content)):
                return _Brought(status)
            if self._is_changed(key, content, status):
                return _Brought(None)
        elif key in self._known:  # deleted since
            return _Brought(None)
        self._target.replace_in(directory, name, plain_document(key, value))
        written = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return _Brought(status_of(written), is_written=True)

    def _remove(self, key: str) -> _Brought:
        found = self._target.read_status(key)
        if found is None:
            return _Brought(None, is_gone=True)
        if self._is_changed(key, found[0], status_of(found[1])):
            return _Brought(None)
        self._target.delete([key])
        return _Brought(None, is_written=True, is_gone=True)

    def _is_changed(self, key: str, content: bytes, status: Status) -> bool:
        """Tell whether a program has changed a file since this call has looked."""
        if status == self._known.get(key):
            return False
        old = self._value(self._old, key)
        return old is None or not _is_same(key, content, old)

    def _value(self, snapshot: Snapshot, key: str) -> bytes | None:
        view = snapshot.get_view(self._prefix + key)
        return None if view is None or is_consolidated(key) else bytes(view)


def _is_same(key: str, content: bytes, value: bytes) -> bool:
    """Tell whether a file has the value of its key. Consolidated metadata is a mark in the repository."""
    if content == value or is_consolidated(key):
        return True
    return _has_block(key, value) and decoded(plain_document(key, content)) == decoded(plain_document(key, value))


def _has_block(key: str, content: bytes) -> bool:
    return may_be_consolidated(key) and is_marked(key, content)


def _nodes_gone(changes: _Changes) -> set[str]:
    """Return the paths of arrays and groups that were deleted whole, without those below others of them."""
    there = {above for key in changes.statuses for above in ancestors(key)}
    gone = {node_of_document(key) for key in changes.deleted if is_document(key)} - there - {""}
    return {node for node in gone if gone.isdisjoint(ancestors(node))}


def _length(sizes: Mapping[str, int], keys: Sequence[str]) -> int:
    return sum(map(sizes.__getitem__, keys))


def _directory_of(key: str) -> str:
    return key.rpartition("/")[0]


def _batches(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield the keys in batches, documents last: what programs read of them meanwhile is there."""
    batch: list[str] = []
    held = 0
    for key in sorted(sizes, key=lambda key: (is_document(key), _directory_of(key))):
        batch.append(key)
        held += sizes[key]
        if len(batch) == _FILES_AT_A_TIME or held > _BYTES_AT_A_TIME:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


_VERSION = 1

#: A file may be changed again within one tick of the clock of its file system, and then has the same status.
_TICK, _COARSE_TICK, _SECOND = 20_000_000, 2_000_000_000, 1_000_000_000  # nanoseconds

#: Length, time of the last change of content and of status in nanoseconds, and inode.
Status: TypeAlias = tuple[int, int, int, int]


def status_of(found: os.stat_result) -> Status:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


@dataclass
class CheckoutState:
    """The state of a checkout."""

    repository: str
    branch: str
    path: str
    commit: str | None
    """The id of the commit whose values `files` are of. None: no file was written yet."""
    files: dict[str, Status | None] = field(default_factory=dict)
    """Key -> status of the file when it had the commit's value. None: it has to be read."""
    to: str | None = None
    """The id of the commit to which the files are being updated."""
    pending: dict[str, dict[str, Status | None]] = field(default_factory=dict)
    """Id of each commit that was begun -> the files that it takes, and those that it deletes (None)."""
    erasures: list[str] = field(default_factory=list)
    """The ids of the erasures that had ended before the files were read. Others may have erased what is in them."""
    written: int = 0  # when this was written, by the clock of the file system, in nanoseconds

    def is_unchanged(self, key: str, found: Status) -> bool:
        """Tell whether a file has the commit's value, as far as its status tells; if in doubt, say no."""
        known = self.files.get(key)
        if known is None or tuple(known) != found:
            return False
        return max(found[1], found[2]) + _tick(found) < self.written

    def take(self, commit: str) -> None:
        """Note that a pending commit was made: its files are as they are there."""
        for key, status in self.pending[commit].items():
            if status is None:
                self.files.pop(key, None)
            else:
                self.files[key] = status


def _tick(status: Status) -> int:
    return _COARSE_TICK if status[1] % _SECOND == status[2] % _SECOND == 0 else _TICK


def until_settled(statuses: Iterable[Status]) -> float:
    """Return in how many seconds a change of any of these files would show in its status; 0: it would now."""
    newest = max((max(status[1], status[2]) + _tick(status) for status in statuses), default=0)
    wait = newest - time.time_ns()
    return wait / _SECOND if 0 < wait <= _COARSE_TICK else 0  # a later time is no clock's of this machine


def state_path(directory: str) -> str:
    """Return where the state of a checkout lies."""
    above, name = os.path.split(directory)
    return os.path.join(above, f".{name}.txstore-checkout")


def write_state(directory: str, state: CheckoutState) -> None:
    """Replace the state in one step."""
    path = state_path(directory)
    temporary = f"{path}.{os.urandom(8).hex()}"
    told = {name: value for name, value in asdict(state).items() if name != "written"}
    content = json.dumps({"about": f"the checkout {directory}", "version": _VERSION, **told})
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w") as file:
            file.write(content)
            file.flush()
            state.written = os.fstat(descriptor).st_mtime_ns
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def read_state(directory: str) -> CheckoutState | None:
    """Return the state of a checkout; None if there is none. Raises `CheckoutError`."""
    path = state_path(directory)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(descriptor) as file:
        status = os.fstat(descriptor)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            reason = f"{path} is no file that only you could have written: check out to a new place"
            raise CheckoutError(directory, reason)
        state = _decoded(file.read())
    if state is None:
        raise CheckoutError(directory, f"{path} can't be read: check out to a new place, and copy your changes there")
    state.written = status.st_mtime_ns
    return state


def _decoded(content: str) -> CheckoutState | None:
    try:
        told = json.loads(content)
        if told.pop("version") != _VERSION:
            return None
        del told["about"]
        told["files"] = _statuses(told["files"])
        told["pending"] = {commit: _statuses(files) for commit, files in told["pending"].items()}
        return CheckoutState(**told)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _statuses(told: dict[str, Any]) -> dict[str, Status | None]:
    found: dict[str, Status | None] = {}
    for key, status in told.items():
        if status is None:
            found[key] = None
        else:
            size, modified, changed, inode = status
            found[key] = int(size), int(modified), int(changed), int(inode)
    return found
