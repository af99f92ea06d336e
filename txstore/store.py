"""The store that users hold: its transaction, commits, `with` blocks and pickles. What zarr calls: `zarr_interface`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from txstore import processes
from txstore.commit import MAIN, Commit
from txstore.comparing.diff import Diff, OpenArray
from txstore.comparing.nodes import compare
from txstore.deriving.declared import Backfill, decode
from txstore.engine import Engine, Position
from txstore.errors import CommitUnknownError, TransactionStateError, TxStoreError
from txstore.format.chunk_moves import ChunkMoves
from txstore.format.consolidated import may_be_consolidated
from txstore.format.display import html_lines
from txstore.format.records import SNAPSHOT
from txstore.format.tree import tree_lines
from txstore.history.declarations import Constraints, Cursors
from txstore.history.find import At, find_commit
from txstore.history.opening import Access
from txstore.interfaces import AnyRepository
from txstore.labels import window
from txstore.pipeline import open_own
from txstore.sessions.session import LockBlock, Session
from txstore.sessions.session_transaction import Joining
from txstore.sessions.stale_arrays import Reliance
from txstore.storage.foreign_files import Given, allowed
from txstore.views.following import Views
from txstore.views.outputs import make_outputs
from txstore.zarr_interface import ZarrInterface

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike

    from txstore.deriving.definitions import ViewDefinition
    from txstore.format.constraints import Constraint
    from txstore.history.branches import Branches
    from txstore.history.log import Log
    from txstore.history.snapshot import Snapshot
    from txstore.transactions.conflicts import Settle
    from txstore.transactions.participants.named import NamedTransaction
    from txstore.transactions.transaction import Changes, Transaction


#: Number of keys that a listing takes from its thread at a time.
_PAGE = 1000
#: Listing a group prefetches the documents of this many members: more would evict each other from the cache.
_MEMBERS = 10_000

#: Sessions that a pickle can rejoin, by token.
_sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
#: Sessions whose transaction `TxStore.share` has given a URL, by the transaction's id.
_shared: weakref.WeakValueDictionary[bytes, Session] = weakref.WeakValueDictionary()

_entering = processes.new_lock()  # if two threads enter blocks of one store, the second block is inside the first

_LEFT = "this store's `with` block has ended; the transaction goes on: join it again with repo.transaction(name=...)"
_COMMITTED = "this store's `with` block has ended and was committed: begin a new one with repo.transaction()"
_ROLLED_BACK = "this store's `with` block has ended and was rolled back: begin a new one with repo.transaction()"
_UNKNOWN = "this store's `with` block has ended, and whether its commit was made is unknown: see repo.resolve(id)"


class OpenedRepository(AnyRepository, Protocol):
    """A `Repository`, which is in a higher wing; `txstore.Repository` documents each method."""

    engine: Engine

    @property
    def url(self) -> str: ...

    @property
    def id(self) -> str: ...

    @property
    def branches(self) -> Branches: ...

    @property
    def tags(self) -> MutableMapping[str, Commit]: ...

    def snapshot(self, at: At | None = None, *, branch: str = ..., tag: str | None = None) -> TxStore: ...

    def transaction(
        self,
        message: str | None = None,
        *,
        name: str | None = None,
        branch: str = ...,
        properties: Mapping[str, Any] | None = None,
    ) -> TxStore: ...

    def transactions(self) -> list[NamedTransaction]: ...

    def commit(self, at: At, *, branch: str = ...) -> Commit: ...

    def resolve(self, commit_id: str) -> Commit | None: ...

    def log(self, branch: str = ...) -> Log: ...

    def follow(
        self, branch: str = ..., *, since: At | None = None, timeout: float | None = None
    ) -> Generator[Commit, None, None]: ...


class TxStore(ZarrInterface):
    """A zarr store whose writes become visible together, at `commit`, or not at all.

    Parameters
    ----------
    url_or_repository : str, PathLike or Repository
        The location of the repository. The first write creates it; reading never does.
    read_only : bool
        Read one commit, for as long as you like. `at` and `tag` imply it. If there is no repository, this raises
        `RepositoryNotFoundError`.
    create : bool
        With False, a writable store raises the same error. So a misspelled path does not create a second repository.
    branch : str
        The name of the branch to read or to commit to.
    at : int, str, Commit, datetime or numpy.datetime64, optional
        A version (-1 is the newest commit), a commit or its id (or the first digits of it), a tag, or a date: the
        newest commit that is not later. A date has a zone, or is a `numpy.datetime64`, which is in UTC.
    tag : str, optional
        The name of a tag.
    durability : {"fsync", "none"}
        "fsync": `commit` returns only when the commit will survive a loss of power. "none" is for scratch data. (The
        stores of `Repository.transaction` use the repository's durability.)
    storage_options : dict, optional
        Options for the fsspec file system of the URL. A `Repository` takes more options.
    sources : dict or list of str, optional
        URLs below which foreign values may lie, as in `Repository`.

    A writable store runs one transaction after another: `commit()` publishes the staged changes and begins the next
    transaction there, `rollback()` drops them and moves to the newest commit. As a context manager, the store commits
    on a clean exit and rolls back on an exception. You can't use it afterwards.

    Examples
    --------
    >>> import zarr, txstore, tempfile
    >>> path = tempfile.mkdtemp() + "/data.tx"
    >>> with txstore.TxStore(path) as store:
    ...     z = zarr.create_array(store, name="position", shape=(4,), chunks=(2,), dtype="i4")
    ...     z[:] = [1, 2, 3, 4]
    >>> store = txstore.TxStore(path, read_only=True)
    >>> zarr.open_array(store, path="position", mode="r")[:]
    array([1, 2, 3, 4], dtype=int32)
    """

    def __init__(
        self,
        url_or_repository: str | os.PathLike[str] | OpenedRepository,
        *,
        read_only: bool = False,
        create: bool = True,
        branch: str = MAIN,
        at: At | None = None,
        tag: str | None = None,
        durability: str = "fsync",
        storage_options: dict[str, Any] | None = None,
        sources: Given | None = None,
    ) -> None:
        if isinstance(url_or_repository, str | os.PathLike):
            access = Access(dict(storage_options or {}), sources=allowed(sources))
            engine = Engine(url_or_repository, durability=durability, access=access)
        else:
            if storage_options or sources:
                raise ValueError("storage_options and sources belong to the Repository: give them to it")
            engine = url_or_repository.engine.with_durability(durability)
        read_only = read_only or at is not None or tag is not None
        branch = engine.branch(branch)
        position = Position(engine, branch=branch, at=at, tag=tag, creates=create and not read_only)
        position.settle()
        self._set_up(engine, position, None if read_only else Session(engine, position, branch=branch), read_only)

    def _set_up(self, engine: Engine, position: Position, session: Session | None, read_only: bool) -> None:
        super().__init__(engine, position, session, read_only)
        self._outside: Session | None = None  # the session to restore after a participant's `with` block
        if session is not None:
            _sessions[session.token] = session

    @classmethod
    def _of(cls, engine: Engine, position: Position, session: Session | None, *, read_only: bool) -> Self:
        store = cls.__new__(cls)
        store._set_up(engine, position, session, read_only)
        return store

    @classmethod
    def begin(
        cls,
        engine: Engine,
        *,
        branch: str,
        message: str | None,
        properties: Mapping[str, Any] | None,
        first: Transaction | None = None,
        isolation: str = SNAPSHOT,
        settle_conflicts: Settle | None = None,
    ) -> Self:
        """Return a writable store at the head, for `Repository.transaction`.

        `branch` is a branch's id, `first` the store's first transaction.
        """
        if first is None:
            position = Position(engine, branch=branch, creates=True)
            position.settle()
        else:
            position = Position.of(engine, first.base, branch)
        session = Session(
            engine,
            position,
            branch=branch,
            message=message,
            properties=properties,
            first=first,
            isolation=isolation,
            settle_conflicts=settle_conflicts,
        )
        session.may_fork = True
        return cls._of(engine, position, session, read_only=False)

    @classmethod
    def joining(cls, engine: Engine, transaction: str) -> Self:
        """Return a store that stages into the transaction of a URL of `share`, for bridges. `transaction` is its id.

        Raises `TransactionStateError` if it has ended, and `RepositoryNotFoundError`.
        """
        shared_id = bytes.fromhex(transaction)
        session = _shared.get(shared_id)
        if session is None:
            joined = engine.join(shared_id, engine.commits.identity.id)
            joining = Joining(shared_id, engine.commits.identity.id, {})
            position = Position.of(engine, joined.base, joined.branch)
            session = Session(engine, position, joining=joining, isolation=joined.isolation)
        elif session.current.ended is not None or session.transaction.shared_id != shared_id:
            raise TransactionStateError(
                "the transaction of this URL has ended: take store.share() of the present one", state="ended"
            )
        return cls._of(session.engine, session.current.position, session, read_only=False)

    @classmethod
    def at(cls, engine: Engine, snapshot: Snapshot) -> Self:
        """Return a read-only store at a snapshot."""
        branch = MAIN if snapshot.stored is None else snapshot.stored.header.branch
        return cls._of(engine, Position.of(engine, snapshot, branch), None, read_only=True)

    # --- the commit and the transaction below this store

    @property
    def url(self) -> str:
        """The location of the repository."""
        return self._engine.url

    @property
    def branch(self) -> str:
        """The name of the branch that the store reads, or commits to."""
        return self._engine.commits.branches.name_of(self._position.branch)

    @property
    def base(self) -> Commit | None:
        """The commit that the store reads, and that is the base of its staged changes. None if there is no commit."""
        stored = self._position.snapshot().stored
        return None if stored is None else stored.commit

    @property
    def staged_count(self) -> int:
        """The number of keys and prefixes that this store has set or deleted, and not committed."""
        return 0 if self._session is None else self._session.staged_count

    def changes(self) -> Changes:
        """Return the staged changes: `set` and `deleted` keys, and in `deleted_below` the paths deleted as a whole.

        `participants` says which process staged which keys. `diff` describes the same changes as arrays and groups.
        """
        return self._writer().session.transaction.changes()

    def diff(self) -> Diff:
        """Return the staged changes against their base commit, in the form of `Repository.diff`."""
        transaction = self._writer().session.transaction
        base = transaction.base

        def opened(view: Snapshot | None) -> OpenArray:
            def open_array(path: str) -> Any:
                store = self if view is None else TxStore.at(self._engine, view)
                return open_own(store, path, mode="r")

            return open_array

        nodes = compare(transaction.key_changes(), base, transaction)
        return Diff(base.commit, None, nodes, opened(base), opened(None), is_staged=True)

    def share(self) -> str:
        """Return a URL for tools that take a string: what they write there, in any process, is in this transaction.

        The URL is valid until the transaction ends, where the repository can be reached. The tool's process takes part
        as one that has unpickled the store: `docs/how-to/together.md`. Creates the repository if there is none.

        Raises `TransactionStateError` if the transaction has ended.

        Examples
        --------
        >>> import tempfile, txstore
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> with repo.transaction("by a tool") as store:
        ...     url = store.share()  # txstore:///tmp/.../data.tx?shared=...
        """
        session = self._writer().session
        joining = session.share(creating=True)
        if joining is None:
            raise TransactionStateError(session.current.ended or "this transaction has ended", state="ended")
        _shared[joining.transaction] = session
        return f"{self}?shared={joining.transaction.hex()}"

    # --- copies by reference

    def move(self, source: str, destination: str) -> None:
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

        Examples
        --------
        >>> import numpy as np, tempfile, txstore, zarr
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> with repo.transaction() as store:
        ...     z = zarr.create_array(store, name="raw", data=np.arange(4), chunks=(2,))
        >>> with repo.transaction() as store:
        ...     store.move("raw", "t2m")
        ...     store.copy("t2m", "backup")
        >>> sorted(zarr.open_group(repo.snapshot(), mode="r").array_keys())
        ['backup', 't2m']
        """
        self._writer().move(source, destination)

    def copy(self, source: str, destination: str, *, at: At | None = None) -> None:
        """Copy an array or group by reference, as it is in this transaction or as it was at a commit.

        `at` is as in `Repository.snapshot`. Raises what `move` does, and `CommitNotFoundError`.
        """
        self._writer().copy(source, destination, None if at is None else self._snapshot_at(at))

    def restore(self, path: str, at: At) -> None:
        """Restore an array or group, and everything below it, to its state at a commit. If it did not exist, delete it.

        This reads and copies no value. Groups above it that are gone are made as they were, without their other nodes.
        The root, `""`, is the whole repository. Raises `NodeNotFoundError` if the node exists neither at the commit nor
        now, `CommitNotFoundError`, and `TransactionStateError` as `move` does.
        """
        self._writer().restore(path, self._snapshot_at(at))

    def shift(self, path: str, offsets: Mapping[int, int], *, fill: Any = None) -> None:
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

        Examples
        --------
        >>> import numpy as np, tempfile, txstore, zarr
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> with repo.transaction() as store:
        ...     z = zarr.create_array(store, name="x", data=np.arange(6), chunks=(2,))
        >>> with repo.transaction() as store:
        ...     store.shift("x", {0: -2}, fill=-1)
        >>> zarr.open_array(repo.snapshot(), path="x", mode="r")[:]
        array([ 2,  3,  4,  5, -1, -1])
        """
        window.shift(self, path, offsets, fill)

    def move_chunks(self, moves: Mapping[str, ChunkMoves]) -> None:
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
        self._writer().move_chunks(moves)

    def rely_on(self, keys: Iterable[str]) -> None:
        """Count keys as read: the commit conflicts if another commit has changed one of them since the base.

        A transaction with `isolation="serializable"` counts every key that it reads.
        """
        self._writer().rely_on(keys)

    def at_base(self) -> TxStore:
        """Return a read-only store at the commit that the staged changes are based on. It shows none of them."""
        return self.at(self._engine, self._position.snapshot())

    def _snapshot_at(self, at: At) -> Snapshot:
        engine = self._engine
        return engine.snapshots.of(find_commit(engine.commits, at, self._writer().session.current.terms.branch))

    @property
    def constraints(self) -> Constraints:
        """The constraints by name: see `Repository.constraints`. In a writable store they can be changed.

        The commit of this transaction declares the names that you set, and drops the names that you delete.
        """

        def declare(name: str, constraint: Constraint | None) -> None:
            self._writer().session.transaction.constraints.declare(name, constraint)

        return Constraints(lambda: self.mapping.constraints, declare)

    @property
    def views(self) -> Views:
        """The views by name: see `Repository.views`. In a writable store they can be changed.

        Setting a name makes the output arrays in this transaction. Its commit derives them, and declares the view.
        """

        def declare(name: str, view: ViewDefinition | None) -> None:
            transaction = self._writer().session.transaction
            if view is not None:
                make_outputs(self, view)
            transaction.views.declare(name, view)

        def bring_to(name: str, done: Commit | Backfill) -> None:
            self._writer().session.transaction.views.bring_to(name, done)

        return Views(self._declared_views, declare, bring_to)

    def _declared_views(self) -> Mapping[str, ViewDefinition]:
        if self._session is not None:
            return self._session.transaction.views.read()
        return decode(self.url, self._position.snapshot().declared.views)

    @property
    def cursors(self) -> Cursors:
        """How far each feed has come, by name, as JSON (docs/understand/format.md, "Cursors").

        `Repository.feeds` moves them. In a writable store, the commit of this transaction moves the cursors that are
        set, and drops those that are deleted; `ConflictError` if another commit has moved one first.
        """

        def declare(name: str, cursor: Mapping[str, Any] | None) -> None:
            self._writer().session.transaction.cursors.declare(name, cursor)

        return Cursors(lambda: self.mapping.cursors, declare)

    # --- transactions

    def commit(
        self, message: str | None = None, *, allow_lost: bool = False, allow_misaligned: bool = False
    ) -> Commit | None:
        """Publish the changes that this process and all other participants staged. The store then reads the new commit.

        Returns the new commit. If nothing changed, a commit is made only if it has a message or properties, given here
        or when the transaction began. Without either, this returns None. In both cases `unchanged` is True.

        Errors as of `Transaction.commit`. After `ConflictError` the staged changes remain: `rollback()` drops them.
        `allow_lost` also commits the changes of processes that died before they finished.

        Raises `MisalignedError` if an array has grown along a named dimension, and an array of its group that was
        opened here does not fit it any more: it was as long and did not grow, or it is the coordinate of another
        dimension and has other labels now. `allow_misaligned` commits that.
        """
        return self._writer().session.commit(message, allow_lost=allow_lost, allow_misaligned=allow_misaligned)

    @property
    def unchanged(self) -> bool:
        """Whether the last commit of this store changed nothing: all staged values were equal to the stored values."""
        return self._session is not None and self._session.unchanged

    def lock(self, path: str, selection: Any = ..., timeout: float | None = 60.0) -> LockBlock:
        """Lock the chunks that a selection of an array covers while a `with` block runs. Other lock holders wait.

        `selection` is an index of the array, or `txstore.APPEND`; `...` is all chunks. `timeout` is in seconds: None
        waits without limit, 0 tries once. The block gets the keys whose last holder died while it held them.

        Other threads wait, too. The thread that runs the block may lock the same chunks again. After the block, threads
        and processes of the same transaction can take the locks; other transactions wait until this one ends. The
        block sees the values that earlier holders in the transaction wrote. Entering it raises `LockTimeoutError`, and
        `ConflictError` if another commit changed one of the chunks since this transaction began.
        """
        session = self._writer().session
        return LockBlock(lambda: session.transaction, session.gate, {path: selection}, timeout)

    def rollback(self) -> None:
        """Drop the staged changes and move to the newest commit."""
        self._writer().session.rollback()

    def latest(self) -> TxStore:
        """Return a new store at the newest commit. It does not see the changes staged in this store."""
        if self._session is None:
            position = Position(self._engine, branch=self._position.branch)
            position.settle()
            return self._of(self._engine, position, None, read_only=True)
        return self.begin(self._engine, **self._session.current.terms._asdict())

    def __enter__(self) -> Self:
        if self._session is not None and not self.read_only:
            with _entering:
                block = self._session.for_block()
                if block is not self._session:
                    self._outside = self._session
                    self._use(block)
                self._session.enter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        session = self._session
        if session is None or self.read_only:
            self.close()
            return
        if not session.depth:
            return  # the block was entered before a fork: the parent ends it
        session.depth -= 1
        if session.depth:
            if kind is not None:
                session.fail("an exception left an inner `with` block: its changes may be incomplete")
            return
        if session.current.is_block:
            outside, self._outside = self._outside, None
            self._use(outside)
            session.leave_block(outside, complete=kind is None)
            return
        if session.current.is_participant:
            session.leave(complete=kind is None)
            return
        is_named = session.current.is_named
        try:
            if session.current.ended is not None:
                return  # the caller committed or rolled back a named transaction inside the block
            if is_named:
                session.leave(complete=True)
            elif kind is None:
                session.commit(at_end=True)
        except BaseException as error:
            session.end(_LEFT if is_named else _UNKNOWN if isinstance(error, CommitUnknownError) else _ROLLED_BACK)
            raise
        else:
            session.end(_LEFT if is_named else _ROLLED_BACK if kind else _COMMITTED)
        finally:
            self.close()

    def with_read_only(self, read_only: bool = False) -> Self:
        """Return an unopened store on the same data. A writer's includes its staged changes."""
        if self._session is not None:
            return self._of(self._engine, self._position, self._session, read_only=read_only)
        if read_only:
            return self._of(self._engine, self._position, None, read_only=True)
        branch = self._position.branch
        if self._position.stored is None:
            return self.begin(self._engine, branch=branch, message=None, properties=None)
        session = Session(self._engine, self._position, branch=branch)
        return self._of(self._engine, self._position, session, read_only=False)

    # --- identity

    def is_in_transaction_of(self, other: object) -> bool:
        """Tell whether another store shows the staged changes of this one's transaction: one of the two has them."""
        if not isinstance(other, TxStore) or self._session is None or other._session is None:
            return False
        return self._session.token == other._session.token

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TxStore) and _identity(self) == _identity(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        session = self._session
        if session is None:
            return _reopen_reader, (self._engine, self._position)
        joining = session.share()
        branch, message, properties, isolation, _ = session.current.terms
        told = (session.token, session.current.ended, branch, message, properties, isolation)
        # The version is for dask, which computes an array's token from the pickle of its store.
        version = session.version
        return _reopen_writer, (
            self._engine,
            session.current.position,
            told,
            joining,
            session.held.reliance,
            self.read_only,
            version,
        )

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """Return a token that identifies this store's content. Without this method, dask would pickle the store."""
        session, exact = self._session, self._position.exact
        return (
            ("txstore", self.url, exact)
            if session is None
            else ("txstore", self.url, exact, session.token, session.version)
        )

    def __str__(self) -> str:
        return f"txstore://{self.url}"

    def __repr__(self) -> str:
        return f"<TxStore {self.url} {self._state()}>"

    def _repr_html_(self) -> str:
        head = f"<b>TxStore</b> <code>{escape(self.url)}</code> {escape(self._state())}"
        try:
            return head + html_lines(tree_lines(self.mapping))
        except (TxStoreError, OSError) as error:  # a notebook's cell shows the error and does not fail
            return head + html_lines([str(error)])

    def _state(self) -> str:
        stored = self._position.stored
        where = "(no commit)" if stored is None else str(stored.commit)
        mode = ", read-only" if self.read_only else ""
        staged = f", {self.staged_count} staged, NOT COMMITTED" if self.staged_count else ""
        return where + mode + staged

    def set_reference(
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
        self._writer().set_reference(key, url, offset, length, size=size, version=version)

    def set_references(self, keys: Sequence[str], urls: Sequence[str], offsets: ArrayLike, lengths: ArrayLike) -> None:
        """Stage many foreign values at once. See `Transaction.set_references`."""
        self._writer().set_references(keys, urls, offsets, lengths)

    # --- dict syntax

    def __getitem__(self, key: str) -> bytes:
        if not isinstance(key, str):
            raise TypeError(f"a key is a string, not {type(key).__name__}")
        view = self._served(key) if may_be_consolidated(key) else self._view.get_view(key)
        if view is None:
            raise KeyError(key)
        return bytes(view)

    def __setitem__(self, key: str, value: Any) -> None:
        self._writer().set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._writer().delete(key)

    def __contains__(self, key: object) -> bool:
        return key in self.mapping

    def __iter__(self) -> Iterator[str]:
        return iter(self.mapping)

    def __len__(self) -> int:
        return len(self.mapping)

    def __bool__(self) -> bool:
        return True


def _identity(store: TxStore) -> tuple[Any, ...]:
    session = store._session
    content = session.token if session is not None and session.staged_count else store._position.exact
    return store.url, store.read_only, content


def _reopen_reader(engine: Engine, position: Position) -> TxStore:
    return TxStore._of(engine, position, None, read_only=True)


def _reopen_writer(
    engine: Engine,
    position: Position,
    told: tuple[str, str | None, str, str | None, Mapping[str, Any] | None, str],
    joining: Joining | None,
    reliance: Reliance,
    read_only: bool,
    _version: Hashable,
) -> TxStore:
    """Restore a writable store without raising: an error while unpickling hangs a pool. The first use raises it."""
    token, ended, branch, message, properties, isolation = told
    here = _sessions.get(token)
    if here is not None and not here.current.stages_into(joining):
        here = None
    session = here
    if session is None or not session.current.knows(joining, reliance):
        session = Session(
            engine,
            position,
            branch=branch,
            message=message,
            properties=properties,
            joining=joining,
            beside=here,
            token=token,
            isolation=isolation,
        )
        session.rely_on(reliance)
        if ended is not None:
            session.end(ended)
    return TxStore._of(session.engine, session.current.position, session, read_only=read_only)
