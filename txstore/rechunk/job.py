"""`Repository.rechunk`: copies an array to a new grid on a branch of its own, then puts it in its place in one commit.

The copy is made from the commit at which the branch starts, so a vacuum keeps both. Each commit of the branch says how
far the copy is: the same call continues it. Then the elements that others have changed since are copied again, on the
branch as long as they are many; the rest in the commit that puts the copy, by reference, in the place of the array.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import zarr

from txstore.commit import MAIN, Commit
from txstore.engine import Position
from txstore.errors import ConflictError, NodeNotFoundError, SnapshotExpiredError, TransactionStateError
from txstore.format import names
from txstore.format.constraints import Complete, Fixed, Frozen
from txstore.format.keys import document_key
from txstore.history.snapshot import Snapshot
from txstore.labels.grids import chunk_prefix, documents
from txstore.progress import Progress
from txstore.rechunk.changes import array_at, changed_regions
from txstore.rechunk.copying import CopySource, bytes_of, copy_again, copy_pieces, open_array, reading
from txstore.rechunk.interface import RechunkRepository
from txstore.rechunk.plans import Box, CopyPlan, Pieces, plan, size_of
from txstore.rechunk.target import KEEP, ArrayForm, between, element_size, read_axes, target_of
from txstore.store import TxStore

_log = logging.getLogger(__name__)

#: Key of the job's state in the properties of its commits.
PROPERTY = "rechunk"
#: The array of the grid between, on the branch of the job.
_BETWEEN = "rechunk.between"
#: Parts of `max_memory`: the elements of all pieces that are copied at once, since encoded chunks need memory, too; and
#: those after which a commit says how far the copy is, since files stay mapped until then.
_SHARE, _COMMITTED = 3, 2
#: What others have changed is copied on the branch first, until it is less than this: bytes of elements.
_FEW = 16 << 20
_WORKERS = 2


class _OtherGridError(Exception):
    """Leaves the transaction's block, and is not tried again. Internal."""

    def __init__(self, conflict: ConflictError) -> None:
        self.conflict = conflict
        super().__init__(conflict)


@dataclass(frozen=True)
class _JobState:
    """How far a job is: in the properties of each commit of its branch."""

    id: str
    path: str
    branch: str
    form: dict[str, Any]  # `ArrayForm`
    plan: dict[str, Any]  # `CopyPlan`
    since: tuple[int, str]  # version and id of the commit of `branch` that the copy is like
    passes: int = 0  # that are done
    pieces: int = 0  # of the next pass that are done

    @classmethod
    def of(cls, commit: Commit) -> _JobState:
        told = commit.properties[PROPERTY]
        version, commit_id = told["since"]
        return cls(**{**told, "since": (version, commit_id)})


def rechunk(
    repo: RechunkRepository,
    path: str,
    *,
    chunks: int | Sequence[int] | None,
    shards: int | Sequence[int] | None = None,
    compressors: Any = KEEP,
    max_memory: int = 1 << 28,
    workers: int | None = None,
    name: str | None = None,
    branch: str = MAIN,
    message: str | None = None,
    timeout: float = 60.0,
    progress: Progress | None = None,
) -> Commit | None:
    """See `Repository.rechunk`."""
    path = path.strip("/")
    if max_memory < 1 or (workers is not None and workers < 1):
        raise ValueError(f"max_memory={max_memory!r}, workers={workers!r}: give 1 or more")
    work = f"rechunk-{name or re.sub(r'[^A-Za-z0-9_-]+', '-', path)[:90]}".rstrip("-")
    job = RechunkJob(repo, path, work, branch, max_memory, workers or _WORKERS, progress)
    try:
        return job.run(chunks, shards, compressors, message, timeout)
    except BaseException as error:
        if job.has_begun:
            error.add_note(
                f"What was copied is kept in the branch {work!r}: the same call continues. To drop it: "
                f"del repo.branches[{work!r}], or `txstore branch delete`"
            )
        raise


