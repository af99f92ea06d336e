"""The asynchronous face of repositories and transactions. `make aio` makes this file: do not change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, overload

from txstore.aio.blocks import Beginning, TransactionBlock
from txstore.aio.calls import Listing, call, call_back
from txstore.aio.following import follow_branch
from txstore.aio.mappings import AsyncMapping
from txstore.commit import MAIN, Commit
from txstore.deriving.definitions import ViewDefinition
from txstore.format.constraints import Constraint
from txstore.format.records import SNAPSHOT
from txstore.history.branches import Branches
from txstore.history.declared_constraints import Constraints
from txstore.history.find import At
from txstore.history.opening import CHUNK_CACHE_SIZE
from txstore.history.tags import Tags
from txstore.repository import Repository
from txstore.storage.pack_cache import CACHE_SIZE
from txstore.views.faces import RepositoryViews, Views
from txstore.views.following import DeclaredView

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
    from datetime import datetime, timedelta
    from typing import Any, Literal

    from numpy.typing import ArrayLike
    from xarray import Dataset

    from txstore.codecs.chunk_cache import ChunkCache
    from txstore.comparing.blame import Blame
    from txstore.comparing.diff import Diff
    from txstore.feeds.named_feeds import Feeds
    from txstore.format.chunk_moves import ChunkMoves
    from txstore.format.records import Isolation
    from txstore.history.erasures import Erasure
    from txstore.history.operations import LoggedOperation
    from txstore.history.snapshot import Snapshot
    from txstore.interchange.checkout import Checkout
    from txstore.interchange.export import Export
    from txstore.interchange.publish import Published
    from txstore.interchange.references import References
    from txstore.labels import Upserted
    from txstore.maintenance.backup import Backup
    from txstore.maintenance.erase import ErasureReport
    from txstore.maintenance.report import Report
    from txstore.maintenance.usage import Usage
    from txstore.maintenance.vacuum import VacuumReport
    from txstore.merging.merge_conflicts import Answer
    from txstore.merging.three_way import MergePlan
    from txstore.progress import Wanted
    from txstore.serving.notebook import Shown
    from txstore.storage.foreign_files import Given
    from txstore.store import TxStore
    from txstore.transactions.participants.named import NamedTransaction
    from txstore.transactions.regions import Lock
    from txstore.transactions.transaction import Changes, Transaction

T = TypeVar("T")


async def open(
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
) -> AsyncRepository:
    """Open a repository. The parameters are those of `Repository`.

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
    """
    return AsyncRepository(
        await call(
            lambda: Repository(
                url,
                create=create,
                durability=durability,
                storage_options=storage_options,
                single_writer=single_writer,
                cache_dir=cache_dir,
                cache_size=cache_size,
                retention=retention,
                sources=sources,
                commit_timeout=commit_timeout,
                chunk_cache=chunk_cache,
            )
        )
    )


class AsyncBranches(AsyncMapping[Branches, Commit, At | None]):
    """The branches of a repository, as `Repository.branches`."""

    async def rename(self, name: str, new: str) -> None:
        """Rename a branch, durably. Its readers and writers continue.

        Raises `KeyError` if there is no such branch, `ValueError` for the first branch or if the new name is used.
        """
        await call(lambda: self._open().rename(name, new))


class AsyncTags(AsyncMapping[Tags, Commit, At | None]):
    """The tags of a repository, as `Repository.tags`."""


class AsyncConstraints(AsyncMapping[Constraints, Constraint, Constraint]):
    """The constraints of a repository or a transaction, by name."""


class AsyncViews(AsyncMapping[Views, ViewDefinition, ViewDefinition]):
    """The views of a transaction, by name."""


class AsyncRepositoryViews(AsyncMapping[RepositoryViews, DeclaredView, ViewDefinition]):
    """The views of a repository, by name."""


class AsyncTransaction(TransactionBlock):
    """A transaction for tasks of an event loop: what `TxStore` offers beyond zarr, each in a thread.

    `store` is the ordinary `TxStore`: give it to zarr, `zarr.api.asynchronous` and xarray. `async with` commits on a
    clean exit and rolls back on an exception. If the task is cancelled while it commits, the commit goes on to its end:
    `is_committing` tells whether it still runs, and `await outcome()` returns or raises what came of it.
    """

    @property
    def url(self) -> str:
        """The location of the repository."""
        return self.store.url

    @property
    def branch(self) -> str:
        """The name of the branch that the store reads, or commits to."""
        return self.store.branch

    async def base(self) -> Commit | None:
        """The commit that the store reads, and that is the base of its staged changes. None if there is no commit."""
        return await call(lambda: self.store.base)

    @property
    def staged_count(self) -> int:
        """The number of keys and prefixes that this store has set or deleted, and not committed."""
        return self.store.staged_count

    async def changes(self) -> Changes:
        """Return the staged changes: `set` and `deleted` keys, and in `deleted_below` the paths deleted as a whole.

        `participants` says which process staged which keys. `diff` describes the same changes as arrays and groups.
        """
        return await call(self.store.changes)

    async def diff(self) -> Diff:
        """Return the staged changes against their base commit, in the form of `Repository.diff`."""
        return await call(self.store.diff)

    async def share(self) -> str:
        """Return a URL for tools that take a string: what they write there, in any process, is in this transaction.

        The URL is valid until the transaction ends, where the repository can be reached. The tool's process takes part
        as one that has unpickled the store: `docs/how-to/processes.md`. Creates the repository if there is none.

        Raises `TransactionStateError` if the transaction has ended.
        """
        return await call(self.store.share)

    async def move(self, source: str, destination: str) -> None:
        """Move an array or group, and everything below it, in this transaction. This reads and copies no value.

        Other transactions see a deletion and a creation: a concurrent write below either path conflicts. Objects that
        were opened at the old path raise `StaleArrayError`.

        Raises
        ------
        NodeNotFoundError
            The source does not exist, or there is no group above the destination.
        ValueError
            The destination exists, or is inside the source; or one of them is the root.
        TransactionStateError
            The transaction has a name, or several processes stage into it.
        """
        await call(lambda: self.store.move(source, destination))

    async def copy(self, source: str, destination: str, *, at: At | None = None) -> None:
        """Copy an array or group by reference, as it is in this transaction or as it was at a commit.

        `at` is as in `Repository.snapshot`. Raises what `move` does, and `CommitNotFoundError`.
        """
        await call(lambda: self.store.copy(source, destination, at=at))

    async def restore(self, path: str, at: At) -> None:
        """Restore an array or group, and everything below it, to its state at a commit. If it did not exist, delete it.

        This reads and copies no value. Groups above it that are gone are made as they were, without their other nodes.
        The root, `""`, is the whole repository. Raises `NodeNotFoundError` if the node exists neither at the commit nor
        now, `CommitNotFoundError`, and `TransactionStateError` as `move` does.
        """
        await call(lambda: self.store.restore(path, at))

    async def shift(self, path: str, offsets: Mapping[int, int], *, fill: Any = None) -> None:
        """Move the elements of an array along axes: `{axis: number of places}`, negative ones to the beginning.

        The shape stays: elements that would leave it are dropped, and places that become free have the fill value, or
        `fill`. Whole chunks move by reference where an offset is a multiple of their length; along an axis where it is
        not, all chunks are read and written again. Writes of a concurrent commit to the array conflict.

        Raises
        ------
        TransactionStateError
            The transaction has changed the array already; or it has a name, or several processes stage into it.
        ValueError
            There is no such axis.
        """
        await call(lambda: self.store.shift(path, offsets, fill=fill))

    async def move_chunks(self, moves: Mapping[str, ChunkMoves]) -> None:
        """Move the chunks of arrays by reference, from where the base commit has them.

        This reads and copies no value, and takes no memory for each chunk until the commit. It is for programs that
        rearrange the chunks of arrays; `shift` calls it. Other transactions see a deletion of what was below the paths:
        a concurrent write there conflicts. Who changes the shape, too, sets the array's document afterwards.

        Parameters
        ----------
        moves : mapping of str to `txstore.format.chunk_moves.ChunkMoves`
            By the directory that has the chunks, such as `"x/c"`: which new chunk each old one is.

        Raises
        ------
        TransactionStateError
            The transaction has changed something below the paths already, and nothing is moved; or it has a name, or
            several processes stage into it.
        """
        await call(lambda: self.store.move_chunks(moves))

    async def rely_on(self, keys: Iterable[str]) -> None:
        """Count keys as read: the commit conflicts if another commit has changed one of them since the base.

        A transaction with `isolation="serializable"` counts every key that it reads.
        """
        await call(lambda: self.store.rely_on(keys))

    @property
    def constraints(self) -> AsyncConstraints:
        """The constraints by name: see `Repository.constraints`. In a writable store they can be changed.

        The commit of this transaction declares the names that you set, and drops the names that you delete.
        """
        return AsyncConstraints(lambda: self.store.constraints)

    @property
    def views(self) -> AsyncViews:
        """The views by name: see `Repository.views`. In a writable store they can be changed.

        Setting a name makes the output arrays in this transaction. Its commit derives them, and declares the view.
        """
        return AsyncViews(lambda: self.store.views)

    async def commit(self, message: str | None = None, *, allow_lost: bool = False) -> Commit | None:
        """Publish the changes that this process and all other participants staged. The store then reads the new commit.

        If this is cancelled, the commit goes on to its end: see `outcome`.

        Returns the new commit. If nothing changed, a commit is made only if it has a message or properties, given here
        or when the transaction began. Without either, this returns None. In both cases `unchanged` is True.

        Errors as of `Transaction.commit`. After `ConflictError` the staged changes remain: `rollback()` drops them.
        `allow_lost` also commits the changes of processes that died before they finished.
        """
        return await self._committed(lambda: self.store.commit(message, allow_lost=allow_lost))

    @property
    def unchanged(self) -> bool:
        """Whether the last commit of this store changed nothing: all staged values were equal to the stored values."""
        return self.store.unchanged

    async def rollback(self) -> None:
        """Drop the staged changes and move to the newest commit."""
        await call(self.store.rollback)

    async def latest(self) -> AsyncTransaction:
        """Return a new store at the newest commit. It does not see the changes staged in this store."""
        return AsyncTransaction(await call(self.store.latest))

    async def set_reference(
        self,
        key: str,
        url: str | os.PathLike[str],
        offset: int = 0,
        length: int | None = None,
        *,
        size: int | None = None,
        version: str | None = None,
    ) -> None:
        """Stage a foreign value, which stays in a file outside the repository. See `Transaction.set_reference`."""
        await call(lambda: self.store.set_reference(key, url, offset, length, size=size, version=version))

    async def set_references(
        self, keys: Sequence[str], urls: Sequence[str], offsets: ArrayLike, lengths: ArrayLike
    ) -> None:
        """Stage many foreign values at once. See `Transaction.set_references`."""
        await call(lambda: self.store.set_references(keys, urls, offsets, lengths))


class AsyncRepository:
    """A repository for tasks of an event loop: each method of `Repository`, in a thread of its own.

    `await aio.open(url)` makes one, or `AsyncRepository(repo)` of a `Repository`, which is then `repository`. Any
    number of tasks may share it. Errors are those of `Repository`. If a task is cancelled, it stops waiting at once;
    what it has called goes on to its end in its thread. Functions that you pass, such as `progress`, are called in that
    thread, except asynchronous ones, which get a store: these run as a task of your loop.
    """

    def __init__(self, repository: Repository) -> None:
        self.repository = repository

    def __repr__(self) -> str:
        return f"<AsyncRepository {self.url}>"

    @property
    def url(self) -> str:
        """The location of the repository."""
        return self.repository.url

    async def id(self) -> str:
        """The repository's id, 32 hexadecimal digits. Raises `RepositoryNotFoundError` before the first write."""
        return await call(lambda: self.repository.id)

    @property
    def chunk_cache(self) -> ChunkCache:
        """The decoded chunks in memory: `hits` and `misses`, `size` of `capacity` in bytes, and `clear()`."""
        return self.repository.chunk_cache

    async def exists(self) -> bool:
        """Whether a process has written anything here."""
        return await call(lambda: self.repository.exists)

    async def show(self, *, height: int = 600) -> Shown:
        """Show the page of this repository in a notebook: history, arrays, pictures, differences and writers.

        A server answers on this machine only, until you call `close()` on the result or the process ends. Needs
        `txstore[serve]`. If the browser is on another machine, forward the port that this prints.
        """
        return await call(lambda: self.repository.show(height=height))

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
    ) -> Beginning[AsyncTransaction]:
        """Return a writable store, a context manager: it commits on a clean exit and rolls back on an exception.

        Begin a transaction when you `await` this or enter it, as an `AsyncTransaction` with this store.

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
        return Beginning(
            AsyncTransaction,
            lambda: self.repository.transaction(
                message,
                name=name,
                branch=branch,
                lock=lock,
                lock_timeout=lock_timeout,
                properties=properties,
                isolation=isolation,
                on_conflict=on_conflict,
            ),
        )

    async def transactions(self) -> list[NamedTransaction]:
        """Return the named transactions that no process has committed or rolled back."""
        return await call(self.repository.transactions)

    async def begin(
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
        return await call(
            lambda: self.repository.begin(
                message, branch=branch, properties=properties, isolation=isolation, on_conflict=on_conflict
            )
        )

    async def run(
        self,
        fn: Callable[[TxStore], Awaitable[T]],
        *,
        retries: int | None = None,
        timeout: float = 60.0,
        **transaction_arguments: Any,
    ) -> T:
        """Run `fn(store)` in a transaction. If its commit conflicts, run it again on the new head.

        `fn` is an asynchronous function. If this is cancelled, so is `fn`, and it is not tried again.

        It also retries if a vacuum expired the base just as the transaction began. Returns the result of `fn`. Raises
        `ConflictError` or `SnapshotExpiredError` after `retries` retries; by default after `timeout` seconds and at
        least ten retries. `fn` must not keep array objects of an earlier run.

        Committers that have met conflicts wait in a queue: `fn` runs when the committers ahead have committed. On a
        disk they wait for 3 seconds, or as long as twenty runs of `fn` take, but no longer than 30 seconds.
        """
        return await call_back(
            lambda called: self.repository.run(called, retries=retries, timeout=timeout, **transaction_arguments), fn
        )

    async def upsert(
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
        """
        return await call(
            lambda: self.repository.upsert(
                ds,
                dim,
                group,
                existing=existing,
                missing=missing,
                message=message,
                branch=branch,
                properties=properties,
                timeout=timeout,
            )
        )

    async def rechunk(
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
            A name for this job, by default after the path.
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
        """
        return await call(
            lambda: self.repository.rechunk(
                path,
                chunks=chunks,
                shards=shards,
                compressors=compressors,
                max_memory=max_memory,
                workers=workers,
                name=name,
                branch=branch,
                message=message,
                timeout=timeout,
                progress=progress,
            )
        )

    async def snapshot(self, at: At | None = None, *, branch: str = MAIN, tag: str | None = None) -> TxStore:
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
        return await call(lambda: self.repository.snapshot(at, branch=branch, tag=tag))

    async def mapping(self, at: At | None = None, *, branch: str = MAIN, tag: str | None = None) -> Snapshot:
        """Return a snapshot as a plain `Mapping[str, bytes]`, for zarr 2 and other libraries that take a mapping."""
        return await call(lambda: self.repository.mapping(at, branch=branch, tag=tag))

    @overload
    def log(
        self,
        branch: str = MAIN,
        *,
        limit: int | None = None,
        path: str | None = None,
        operations: Literal[False] = False,
    ) -> Listing[Commit]: ...

    @overload
    def log(self, *, limit: int | None = None, operations: Literal[True]) -> Listing[LoggedOperation]: ...

    @overload
    def log(
        self, branch: str = MAIN, *, limit: int | None = None, path: str | None = None, operations: bool
    ) -> Listing[Commit | LoggedOperation]: ...

    def log(
        self, branch: str = MAIN, *, limit: int | None = None, path: str | None = None, operations: bool = False
    ) -> Listing[Commit | LoggedOperation]:
        """Return the commits of a branch, newest first: a sequence that reads commits only as far as you iterate.

        Await this for a list, or read it page by page with `async for`.

        With `path`, it has only commits that changed something at or below the path.

        With `operations`, return what was done beside commits instead, newest first: maintenance, and branches and tags
        that were created, renamed or deleted, on all branches. A vacuum keeps the newest 1,000 records. See
        docs/how-to/maintenance.md.
        """
        return Listing(lambda: self.repository.log(branch, limit=limit, path=path, operations=operations))

    async def blame(self, path: str, at: At | None = None, *, branch: str = MAIN) -> Blame:
        """Return which commit wrote each chunk of an array, and each metadata document of an array or group.

        `at` is as in `snapshot`. Raises `NodeNotFoundError`.
        """
        return await call(lambda: self.repository.blame(path, at, branch=branch))

    async def bisect(
        self, good: At, bad: At, test: Callable[[TxStore], Awaitable[bool]], *, branch: str = MAIN
    ) -> Commit:
        """Return the first bad commit after `good`, up to and including `bad`, by binary search.

        `test` is an asynchronous function.

        `test` gets a read-only store, and returns True if the commit is good. It is called for `good`, for `bad`, and
        for about log2(n) of the n commits between them. Raises `ValueError` if `good` is not before `bad`, or if `test`
        does not find `good` good and `bad` bad.
        """
        return await call_back(lambda called: self.repository.bisect(good, bad, called, branch=branch), test)

    async def head(self, branch: str = MAIN) -> Commit | None:
        """Return the newest commit of a branch. None if the branch has no commits, or there is no repository yet."""
        return await call(lambda: self.repository.head(branch))

    async def commit(self, at: At, *, branch: str = MAIN) -> Commit:
        """Return the commit that a version, an id or an aware datetime names."""
        return await call(lambda: self.repository.commit(at, branch=branch))

    async def resolve(self, commit_id: str) -> Commit | None:
        """Return the commit with this id, None if it was never made. Use it after a `CommitUnknownError`.

        It also returns None for a commit that a vacuum has expired, so ask before that happens.
        """
        return await call(lambda: self.repository.resolve(commit_id))

    async def diff(self, a: At, b: At | None = None, *, three_dot: bool = False, branch: str = MAIN) -> Diff:
        """Return the differences between two commits, node by node. With one commit, those against its parent.

        The result lists added, removed, moved and changed nodes, attributes and shapes before and after, and the
        regions of arrays whose chunks changed. `.values(path)` reads the elements. The cost grows with the changes.

        Parameters
        ----------
        a, b : Commit, int, str or datetime
            A value that `commit` takes, or a tag.
        three_dot : bool
            Return only the changes of `b` since the newest best common ancestor of `a` and `b`.
        """
        return await call(lambda: self.repository.diff(a, b, three_dot=three_dot, branch=branch))

    @overload
    async def merge(
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
    async def merge(
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
    async def merge(
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

    async def merge(
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
        """
        return await call(
            lambda: self.repository.merge(
                source,
                branch,
                resolve=resolve,
                append=append,
                dry_run=dry_run,
                message=message,
                properties=properties,
                progress=progress,
            )
        )

    @overload
    async def cherry_pick(
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
    async def cherry_pick(
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
    async def cherry_pick(
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

    async def cherry_pick(
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
        return await call(
            lambda: self.repository.cherry_pick(
                commit, branch, resolve=resolve, append=append, dry_run=dry_run, message=message, properties=properties
            )
        )

    @overload
    async def revert(
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
    async def revert(
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
    async def revert(
        self,
        commit: At,
        branch: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        dry_run: bool,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Commit | MergePlan: ...

    async def revert(
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
        return await call(
            lambda: self.repository.revert(
                commit, branch, resolve=resolve, dry_run=dry_run, message=message, properties=properties
            )
        )

    def follow(
        self, branch: str = MAIN, *, since: At | None = None, timeout: float | None = None
    ) -> AsyncGenerator[Commit, None]:
        """Yield every commit after `since`, in order, each once, and wait for the next commit.

        Iterate with `async for`. A thread waits meanwhile; it ends within a second when the iteration does.

        `since` is a value that `commit` takes: a `Commit`, a version, an id or an aware datetime; -1 is before the
        first commit. By default it is the head at the time of this call. If there is no repository yet, this waits for
        it and yields its first commit. The iteration ends after it has waited `timeout` seconds for a commit: 0 yields
        the existing commits and ends, None waits without limit.

        Closing or dropping the generator releases its resources. Raises `CommitNotFoundError` if `since` does not
        exist, and `RepositoryNotFoundError` if there is no repository that could have it, or no longer. While
        following, raises `CorruptionError` if another repository replaces this one, and `SnapshotExpiredError` if a
        vacuum expired the next commit.
        """
        return follow_branch(self.repository, branch, since, timeout)

    @property
    def branches(self) -> AsyncBranches:
        """The branches: a `MutableMapping` from a name to the branch's newest `Commit`. The first branch is "main".

        Setting a name starts a branch at a commit, which is any value that `commit` takes. See docs/how-to/history.md.
        """
        return AsyncBranches(lambda: self.repository.branches)

    @property
    def tags(self) -> AsyncTags:
        """The tags: a `MutableMapping` from a name to its `Commit`. A tag can't be moved to another commit."""
        return AsyncTags(lambda: self.repository.tags)

    @property
    def constraints(self) -> AsyncConstraints:
        """The constraints: a `MutableMapping` from a name to an object of a class in `txstore.constraints`.

        Setting a name here makes a commit that declares the constraint; deleting a name makes a commit that drops it.
        To declare it together with the arrays, use `store.constraints` in a transaction. From then on, every process
        checks each of its commits, and raises `ConstraintError` if the commit would break it. See
        docs/how-to/constraints.md.
        """
        return AsyncConstraints(lambda: self.repository.constraints)

    @property
    def views(self) -> AsyncRepositoryViews:
        """The views: a `MutableMapping`. Set objects of the classes in `txstore.views`, by name.

        Setting a name makes the output arrays, derives them, and declares the view, all in one commit; deleting a name
        drops the view, and leaves the arrays. To do that together with other changes, use `store.views` in a
        transaction. From then on, each commit that changes a source derives what depends on the change, whichever
        process makes it: no reader ever sees outputs that do not fit their sources. See docs/how-to/views.md.

        What is read is a `DeclaredView`: its `definition`, `is_current()` and, for `when="follow"`, `update()`.
        """
        return AsyncRepositoryViews(lambda: self.repository.views)

    async def feeds(self) -> Feeds:
        """The feeds: a mapping from names; `create(name)` makes one. A job takes from its feed each change once.

        A feed is a cursor in the history. The job commits its output together with the cursor's move, so that both
        become visible, or neither. See docs/how-to/feeds.md.
        """
        return await call(lambda: self.repository.feeds)

    async def freeze(self, reason: str, *, branch: str | None = None) -> None:
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
        await call(lambda: self.repository.freeze(reason, branch=branch))

    async def unfreeze(self, *, branch: str | None = None) -> None:
        """Let commits change data again: on each frozen branch, or on one branch, a commit drops the constraint."""
        await call(lambda: self.repository.unfreeze(branch=branch))

    async def verify(
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
        return await call(lambda: self.repository.verify(progress, repair=repair, sources=sources, decode=decode))

    async def backup(
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
        return await call(
            lambda: self.repository.backup(
                destination, storage_options=storage_options, verify=verify, erase=erase, progress=progress
            )
        )

    async def publish(
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
        return await call(
            lambda: self.repository.publish(
                destination,
                branch=branch,
                follow=follow,
                timeout=timeout,
                verify=verify,
                full=full,
                storage_options=storage_options,
                progress=progress,
                published=published,
            )
        )

    async def references(
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
        return await call(
            lambda: self.repository.references(
                destination, tag=tag, create_tag=create_tag, templates=templates, storage_options=storage_options
            )
        )

    async def import_from(
        self,
        sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        path: str = "",
        *,
        concat: str | int | None = None,
        chunks: Mapping[str | int, int] | None = None,
        exclude: Sequence[str] = (),
        format: str | None = None,
        branch: str = MAIN,
        message: str | None = None,
        name: str | None = None,
        verify: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        progress: Wanted = None,
    ) -> Commit:
        """Import plain Zarr, NetCDF or HDF5 in one commit, and return the commit. See `docs/how-to/import.md`.

        Parameters
        ----------
        sources : str, PathLike, or several
            Paths, fsspec URLs, or patterns. Plain Zarr is copied byte for byte, without consolidated metadata.
        path : str
            The path of the new group or array. Nothing may exist there yet.
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
        return await call(
            lambda: self.repository.import_from(
                sources,
                path,
                concat=concat,
                chunks=chunks,
                exclude=exclude,
                format=format,
                branch=branch,
                message=message,
                name=name,
                verify=verify,
                storage_options=storage_options,
                progress=progress,
            )
        )

    async def import_references(
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
        return await call(
            lambda: self.repository.import_references(
                manifest,
                path,
                branch=branch,
                message=message,
                name=name,
                storage_options=storage_options,
                progress=progress,
            )
        )

    async def export(
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
        return await call(
            lambda: self.repository.export(
                destination,
                at=at,
                branch=branch,
                tag=tag,
                path=path,
                consolidated=consolidated,
                verify=verify,
                storage_options=storage_options,
                progress=progress,
            )
        )

    async def checkout(
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
        return await call(
            lambda: self.repository.checkout(directory, at=at, branch=branch, tag=tag, path=path, progress=progress)
        )

    async def commit_directory(
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
        return await call(
            lambda: self.repository.commit_directory(
                directory, message, branch=branch, properties=properties, progress=progress
            )
        )

    async def optimize(self, *, branch: str = MAIN, progress: Wanted = None) -> Commit | None:
        """Copy small packs, and packs with mostly unused data, into large packs, and compact the sorted runs.

        This makes a commit that changes no content: other commits neither wait for it nor conflict with it. It deletes
        nothing; the next `vacuum` deletes the files that no commit needs any more.

        `progress(done, total)` is called with bytes; True shows a bar. Returns the commit, or None if there was nothing
        to do.
        """
        return await call(lambda: self.repository.optimize(branch=branch, progress=progress))

    async def vacuum(
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
        return await call(
            lambda: self.repository.vacuum(keep=keep, older_than=older_than, dry_run=dry_run, branch=branch)
        )

    async def erase(
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
        call: it continues. docs/how-to/maintenance.md, "Erasing", lists what it can't reach.

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
        """
        return await call(lambda: self.repository.erase(*paths, labels=labels, positions=positions, timeout=timeout))

    async def erasures(self) -> list[Erasure]:
        """Return the records of erasures, oldest first: the paths, the user and the time."""
        return await call(self.repository.erasures)

    async def usage(self, *, branch: str = MAIN) -> Usage:
        """Return how many bytes are live, history, staged and unused, and the live bytes of each array."""
        return await call(lambda: self.repository.usage(branch=branch))
