"""Publishes a plain Zarr hierarchy at a URL that follows the head of a branch, for readers without TxStore.

The order makes creation and append atomic to clients that read consolidated metadata: chunks first, then the documents
of the nodes, and last the consolidated metadata at the root, each by one replacement. Arrays that shrink and nodes that
go are handled in the reverse order, after the root. Each step is durable before the next begins, and a hidden file
records progress: a publisher that was killed anywhere is simply run again.

The publisher trusts that file only at the place where it was written, and only if it fits: the repository's history has
the commits, and the documents at the root of the copy are the ones that were written. A key in a copy is as in the
commit of the first mark that covers it. Marks of attempts cover the chunks up to a key, in the order of keys; the mark
of the finished copy covers all.

`Repository.export` writes one commit, byte for byte; until it is complete, it can't be opened. Only the consolidated
metadata at the root are added, because readers look for them: the repository has none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from txstore.commit import MAIN, Commit
from txstore.errors import CommitNotFoundError, CorruptionError, ExportError, PublishError, SnapshotExpiredError
from txstore.format import packfile
from txstore.format.consolidated import consolidate, decoded, documents_of, is_consolidated, plain_document
from txstore.format.encoding import crc32c
from txstore.format.keys import directory_prefix, is_document, stored_key
from txstore.history.find import At
from txstore.history.snapshot import Snapshot
from txstore.interchange.concealing import concealing
from txstore.interchange.destinations import (
    Destination,
    bits_of_copies,
    check_outside,
    check_tree,
    found_marker,
    in_parallel,
    is_place,
    open_destination,
    put,
)
from txstore.progress import Progress
from txstore.segments.replaced import read_records
from txstore.segments.runs import Found, Listed

if TYPE_CHECKING:
    from typing import Self

    from txstore.commit import Commit
    from txstore.history.snapshot import Snapshot
    from txstore.store import OpenedRepository


#: Says what is being exported here; gone when all is there.
MARKER = ".txstore-export"


@dataclass(frozen=True, slots=True)
class Export:
    """What an export has written."""

    commit: Commit
    keys: int
    bytes: int
    written: int  # bytes; the others were there, from a run that was interrupted
    is_unchanged: bool = False  # all was there, whole: an export that had been finished


@concealing
def export(
    repo: OpenedRepository,
    destination: str | os.PathLike[str],
    *,
    at: At | None = None,
    branch: str = MAIN,
    tag: str | None = None,
    path: str = "",
    consolidated: bool = True,
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Export:
    """See `Repository.export`."""
    snapshot = repo.mapping(at, branch=branch, tag=tag)
    at_most = bits_of_copies(repo.engine.storage)
    target = open_destination(destination, storage_options, durable=False, at_most=at_most, refused=ExportError)
    commit = snapshot.commit
    if commit is None:
        raise CommitNotFoundError(repo.url, advice="there is no commit yet, so there is nothing to export")
    prefix = directory_prefix(path)
    sizes = {key.removeprefix(prefix): snapshot.size_of(key) or 0 for key in snapshot.keys_below(path)}
    if not sizes:
        raise ExportError(target.url, f"there is nothing at {path or '/'!r} in {commit}; look at the path")
    check_tree(target, sizes)
    if MARKER in sizes:
        raise ExportError(target.url, f"the key {MARKER!r} is the name of a file that export needs: delete it")
    check_outside(target, repo.url)
    made = consolidate(documents_of(snapshot, path)) if consolidated else {}
    sizes |= {key: len(content) for key, content in made.items()}
    copying = _Export(snapshot, target, prefix, sizes, made, verify, progress)
    with target.alone():
        if copying.is_finished():
            return Export(commit, len(sizes), copying.total, 0, is_unchanged=True)
        told = {"repository": repo.id, "commit": commit.id, "path": prefix, "consolidated": consolidated}
        copying.there = _begin(target, told)
        # Chunks, then arrays, then groups, the root last: what can be opened is whole.
        for keys in _in_order(sizes):
            copying.copy(keys)
        target.delete([MARKER])
    return Export(commit, len(sizes), copying.total, copying.written)


def _begin(target: Destination, told: Mapping[str, Any]) -> frozenset[str]:
    """Say what is being exported, and return which keys are there, from a run before.

    Raises `ExportError` if something else is there.
    """
    place = target.place()
    marker = found_marker(target, MARKER)
    if marker is None:
        target.write_marker(MARKER, json.dumps({**told, "place": place}).encode())
        return frozenset()
    try:
        before = json.loads(marker)
        there = before.pop("place")
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        before = there = None
    if before != told or not is_place(there, place):
        raise ExportError(target.url, "another export was begun here; delete it, or choose another place")
    return frozenset(target.list())


def _in_order(sizes: Mapping[str, int]) -> Iterable[list[str]]:
    documents = [key for key in sizes if is_document(key)]
    yield [key for key in sizes if not is_document(key) and not is_consolidated(key)]
    # The deepest first; of format 2 the attributes before what says that there is a node.
    for depth in sorted({key.count("/") for key in documents}, reverse=True):
        for names in ((".zattrs",), ("zarr.json", ".zarray", ".zgroup")):
            yield [key for key in documents if key.count("/") == depth and key.rpartition("/")[2] in names]
    yield [key for key in sizes if is_consolidated(key)]


@dataclass
class _Export:
    _snapshot: Snapshot
    _target: Destination
    _prefix: str
    _sizes: Mapping[str, int]
    _made: Mapping[str, bytes]  # in place of what the snapshot has
    _verify: bool
    _progress: Progress | None
    there: Collection[str] = ()  # from a run before
    done = written = 0

    @cached_property
    def total(self) -> int:
        return sum(self._sizes.values())

    def is_finished(self) -> bool:
        """Tell whether a run before has written all of it, and nothing was changed since. Each value is compared."""
        there = islice(self._target.list(), len(self._sizes) + 1)  # no more of what is something else
        if self._target.read_marker(MARKER) is not None or set(there) != self._sizes.keys():
            return False

        def is_there(key: str) -> bool:
            return self._target.read(key) == self._value(key)

        # Documents first: of another commit or path they differ.
        keys = sorted(self._sizes, key=is_document, reverse=True)
        return all(found for _, found in in_parallel(is_there, keys, self._sizes.__getitem__))

    def copy(self, keys: Iterable[str]) -> None:
        for key, written in in_parallel(self._copy, keys, self._sizes.__getitem__):
            self.done += self._sizes[key]
            self.written += written
            if self._progress is not None:
                self._progress(self.done, self.total)

    def _copy(self, key: str) -> int:
        """Return how many bytes had to be written."""
        value = self._value(key)
        is_written = put(self._target, key, value, compare=key in self.there, verify=self._verify)
        return len(value) if is_written else 0

    def _value(self, key: str) -> bytes:
        if key in self._made:
            return self._made[key]
        return bytes(self._snapshot[self._prefix + key])  # its checksum is compared


#: Chunks written between two checks of the progress.
_BATCH = 64
#: The hidden file records the progress each time this many bytes are written.
_CHECKPOINT = 64 << 20


@dataclass(frozen=True)
class Published:
    """The result of one publication."""

    url: str
    commit: Commit
    written: int  # files
    deleted: int
    bytes: int


@concealing
def publish(
    repo: OpenedRepository,
    destination: str | os.PathLike[str] | Destination,
    *,
    branch: str = MAIN,
    verify: bool = True,
    full: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    durable: bool = True,
) -> Published:
    """Bring a plain copy to the head of a branch: `Repository.publish`."""
    target = _target(repo, destination, storage_options=storage_options, durable=durable)
    snapshot = repo.mapping(branch=branch)
    if snapshot.commit is None:
        raise CommitNotFoundError(f"branch {branch!r}", advice="there is nothing to publish: it has no commit yet")
    with target.alone():
        return _Publication(repo, snapshot, snapshot.commit, branch, target, verify, progress).run(full)


def follow_and_publish(
    repo: OpenedRepository,
    destination: str | os.PathLike[str] | Destination,
    *,
    branch: str = MAIN,
    verify: bool = True,
    full: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    durable: bool = True,
    timeout: float | None = None,
) -> Iterator[Published]:
    """Publish now and after each new commit, or several at once; yield each result."""
    target = _target(repo, destination, storage_options=storage_options, durable=durable)
    last: Commit | int = -1
    while True:
        # A commit that a vacuum removed meanwhile is not the newest.
        with (
            suppress(SnapshotExpiredError, CommitNotFoundError),
            closing(repo.follow(branch, since=last, timeout=timeout)) as commits,
        ):
            if next(commits, None) is None:
                return
        try:
            done = publish(repo, target, branch=branch, verify=verify, full=full, progress=progress)
        except SnapshotExpiredError:  # without a pin a vacuum may expire it: then a newer commit exists
            continue
        yield done
        last, full = done.commit, False


@concealing
def _target(
    repo: OpenedRepository,
    destination: str | os.PathLike[str] | Destination,
    *,
    storage_options: Mapping[str, Any] | None,
    durable: bool,
) -> Destination:
    if not isinstance(destination, str | os.PathLike):
        return destination
    at_most = bits_of_copies(repo.engine.storage)
    target = open_destination(destination, storage_options, durable=durable, at_most=at_most)
    check_outside(target, repo.url)
    return target


class _Publication:
    """One snapshot on its way to a destination."""

    def __init__(
        self,
        repo: OpenedRepository,
        snapshot: Snapshot,
        commit: Commit,
        branch: str,
        target: Destination,
        verify: bool,
        progress: Progress | None,
    ) -> None:
        self._repo = repo
        self._snapshot = snapshot
        self._commit = commit
        self._target = target
        self._verify = verify
        self._progress = progress
        self._writer = os.urandom(8).hex()
        self._state = State(repo.id, branch, target.place())
        self._root: dict[str, bytes] = {}
        self._compares = False  # whether the target may already have the right files, although no state says so
        self._was_empty = False
        self._written = self._deleted = self._bytes = 0

    def run(self, full: bool) -> Published:
        self._state = self._found_state(full)
        finished = self._state.finished
        if finished is not None and finished.is_of(self._commit) and not self._state.attempts:
            self._copy_replaced()
            self._target.sync()
            return self._report()
        before = self._state
        documents = documents_of(self._snapshot)
        self._root = consolidate(documents)
        self._begin(documents)

        self._write_chunks()
        self._target.sync()
        later = self._write_documents(documents)
        self._target.sync()
        self._check_alone()
        for key, content in self._root.items():
            if before.attempts or before.finished is None or before.finished.witnesses.get(key) != crc32c(content):
                self._put(key, content)
        self._target.sync()
        for key in later:
            self._put(key, documents[key])
        self._target.sync()
        self._delete(self._gone())
        self._target.sync()
        self._check_alone()
        self._save(self._state.finish())
        return self._report()

    def _report(self) -> Published:
        return Published(self._target.url, self._commit, self._written, self._deleted, self._bytes)

    # --- the state of the copy

    def _found_state(self, full: bool) -> State:
        """Return the trusted part of the state. Raises `PublishError` if the copy is not ours."""
        content = found_marker(self._target, STATE)
        if content is None:
            self._was_empty = True
            return self._state
        state = State.decode(content)
        if state is None or not is_place(state.place, self._state.place):
            reason = f"{STATE!r} in it was not written there, or not as it is: choose a new place, or empty this one"
            raise PublishError(self._target.url, reason)
        state = replace(state, place=self._state.place)
        if (state.repository, state.branch) != (self._state.repository, self._state.branch):
            reason = f"it is the copy of branch {state.branch!r} of repository {state.repository}: choose another place"
            raise PublishError(self._target.url, reason)
        names = {name for mark in (state.finished, *state.attempts) if mark for name in mark.witnesses}
        found = {name: self._target.read(name) for name in names}
        there = {name: None if value is None else crc32c(value) for name, value in found.items()}
        covered = [mark.upto for mark in state.attempts if mark.upto is not None]
        if (
            full
            or not state.fits(self._repo, self._commit, there)
            or any(self._target.read(chunk) is None for chunk in covered)
        ):
            self._compares = True
            return state.forget()
        return state

    def _begin(self, documents: Mapping[str, bytes]) -> None:
        witnesses = self._root or dict(sorted(documents.items(), key=lambda item: (item[0].count("/"), item[0]))[:1])
        mark = Mark(self._commit.id, self._commit.version, self._commit.seq, witnesses_of(witnesses))
        # The state comes first: after a crash it says that the copy may hold files of this commit.
        self._save(self._state.begin(mark, self._writer))

    def _save(self, state: State) -> None:
        self._state = state
        self._target.write_marker(STATE, state.encode())
        self._target.sync()

    def _check_alone(self) -> None:
        found = State.decode(self._target.read(STATE) or b"")
        if found is None or found.writer != self._writer:
            reason = "another process has begun to publish to it: let only one of them continue"
            raise PublishError(self._target.url, reason)

    # --- changed keys

    def _moved(self) -> Iterator[tuple[str, int, int]]:
        """Yield the live keys that are newer than the finished copy, in order: key, seq, length."""
        for encoded, ref in self._newer():
            key = _decoded(encoded)
            if key != STATE and not is_consolidated(key):
                yield key, ref.seq, ref.length

    def _newer(self) -> Iterator[tuple[bytes, Found | Listed]]:
        if self._state.finished is None:
            for listed in self._snapshot.runs.scan_all():
                yield listed.key, listed
            return
        since = self._state.finished.seq
        for key in sorted({change.key for change in self._snapshot.runs_since(since).changes(b"", None, since)}):
            found = self._snapshot.runs.lookup(key)
            if found is not None and found.kind in packfile.FRAME_OF_REF:
                yield key, found

    def _new_chunks(self) -> Iterator[tuple[str, int]]:
        for key, seq, length in self._moved():
            if not is_document(key) and seq > self._state.seq_of(key):
                yield key, length

    def _gone(self) -> list[str]:
        """Return the keys of the copy that the snapshot does not have: documents first."""
        finished = self._state.finished
        if self._was_empty:
            return []
        kept = {STATE, *self._root}
        if finished is not None and finished.version >= self._snapshot.oldest_kept:
            since = finished.seq
            runs = self._snapshot.runs_since(since)
            candidates = {_decoded(change.key) for change in runs.changes(b"", None, since)}
            for prefix in runs.new_prefixes(since):
                candidates |= set(self._target.list(prefix.rstrip("/")))
            candidates |= {key for mark in (finished, *self._state.attempts) for key in mark.witnesses}
        else:  # deletions below the oldest kept version leave no trace
            candidates = set(self._target.list())
        gone = [key for key in candidates if key not in kept and (is_consolidated(key) or key not in self._snapshot)]
        return sorted(gone, key=lambda key: (not (is_document(key) or is_consolidated(key)), key))

    # --- copying

    def _copy_replaced(self) -> None:
        """Copy what an erasure of rows has replaced, and no commit has written since: that of a frozen branch."""
        records = read_records(self._repo.engine.storage)
        paths = {path for record in records if record.table is not None for path in record.paths}
        for key in self._snapshot.replaced_below(sorted(paths)):
            self._copy(key, compare=True)

    def _write_chunks(self) -> None:
        self._copy_replaced()
        passed = total = unsaved = 0
        if self._progress is not None:
            total = sum(length for _, length in self._new_chunks())
            self._progress(0, total)
        chunks = self._new_chunks()
        with ThreadPoolExecutor(self._target.writers, thread_name_prefix="txstore-publish") as threads:
            while batch := list(islice(chunks, _BATCH)):
                list(threads.map(self._copy, [key for key, _ in batch]))
                size = sum(length for _, length in batch)
                unsaved += size
                passed += size
                if self._progress is not None:
                    self._progress(passed, total)
                if unsaved >= _CHECKPOINT:
                    self._target.sync()
                    self._save(self._state.advance(batch[-1][0]))
                    unsaved = 0

    def _copy(self, key: str, *, compare: bool = False) -> None:
        view = self._snapshot.get_view(key)
        if view is None:
            raise CorruptionError(self._snapshot.url, key=key, reason="a key that was listed is not found")
        self._put(key, view, compare=compare)

    def _write_documents(self, documents: Mapping[str, bytes]) -> list[str]:
        """Write the changed documents, except those of arrays that shrink, which are returned."""
        later = []
        moved = [key for key, _, _ in self._moved() if is_document(key) and key not in self._root]
        for key in sorted(moved, key=lambda key: (-key.count("/"), key)):
            content = documents.get(key)
            if content is None:  # below an array, which can't contain nodes
                content = plain_document(key, self._snapshot[key])
            if key in documents and _shrinks(self._target.read(key), content):
                later.append(key)
            else:
                self._put(key, content)
        return later

    def _put(self, key: str, content: bytes | memoryview, *, compare: bool = False) -> None:
        """Write one file, unless the copy is known to have it."""
        try:
            is_written = put(self._target, key, content, compare=compare or self._compares, verify=self._verify)
        except (NotADirectoryError, FileExistsError, IsADirectoryError):
            self._clear_the_way(key)
            is_written = put(self._target, key, content, compare=False, verify=self._verify)
        if is_written:
            self._written += 1
            self._bytes += len(content)

    def _clear_the_way(self, key: str) -> None:
        """Delete files in the place of a directory, and the reverse: an array was replaced by one of another rank."""
        above = key
        # Another thread may be about to write keys of the snapshot below it.
        obstacles = [*islice(self._snapshot.keys_below(key), 1), *self._target.list(key)]
        while above := above.rpartition("/")[0]:
            obstacles.append(above)
        for obstacle in obstacles:
            if obstacle in self._snapshot:
                reason = f"{obstacle!r} and {key!r} are both keys: no directory can hold a file and what is below it"
                raise PublishError(self._target.url, reason)
        self._target.delete([each for each in obstacles if self._target.read(each) is not None])

    def _delete(self, keys: list[str]) -> None:
        if keys:
            documents = [key for key in keys if is_document(key) or is_consolidated(key)]
            self._target.delete(documents)
            self._target.sync()
            self._target.delete([key for key in keys if key not in set(documents)])
            self._deleted += len(keys)


def _decoded(encoded: bytes) -> str:
    return stored_key(encoded, "a run")


def _shrinks(old: bytes | None, new: bytes) -> bool:
    """Tell whether an array's new document has a smaller extent along any dimension."""
    before, after = (decoded(content or b"null") for content in (old, new))
    shapes = [document.get("shape") if isinstance(document, dict) else None for document in (before, after)]
    if not isinstance(shapes[0], list) or not isinstance(shapes[1], list):
        return False
    if len(shapes[0]) != len(shapes[1]):
        return True
    return any(now < once for once, now in zip(*shapes, strict=True))


