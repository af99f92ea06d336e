"""Offers one repository to users: transactions, snapshots, history, branches, tags and maintenance."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar, overload

from txstore import observing
from txstore.codecs.chunk_cache import ChunkCache, parse_size
from txstore.commit import MAIN, Commit, Stored
from txstore.comparing.diff import Diff, OpenArray
from txstore.comparing.nodes import compare
from txstore.deriving.declared import decode
from txstore.engine import Engine, Position
from txstore.errors import (
    CommitNotFoundError,
    ConflictError,
    NodeNotFoundError,
    RepositoryNotFoundError,
    SnapshotExpiredError,
    TxStoreError,
    keeps_nothing,
)
from txstore.feeds.named_feeds import Feeds
from txstore.format.constraints import Constraint, Frozen
from txstore.format.display import html_head, html_lines
from txstore.format.records import SNAPSHOT, Isolation
from txstore.format.tree import tree_lines
from txstore.history.ancestry import common_ancestors
from txstore.history.branches import Branches, Tags
from txstore.history.changes import changed, commits_of, common_ancestor, parent_of
from txstore.history.commits import Commits
from txstore.history.declarations import Constraints
from txstore.history.erasures import Erasure, read_erasures
from txstore.history.find import At, find_commit
from txstore.history.follow import follow
from txstore.history.log import Log, changing
from txstore.history.opening import CHUNK_CACHE_SIZE, Access
from txstore.history.operations import LoggedOperation, read_operations, recorded
from txstore.history.snapshot import Snapshot
from txstore.maintenance.backup import Backup, back_up
from txstore.maintenance.erase import Erasing, ErasureReport, check_paths, erasing
from txstore.maintenance.optimize import optimize
from txstore.maintenance.repair import verify_and_repair
from txstore.maintenance.report import Report
from txstore.maintenance.usage import Usage, usage
from txstore.maintenance.vacuum import VacuumReport, vacuum
from txstore.maintenance.verify import check_sources, verify
from txstore.merging import merge_commits
from txstore.merging.merge_commits import settling
from txstore.merging.merge_conflicts import Answer
from txstore.merging.three_way import MergePlan
from txstore.progress import Progress, Wanted, showing
from txstore.storage.foreign_files import Given, allowed
from txstore.storage.kept import CACHE_SIZE
from txstore.transactions.conflicts import Settle
from txstore.transactions.participants.named import NamedTransaction, transactions
from txstore.transactions.regions import Lock
from txstore.transactions.transaction import Transaction
from txstore.views.following import DeclaredView, RepositoryViews

if TYPE_CHECKING:
    from xarray import Dataset

    from txstore.comparing.blame import Blame
    from txstore.deriving.definitions import ViewDefinition
    from txstore.interchange.checkout import Checkout
    from txstore.interchange.places import Source
    from txstore.interchange.publish import Export, Published
    from txstore.interchange.references import References
    from txstore.labels import Upserted
    from txstore.serving.server import Shown
    from txstore.storage.commit_lock import RetryTurn
    from txstore.store import TxStore

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds. The first is the longest pause before `run` retries for the first time. It doubles with each retry.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 1.0
_LEAST_RETRIES = 10
#: Number of commits that a notebook shows for a repository.
_SHOWN_COMMITS = 5


def _texts(paths: Sequence[str | Mapping[str, Any]]) -> tuple[str, ...]:
    """Return paths of nodes. Raises `TypeError`."""
    for path in paths:
        if not isinstance(path, str):
            raise TypeError(f"{path!r} is no path: a mapping of rows comes last, and once")
    return tuple(path for path in paths if isinstance(path, str))


def _made(commit: Commit | None) -> dict[str, str]:
    """Return what the record of an operation says of the commit that the operation made."""
    return {} if commit is None else {"commit": commit.id}


def _counted(report: ErasureReport) -> dict[str, Any]:
    """Return what the record of an operation says of an erasure: never what was erased."""
    return {"values": report.values, "bytes": report.bytes, "files": report.files, **_made(report.commit)}


class Repository:
    """One TxStore repository.

    Parameters
    ----------
    url : str or PathLike
        The location of the repository. The first write creates it; reading never does.
    create : bool
        With False, a missing repository raises `RepositoryNotFoundError` at once. So a misspelled path does not create
        a second repository.
    durability : {"fsync", "none"}
        "fsync": `commit` returns only when the commit will survive a loss of power. "none" is for scratch data.
    storage_options : dict, optional
        Options for the fsspec file system of the URL, such as credentials and endpoints. TxStore keeps them in this
        process and in its pickles, and writes them nowhere else.
    single_writer : bool
        For a file system that can't create files exclusively (`docs/how-to/remote.md`): you promise that no other
        process ever writes this repository. Without this promise, such a repository is read-only.
    cache_dir : str or PathLike, optional
        A local directory in which all processes that name it cache remote data, `cache_size` bytes at most. By
        default each process caches 64 MiB in memory.
    retention : int or timedelta, optional
        How many of the newest commits to keep, or for how long. A process that commits with this option sometimes
        expires and compacts older commits. By default only `vacuum` expires commits. Tagged commits stay.
    sources : dict, list of str, or str, optional
        Directories or URLs below which foreign values may lie, in files outside the repository
        (`docs/how-to/virtual.md`). A dict also gives the options of their fsspec file systems. TxStore opens no
        other file, whatever the repository says.
    commit_timeout : float, optional
        Seconds that a commit, or maintenance, waits for another process that commits or does maintenance. Then it
        raises `CommitTimeoutError`, which names that process. The staged changes remain: you can commit them again.
        By default there is no limit, and a `CommitWaitWarning` after 5 seconds.
    chunk_cache : int or str
        Bytes of decoded chunks that this process keeps in memory, such as "256 MiB". Reads of snapshots, by any
        thread, find a chunk there that was read before. Whole arrays are read past it. See `Repository.chunk_cache`.

    Examples
    --------
    >>> import numpy as np, tempfile, txstore, zarr
    >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
    >>> with repo.transaction("add positions") as store:
    ...     z = zarr.create_array(store, name="position", data=np.arange(6), chunks=(2,))
    >>> zarr.open_array(repo.snapshot(), path="position", mode="r")[:]
    array([0, 1, 2, 3, 4, 5])
    >>> [commit.message for commit in repo.log()]
    ['add positions']
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        create: bool = True,
        durability: Literal["fsync", "none"] = "fsync",
        storage_options: Mapping[str, Any] | None = None,
        single_writer: bool = False,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int = CACHE_SIZE,
        retention: int | timedelta | None = None,
        sources: Given | None = None,
        commit_timeout: float | None = None,
        chunk_cache: int | str = CHUNK_CACHE_SIZE,
    ) -> None:
        if commit_timeout is not None and not commit_timeout >= 0:
            raise ValueError(f"commit_timeout={commit_timeout!r}: give seconds, 0 or more, or None for no limit")
        cache = None if cache_dir is None else os.path.abspath(os.path.expanduser(cache_dir))
        access = Access(
            dict(storage_options or {}),
            single_writer,
            cache,
            cache_size,
            allowed(sources),
            commit_timeout,
            parse_size(chunk_cache),
        )
        self.engine = Engine(url, durability=durability, access=access, retention=retention)
        if not self.engine.exists(creating=create) and not create:  # raises if something else is at this path
            raise RepositoryNotFoundError(self.url)

    @property
    def url(self) -> str:
        """The location of the repository."""
        return self.engine.url

    @property
    def id(self) -> str:
        """The repository's id, 32 hexadecimal digits. Raises `RepositoryNotFoundError` before the first write."""
        return self.engine.commits.identity.id.hex()

    @property
    def chunk_cache(self) -> ChunkCache:
        """The decoded chunks in memory: `hits` and `misses`, `size` of `capacity` in bytes, and `clear()`."""
        return self.engine.chunk_cache

    @property
    def exists(self) -> bool:
        """Whether a process has written anything here."""
        return self.engine.exists()

    if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts every misspelled name

        def __getattr__(self, name: str) -> Never:
            # xarray asks for this attribute when a user passes the repository as a store. zarr's own error would not
            # help the user.
            if name == "supports_consolidated_metadata":
                raise TypeError(
                    "zarr and xarray can't use a repository as a store. Write to a transaction: "
                    "`with repo.transaction() as store: ds.to_zarr(store)`; read a snapshot: "
                    "`xr.open_zarr(repo.snapshot())`"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<Repository {self.url}>"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the newest commits, the arrays and groups, and their sizes."""
        head = html_head("Repository", self.url)
        try:
            if not self.exists:
                return f"{head} nothing was written yet"
            names = ", ".join(self.branches)
            told = [f"{len(self.branches)} branches: {names}" if len(self.branches) > 1 else f"branch {names}"]
            told += [f"tags: {', '.join(self.tags)}"] if self.tags else []
            newest = self.log(limit=_SHOWN_COMMITS)
            return (
                head
                + html_lines(told)
                + newest._repr_html_()
                + html_lines(tree_lines(self.mapping()))
                + self.usage()._repr_html_()
            )
        except (TxStoreError, OSError) as error:  # a notebook's cell shows the error and does not fail
            return head + html_lines([str(error)])

    def show(self, *, height: int = 600) -> Shown:
        """Show the page of this repository in a notebook: history, arrays, pictures, differences and writers.

        A server answers on this machine only, until you call `close()` on the result or the process ends. Needs
        `txstore[serve]`. If the browser is on another machine, forward the port that this prints.
        """
        try:
            from txstore.serving.server import show  # late: this needs uvicorn
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            told = f"the page needs {missing}, which is not installed: pip install 'txstore[serve]'"
            raise ModuleNotFoundError(told, name=missing) from error
        return show(self, height)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Repository) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    # --- writing

    def transaction(
        self,
        message: str | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        lock: Lock | None = None,
        lock_timeout: float | None = 60.0,
        properties: Mapping[str, Any] | None = None,
        isolation: Isolation = SNAPSHOT,
        on_conflict: Literal["merge"] | None = None,
    ) -> TxStore:
        """Return a writable store, a context manager: it commits on a clean exit and rolls back on an exception.

        If you pickle the store, or fork, the other process stages into the same transaction. It need not send anything
        back: the owner commits everything, or nothing.

        Parameters
        ----------
        message : str, optional
            The commit's message in the log. With a message or properties, TxStore makes a commit even if nothing
            changed. Without either, it then makes none, and `store.commit()` returns None. In both cases
            `store.unchanged` is True.
        name : str, optional
            Join the transaction with this name, or begin it. For processes that share nothing but the disk. Leaving
            the block, also by an exception, then ends only this process's part. When all other processes have left,
            any process can end the transaction with `commit()` or `rollback()`. The transaction survives the processes
            that stage into it. Each call joins as a separate participant, also from threads of one process.
        lock : dict, list or str, optional
            Chunks to lock until this transaction ends; other transactions that lock them wait. Either
            `{path: selection}`, where a selection is an index of the array or `txstore.APPEND`, or the paths of whole
            arrays. The transaction's base is the head at the moment when it holds the locks.
        lock_timeout : float, optional
            Seconds to wait for the locks. None waits without limit.
        properties : dict, optional
            A JSON object that TxStore stores with the commit.
        isolation : {"snapshot", "serializable"}
            "snapshot": the commit conflicts if another commit has written data that this transaction writes.
            "serializable": it also conflicts if another commit has changed data that this transaction read: values,
            missing keys, and names in listings. If all transactions are serializable, their effect is as if they had
            run one after the other. A transaction that only reads, and has no message, never conflicts. TxStore keeps
            one entry in memory per key read. A process that joined another process's transaction also makes one small
            write per key.
        on_conflict : {None, "merge"}
            "merge": if the commit conflicts with newer commits, TxStore merges them as `merge` merges branches: chunks
            element by element, attributes key by key, and a larger shape together with other changes. If both have
            changed the same element or key, even to equal values, `ConflictError` is raised; its `conflicts` say
            where. By default, TxStore merges only the elements of chunks that this transaction wrote in part.

        Raises
        ------
        LockTimeoutError
            Another transaction holds the locks.
        TransactionStateError
            A process is ending the transaction with this name, or it has less isolation.
        """
        from txstore.store import TxStore  # late: `begin` and `mapping` work without zarr 3

        if name is not None and lock is not None:
            raise ValueError("a transaction with a name outlives its processes and their locks: use store.lock()")
        settle = self._settling(on_conflict, name, isolation)
        first, branch = None, self.engine.branch(branch)
        if name is not None:
            first = self.engine.named(name, branch=branch, message=message, properties=properties, isolation=isolation)
        elif lock is not None:
            first = self.engine.begin(
                branch=branch,
                message=message,
                properties=properties,
                lock=lock,
                lock_timeout=lock_timeout,
                isolation=isolation,
                settle_conflicts=settle,
            )
        return TxStore.begin(
            self.engine, branch=branch, message=message, properties=properties, first=first, isolation=isolation,
            settle_conflicts=settle,
        )  # fmt: skip

    @staticmethod
    def _settling(on_conflict: str | None, name: str | None, isolation: str) -> Settle | None:
        settle = settling(on_conflict)
        if settle is not None and (name is not None or isolation != SNAPSHOT):
            raise ValueError(
                "on_conflict='merge' is for transactions without a name, with isolation='snapshot': leave it out here"
            )
        return settle

    def transactions(self) -> list[NamedTransaction]:
        """Return the named transactions that no process has committed or rolled back."""
        return list(transactions(self._existing()))

    def begin(
        self,
        message: str | None = None,
        *,
        branch: str = MAIN,
        properties: Mapping[str, Any] | None = None,
        isolation: Isolation = SNAPSHOT,
        on_conflict: Literal["merge"] | None = None,
    ) -> Transaction:
        """Return a transaction as a plain `MutableMapping[str, bytes]`, for zarr 2 and libraries that take a mapping.

        `isolation` and `on_conflict` are as in `transaction`.
        """
        settle, branch = self._settling(on_conflict, None, isolation), self.engine.branch(branch)
        return self.engine.begin(
            branch=branch, message=message, properties=properties, isolation=isolation, settle_conflicts=settle
        )

    def run(
        self,
        fn: Callable[[TxStore], T],
        *,
        retries: int | None = None,
        timeout: float = 60.0,
        **transaction_arguments: Any,
    ) -> T:
        """Run `fn(store)` in a transaction. If its commit conflicts, run it again on the new head.

        It also retries if a vacuum expired the base just as the transaction began. Returns the result of `fn`. Raises
        `ConflictError` or `SnapshotExpiredError` after `retries` retries; by default after `timeout` seconds and at
        least ten retries. `fn` must not keep array objects of an earlier run.

        On a disk, committers that have met conflicts take turns: `fn` runs when the committers ahead have committed.
        They wait for 3 seconds, or as long as twenty runs of `fn` take, but no longer than 30 seconds. On an object
        store, each pauses for a random time before it tries again.
        """
        began = time.monotonic()
        pause, made = _FIRST_PAUSE, 0
        with self._retry_turn(transaction_arguments) as retry_turn:
            while True:
                tried = time.monotonic()
                try:
                    with self.transaction(**transaction_arguments) as store:
                        result = fn(store)
                    return result
                except (ConflictError, SnapshotExpiredError) as error:
                    now, reason = time.monotonic(), type(error).__name__
                    is_late = made >= _LEAST_RETRIES and now - began > timeout
                    if is_late if retries is None else made >= retries:
                        raise
                made += 1
                _log.info("%s: commit retried on the new head, retry %d: %s", self.url, made, reason)
                observing.count("commit.retries", 1, reason=reason)
                if retry_turn is not None and retry_turn.lost(tried, began + timeout):
                    continue
                # If one attempt takes long, as on an object store, a short pause would not separate the committers.
                pause = min(max(pause, (now - tried) / 4), _LONGEST_PAUSE)
                time.sleep(random.uniform(0, pause))
                pause *= 2

    def _retry_turn(self, arguments: Mapping[str, Any]) -> AbstractContextManager[RetryTurn | None]:
        """Return the turn that this process takes if it has met conflicts; None where processes take no turns."""
        if arguments.get("name") is not None or arguments.get("lock") is not None or not self.exists:
            return nullcontext()
        return self.engine.storage.retry_turn(self.engine.branch(arguments.get("branch", MAIN)))

    @keeps_nothing
    def upsert(
        self,
        ds: Dataset,
        dim: str | Sequence[str] = "time",
        group: str = "",
        *,
        existing: Literal["update", "keep", "raise"] = "update",
        missing: Literal["append", "insert", "raise"] = "append",
        message: str | None = None,
        branch: str = MAIN,
        properties: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
    ) -> Upserted:
        """Write an xarray dataset by the labels of its coordinates, in one commit. See docs/how-to/write-by-label.md.

        Rows whose label is stored are changed, element by element. The others are added, to every variable with the
        dimension. The result counts both. If all values are there already, there is no commit: a job may run twice.

        Upserts of different labels by several processes all survive, wherever their rows are by then: if another
        process has committed first, this repeats the upsert on the new head, until `timeout` seconds have passed. Data
        of Dask are computed and written piece by piece, in parallel; a repetition computes them again.

        Parameters
        ----------
        ds : xarray.Dataset
            Its labels may be in any order: numbers, dates (of numpy or cftime), durations or text. Values are stored
            in the units, scale and dtype of the stored arrays. Variables without the dimensions must be equal to the
            stored ones.
        dim : str or sequence of str
            The dimensions whose labels say where the data belong. Along several, the dataset is a block.
        group : str
            The group of the variables. If there is nothing yet, the upsert writes the first rows.
        existing : {"update", "keep", "raise"}
            What to do with rows whose label is stored.
        missing : {"append", "insert", "raise"}
            What to do with the others: put them at the end, in the order of `ds`, or where the order of the labels has
            them. The rows behind then move: whole chunks by reference, the rest is written again.

        Raises
        ------
        LabelConflictError
            Another process has changed the same labels since this call began. It names them.
        ValueError, TypeError
            Labels are repeated, missing (NaN or NaT), or can't be stored exactly; or the variables are not those of
            the group.
        ConflictError
            Others committed first until the time was up.

        Examples
        --------
        >>> import tempfile, txstore, xarray as xr
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> repo.upsert(xr.Dataset({"t": ("x", [1.0, 3.0])}, {"x": [10, 30]}), dim="x")
        Upserted(updated=0, inserted=2)
        >>> repo.upsert(xr.Dataset({"t": ("x", [9.0, 2.0])}, {"x": [30, 20]}), dim="x", missing="insert")
        Upserted(updated=1, inserted=1)
        >>> xr.open_dataset(repo, engine="txstore").t.values
        array([1., 2., 9.])
        """
        from txstore.labels.upsert import upsert_into  # late: it needs xarray

        return upsert_into(
            self, ds, dim=dim, group=group, existing=existing, missing=missing, message=message, branch=branch,
            properties=properties, timeout=timeout,
        )  # fmt: skip

    @keeps_nothing
    def rechunk(
        self,
        path: str,
        *,
        chunks: int | Sequence[int] | None = None,
        shards: int | Sequence[int] | None = None,
        compressors: Any = "keep",
        max_memory: int | str = 1 << 28,
        workers: int | None = None,
        name: str | None = None,
        branch: str = MAIN,
        message: str | None = None,
        timeout: float = 60.0,
        progress: Wanted = None,
    ) -> Commit | None:
        """Give an array other chunks, shards or compressors in one commit, while others read and write it.

        Everything else stays: values, dtype, fill value, attributes, names of dimensions. Chunks that are not stored
        stay so. Snapshots, and older commits, have the old chunks. What others commit to the array meanwhile is taken
        over, element by element, with its shape and attributes. Transactions that began before this commit and have
        written to the array raise `ConflictError` or `StaleArrayError`: `repo.run` tries again. See
        docs/how-to/rechunk.md.

        The copy is made on a branch `rechunk-NAME`, which is deleted at the end. If this is interrupted, the same call
        continues it; deleting the branch drops what was copied. A vacuum keeps it as long as the branch is there.

        Parameters
        ----------
        path : str
            The path of the array.
        chunks : int, sequence of int or None
            The lengths of a chunk in elements, one for each axis. With shards, those of the chunks in a shard. None: as
            they are; then the shards are, too, unless they are given.
        shards : int, sequence of int or None
            The lengths of a shard, multiples of those of a chunk. None: no shards.
        compressors : optional
            What `zarr.create_array` takes: a codec or a list of them, "auto", or None for no compression. By default
            as they are.
        max_memory : int or str
            Bytes, or a text such as "256 MiB", that the copy takes of memory, about. It also decides how often old
            chunks are read: with little memory, or very different chunks, the array is copied in two passes, with a
            grid between the two. A call that continues another one keeps its pieces.
        workers : int, optional
            The number of pieces that are copied at once; all of them have to fit in `max_memory`. By default 2.
        name : str, optional
            A name for this job, by default a hash of the path and the branch. The log of operations keeps it, also
            after the array was erased.
        branch : str
            The branch to commit to.
        timeout : float
            Seconds for which the last commit is tried again while others commit first. On a local disk it has its turn.
            Elsewhere writers that never pause can be faster each time: `ConflictError`, and the same call continues.
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes of elements, of both passes if there are two; True shows a bar.

        Returns
        -------
        Commit or None
            None if the array has these chunks, shards and compressors already.

        Raises
        ------
        ValueError
            The array can't have such chunks, or `max_memory` is not enough for one chunk.
        NodeNotFoundError
            There is no array at the path, or no longer.
        ConflictError
            Another commit gave the array another structure meanwhile.
        TransactionStateError
            Another process does the same, or the branch is of another job.
        ConstraintError
            A constraint forbids it.

        Examples
        --------
        >>> import numpy as np, tempfile, txstore, zarr
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> with repo.transaction() as store:
        ...     z = zarr.create_array(store, name="x", data=np.arange(12), chunks=(4,))
        >>> repo.rechunk("x", chunks=6).message
        'rechunk x to 6'
        >>> zarr.open_array(repo.snapshot(), path="x", mode="r").chunks
        (6,)
        """
        self._existing()
        from txstore.rechunk import rechunk  # late: it needs zarr 3

        with showing(progress, "rechunk") as told:
            return rechunk(
                self, path, chunks=chunks, shards=shards, compressors=compressors, max_memory=parse_size(max_memory),
                workers=workers, name=name, branch=branch, message=message, timeout=timeout, progress=told,
            )  # fmt: skip

    # --- reading

    def snapshot(self, at: At | None = None, *, branch: str = MAIN, tag: str | None = None) -> TxStore:
        """Return a read-only store at the newest commit, or at the commit that `at` or `tag` names.

        `at` is a version (-1 is the newest commit), a `Commit`, its id (or the first digits of it), a tag, a branch, or
        a date: the newest commit that is not later. A date is an aware datetime, ISO 8601 text with a zone, or a
        `numpy.datetime64`, which is in UTC. "HEAD" is the newest commit of the branch. "dev@3" is version 3 of the
        branch "dev". "HEAD~1" is one commit before the head, "v1~2" two commits before the tag "v1".

        Raises
        ------
        RepositoryNotFoundError
            No process has written anything here.
        CommitNotFoundError
            There is no such commit or tag.
        """
        from txstore.store import TxStore  # late: `mapping` works without zarr 3

        return TxStore(self, read_only=True, branch=branch, at=at, tag=tag)

    def mapping(self, at: At | None = None, *, branch: str = MAIN, tag: str | None = None) -> Snapshot:
        """Return a snapshot as a plain `Mapping[str, bytes]`, for zarr 2 and other libraries that take a mapping."""
        return Position(self.engine, branch=self.engine.branch(branch), at=at, tag=tag).snapshot()

    # --- history

    @overload
    def log(
        self,
        branch: str = MAIN,
        *,
        limit: int | None = None,
        path: str | None = None,
        operations: Literal[False] = False,
    ) -> Log: ...

    @overload
    def log(self, *, limit: int | None = None, operations: Literal[True]) -> list[LoggedOperation]: ...

    @overload
    def log(
        self, branch: str = MAIN, *, limit: int | None = None, path: str | None = None, operations: bool
    ) -> Log | list[LoggedOperation]: ...

    def log(
        self, branch: str = MAIN, *, limit: int | None = None, path: str | None = None, operations: bool = False
    ) -> Log | list[LoggedOperation]:
        """Return the commits of a branch, newest first: a sequence that reads commits only as far as you iterate.

        With `path`, it has only commits that changed something at or below the path.

        With `operations`, return what was done beside commits instead, newest first: maintenance, and branches and tags
        that were created, renamed or deleted, on all branches. A vacuum keeps the newest 1,000 records. See
        docs/how-to/observe.md.
        """
        commits = self._existing()
        if operations:
            if branch != MAIN or path is not None:
                raise ValueError("operations=True lists those of the whole repository: leave out branch and path")
            return read_operations(commits.storage, limit)
        wanted = limit if path is None else None
        line = commits.chain.ancestors(commits.head(self.engine.branch(branch)), wanted=wanted, as_told=path is None)
        return Log(line if path is None else changing(line, self.engine.snapshots, path), limit)

    def blame(self, path: str, at: At | None = None, *, branch: str = MAIN) -> Blame:
        """Return which commit wrote each chunk of an array, and each metadata document of an array or group.

        `at` is as in `snapshot`. Raises `NodeNotFoundError`.
        """
        from txstore.comparing.blame import blame  # late: this imports numpy

        commits = self._existing()
        head = (
            commits.head(self.engine.branch(branch))
            if at is None
            else find_commit(commits, at, self.engine.branch(branch))
        )
        if head is None:
            raise NodeNotFoundError(path)
        return blame(self.engine.snapshots.of(head), path, partial(commits_of, commits, head))

    def bisect(self, good: At, bad: At, test: Callable[[TxStore], bool], *, branch: str = MAIN) -> Commit:
        """Return the first bad commit after `good`, up to and including `bad`, by binary search.

        `test` gets a read-only store, and returns True if the commit is good. It is called for `good`, for `bad`, and
        for about log2(n) of the n commits between them. Raises `ValueError` if `good` is not before `bad`, or if `test`
        does not find `good` good and `bad` bad.
        """
        from txstore.store import TxStore  # late: as above

        commits = self._existing()
        branch = self.engine.branch(branch)
        first, last = find_commit(commits, good, branch), find_commit(commits, bad, branch)
        line: list[Stored] = []
        for stored in commits.chain.ancestors(last):
            line.append(stored)
            if stored.header.id == first.header.id:
                break
        else:
            raise ValueError(f"{first.commit} is not before {last.commit}")

        def is_good(stored: Stored) -> bool:
            return bool(test(TxStore.at(self.engine, self.engine.snapshots.of(stored))))

        for end, wanted in ((first, True), (last, False)):
            if is_good(end) is not wanted:
                raise ValueError(f"{end.commit} is {'bad' if wanted else 'good'}, says the test: choose other ends")
        low, high = 0, len(line) - 1  # the first is bad, the last is good
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_good(line[middle]) else (middle, high)
        return line[low].commit

    def head(self, branch: str = MAIN) -> Commit | None:
        """Return the newest commit of a branch. None if the branch has no commits, or there is no repository yet."""
        branch = self.engine.branch(branch)
        stored = self.engine.commits.head(branch) if self.exists else None
        return None if stored is None else stored.commit

    def commit(self, at: At, *, branch: str = MAIN) -> Commit:
        """Return the commit that a version, an id or an aware datetime names."""
        return find_commit(self._existing(), at, self.engine.branch(branch)).commit

    def resolve(self, commit_id: str) -> Commit | None:
        """Return the commit with this id, None if it was never made. Use it after a `CommitUnknownError`.

        It also returns None for a commit that a vacuum has expired, so ask before that happens.
        """
        with suppress(CommitNotFoundError):
            return find_commit(self._existing(), commit_id).commit
        return None

    def diff(
        self,
        a: At,
        b: At | None = None,
        *,
        three_dot: bool = False,
        branch: str = MAIN,
    ) -> Diff:
        """Return the differences between two commits, node by node. With one commit, those against its parent.

        The result lists added, removed, moved and changed nodes, attributes and shapes before and after, and the
        regions of arrays whose chunks changed. `.values(path)` reads the elements. The cost grows with the changes.

        Parameters
        ----------
        a, b : Commit, int, str or datetime
            A value that `commit` takes, or a tag.
        three_dot : bool
            Return only the changes of `b` since the newest best common ancestor of `a` and `b`.

        Examples
        --------
        >>> import numpy as np, tempfile, txstore, zarr
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> with repo.transaction() as store:
        ...     z = zarr.create_array(store, name="t2m", data=np.zeros(6), chunks=(2,))
        >>> with repo.transaction() as store:
        ...     z = zarr.open_array(store, path="t2m")
        ...     z[3:] = 1
        ...     z.attrs["units"] = "K"
        >>> diff = repo.diff(0, 1)
        >>> [(node.path, node.change, node.regions) for node in diff]
        [('t2m', 'changed', [(slice(2, 6, None),)])]
        >>> [(part.before.tolist(), part.after.tolist()) for part in diff.values("t2m")]
        [([0.0, 0.0], [0.0, 1.0]), ([0.0, 0.0], [1.0, 1.0])]
        """
        commits, snapshots, branch = self._existing(), self.engine.snapshots, self.engine.branch(branch)
        second = find_commit(commits, a if b is None else b, branch)
        first = parent_of(commits, second) if b is None else find_commit(commits, a, branch)
        if three_dot and first is not None:
            first = next(reversed(common_ancestors(commits, first, second)), None)
        base = None if first is None else common_ancestor(commits, first, second)
        before, after = snapshots.of(first), snapshots.of(second)
        changes = changed(before, after, base=snapshots.of(base))
        return Diff(
            before.commit, after.commit, compare(changes, before, after), self._opener(before), self._opener(after)
        )

    def _opener(self, snapshot: Snapshot) -> OpenArray:
        def open_array(path: str) -> Any:
            from txstore.pipeline import open_own
            from txstore.store import TxStore

            return open_own(TxStore.at(self.engine, snapshot), path, mode="r")

        return open_array

    @overload
    def merge(
        self,
        source: str,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        append: Literal["concatenate"] | None = None,
        dry_run: Literal[False] = False,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
        progress: Wanted = None,
    ) -> Commit: ...

    @overload
    def merge(
        self,
        source: str,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        append: Literal["concatenate"] | None = None,
        dry_run: Literal[True],
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
        progress: Wanted = None,
    ) -> MergePlan: ...

    @overload
    def merge(
        self,
        source: str,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        append: Literal["concatenate"] | None = None,
        dry_run: bool,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
        progress: Wanted = None,
    ) -> Commit | MergePlan: ...

    def merge(
        self,
        source: str,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        append: Literal["concatenate"] | None = None,
        dry_run: bool = False,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
        progress: Wanted = None,
    ) -> Commit | MergePlan:
        """Merge `source` into `branch`: attribute by attribute, element by element. It copies no values.

        Returns the new head of `branch`, or the present head if there is nothing to merge. Other processes may commit
        meanwhile: the merge is one commit on the head at the time when it is made.

        Parameters
        ----------
        source : str
            The branch whose changes are merged. It stays as it is.
        branch : str
            The branch that receives them.
        resolve : dict, optional
            How to resolve conflicts at or below a path: "ours" (the value of `branch`), "theirs", or a function that
            takes a `Conflict` and returns the elements of its region, or the document.
        append : {None, "concatenate"}
            If both branches appended to an array: put the rows of `source` after the rows of `branch`, in all arrays
            with this dimension. By default this is a conflict.
        dry_run : bool
            Change nothing. Return a `MergePlan` with the changes and the conflicts.
        progress : callable or bool, optional
            Called as `progress(done, total)` with bytes. A merge reads only chunks that both branches changed. True
            shows a bar.

        Raises
        ------
        MergeConflictError
            Both branches changed the same data differently. Nothing was changed.
        NoCommonAncestorError
            A vacuum has expired the common ancestor.

        Examples
        --------
        >>> import numpy as np, tempfile, txstore, zarr
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> with repo.transaction() as store:
        ...     x = zarr.create_array(store, name="x", data=np.arange(4), chunks=(4,))
        >>> repo.branches["dev"] = repo.head()
        >>> with repo.transaction(branch="dev") as store:
        ...     zarr.open_array(store, path="x")[0] = 7
        >>> with repo.transaction() as store:
        ...     zarr.open_array(store, path="x")[3] = 9
        >>> repo.merge("dev").message
        'merge of dev@1'
        >>> zarr.open_array(repo.snapshot(), path="x", mode="r")[:]
        array([7, 1, 2, 9])
        """
        self._existing()
        if source == branch:
            raise ValueError(f"{source!r} can't be merged into itself: name two branches")
        change = partial(merge_commits.of_branch, self.engine.branch(source), source)
        with showing(progress, "merge") as told:
            return self._apply(change, branch, resolve, append, message, properties, dry_run=dry_run, progress=told)

    @overload
    def cherry_pick(
        self,
        commit: At,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        append: Literal["concatenate"] | None = None,
        dry_run: Literal[False] = False,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Commit: ...

    @overload
    def cherry_pick(
        self,
        commit: At,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        append: Literal["concatenate"] | None = None,
        dry_run: Literal[True],
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> MergePlan: ...

    @overload
    def cherry_pick(
        self,
        commit: At,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        append: Literal["concatenate"] | None = None,
        dry_run: bool,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Commit | MergePlan: ...

    def cherry_pick(
        self,
        commit: At,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        append: Literal["concatenate"] | None = None,
        dry_run: bool = False,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Commit | MergePlan:
        """Apply the changes of one commit to `branch`, as a new commit. Parameters and errors are those of `merge`."""
        change = self._change_of(commit, branch, reverts=False)
        return self._apply(change, branch, resolve, append, message, properties, dry_run=dry_run)

    @overload
    def revert(
        self,
        commit: At,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        dry_run: Literal[False] = False,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Commit: ...

    @overload
    def revert(
        self,
        commit: At,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        dry_run: Literal[True],
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> MergePlan: ...

    @overload
    def revert(
        self,
        commit: At,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        dry_run: bool,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Commit | MergePlan: ...

    def revert(
        self,
        commit: At,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        dry_run: bool = False,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Commit | MergePlan:
        """Undo the changes of one commit in a new commit on `branch`.

        Data that a later commit changed conflicts, as in `merge`.
        """
        change = self._change_of(commit, branch, reverts=True)
        return self._apply(change, branch, resolve, None, message, properties, dry_run=dry_run)

    def _change_of(self, commit: At, branch: str, *, reverts: bool) -> merge_commits.Source:
        found = find_commit(self._existing(), commit, self.engine.branch(branch))
        return partial(merge_commits.of_commit, found, reverts)

    @keeps_nothing
    def _apply(
        self,
        change: merge_commits.Source,
        branch: str,
        resolve: Mapping[str, Answer] | None,
        append: str | None,
        message: str | None,
        properties: Mapping[str, Any] | None,
        *,
        dry_run: bool,
        progress: Progress | None = None,
    ) -> Commit | MergePlan:
        what = self.engine, change, self.engine.branch(branch), resolve
        if dry_run:
            return merge_commits.preview(*what, append=append, progress=progress)
        made = merge_commits.commit(*what, append=append, message=message, properties=properties, progress=progress)
        if made.commit is None:
            raise CommitNotFoundError(f"branch {branch!r}", advice="it has no commits yet")
        return made.commit

    def follow(
        self,
        branch: str = MAIN,
        *,
        since: At | None = None,
        timeout: float | None = None,
    ) -> Generator[Commit, None, None]:
        """Yield every commit after `since`, in order, each once, and wait for the next commit.

        `since` is a value that `commit` takes: a `Commit`, a version, an id or an aware datetime; -1 is before the
        first commit. By default it is the head at the time of this call. If there is no repository yet, this waits for
        it and yields its first commit. The iteration ends after it has waited `timeout` seconds for a commit: 0 yields
        the existing commits and ends, None waits without limit.

        Closing or dropping the generator releases its resources. Raises `CommitNotFoundError` if `since` does not
        exist, and `RepositoryNotFoundError` if there is no repository that could have it, or no longer. While
        following, raises `CorruptionError` if another repository replaces this one, and `SnapshotExpiredError` if a
        vacuum expired the next commit.
        """
        return follow(self.engine.commits, self.engine.branch(branch), since, timeout)

    @property
    def branches(self) -> Branches:
        """The branches: a `MutableMapping` from a name to the branch's newest `Commit`. The first branch is "main".

        Setting a name starts a branch at a commit, which is any value that `commit` takes. See docs/how-to/history.md.

        Examples
        --------
        >>> import numpy as np, tempfile, txstore, zarr
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> with repo.transaction("add x") as store:
        ...     x = zarr.create_array(store, name="x", data=np.arange(3))
        >>> repo.branches["dev"] = repo.head()
        >>> with repo.transaction("try something", branch="dev") as store:
        ...     zarr.open_array(store, path="x")[0] = 7
        >>> [commit.message for commit in repo.log("dev")]
        ['try something', 'add x']
        >>> zarr.open_array(repo.snapshot(), path="x", mode="r")[:]
        array([0, 1, 2])
        """
        self._existing()
        return Branches(self.engine.commits, self.engine.snapshots)

    @property
    def tags(self) -> Tags:
        """The tags: a `MutableMapping` from a name to its `Commit`. A tag can't be moved to another commit."""
        self._existing()
        return Tags(self.engine.commits, self.engine.snapshots)

    @property
    def constraints(self) -> Constraints:
        """The constraints: a `MutableMapping` from a name to an object of a class in `txstore.constraints`.

        Setting a name here makes a commit that declares the constraint; deleting a name makes a commit that drops it.
        To declare it together with the arrays, use `store.constraints` in a transaction. From then on, every process
        checks each of its commits, and raises `ConstraintError` if the commit would break it. See
        docs/how-to/constraints.md.

        Examples
        --------
        >>> import tempfile, txstore, zarr
        >>> from txstore.constraints import EqualLength
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> with repo.transaction() as store:
        ...     x = zarr.create_array(store, name="x", shape=(0, 3), chunks=(8, 3), dtype="f4")
        ...     y = zarr.create_array(store, name="y", shape=(0,), chunks=(8,), dtype="i4")
        ...     store.constraints["samples"] = EqualLength(["x", "y"])
        >>> try:
        ...     with repo.transaction() as store:
        ...         zarr.open_array(store, path="y").resize((5,))
        ... except txstore.ConstraintError as error:
        ...     print(error.violations[0].reason)
        its first dimension is 5, and that of 'x' 0
        """
        return Constraints(self._declared, self._declare)

    @property
    def views(self) -> RepositoryViews:
        """The views: a `MutableMapping`. Set objects of the classes in `txstore.views`, by name.

        Setting a name makes the output arrays, derives them, and declares the view, all in one commit; deleting a name
        drops the view, and leaves the arrays. To do that together with other changes, use `store.views` in a
        transaction. From then on, each commit that changes a source derives what depends on the change, whichever
        process makes it: no reader ever sees outputs that do not fit their sources. See docs/how-to/views.md.

        What is read is a `DeclaredView`: its `definition`, `is_current()` and, for `when="follow"`, `update()`.

        Examples
        --------
        >>> import numpy as np, tempfile, txstore, zarr
        >>> from txstore.views import Coarsen
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> with repo.transaction() as store:
        ...     image = zarr.create_array(store, name="image/0", data=np.arange(16.0).reshape(4, 4), chunks=(2, 2))
        >>> repo.views["pyramid"] = Coarsen("image/0", to="image/{level}", factors=(2, 2), levels=2)
        >>> with repo.transaction() as store:
        ...     zarr.open_array(store, path="image/0")[0, 0] = 100
        >>> zarr.open_array(repo.snapshot(), path="image/1", mode="r")[:]
        array([[27.5,  4.5],
               [10.5, 12.5]])
        """
        return RepositoryViews(self._declared_views, self._declare_view)

    def _declared_views(self) -> Mapping[str, DeclaredView]:
        views = decode(self.url, self.engine.newest().declared.views)
        return {name: DeclaredView(name, view, self) for name, view in views.items()}

    def _declare_view(self, name: str, view: ViewDefinition | None) -> None:
        self._existing()
        with self.transaction(f"view {name!r} {'dropped' if view is None else 'declared'}") as store:
            store.views.declare(name, view)

    @property
    def feeds(self) -> Feeds:
        """The feeds: a mapping from names; `create(name)` makes one. A job takes from its feed each change once.

        A feed is a cursor in the history. The job commits its output together with the cursor's move, so that both
        become visible, or neither. See docs/how-to/feeds.md.

        Examples
        --------
        >>> import numpy as np, tempfile, txstore, zarr
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> with repo.transaction() as store:
        ...     raw = zarr.create_array(store, name="raw", data=np.zeros(6), chunks=(2,))
        ...     mean = zarr.create_array(store, name="mean", data=np.zeros(3), chunks=(1,))
        >>> feed = repo.feeds.create("means", paths="raw")
        >>> with repo.transaction() as store:
        ...     zarr.open_array(store, path="raw")[3:] = 8
        >>> for change in feed:
        ...     raw = zarr.open_array(change.snapshot(), path="raw", mode="r")
        ...     with repo.transaction() as store:
        ...         feed.advance(store, to=change)
        ...         for (part,) in change.nodes[0].regions:
        ...             means = raw[part].reshape(-1, 2).mean(axis=1)
        ...             zarr.open_array(store, path="mean")[part.start // 2 : part.stop // 2] = means
        >>> zarr.open_array(repo.snapshot(), path="mean", mode="r")[:]
        array([0., 4., 8.])
        >>> list(feed)
        []
        """
        self._existing()
        return Feeds(self.engine)

    def freeze(self, reason: str, *, branch: str | None = None) -> None:
        """Let no commit change anything any more: each raises `ConstraintError`, which tells the reason.

        On each branch it is a commit that declares the constraint `Frozen(reason)` under the name "frozen". A branch
        that begins with a frozen commit is frozen, too; one that begins with an earlier commit is not. `optimize`,
        `vacuum`, `backup` and `verify` go on; `erase` is refused. A branch or a tag can still be deleted.

        Parameters
        ----------
        reason : str
            For instance "published as doi:10.5281/zenodo.1234".
        branch : str, optional
            The only branch to freeze; by default all branches.
        """
        for each in self.branches if branch is None else [branch]:
            self._declare("frozen", Frozen(reason), each)

    def unfreeze(self, *, branch: str | None = None) -> None:
        """Let commits change data again: on each frozen branch, or on one branch, a commit drops the constraint."""
        for each in self.branches if branch is None else [branch]:
            if "frozen" in self.engine.newest(self.engine.branch(each)).constraints:
                self._declare("frozen", None, each)

    def _declared(self) -> Mapping[str, Constraint]:
        self._existing()
        return self.engine.newest().constraints

    def _declare(self, name: str, constraint: Constraint | None, branch: str = MAIN) -> None:
        self._existing()
        message = f"constraint {name!r} {'dropped' if constraint is None else 'declared'}"
        with self.engine.begin(branch=self.engine.branch(branch), message=message) as transaction:
            # The message alone, which is not the caller's, makes no commit.
            transaction.lifecycle.needs_change = True
            transaction.constraints.declare(name, constraint)

    @keeps_nothing
    def verify(
        self, progress: Wanted = None, *, repair: bool = False, sources: bool = False, decode: bool = False
    ) -> Report:
        """Check every checksum and every reachable reference. Returns a report; `.faults` is empty if all is well.

        Parameters
        ----------
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes; True shows a bar.
        repair : bool
            Restore as much as possible, then verify again: `.faults` lists the remaining faults, `.repairs` the
            repairs. Nothing is deleted: TxStore moves replaced and removed files to `quarantine/`. Commits wait
            meanwhile. Other processes, and objects opened before, have to reopen the repository. An intact repository
            is not changed. If a repair is interrupted, run it again.
        sources : bool
            Also check, without reading them, that the outside files with values of the newest commit have not changed.
            A fault in such a file has the `part` "source".
        decode : bool
            Also decode every chunk of the newest commit of each branch. A chunk that can't be decoded, since a checksum
            inside of it is wrong, or because its codecs may not run, is a fault with the `part` "chunk".
        """
        self._existing()
        with showing(progress, "verify") as told:
            report = verify_and_repair(self.engine.storage, told) if repair else verify(self.engine.commits, told)
        if sources:
            report.faults += check_sources(self.engine.storage, self.engine.sources)
        if decode:
            from txstore.maintenance.check_chunks import check_chunks  # late: it needs zarr

            report.faults += check_chunks(self.engine.storage)
        return report

    @keeps_nothing
    def backup(
        self,
        destination: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        verify: bool = True,
        erase: bool = False,
        progress: Wanted = None,
    ) -> Backup:
        """Copy the present state of the repository to another directory or URL. Other processes may write meanwhile.

        The copy is a repository with the same id, history and tags. A second backup to the same place copies only new
        files. If a backup is interrupted, run it again. Staged changes are not copied.

        Parameters
        ----------
        destination : str or PathLike
            An empty or new place, or an older backup of this repository, without commits of its own.
        storage_options : mapping, optional
            Options for the fsspec file system of the destination.
        verify : bool
            Check all copied bytes before they become part of the copy.
        erase : bool
            Also erase in the copy the values that were erased here since the last backup. `erasures` has the records.
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes; True shows a bar.

        Raises
        ------
        BackupError
            The destination has other files, or a repository with a different history.
        BackupErasureError
            The backup would have to erase values in the copy, and `erase` is False. The message lists the erasures.
        CorruptionError
            A file of this repository is damaged. `verify` tells more; `verify=False` copies it as it is.
        """
        self._existing()
        with showing(progress, "backup") as told:
            return back_up(
                self.engine.storage,
                destination,
                storage_options=storage_options,
                verify=verify,
                erase=erase,
                progress=told,
            )

    # --- for readers without TxStore

    @keeps_nothing
    def publish(
        self,
        destination: str | os.PathLike[str],
        *,
        branch: str = MAIN,
        follow: bool = False,
        timeout: float | None = None,
        verify: bool = True,
        full: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        progress: Wanted = None,
        published: Callable[[Published], None] | None = None,
    ) -> Published | None:
        """Update a plain Zarr hierarchy to the head of a branch. This writes only data that changed since last time.

        Readers of its consolidated metadata see new arrays and appends completely or not at all. They see overwritten
        data change chunk by chunk. If it is interrupted, run it again. See docs/how-to/publishing.md.

        Parameters
        ----------
        destination : str or PathLike
            A directory, or an fsspec URL, outside the repository: empty, or a copy that `publish` made.
        follow : bool
            Publish again after each commit, until no commit arrives for `timeout` seconds; by default without end.
        verify : bool
            Read back the written data, and compare it.
        full : bool
            Compare the whole copy with the commit, and correct any data that other programs changed in the copy.
        storage_options : dict, optional
            Options for the fsspec file system of the destination.
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes; True shows a bar.
        published : callable, optional
            Called with a `Published` after each publication. `publish` returns the last one.

        Raises
        ------
        PublishError
            The destination has other files, or another process publishes to it.
        """
        from txstore.interchange import publish as bridge  # late, as all of interchange: most processes need none

        options: dict[str, Any] = {"branch": branch, "verify": verify, "full": full}
        options |= {"storage_options": storage_options, "durable": self._durable}
        done: Published | None = None
        with showing(progress, "publish") as told:
            if follow:
                for done in bridge.follow_and_publish(self, destination, timeout=timeout, progress=told, **options):
                    if published is not None:
                        published(done)
                return done
            self._existing()
            done = bridge.publish(self, destination, progress=told, **options)
        if published is not None:
            published(done)
        return done

    @keeps_nothing
    def references(
        self,
        destination: str | os.PathLike[str],
        *,
        tag: str,
        create_tag: bool = False,
        templates: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> References:
        """Write references to the chunks of a tagged commit, for readers that have only zarr and fsspec.

        It copies no chunk: readers open the packs through fsspec's `reference://`. The references are valid as long as
        the tag exists, because a vacuum keeps tagged commits. See docs/how-to/publishing.md.

        Parameters
        ----------
        destination : str or PathLike
            A path or an fsspec URL. The end of its name, `.json` or `.parquet`, chooses the format. A JSON file is
            replaced in one step. Parquet needs `txstore[references]`, suits many chunks, and is always a new directory.
            It has Zarr format 2: an array without an equivalent there raises `ExportError`.
        tag : str
            The tag of the commit.
        create_tag : bool
            Tag the newest commit if the tag does not exist.
        templates : bool
            For JSON: write the repository's URL only once. With False, each reference is a full URL, for readers that
            do not support kerchunk's templates.
        storage_options : dict, optional
            Options for the fsspec file system of the destination. The repository's options are not written: readers
            give their own.

        Raises
        ------
        CommitNotFoundError
            There is no such tag.
        ExportError
            TxStore can't write the references there, or not as Parquet: the message says what to choose.
        """
        self._existing()
        from txstore.interchange.references import references

        return references(
            self, destination, tag=tag, create_tag=create_tag, templates=templates, storage_options=storage_options
        )

    # --- import and export (txstore/interchange)

    @keeps_nothing
    def import_from(
        self,
        sources: Source | Sequence[Source],
        path: str = "",
        *,
        concat: str | int | None = None,
        chunks: Mapping[str | int, int] | None = None,
        exclude: Sequence[str] = (),
        format: str | None = None,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
        name: str | None = None,
        replace: bool = False,
        verify: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        progress: Wanted = None,
    ) -> Commit:
        """Import plain Zarr, NetCDF or HDF5 in one commit, and return the commit. See `docs/how-to/import.md`.

        Parameters
        ----------
        sources : str, PathLike, zarr store, or several
            Paths, fsspec URLs, patterns, or open stores of zarr. Plain Zarr is copied byte for byte, without
            consolidated metadata.
        path : str
            The path of the new group or array. Nothing may exist there yet, unless `replace` says so.
        concat : str or int, optional
            Join several sources along this dimension: its name, or the number of an axis. Arrays without the dimension
            must be equal in all sources. The attributes are those of the first source.
        chunks : dict, optional
            Chunk lengths by the name of a dimension, or the number of an axis. By default those of the source. The
            chunks of plain Zarr can't be changed.
        exclude : list of str
            Patterns of arrays and groups to leave out.
        format : {"zarr", "netcdf", "hdf5"}, optional
            The format of the sources. By default TxStore detects it.
        name : str, optional
            A name for the transaction, which then survives this process: the same call continues an interrupted import.
        replace : bool
            Change what is at the path to what plain Zarr is now: only keys that differ are written, or deleted.
        verify : bool
            Read back all written data, and compare it.
        storage_options : dict, optional
            Options for the fsspec file system of the sources.
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes; True shows a bar.

        Raises
        ------
        SourceError
            TxStore can't import a source as it is, or a source changed during the import.
        FileExistsError
            An array or group exists at this path.
        CorruptionError
            The data that was read back differs from the data that was written.
        """
        from txstore.interchange.import_files import import_from

        with showing(progress, "import") as told:
            return import_from(
                self, sources, path, concat=concat, chunks=chunks, exclude=exclude, format=format, branch=branch,
                message=message, properties=properties, name=name, replace=replace, verify=verify,
                storage_options=storage_options, progress=told,
            )  # fmt: skip

    @keeps_nothing
    def import_references(
        self,
        manifest: str | os.PathLike[str] | Mapping[str, Any],
        path: str = "",
        *,
        branch: str = MAIN,
        message: str | None = None,
        name: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        progress: Wanted = None,
    ) -> Commit:
        """Import references to the chunks of other files in one commit, and return the commit. It copies no chunk.

        `docs/how-to/virtual.md` explains when this is useful. The files have to lie below the repository's `sources`,
        in this process and in each process that reads them.

        Parameters
        ----------
        manifest : str, PathLike or dict
            A kerchunk manifest: a JSON file, a directory of Parquet files, or the content of such a JSON file. URLs in
            it may be relative to the manifest.
        path : str
            The path of the new group or array. Nothing may exist there yet.
        name : str, optional
            A name for the transaction, which then survives this process: the same call completes it.
        storage_options : dict, optional
            Options for the manifest's file system. Those for the files are in the repository's `sources`.
        progress : callable or bool, optional
            `progress(done, total)` is called with the number of referenced bytes; True shows a bar.

        Raises
        ------
        SourceError
            This is no manifest; or a file is missing, can't be read here, or does not have the bytes.
        FileExistsError
            An array or group exists at this path.
        """
        from txstore.interchange.manifests import import_references

        with showing(progress, "import") as told:
            return import_references(
                self, manifest, path, branch=branch, message=message, name=name, storage_options=storage_options,
                progress=told,
            )  # fmt: skip

    @keeps_nothing
    def export(
        self,
        destination: str | os.PathLike[str],
        *,
        at: At | None = None,
        branch: str = MAIN,
        tag: str | None = None,
        path: str = "",
        consolidated: bool = True,
        verify: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        progress: Wanted = None,
    ) -> Export:
        """Write one commit as a plain Zarr hierarchy, byte for byte. If it is interrupted, run it again.

        It writes metadata documents last, and the root's at the very end: a hierarchy that a reader can open is
        complete. If this export is already complete, it compares everything, writes nothing, and returns a result
        with `is_unchanged`.

        Parameters
        ----------
        destination : str or PathLike
            An empty or new directory, or any fsspec URL.
        at, branch, tag
            As in `snapshot`.
        path : str
            The array or group to export; by default everything.
        consolidated : bool
            Add consolidated metadata to the root. xarray and other libraries look for it.
        verify : bool
            Read back all written data, and compare it.
        storage_options : dict, optional
            Options for the fsspec file system of the destination.
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes; True shows a bar.

        Raises
        ------
        ExportError
            The destination has other files, a key can't be a file name there, or the data read back differs.
        CorruptionError
            A file of this repository is damaged.
        """
        self._existing()
        from txstore.interchange.publish import export

        with showing(progress, "export") as told:
            return export(
                self, destination, at=at, branch=branch, tag=tag, path=path, consolidated=consolidated, verify=verify,
                storage_options=storage_options, progress=told,
            )  # fmt: skip

    def checkout(
        self,
        directory: str | os.PathLike[str],
        *,
        at: At | None = None,
        branch: str = MAIN,
        tag: str | None = None,
        path: str = "",
        progress: Wanted = None,
    ) -> Checkout:
        """Write one commit to a local directory as plain Zarr, for programs that change a directory and take no store.

        `commit_directory` then commits what they have changed. A directory that was checked out before is brought to
        the given commit: only files that differ are written. If this is interrupted, run it again. The metadata of
        groups is not consolidated. A file beside the directory, `.NAME.txstore-checkout`, says what was checked out:
        move it with the directory. A vacuum does not keep the commit; a tag does.

        Parameters
        ----------
        directory : str or PathLike
            A new or an empty directory, or one that was checked out before.
        at, branch, tag
            As in `snapshot`. `commit_directory` commits to `branch`.
        path : str
            The array or group to check out; by default everything.
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes; True shows a bar.

        Raises
        ------
        CheckoutError
            The directory has other files, or changes that are in no commit.
        """
        self._existing()
        from txstore.interchange.checkout import checkout

        with showing(progress, "checkout") as told:
            return checkout(self, directory, at=at, branch=branch, tag=tag, path=path, progress=told)

    def commit_directory(
        self,
        directory: str | os.PathLike[str],
        message: str | None = None,
        *,
        branch: str | None = None,
        properties: Mapping[str, Any] | None = None,
        progress: Wanted = None,
    ) -> Commit | None:
        """Commit what was changed in a directory since `checkout`: all of it in one commit, or nothing.

        It reads only files whose length, times or inode have changed. What others have committed since the checkout is
        merged with the changes as `transaction(on_conflict="merge")` merges it, and written to the directory, which
        then has the new commit. If this is interrupted, run it again: the changes are never committed twice. Let the
        programs that write to the directory end first.

        Parameters
        ----------
        directory : str or PathLike
            A directory that `checkout` has written.
        message : str, optional
            By default, the message names the directory.
        branch : str, optional
            Commit to this branch, which has the commit that was checked out; by default to the branch of the checkout.
        properties : dict, optional
            A JSON object that TxStore stores with the commit.
        progress : callable or bool, optional
            `progress(done, total)` is called with the bytes that are written to the directory; True shows a bar.

        Returns
        -------
        Commit or None
            None if no file has changed.

        Raises
        ------
        CheckoutError
            Nothing was checked out here, a file is a link, or the branch lacks the commit that was checked out.
        ConflictError
            Another commit changed the same elements or attributes. Neither the directory nor the repository was
            changed: commit to a branch that begins with the commit that was checked out, and `merge` it.
        """
        self._existing()
        from txstore.interchange.checkout import commit_directory

        with showing(progress, "checkout") as told:
            return commit_directory(self, directory, message, branch=branch, properties=properties, progress=told)

    # --- maintenance

    @keeps_nothing
    def optimize(self, *, branch: str = MAIN, progress: Wanted = None) -> Commit | None:
        """Copy small packs, and packs with mostly unused data, into large packs, and compact the sorted runs.

        This makes a commit that changes no content: other commits neither wait for it nor conflict with it. It deletes
        nothing; the next `vacuum` deletes the files that no commit needs any more.

        `progress(done, total)` is called with bytes; True shows a bar. Returns the commit, or None if there was nothing
        to do.
        """
        commits, of_branch = self._existing(), self.engine.branch(branch)
        with (
            showing(progress, "optimize") as told,
            recorded(commits.storage, "optimize", {"branch": branch}) as result,
        ):
            made = optimize(commits, self.engine.snapshots, branch=of_branch, durable=self._durable, progress=told)
            result.update(_made(None if made is None else made.commit))
        return None if made is None else made.commit

    @keeps_nothing
    def vacuum(
        self,
        *,
        keep: int | None = None,
        older_than: timedelta | datetime | None = None,
        dry_run: bool = False,
        branch: str = MAIN,
    ) -> VacuumReport:
        """Delete files that no kept commit needs. Every commit is kept unless `keep` or `older_than` say otherwise.

        A vacuum always keeps tagged commits, commits at which branches start, and merged commits. It also keeps the
        oldest commit that a living process reads, that is the base of a transaction, or that a feed needs, and all
        later commits; for a feed up to its limit. It deletes data that only a deleted branch has. Reading an expired
        commit raises `SnapshotExpiredError`. If a vacuum is interrupted, run it again.

        Parameters
        ----------
        keep : int, optional
            Number of the newest commits to keep, including those of `optimize` and `vacuum`. Older commits expire.
        older_than : timedelta or datetime, optional
            Expire commits older than this; with `keep`, only commits beyond that number.
        dry_run : bool
            Change nothing; report what a vacuum would do.
        branch : str
            The branch whose commits expire. All commits of other branches are kept.
        """
        commits = self._existing()
        of_branch = self.engine.branch(branch)
        do = partial(
            vacuum, commits, self.engine.snapshots, branch=of_branch, keep=keep, older_than=older_than, dry_run=dry_run
        )
        if dry_run:
            return do()
        about: dict[str, Any] = {"branch": branch}
        about |= {} if keep is None else {"keep": keep}
        about |= {} if older_than is None else {"older_than": str(older_than)}
        with recorded(commits.storage, "vacuum", about) as result:
            report = do()
            result.update(report.as_dict())
        return report

    @keeps_nothing
    def erase(
        self,
        *paths: str | Mapping[str, Any],
        labels: bool = False,
        positions: bool = False,
        timeout: float | None = 60.0,
    ) -> ErasureReport:
        """Erase every version of some arrays or groups, or of some rows, from every commit, branch and tag, for good.

        TxStore replaces each file that holds these values with one that does not, then checks all files until no such
        value is left. All commits stay, with their ids. Reading an erased value raises `ErasedError`, which says who
        erased it and when; listings omit erased keys. Commits wait meanwhile. If an erasure is interrupted, repeat the
        call: it continues. docs/how-to/erase.md lists what it can't reach.

        With `{dimension: labels}` behind the paths, it erases these rows of the arrays, and of all arrays of the groups
        that have the dimensions. In every commit they are the rows with these labels by its own coordinate. Then they
        read as missing values (the array's `_FillValue`, or else its fill value), and everything else as before.

        Parameters
        ----------
        *paths : str
            Arrays and groups. If an array was moved, or copied by reference, erase its old and new path together. The
            last one may be a mapping: from dimensions to labels of the coordinates with their names. Labels are one
            label, a list of them, or a slice, which includes both ends, in whichever order they are. With several
            dimensions, what has labels of all of them is erased.
        labels : bool
            Also erase the labels of the rows, in the coordinate: it gets fill values there. For one dimension.
        positions : bool
            The mapping has positions from 0 on in place of labels, or slices without their ends, as numpy counts them.
            They are those of each commit: give labels if rows were inserted or moved.
        timeout : float, optional
            Seconds to wait for readers of older commits and for open transactions. None waits without limit.

        Raises
        ------
        NodeNotFoundError
            No commit has ever had a node there.
        ErasureError
            Other keys share the values, there is a quarantine, no commit has such rows, or they can't be encoded anew:
            the message says what to do. Nothing was changed.
        ErasureTimeoutError
            A process still reads the data, or has a transaction open: the message names it.
        ConstraintError
            A constraint refers to one of the paths: drop it first.

        Examples
        --------
        >>> import numpy as np, tempfile, txstore, zarr
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> with repo.transaction("add two") as store:
        ...     for name in ("patient-7", "patient-8"):
        ...         zarr.create_array(store, name=name, data=np.arange(3)) is None
        False
        False
        >>> repo.erase("patient-7").values
        2
        >>> try:
        ...     zarr.open_array(repo.snapshot(at=0), path="patient-7", mode="r")
        ... except txstore.ErasedError as error:
        ...     print(error.key)
        patient-7/zarr.json

        Rows of an array, by their labels:

        >>> with repo.transaction("visits") as store:
        ...     for name, data in {"patient": [7, 8, 9], "weight": [70.0, 80.0, 90.0]}.items():
        ...         z = zarr.create_array(store, name=name, data=np.array(data), dimension_names=["patient"])
        >>> repo.erase("weight", {"patient": 8}).values
        1
        >>> zarr.open_array(repo.snapshot(at=-3), path="weight", mode="r")[:]
        array([70.,  0., 90.])
        """
        if paths and isinstance(paths[-1], Mapping):
            return self._erase_rows(paths[:-1], paths[-1], labels=labels, positions=positions, timeout=timeout)
        if labels or positions:
            raise ValueError("labels= and positions= are about rows: give {dimension: labels} behind the paths")
        commits, meant = self._existing(), check_paths(_texts(paths))

        def delete(head: Snapshot, branch: str, *, asks: bool) -> None:
            message = f"delete {', '.join(meant)}, to be erased"
            with self.engine.begin(head, branch=branch, message=message) as mapping:
                for path in meant:
                    mapping.delete_dir(path)
                if asks:
                    mapping.check()
                    mapping.rollback()

        with self._erasing(timeout) as turn, recorded(commits.storage, "erase", {"paths": len(meant)}) as result:
            report = turn.erase(meant, delete)
            result.update(_counted(report))
        return report

    def _erase_rows(
        self,
        paths: Sequence[str | Mapping[str, Any]],
        chosen: Mapping[str, Any],
        *,
        labels: bool,
        positions: bool,
        timeout: float | None,
    ) -> ErasureReport:
        from txstore.labels.erasing import ErasedRows  # late: it imports numpy

        commits = self._existing()
        if not paths:
            raise ValueError("name the arrays or groups whose rows are to be erased: '' for all")
        with self._erasing(timeout) as turn:
            rows = ErasedRows(self.engine, _texts(paths), chosen, labels=labels, positions=positions)
            about = {"paths": len(rows.paths), "dimensions": len(rows.dimensions)}  # never the labels
            with recorded(commits.storage, "erase", about) as result:
                report = turn.erase(rows.paths, rows.overwrite, rows)
                result.update(_counted(report))
        return report

    @contextmanager
    def _erasing(self, timeout: float | None) -> Iterator[Erasing]:
        def renew(head: Snapshot, branch: str, keys: Collection[str]) -> None:
            with self.engine.begin(head, branch=branch, message="values of which rows were erased") as mapping:
                for key in keys:
                    mapping[key] = head[key]

        try:
            with erasing(self.engine.commits, self.engine.snapshots, renew, timeout=timeout) as turn:
                yield turn
        finally:
            self.chunk_cache.clear()  # it may hold what was erased

    def erasures(self) -> list[Erasure]:
        """Return the records of erasures, oldest first: the paths, the user and the time."""
        return read_erasures(self._existing().storage)

    @keeps_nothing
    def usage(self, *, branch: str = MAIN) -> Usage:
        """Return how many bytes are live, history, staged and unused, and the live bytes of each array."""
        self._existing()
        return usage(self.engine.commits, self.engine.snapshots, self.engine.branch(branch))

    @property
    def _durable(self) -> bool:
        return self.engine.durability == "fsync"

    def _existing(self) -> Commits:
        if not self.engine.exists():
            raise RepositoryNotFoundError(self.url)
        return self.engine.commits
