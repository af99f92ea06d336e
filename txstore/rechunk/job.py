"""`Repository.rechunk`: copies an array to a new grid on a branch of its own, then puts it in its place in one commit.

The copy is made from the commit at which the branch starts, so a vacuum keeps both. Each commit of the branch says how
far the copy is: the same call continues it. Then the elements that others have changed since are copied again, on the
branch as long as they are many; the rest in the commit that puts the copy, by reference, in the place of the array.

All that is copied lies below the path of the array, on a branch, where an erasure of the array, or of rows of it, finds
it (I12). A step keeps the commit that it copies pinned until it has committed, so an erasure waits for it. After an
erasure the job begins anew: nothing that was read before it is committed any more.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import zarr

from txstore.commit import MAIN, Commit
from txstore.comparing.elements import joined
from txstore.comparing.nodes import compare
from txstore.engine import Engine, Position
from txstore.errors import (
    ConflictError,
    NodeNotFoundError,
    SnapshotExpiredError,
    TransactionStateError,
    TxStoreError,
)
from txstore.format import names
from txstore.format.constraints import Complete, Fixed, Frozen
from txstore.format.documents import Described, DocumentChange, compare_documents, describe
from txstore.format.grids import Grid
from txstore.format.keys import document_key
from txstore.format.mapping import Hierarchy
from txstore.history.changes import changed
from txstore.history.erasures import RECHUNK, last_met
from txstore.history.find import find_commit
from txstore.history.snapshot import Snapshot
from txstore.labels.grids import chunk_prefix, documents
from txstore.pipeline import made_own, open_own
from txstore.progress import Progress
from txstore.rechunk.plans import Box, CopyPlan, Pieces, plan, size_of
from txstore.rechunk.target import KEEP, ArrayForm, between, element_size, read_axes, target_of
from txstore.store import OpenedRepository, TxStore

#: Returns the form that an array is to have.
FormOf = Callable[[zarr.Array[Any]], ArrayForm]

_log = logging.getLogger(__name__)

#: The array of the grid between, on the branch of the job: below the path of the array, where an erasure reaches it.
_BETWEEN = "rechunk.between"
#: Behind the name of the job's branch until its first commit says whose branch it is.
_NEW = ".new"
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
        told = commit.properties[RECHUNK]
        version, commit_id = told["since"]
        return cls(**{**told, "since": (version, commit_id)})


def rechunk(
    repo: OpenedRepository,
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
    job = RechunkJob(
        repo, path, f"rechunk-{name or _hashed(path, branch)}", branch, max_memory, workers or _WORKERS, progress
    )
    try:
        return job.run(lambda array: target_of(array, chunks, shards, compressors), message, timeout)
    except BaseException as error:
        if job.has_begun:
            error.add_note(
                f"What was copied is kept in the branch {job.work!r}: the same call continues. To drop it: "
                f"del repo.branches[{job.work!r}], or `txstore branch delete`"
            )
        raise


def _hashed(path: str, branch: str) -> str:
    """Return a name for the job on a branch: names of branches come to the log of operations, and paths must not."""
    return hashlib.sha256(f"{branch}\0{path}".encode(errors="surrogatepass")).hexdigest()[:12]


class RechunkJob:
    """One call: begins the job, or continues it."""

    def __init__(
        self,
        repo: OpenedRepository,
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
        self._between = f"{path}/{_BETWEEN}".strip("/")
        self.work = work
        self._on = work  # the name that the branch of the job has now
        self._branch = branch
        self._room = max(1, max_memory // _SHARE // workers)
        self._committed = max_memory // _COMMITTED
        self._workers = workers
        self._progress = progress
        self.has_begun = False  # whether the branch of the job exists
        self._branch_id: str
        self._start: Commit  # that is copied
        self._keeps_empty = False  # whether every chunk has to be stored
        self._newest: Commit  # of the branch, as far as this process knows
        self._told: Commit  # that says how far the job is: this one, or one below
        self._state: _JobState
        self._target: ArrayForm

    def run(self, target: FormOf, message: str | None, timeout: float) -> Commit | None:
        while True:
            try:
                return self._run(target, message, timeout)
            except TxStoreError:
                if not self._has_met_erasure():
                    raise
            _log.info("%s: the rechunk of %r begins anew, after an erasure", self._engine.url, self._path)
            self._drop()

    def _run(self, target: FormOf, message: str | None, timeout: float) -> Commit | None:
        self._start = start = self._copied()
        with reading(self._engine, start) as snapshot:
            array_at(snapshot, self._path)
            array = open_array(TxStore.at(self._engine, snapshot), self._path)
            metadata: Any = array.metadata
            self._target = target(array)
            self._keeps_empty = any(
                isinstance(each, Complete) and each.path == self._path for each in snapshot.constraints.values()
            )
            del array
        if documents(self._target.metadata(metadata)) == documents(metadata):
            return None
        if self.has_begun:
            self._check_form()
        else:
            self._begin(metadata)
        made = self._made()
        if made is None:
            self._copy(metadata)
            made = self._finish(message or f"rechunk {self._path} to {_shown(self._target)}", timeout)
        self._drop()
        return made

    def _drop(self) -> None:
        with suppress(KeyError):  # another process that did the same has deleted it
            del self._repo.branches[self._on]
        self.has_begun = False

    # --- beginning

    def _copied(self) -> Commit:
        """Return the commit that is copied: where the branch of the job starts, or the head if there is none yet."""
        with suppress(KeyError):  # it is left if a process was killed while it began: that one has copied nothing
            del self._repo.branches[self.work + _NEW]
        if self.work in self._repo.branches:
            self._on = self.work
            self._branch_id = self._engine.branch(self.work)
            self._newest, self._told = self._look()
            commits = self._engine.commits
            fork = commits.branches.fork(self._branch_id)
            stored = None if fork is None else commits.files.at(fork.branch, fork.version)
            assert stored is not None  # a vacuum keeps the commit at which a branch starts
            return stored.commit
        head = self._repo.head(self._branch)
        if head is None:
            raise NodeNotFoundError(self._path, "array", "absent")
        return head

    def _begin(self, metadata: Any) -> None:
        """Make the branch of the job. It has its name from when a commit on it says that it is the job's."""
        planned = plan(read_axes(metadata), self._target.written, element_size(metadata), self._room)
        start, self._on = self._start, self.work + _NEW
        self._repo.branches[self._on] = self._newest = start
        self._branch_id = self._engine.branch(self._on)
        state = _JobState(
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
            self._set_up(metadata, planned, state)
            self._repo.branches.rename(self._on, self.work)
        except BaseException:  # nothing was copied that could be continued
            self._drop()
            raise
        self._on = self.work
        self.has_begun = True

    def _look(self) -> tuple[Commit, Commit]:
        """Return the newest commit of the branch, and the newest one that says how far the job is.

        Those above that one have done something else: an `optimize` of all branches, or a freeze.
        """
        newest, told = self._repo.branches[self._on], None
        for commit in self._repo.log(self._on):
            if commit.branch != self._on:
                break
            if RECHUNK in commit.properties:
                told = commit
                break
        if told is None:
            raise TransactionStateError(
                f"the branch {self._on!r} does not say that it is of a rechunk: give this call another name=, or "
                "rename or delete that branch",
                state="open",
            )
        if not self.has_begun:
            self._state = _JobState.of(told)
            self.has_begun = True
        if told.id != newest.id:
            with reading(self._engine, told) as before, reading(self._engine, newest) as after:
                if next(changed(before, after, self._path), None) is not None:
                    raise TransactionStateError(
                        f"{newest} has changed what was copied of {self._path!r}. If that is an erasure, wait for its "
                        f"end, then repeat this call. Otherwise delete the branch {self._on!r}, and begin again",
                        state="open",
                    )
        return newest, told

    def _check_form(self) -> None:
        wanted = self._path, self._branch, self._target.as_dict()
        if (self._state.path, self._state.branch, self._state.form) != wanted:
            raise TransactionStateError(
                f"the branch {self.work!r} is of another rechunk, of {self._state.path!r} to {self._state.form}: "
                "repeat that call, or give this one another name=",
                state="open",
            )

    # --- erasures

    def _has_met_erasure(self) -> bool:
        return (
            self.has_begun
            and self._state.path == self._path
            and last_met(self._engine.storage, self._branch_id, self._path) is not None
        )

    def _check_erasures(self) -> None:
        """Look before each commit: what was read before an erasure must not be committed after it."""
        if self._has_met_erasure():
            raise TxStoreError(f"an erasure has met the rechunk of {self._path!r}")

    def _set_up(self, metadata: Any, planned: CopyPlan, state: _JobState) -> None:
        """Make the new array on the branch, without any chunk."""
        with self._step("begin", state) as store:
            # These look at what no commit of the branch changes, or at what only the last one is to keep.
            for name, constraint in dict(store.constraints).items():
                if not isinstance(constraint, Fixed | Frozen):
                    del store.constraints[name]
            store.delete_dir_sync(self._below(chunk_prefix(metadata)))
            _set_documents(store, self._path, self._target.metadata(metadata))
            if planned.between is not None:
                form = between(metadata, planned.between, self._target)
                _set_documents(store, self._between, form.metadata(metadata))

    def _below(self, name: str) -> str:
        return f"{self._path}/{name}".strip("/")

    # --- the copy, on the branch

    @contextmanager
    def _step(self, what: str, state: _JobState) -> Iterator[TxStore]:
        """Commit what the block does to the branch; from then on, `state` is the state."""
        message, properties = f"rechunk {self._path}: {what}", {RECHUNK: asdict(state)}
        if self._on not in self._repo.branches:
            self.has_begun = False
            raise TransactionStateError(
                f"the branch {self.work!r} is gone: another process has done this rechunk, or dropped what was copied",
                state="ended",
            )
        with (
            reading(self._engine, self._start),  # an erasure waits until what was read is committed, and finds it there
            self._repo.transaction(message, branch=self._on, properties=properties) as store,
        ):
            base = store.base
            if base is None or (base.id != self._newest.id and self._look()[1].id != self._told.id):
                raise TransactionStateError(
                    f"another process rechunks {self._path!r}, and has committed to the branch {self.work!r}: let it, "
                    "or give this call another name=",
                    state="open",
                )
            yield store
            self._check_erasures()
            made = store.commit()
        assert made is not None  # it has a message
        self._newest, self._told, self._state = made, made, state

    def _copy(self, metadata: Any) -> None:
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
                source = (self._newest, self._between) if number else (self._start, self._path)
                state = replace(self._state, pieces=at)
                if at == len(boxes):
                    state = replace(state, passes=number + 1, pieces=0)
                with self._step(f"{at} of {len(boxes)} pieces of pass {number + 1}", state) as store:
                    self._drop_constraints(store)
                    target = open_array(
                        store, self._path if number == last else self._between, keeps_empty=self._keeps_empty
                    )

                    def tell(copied: Sequence[Box]) -> None:
                        nonlocal done
                        done += bytes_of(copied, size)
                        self._tell(done, nbytes * (last + 1))

                    copy_pieces(self._engine, *source, target, group, workers=self._workers, done=tell)
                    if at == len(boxes) and number == last and planned.between is not None:
                        store.delete_dir_sync(self._between)

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    @staticmethod
    def _drop_constraints(store: TxStore) -> None:
        for name in list(store.constraints):
            del store.constraints[name]

    # --- the end

    def _finish(self, message: str, timeout: float) -> Commit:
        """Bring the copy up to date, and put it in the place of the array. The branch of the job is left."""
        before = math.inf
        while True:
            head = self._repo.head(self._branch)
            assert head is not None  # the job began with one
            with self._changed(head) as (array, regions):
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
            self._check_erasures()  # or else the copy may not be restored
            with self._changed(store.base) as (array, regions), reading(self._engine, self._newest) as copied:
                below = self._below(chunk_prefix(array.metadata))
                if store.mapping.has_keys_below(below) or copied.has_keys_below(below):
                    store.restore(below, at=self._newest)
                _set_documents(store, self._path, open_array(TxStore.at(self._engine, copied), self._path).metadata)
                self._bring_up(store, array, regions)
            self._check_erasures()

        def swap_once(store: TxStore) -> None:
            try:
                swap(store)
            except ConflictError as conflict:  # the array has another grid: `run` would try again, and find the same
                raise _OtherGridError(conflict) from None

        properties = {RECHUNK: {"id": self._state.id, "path": self._path, **self._target.as_dict()}}
        try:
            with self._turn():
                self._repo.run(swap_once, timeout=timeout, message=message, branch=self._branch, properties=properties)
                made = self._made()
        except _OtherGridError as found:
            raise found.conflict from None
        assert made is not None  # it has a message
        return made

    @contextmanager
    def _changed(self, commit: Commit) -> Iterator[tuple[zarr.Array[Any], list[Box]]]:
        """Yield the array as a commit has it, and the regions in which the copy may differ from it."""
        is_first = self._state.since[1] == self._start.id
        with reading(self._engine, commit) as now:
            regions = None if is_first else self._regions_since(now)
            if regions is None:
                with reading(self._engine, self._start) as first:
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
        return commits.storage.lock(names.COMMIT_LOCK) if commits.store.keeps_out_others else nullcontext()

    def _made(self) -> Commit | None:
        """Return the commit that has put the copy in its place, if the job has made it."""
        for commit in self._repo.log(self._branch):
            told = commit.properties.get(RECHUNK)
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


def changed_regions(path: str, before: Snapshot, after: Snapshot, unit: Sequence[int]) -> list[Box]:
    """Return the regions of an array, within its present shape, that may differ between two commits of a branch.

    `unit` is the shape of the new grid's chunks, or shards. Raises `ConflictError` if the array has other chunks,
    codecs or another dtype now, and `NodeNotFoundError` if it is gone.
    """
    old, new = array_at(before, path), array_at(after, path)
    if old.key != new.key or compare_documents(new.key, old.content, new.content) is DocumentChange.STRUCTURE:
        raise ConflictError(
            [new.key],
            reason="another commit gave the array other chunks, codecs or another dtype while it was rechunked, or "
            "put another array in its place",
            advice="Decide which of the two is to be kept. To begin again, delete what was copied: the branch that a "
            "note to this error names",
            base=before.commit,
            head=after.commit,
        )
    found = next((node for node in compare(changed(before, after, path), before, after) if node.path == old.path), None)
    regions = [] if found is None else _within(found.regions, new.node.shape)
    return regions + _grown(old, new, unit)


def array_at(snapshot: Snapshot, path: str) -> Described:
    """Return an array's documents. Raises `NodeNotFoundError`."""
    found = describe(snapshot.get_view, path)
    if found is None or found.kind != "array":
        raise NodeNotFoundError(path, "array", "absent" if found is None else found.kind)
    return found


def _within(regions: Sequence[Box], shape: Sequence[int]) -> list[Box]:
    """Return what of some regions lies within a shape."""
    cut = [tuple(slice(part.start, min(part.stop, n)) for part, n in zip(each, shape, strict=True)) for each in regions]
    return [each for each in cut if all(part.start < part.stop for part in each)]


def _grown(old: Described, new: Described, unit: Sequence[int]) -> list[Box]:
    """Return what lay behind the old ends of an array in chunks of both grids, where the array has grown.

    An array that had shrunk before shows again there what its last chunks still have.
    """
    shape = new.node.shape
    found = []
    for number, (axis, size) in enumerate(zip(old.grid().axes, unit, strict=True)):
        if shape[number] > axis.extent:
            ends = int(axis.start_of(axis.count)), -(-axis.extent // size) * size
            box = [slice(0, length) for length in shape]
            box[number] = slice(axis.extent, min(shape[number], max(ends)))
            found.append(tuple(box))
    return _within(found, shape)


@contextmanager
def reading(engine: Engine, commit: Commit) -> Iterator[Snapshot]:
    """Yield a snapshot of a commit. Afterwards it keeps no file mapped, whoever still refers to it."""
    own = engine.snapshots.own(engine.snapshots.of(find_commit(engine.commits, commit)))
    try:
        yield own
    finally:
        own.let_go()


def open_array(store: TxStore, path: str, *, keeps_empty: bool = False) -> zarr.Array[Any]:
    """Open an array to read, or to write in a transaction. `keeps_empty`: store also chunks that are all fill value."""
    found = open_own(store, path, mode="r" if store.read_only else "r+")
    return made_own(found.with_config({"write_empty_chunks": keeps_empty}))


def copy_pieces(
    engine: Engine,
    commit: Commit,
    path: str,
    target: zarr.Array[Any],
    boxes: Sequence[Box],
    *,
    workers: int,
    done: Callable[[Sequence[Box]], object],
) -> None:
    """Copy boxes of an array of a commit, some at once. `done` is called with those that are copied, in order.

    Files that were mapped for some boxes are let go of before the next ones: mapped pages count as memory of the
    process, even if the system may drop them.
    """
    with ThreadPoolExecutor(workers, thread_name_prefix="txstore-rechunk") as pool:
        for start in range(0, len(boxes), workers):
            group = boxes[start : start + workers]
            with reading(engine, commit) as own:
                source, grid = open_array(TxStore.at(engine, own), path), array_at(own, path).grid()
                for _ in pool.map(partial(_copy, source, target, grid, own), group):
                    pass
            done(group)


def _copy(source: zarr.Array[Any], target: zarr.Array[Any], grid: Grid, view: Hierarchy, box: Box) -> None:
    """Copy a box if anything of it is stored."""
    if _is_stored(grid, view, box):
        target[box or ...] = source[box or ...]


def _is_stored(grid: Grid, view: Hierarchy, box: Box) -> bool:
    """Tell whether any chunk of a box is stored. The others are all fill value."""
    return any(key in view for key in grid.keys(grid.touched(box)))


def copy_again(
    source: zarr.Array[Any], target: zarr.Array[Any], regions: Sequence[Box], unit: Sequence[int], piece: Sequence[int]
) -> None:
    """Copy regions of an array to a grid with chunks (or shards) of shape `unit`, each chunk of which is written once.

    At a time, about what a box of shape `piece`, which is a multiple of `unit`, has is in memory.
    """
    for box, parts in _rewritten(target.shape, regions, unit, piece):
        if parts == [box]:
            target[box or ...] = source[box or ...]
            continue
        values: Any = target[box]
        for part in parts:
            inside = tuple(slice(p.start - b.start, p.stop - b.start) for p, b in zip(part, box, strict=True))
            values[inside] = source[part]
        target[box] = values


def _rewritten(
    shape: Sequence[int], regions: Sequence[Box], unit: Sequence[int], piece: Sequence[int]
) -> Iterator[tuple[Box, list[Box]]]:
    """Yield boxes of whole chunks of the new grid, each with the parts of the regions that lie in it."""
    pieces = Pieces(tuple(shape), tuple(piece))
    met: dict[tuple[int, ...], list[Box]] = defaultdict(list)
    for region in regions:
        for place in _places(region, piece):
            met[place].append(_common(region, pieces.box(place)))
    for place in sorted(met):
        for chunks in joined({chunk for part in met[place] for chunk in _places(part, unit)}):
            box = tuple(
                slice(first * size, min(last * size, length))
                for (first, last), size, length in zip(chunks, unit, shape, strict=True)
            )
            yield box, [_common(part, box) for part in met[place] if _meet(part, box)]


def _places(region: Box, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the places, in a regular grid, of the cells that a region meets."""
    return product(
        *(range(part.start // size, -(-part.stop // size)) for part, size in zip(region, sizes, strict=True))
    )


def _common(one: Box, other: Box) -> Box:
    return tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True))


def _meet(one: Box, other: Box) -> bool:
    return all(part.start < part.stop for part in _common(one, other))


def bytes_of(regions: Sequence[Box], itemsize: int) -> int:
    return sum(size_of(region, itemsize) for region in regions)