#: The file. zarr does not take it for a node; listing the root without consolidated metadata warns of it.
STATE = ".txstore-published.json"

_VERSION = 1


@dataclass(frozen=True)
class Mark:
    """A commit, and the documents at the root of its copy: key -> CRC-32C."""

    commit: str
    version: int
    seq: int
    witnesses: dict[str, int]
    upto: str | None = None  # for an attempt: the last written chunk; None: perhaps none

    def is_of(self, commit: Commit) -> bool:
        return (self.version, self.commit) == (commit.version, commit.id)


@dataclass(frozen=True)
class State:
    """The state of a copy: its marks, the newest attempt first."""

    repository: str
    branch: str
    place: Mapping[str, Any]  # where it was written
    writer: str = ""
    finished: Mark | None = None
    attempts: tuple[Mark, ...] = ()

    @classmethod
    def decode(cls, content: bytes) -> State | None:
        """Return the state in a hidden file; None if no publisher can have written it."""
        try:
            told = json.loads(content)
            if told["version"] != _VERSION:
                return None
            marks = [_mark(each) for each in told["attempts"]]
            finished = None if told["finished"] is None else _mark(told["finished"])
            names = _text(told["repository"]), _text(told["branch"]), dict(told["place"]), _text(told["writer"])
            return cls(*names, finished, tuple(marks))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    def encode(self) -> bytes:
        about = "a plain copy of a TxStore repository: what this file says lets the next `txstore publish` go on"
        return json.dumps({"about": about, "version": _VERSION, **asdict(self)}, indent=2).encode()

    def begin(self, mark: Mark, writer: str) -> Self:
        """Return the state before the first file of a commit is written."""
        covering = [each for each in self.attempts if each.upto is not None]
        return replace(self, writer=writer, attempts=(mark, *covering))

    def advance(self, upto: str) -> Self:
        """Return the state after all chunks up to a key are written."""
        first, *older = self.attempts
        beyond = [each for each in older if each.upto is not None and each.upto > upto]
        return replace(self, attempts=(replace(first, upto=upto), *beyond))

    def finish(self) -> Self:
        return replace(self, finished=replace(self.attempts[0], upto=None), attempts=())

    def forget(self) -> Self:
        """Return a state without any marks."""
        return replace(self, finished=None, attempts=())

    def seq_of(self, chunk: str) -> int:
        """Return the highest seq to which a chunk of the copy is known to be up to date; -1: unknown."""
        for mark in self.attempts:
            if mark.upto is not None and chunk <= mark.upto:
                return mark.seq
        return self.finished_seq

    @property
    def finished_seq(self) -> int:
        return -1 if self.finished is None else self.finished.seq

    def fits(self, repo: OpenedRepository, head: Commit, witnesses: Mapping[str, int | None]) -> bool:
        """Tell whether this state is possible, given the documents at the root of the copy (None: missing)."""
        marks = [*self.attempts, *([] if self.finished is None else [self.finished])]
        # The oldest are ancestors of the newest: that was looked at when it was begun.
        if marks and not _is_in_history(repo, head, marks[0]):
            return False
        if self.finished is None:
            return True
        names = {name for mark in marks for name in mark.witnesses}
        return all(any(mark.witnesses.get(name) == witnesses.get(name) for mark in marks) for name in names)


def witnesses_of(documents: Mapping[str, bytes]) -> dict[str, int]:
    return {key: crc32c(content) for key, content in documents.items()}


def _is_in_history(repo: OpenedRepository, head: Commit, mark: Mark) -> bool:
    if mark.version > head.version:
        return False
    try:
        return mark.is_of(repo.commit(mark.version, branch=head.branch))
    except (SnapshotExpiredError, CommitNotFoundError):
        return False


def _mark(told: Any) -> Mark:
    witnesses = {_text(key): int(value) for key, value in told["witnesses"].items()}
    upto = told["upto"]
    return Mark(
        _text(told["commit"]), int(told["version"]), int(told["seq"]), witnesses, None if upto is None else _text(upto)
    )


def _text(told: Any) -> str:
    if not isinstance(told, str):
        raise TypeError("expected a string")
    return told