class RechunkJob:
    """One call: begins the job, or continues it."""

    def __init__(
        self,
        repo: RechunkRepository,
        path: str,
        work: str,
        branch: str,
        max_memory: int,
        workers: int,
        progress: Progress | None,
    ) -> None:
        self._repo = repo
        self._engine = repo.engine
        self._path = path
        self._work = work
        self._branch = branch
        self._room = max(1, max_memory // _SHARE // workers)
        self._committed = max_memory // _COMMITTED
        self._workers = workers
        self._progress = progress
        self.has_begun = False  # whether the branch of the job exists
        self._keeps_empty = False  # whether every chunk has to be stored
        self._newest: Commit  # of the branch, as far as this process knows
        self._state: _JobState
        self._target: ArrayForm

    def run(
        self,
        chunks: int | Sequence[int] | None,
        shards: int | Sequence[int] | None,
        compressors: Any,
        message: str | None,
        timeout: float,
    ) -> Commit | None:
        start = self._start()
        with reading(self._engine, start) as snapshot:
            array_at(snapshot, self._path)
            array = open_array(TxStore.at(self._engine, snapshot), self._path)
            metadata: Any = array.metadata
            self._target = target_of(array, chunks, shards, compressors)
            self._keeps_empty = any(
                isinstance(each, Complete) and each.path == self._path for each in snapshot.constraints.values()
            )
            del array
        if documents(self._target.metadata(metadata)) == documents(metadata):
            return None
        self._begin_or_continue(start, metadata)
        made = self._made()
        if made is None:
            self._copy(start, metadata)
            made = self._finish(start, message or f"rechunk {self._path} to {_shown(self._target)}", timeout)
        with suppress(KeyError):  # another process that did the same has deleted it
            del self._repo.branches[self._work]
        self.has_begun = False
        return made

    # --- beginning

    def _start(self) -> Commit:
        """Return the commit that is copied: where the branch of the job starts, or the head if there is none yet."""
        if self._work in self._repo.branches:
            self.has_begun = True
            commits = self._engine.commits
            fork = commits.branches.fork(self._engine.branch(self._work))
            stored = None if fork is None else commits.files.at(fork.branch, fork.version)
            assert stored is not None  # a vacuum keeps the commit at which a branch starts
            return stored.commit
        head = self._repo.head(self._branch)
        if head is None:
            raise NodeNotFoundError(self._path, "array", "absent")
        return head

    def _begin_or_continue(self, start: Commit, metadata: Any) -> None:
        planned = plan(read_axes(metadata), self._target.written, element_size(metadata), self._room)
        if not self.has_begun:
            self._repo.branches[self._work] = start
            self.has_begun = True
        newest = self._repo.branches[self._work]
        self._newest = newest
        if newest.branch == self._work:
            self._continue(newest)
            return
        self._state = _JobState(
            id=os.urandom(16).hex(),
            path=self._path,
            branch=self._branch,
            form=self._target.as_dict(),
            plan=planned.as_dict(),
            since=(start.version, start.id),
        )
        if planned.between is not None:
            _log.info("%s: %r is rechunked in two passes, with %s between", self._engine.url, self._path, planned)
        try:
            self._set_up(metadata, planned)
        except BaseException:
            if self._repo.branches[self._work].branch != self._work:  # nothing was copied that could be continued
                del self._repo.branches[self._work]
                self.has_begun = False
            raise

    def _continue(self, newest: Commit) -> None:
        self._state = _JobState.of(newest)
        wanted = self._path, self._branch, self._target.as_dict()
        if (self._state.path, self._state.branch, self._state.form) != wanted:
            raise TransactionStateError(
                f"the branch {self._work!r} is of another rechunk, of {self._state.path!r} to {self._state.form}: "
                "repeat that call, or give this one another name=",
                state="open",
            )

    def _set_up(self, metadata: Any, planned: CopyPlan) -> None:
        """Make the new array on the branch, without any chunk."""
        with self._step("begin", self._state) as store:
            # These look at what no commit of the branch changes, or at what only the last one is to keep.
            for name, constraint in dict(store.constraints).items():
                if not isinstance(constraint, Fixed | Frozen):
                    del store.constraints[name]
            store.delete_dir_sync(self._below(chunk_prefix(metadata)))
            _set_documents(store, self._path, self._target.metadata(metadata))
            if planned.between is not None:
                _set_documents(store, _BETWEEN, between(metadata, planned.between, self._target).metadata(metadata))

    def _below(self, name: str) -> str:
        return f"{self._path}/{name}".strip("/")

    # --- the copy, on the branch

    @contextmanager
    def _step(self, what: str, state: _JobState) -> Iterator[TxStore]:
        """Commit what the block does to the branch; from then on, `state` is the state."""
        message, properties = f"rechunk {self._path}: {what}", {PROPERTY: asdict(state)}
        if self._work not in self._repo.branches:
            self.has_begun = False
            raise TransactionStateError(
                f"the branch {self._work!r} is gone: another process has done this rechunk, or dropped what was copied",
                state="ended",
            )
        with self._repo.transaction(message, branch=self._work, properties=properties) as store:
            base = store.base
            if base is None or base.id != self._newest.id:
                raise TransactionStateError(
                    f"another process rechunks {self._path!r}, and has committed to the branch {self._work!r}: let it, "
                    "or give this call another name=",
                    state="open",
                )
            yield store
            made = store.commit()
        assert made is not None  # it has a message
        self._newest, self._state = made, state

    def _copy(self, start: Commit, metadata: Any) -> None:
        planned = CopyPlan.from_dict(self._state.plan)
        size, last = element_size(metadata), len(planned.pieces) - 1
        nbytes = math.prod(metadata.shape) * size
        while (number := self._state.passes) <= last:
            boxes = list(Pieces(metadata.shape, planned.pieces[number]))
            at = self._state.pieces
            done = nbytes * number + bytes_of(boxes[:at], size)
            self._tell(done, nbytes * (last + 1))
            for group in _grouped(boxes[at:], size, self._committed):
                at += len(group)
                # The grid between is complete, and in each later commit. The first of these may be expired by now.
                source = (
                    CopySource(self._engine, self._newest, _BETWEEN)
                    if number
                    else CopySource(self._engine, start, self._path)
                )
                state = replace(self._state, pieces=at)
                if at == len(boxes):
                    state = replace(state, passes=number + 1, pieces=0)
                with self._step(f"{at} of {len(boxes)} pieces of pass {number + 1}", state) as store:
                    self._drop_constraints(store)
                    target = open_array(
                        store, self._path if number == last else _BETWEEN, keeps_empty=self._keeps_empty
                    )

                    def tell(copied: Sequence[Box]) -> None:
                        nonlocal done
                        done += bytes_of(copied, size)
                        self._tell(done, nbytes * (last + 1))

                    copy_pieces(source, target, group, workers=self._workers, done=tell)
                    if at == len(boxes) and number == last and planned.between is not None:
                        store.delete_dir_sync(_BETWEEN)

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    @staticmethod
    def _drop_constraints(store: TxStore) -> None:
        for name in list(store.constraints):
            del store.constraints[name]

    # --- the end

    def _finish(self, start: Commit, message: str, timeout: float) -> Commit:
        """Bring the copy up to date, and put it in the place of the array. The branch of the job is left."""
        before = math.inf
        while True:
            head = self._repo.head(self._branch)
            assert head is not None  # the job began with one
            with self._changed(start, head) as (array, regions):
                left = bytes_of(regions, element_size(array.metadata))
                if left <= _FEW or left > before / 2:  # if it gets no less, others change as fast as this copies
                    break
                before = left
                with self._step(
                    "what others have changed", replace(self._state, since=(head.version, head.id))
                ) as store:
                    self._drop_constraints(store)
                    self._bring_up(store, array, regions)

        def swap(store: TxStore) -> None:
            assert store.base is not None  # the array is there
            with self._changed(start, store.base) as (array, regions), reading(self._engine, self._newest) as copied:
                below = self._below(chunk_prefix(array.metadata))
                if store.mapping.has_keys_below(below) or copied.has_keys_below(below):
                    store.restore(below, at=self._newest)
                _set_documents(store, self._path, open_array(TxStore.at(self._engine, copied), self._path).metadata)
                self._bring_up(store, array, regions)

        def swap_once(store: TxStore) -> None:
            try:
                swap(store)
            except ConflictError as conflict:  # the array has another grid: `run` would try again, and find the same
                raise _OtherGridError(conflict) from None

        properties = {PROPERTY: {"id": self._state.id, "path": self._path, **self._target.as_dict()}}
        try:
            with self._turn():
                self._repo.run(swap_once, timeout=timeout, message=message, branch=self._branch, properties=properties)
                made = self._made()
        except _OtherGridError as found:
            raise found.conflict from None
        assert made is not None  # it has a message
        return made

    @contextmanager
    def _changed(self, start: Commit, commit: Commit) -> Iterator[tuple[zarr.Array[Any], list[Box]]]:
        """Yield the array as a commit has it, and the regions in which the copy may differ from it."""
        is_first = self._state.since[1] == start.id
        with reading(self._engine, commit) as now:
            regions = None if is_first else self._regions_since(now)
            if regions is None:
                with reading(self._engine, start) as first:
                    regions = changed_regions(self._path, first, now, self._target.written)
                if not is_first:  # nobody knows any more what has changed since then
                    regions = [tuple(slice(0, length) for length in array_at(now, self._path).node.shape)]
            yield open_array(TxStore.at(self._engine, now), self._path), regions

    def _regions_since(self, now: Snapshot) -> list[Box] | None:
        """Return the regions that have changed since the copy was brought up. None: that commit is no longer kept."""
        branch = self._engine.branch(self._branch)
        try:
            before = Position(self._engine, branch=branch, exact=self._state.since).snapshot()
        except SnapshotExpiredError:
            return None
        return changed_regions(self._path, before, now, self._target.written)

    def _bring_up(self, store: TxStore, array: zarr.Array[Any], regions: Sequence[Box]) -> None:
        """Give the copy the shape and attributes that the array has, and its elements in some regions."""
        copy = open_array(store, self._path)
        if copy.shape != array.shape:
            copy.resize(array.shape)
        _set_documents(store, self._path, self._target.metadata(array.metadata))
        copy = open_array(store, self._path, keeps_empty=self._keeps_empty)
        copy_again(array, copy, regions, self._target.written, CopyPlan.from_dict(self._state.plan).pieces[-1])

    def _turn(self) -> AbstractContextManager[object]:
        """Return the turn to commit, if the storage has one that all processes wait for: so nobody commits before."""
        commits = self._engine.commits
        return commits.storage.lock(names.COMMIT_LOCK) if commits.versions.keeps_out_others else nullcontext()

    def _made(self) -> Commit | None:
        """Return the commit that has put the copy in its place, if the job has made it."""
        for commit in self._repo.log(self._branch):
            told = commit.properties.get(PROPERTY)
            if isinstance(told, dict) and told.get("id") == self._state.id:
                return commit
            if commit.id == self._state.since[1]:
                return None
        return None


def _set_documents(store: TxStore, path: str, metadata: Any) -> None:
    for name, content in documents(metadata).items():
        store[document_key(path, name)] = content


def _grouped(boxes: Sequence[Box], itemsize: int, most: int) -> Iterator[list[Box]]:
    """Yield the boxes in groups that are committed together; at least one group, which may be empty."""
    group: list[Box] = []
    size = 0
    for box in boxes:
        group.append(box)
        size += size_of(box, itemsize)
        if size >= most:
            yield group
            group, size = [], 0
    if group or not boxes:
        yield group


def _shown(target: ArrayForm) -> str:
    chunks = "×".join(map(str, target.chunks)) or "scalar"
    return chunks if target.shards is None else f"{chunks} in shards of {'×'.join(map(str, target.shards))}"
