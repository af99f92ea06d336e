"""Repository: the facade over one repository: transactions, snapshots, history, tags, verification."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar, overload

from txstore.commit import MAIN, Commit, Stored
from txstore.commit_queue.tickets import Turns
from txstore.comparing.diff import Diff, OpenArray
from txstore.comparing.nodes import compare
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
from txstore.format.constraints import Constraint
from txstore.format.records import SNAPSHOT, Isolation
from txstore.format.shown import html_head, html_lines
from txstore.format.tree import tree_lines
from txstore.history.ancestry import common_ancestors
from txstore.history.branches import Branches
from txstore.history.changes import changed, commits_of, common_ancestor, parent_of
from txstore.history.commits import Commits
from txstore.history.declarations import Constraints
from txstore.history.erasures import Erasure, read_erasures
from txstore.history.find import At, find_commit
from txstore.history.follow import follow
from txstore.history.log import Log, changing
from txstore.history.opening import Access
from txstore.history.snapshot import Snapshot
from txstore.history.tags import Tags
from txstore.maintenance.backup import Backup, back_up
from txstore.maintenance.erase import ErasureReport, check_paths, erase
from txstore.maintenance.optimize import optimize
from txstore.maintenance.repair import verify_and_repair
from txstore.maintenance.report import Report
from txstore.maintenance.usage import Usage, usage
from txstore.maintenance.vacuum import VacuumReport, vacuum
from txstore.maintenance.verify import check_sources, verify
from txstore.merging import operations
from txstore.merging.conflicts import Answer
from txstore.merging.rebasing import settling
from txstore.merging.three_way import MergePlan
from txstore.progress import Progress, Wanted, showing
from txstore.storage.pack_cache import CACHE_SIZE
from txstore.storage.sources import Given, allowed
from txstore.transactions.conflicts import Settle
from txstore.transactions.participants.named import NamedTransaction, transactions
from txstore.transactions.regions import Lock
from txstore.transactions.transaction import Transaction

if TYPE_CHECKING:
    from txstore.comparing.blame import Blame
    from txstore.interchange.export import Export
    from txstore.interchange.publish import Published
    from txstore.interchange.references import References
    from txstore.serving.shown import Shown
    from txstore.store import TxStore

T = TypeVar("T")

#: Seconds: the longest pause before the first retry of `run`; it doubles with each.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 1.0
_LEAST_RETRIES = 10
#: Commits that a notebook shows of a repository.
_SHOWN_COMMITS = 5


class Repository:
    """One TxStore repository.

    Parameters ---------- url : str or PathLike Where it is. It is created by the first write, never by reading. create
    : bool False: there has to be a repository already, or `RepositoryNotFoundError` is raised at once. So a misspelled
    path makes no second repository. durability : {"fsync", "none"} Whether `commit` returns only when the commit will
    survive power loss. "none" is for scratch data. storage_options : dict, optional Of the fsspec file system that the
    URL is of: credentials, endpoints. They are kept in this process and in its pickles, and written nowhere.
    single_writer : bool For a file system that can't create exclusively (`docs/how-to/remote.md`): a promise that no
    other process writes this repository, ever. Without it, such a repository can only be read. cache_dir : str or
    PathLike, optional Where on this machine to keep what was read from afar, `cache_size` bytes at most, for all
    processes that name it. By default 64 MiB are kept in memory. retention : int or timedelta, optional How many of the
    newest commits to keep, or for how long: a process that commits with this set expires and compacts older ones now
    and then. By default history is kept, and only `vacuum` gives it up. Tagged commits stay. sources : dict, list of
    str, or str, optional Below which directories or URLs values may lie in files outside of the repository
    (`docs/how-to/virtual.md`); a dict has the options of their fsspec file systems. Nothing else is opened, whatever
    the repository says. commit_timeout : float, optional Seconds that a commit, or maintenance, waits for others that
    are committing, or at maintenance: then it raises `CommitTimeoutError`, which says who they are; what is staged is
    still there, to be committed again. By default there is no limit, and a `CommitWaitWarning` after 5 seconds.

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
    ) -> None:
        if commit_timeout is not None and not commit_timeout >= 0:
            raise ValueError(f"commit_timeout={commit_timeout!r}: it is in seconds, 0 or more; None: no limit")
        cache = None if cache_dir is None else os.path.abspath(os.path.expanduser(cache_dir))
        access = Access(dict(storage_options or {}), single_writer, cache, cache_size, allowed(sources), commit_timeout)
        self.engine = Engine(url, durability=durability, access=access, retention=retention)
        if not self.engine.exists(creating=create) and not create:  # this raises if something else is in its place
            raise RepositoryNotFoundError(self.url)

    @property
    def url(self) -> str:
        """Where the repository is."""
        return self.engine.url

    @property
    def id(self) -> str:
        """32 hexadecimal digits. Raises `RepositoryNotFoundError` before the first write."""
        return self.engine.commits.identity.id.hex()

    @property
    def exists(self) -> bool:
        """Whether anything was ever written here."""
        return self.engine.exists()

    if not TYPE_CHECKING:  # it would let every misspelled name pass

        def __getattr__(self, name: str) -> Never:
            # xarray asks for this of whatever it is to write to or to read as Zarr, and zarr would say nothing of use.
            if name == "supports_consolidated_metadata":
                raise TypeError(
                    "a repository is not what zarr and xarray write to or read from. Write to a transaction: "
                    "`with repo.transaction() as store: ds.to_zarr(store)`; read a snapshot: "
                    "`xr.open_zarr(repo.snapshot())`"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<Repository {self.url}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the newest commits, the arrays and groups, and what they take."""
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
        except (TxStoreError, OSError) as error:  # a cell of a notebook shows what is wrong, and goes on
            return head + html_lines([str(error)])

    def show(self, *, height: int = 600) -> Shown:
        """Show the page of this repository in a notebook: history, arrays, pictures, what differs, who writes.

        A server answers on this machine alone, until `close()` of what this returns, or the end of the process.
        Needs `txstore[serve]`. Where the browser is on another machine, forward the port that is printed.
        """
        try:
            from txstore.serving.shown import show  # late: it needs starlette and uvicorn
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            told = f"{missing} is not installed, which shows the page: pip install 'txstore[serve]'"
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
        """Return a writable store, a context manager: commits on a clean exit, rolls back on an exception.

        Pickled or inherited by a fork, the store stages into the same transaction in the other process, which returns
        nothing: the owner commits everything, or nothing.

        Parameters
        ----------
        message : str, optional
            What the commit's entry in the log says. With a message or properties, the commit is made even if it
            changes nothing. Without either, what changes nothing is no commit: `store.commit()` returns None. The store
            says either way: `store.unchanged`.
        name : str, optional
            Join the transaction with this name, or begin it: for processes that share nothing but the disk. Leaving the
            block, also by an exception, then ends only the part of this process; `commit()` or `rollback()` ends the
            transaction, in any process, when all others have left. It survives the processes that stage into it.
            Threads of one process that give the name are told apart as processes are: each call joins by itself.
        lock : dict, list or str, optional
            Chunks that no other holder of locks changes until this transaction has ended: `{path: selection}`, where
            a selection is what the array would be indexed with, or `txstore.APPEND`; or paths of whole arrays. The
            transaction is based on the head as it is when the locks are held.
        lock_timeout : float, optional
            Seconds to wait for the locks; None: for ever.
        properties : dict, optional
            A JSON object that the commit carries.
        isolation : {"snapshot", "serializable"}
            "snapshot": a conflict is what somebody else has written of what is written here. "serializable": also what
            somebody else has changed of what was read here: values, keys that were not there, the names in what was
            listed. Transactions that are all serializable then have the effect of one after the other. One that only
            reads, and has no message, never conflicts. What was read is held in memory, one entry a key; in a process
            that stages into the transaction of another, it is one small write a key besides.
        on_conflict : {None, "merge"}
            "merge": a commit that would conflict with what somebody else has committed since is put together with that,
            as `merge` puts branches together: chunks element by element, attributes key by key, growth beside other
            changes. What both have changed is a `ConflictError`, be it equal; its `conflicts` say where. By default,
            only elements that were written in part are told apart.

        Raises
        ------
        LockTimeoutError
            Somebody else holds the locks.
        TransactionStateError
            The transaction with this name is being ended, or has less isolation.
        """
        return self._transaction(
            message,
            name=name,
            branch=branch,
            lock=lock,
            lock_timeout=lock_timeout,
            properties=properties,
            isolation=isolation,
            on_conflict=on_conflict,
        )

    def _transaction(
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
        turn: tuple[Snapshot, bytes] | None = None,
    ) -> TxStore:
        """As `transaction`; `turn`: the head that it begins at, and the id that it has."""
        from txstore.store import TxStore  # late: the mappings below work without zarr 3

        if name is not None and lock is not None:
            raise ValueError("a transaction with a name outlives its processes and their locks: use store.lock() in it")
        settle = self._settling(on_conflict, name, isolation)
        first, branch = None, self.engine.branch(branch)
        if name is not None:
            first = self.engine.named(name, branch=branch, message=message, properties=properties, isolation=isolation)
        elif lock is not None or turn is not None:
            base, transaction = turn or (None, None)
            first = self.engine.begin(
                base,
                branch=branch,
                message=message,
                properties=properties,
                lock=lock,
                lock_timeout=lock_timeout,
                isolation=isolation,
                settle_conflicts=settle,
                transaction=transaction,
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
        """Return the transactions with a name that have been neither committed nor rolled back."""
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
        """Return a transaction as a plain `MutableMapping[str, bytes]`, for zarr 2 and other libraries that take one.

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
        """Run `fn(store)` in a transaction; run it again, on the new head, when its commit conflicts.

        Or when a vacuum has passed its base just as it began. Returns what `fn` returned. Raises `ConflictError`, or
        `SnapshotExpiredError`, after `retries` retries; by default when it was tried for `timeout` seconds, and ten
        times at least. `fn` must not keep array objects of an earlier run.

        On an object store, committers that have met conflicts stand in line: `fn` runs when the ones ahead have
        committed.
        """
        began = time.monotonic()
        pause, made = _FIRST_PAUSE, 0
        with self._turns(transaction_arguments) as turns:
            while True:
                tried = time.monotonic()
                try:
                    with self._in_turn(turns, began + timeout, transaction_arguments) as store:
                        result = fn(store)
                        if turns is not None:
                            turns.about_to_commit()
                    return result
                except (ConflictError, SnapshotExpiredError):
                    now = time.monotonic()
                    is_late = made >= _LEAST_RETRIES and now - began > timeout
                    if is_late if retries is None else made >= retries:
                        raise
                made += 1
                if turns is not None and turns.lost():
                    continue
                # Where a try takes long, as it does at a distance, a short pause would not separate the committers.
                pause = min(max(pause, (now - tried) / 4), _LONGEST_PAUSE)
                time.sleep(random.uniform(0, pause))
                pause *= 2

    def _turns(self, arguments: Mapping[str, Any]) -> AbstractContextManager[Turns | None]:
        """Return the turns of a process that runs transactions; None where committers do not queue."""
        # With locks, others wait for these; and a transaction with a name is begun by somebody else.
        if arguments.get("name") is not None or arguments.get("lock") is not None:
            return nullcontext()
        return self.engine.commits.versions.turns(self.engine.branch(arguments.get("branch", MAIN)))

    def _in_turn(self, turns: Turns | None, until: float, arguments: Mapping[str, Any]) -> TxStore:
        """Return a store of a new transaction, when it is its turn, or at a time by `time.monotonic`."""
        if turns is None:
            return self.transaction(**arguments)
        head = turns.next(until)
        return self._transaction(**arguments, turn=(self.engine.snapshots.newest(turns.branch, head), turns.id))

    # --- reading

    def snapshot(self, at: At | None = None, *, branch: str = MAIN, tag: str | None = None) -> TxStore:
        """Return a read-only store at the newest commit, or at the one that `at` or `tag` names.

        `at` is a version (-1 is the newest commit), a `Commit`, its id (or its first digits), a tag, a branch, or a
        date: the newest commit that is not later. A date is an aware datetime, ISO 8601 text with a zone, or a
        `numpy.datetime64`, which is in UTC. "HEAD" is the newest commit of the branch, "dev@3" what is in version 3 of
        another one; "HEAD~1", "v1~2" are one and two commits before what the name stands for.

        Raises
        ------
        RepositoryNotFoundError
            Nothing was ever written here.
        CommitNotFoundError
            There is no such commit or tag.
        """
        from txstore.store import TxStore  # late: the mappings work without zarr 3

        return TxStore(self, read_only=True, branch=branch, at=at, tag=tag)

    def mapping(self, at: At | None = None, *, branch: str = MAIN, tag: str | None = None) -> Snapshot:
        """Return a snapshot as a plain `Mapping[str, bytes]`, for zarr 2 and other libraries that take one."""
        return Position(self.engine, branch=self.engine.branch(branch), at=at, tag=tag).snapshot()

    # --- history

    def log(self, branch: str = MAIN, *, limit: int | None = None, path: str | None = None) -> Log:
        """Return the commits of a branch, newest first: a sequence that is read as far as somebody looks.

        With `path`, only commits that have changed something below it.
        """
        commits = self._existing()
        wanted = limit if path is None else None
        line = commits.chain.ancestors(commits.head(self.engine.branch(branch)), wanted=wanted, as_told=path is None)
        return Log(line if path is None else changing(line, self.engine.snapshots, path), limit)

    def blame(self, path: str, at: At | None = None, *, branch: str = MAIN) -> Blame:
        """Return which commit has written each chunk of an array, and each document of an array or group.

        `at` is as in `snapshot`. Raises `NodeNotFoundError`.
        """
        from txstore.comparing.blame import blame  # late: it imports numpy

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
        """Return the first commit at which something is wrong, of those after `good` up to `bad`.

        `test` gets a read-only store, and returns whether all is well there. It is asked about as many commits as it
        takes to halve their number again and again, and about the two ends. Raises `ValueError` if `good` is not before
        `bad`, or `test` says other than that they are good and bad.
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
                raise ValueError(f"{end.commit} is {'bad' if wanted else 'good'}, says the test: nothing to look for")
        low, high = 0, len(line) - 1  # the first is bad, the last is good
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_good(line[middle]) else (middle, high)
        return line[low].commit

    def head(self, branch: str = MAIN) -> Commit | None:
        """Return the newest commit, None if there is none yet, be it that nothing was ever written here."""
        branch = self.engine.branch(branch)
        stored = self.engine.commits.head(branch) if self.exists else None
        return None if stored is None else stored.commit

    def commit(self, at: At, *, branch: str = MAIN) -> Commit:
        """Return the commit that a version, an id or an aware datetime names."""
        return find_commit(self._existing(), at, self.engine.branch(branch)).commit

    def resolve(self, commit_id: str) -> Commit | None:
        """Return the commit with this id, None if it was never made: the answer to `CommitUnknownError`.

        None, too, for one that a vacuum has removed: ask before the history that is kept has passed it.
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
        """Return what differs between two commits, node by node; of one commit, what it has changed of its parent.

        Nodes that were added, removed, moved or changed; attributes and shapes, before and after; of arrays the regions
        in which chunks have changed. `.values(path)` reads the elements. What it costs follows what has changed.

        Parameters
        ----------
        a, b : Commit, int, str or datetime
            What `commit` takes, or a tag.
        three_dot : bool
            What `b` has changed since both had the same history: since the newest of their best common ancestors.

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
            import zarr

            from txstore.store import TxStore

            return zarr.open_array(TxStore.at(self.engine, snapshot), path=path, mode="r")

        return open_array

    @overload
    def merge(
        self,
        source: str,
        into: str = MAIN,
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
        into: str = MAIN,
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
        into: str = MAIN,
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
        into: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        append: Literal["concatenate"] | None = None,
        dry_run: bool = False,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
        progress: Wanted = None,
    ) -> Commit | MergePlan:
        """Merge a branch into another one: attribute by attribute, element by element. Values are not copied.

        Returns the new head of `into`, which is the present one if there is nothing to merge. It is one commit, on
        whatever the head is by then: others may commit meanwhile.

        Parameters
        ----------
        source, into : str
            Names of branches.
        resolve : dict, optional
            What to do about conflicts, by path, for all at and below it: "ours" (of `into`), "theirs", or a function of
            a `Conflict` that returns the elements of its region, or the document.
        append : {None, "concatenate"}
            Of arrays that both have appended to: put the rows of `source` behind the others, of all arrays with this
            dimension; by default it is a conflict.
        dry_run : bool
            Return what would be done, a `MergePlan` with the conflicts, and change nothing.
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes: of the chunks that both have changed, which alone are read.
            True shows a bar.

        Raises
        ------
        MergeConflictError
            Both have changed something differently. Nothing was changed.
        NoCommonAncestorError
            What both have come from was given up by a vacuum.

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
        if source == into:
            raise ValueError(f"{source!r} is to be merged into itself: name two branches")
        change = operations.OfBranch(self.engine, self.engine.branch(source), source)
        with showing(progress, "merge") as told:
            return self._apply(change, into, resolve, append, message, properties, dry_run=dry_run, progress=told)

    @overload
    def cherry_pick(
        self,
        commit: At,
        onto: str = MAIN,
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
        onto: str = MAIN,
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
        onto: str = MAIN,
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
        onto: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        append: Literal["concatenate"] | None = None,
        dry_run: bool = False,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Commit | MergePlan:
        """Make the changes of one commit once more, on a branch. Parameters and errors are those of `merge`."""
        change = self._change_of(commit, onto, reverts=False)
        return self._apply(change, onto, resolve, append, message, properties, dry_run=dry_run)

    @overload
    def revert(
        self,
        commit: At,
        on: str = MAIN,
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
        on: str = MAIN,
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
        on: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        dry_run: bool,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Commit | MergePlan: ...

    def revert(
        self,
        commit: At,
        on: str = MAIN,
        *,
        resolve: Mapping[str, Answer] | None = None,
        dry_run: bool = False,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Commit | MergePlan:
        """Undo the changes of one commit, in a new one. What was changed again since is a conflict, as in `merge`."""
        change = self._change_of(commit, on, reverts=True)
        return self._apply(change, on, resolve, None, message, properties, dry_run=dry_run)

    def _change_of(self, commit: At, branch: str, *, reverts: bool) -> operations.OfCommit:
        found = find_commit(self._existing(), commit, self.engine.branch(branch))
        return operations.OfCommit(self.engine, found, reverts=reverts)

    @keeps_nothing
    def _apply(
        self,
        change: operations.Source,
        branch: str,
        resolve: Mapping[str, Answer] | None,
        append: str | None,
        message: str | None,
        properties: Mapping[str, Any] | None,
        *,
        dry_run: bool,
        progress: Progress | None = None,
    ) -> Commit | MergePlan:
        target = self.engine.branch(branch)
        if dry_run:
            return operations.preview(change, target, resolve, append=append, progress=progress)
        made = operations.commit(
            change, target, resolve, append=append, message=message, properties=properties, progress=progress
        )
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
        """Yield every commit that is made after `since`, in order, each once, and wait for the next one.

        `since` is a `Commit`, or what `commit` takes: a version, an id or an aware datetime; -1 is before the first.
        By default it is the head at the moment of this call. A repository that does not exist yet is waited for, and
        followed from its first commit. `timeout` is how many seconds each wait for a commit may take before the
        iteration ends: 0 yields what there is and ends, None waits for ever.

        What is held is let go when the generator is closed or dropped. Raises `CommitNotFoundError` if there is no
        `since`, `RepositoryNotFoundError` if there is not even a repository for it, or no longer, and, while following,
        `CorruptionError` if the repository is replaced, `SnapshotExpiredError` if what comes next was removed by a
        vacuum.
        """
        return follow(self.engine.commits, self.engine.branch(branch), since, timeout)

    @property
    def branches(self) -> Branches:
        """The branches: a `MutableMapping` from name to the newest `Commit`; the first one is "main".

        To set one begins a branch behind a commit: a `Commit`, or what `commit` takes. See docs/how-to/history.md.

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
        """Names of commits: a `MutableMapping` from name to `Commit`, where a name is given once."""
        self._existing()
        return Tags(self.engine.commits, self.engine.snapshots)

    @property
    def constraints(self) -> Constraints:
        """What has to be so at every commit, by name: a `MutableMapping` to the kinds in `txstore.constraints`.

        To set one here makes a commit that declares it, to delete one a commit that drops it; to declare it together
        with the arrays, use `store.constraints` in a transaction. From then on, every commit is checked, by every
        process, and one that would break a constraint raises `ConstraintError`. See docs/how-to/constraints.md.

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

    def _declared(self) -> Mapping[str, Constraint]:
        self._existing()
        return self.engine.newest().constraints

    def _declare(self, name: str, constraint: Constraint | None) -> None:
        self._existing()
        message = f"constraint {name!r} {'dropped' if constraint is None else 'declared'}"
        with self.engine.begin(message=message) as transaction:
            transaction.needs_change = True  # it is not the caller's message
            transaction.declare(name, constraint)

    @keeps_nothing
    def verify(self, progress: Wanted = None, *, repair: bool = False, sources: bool = False) -> Report:
        """Check every checksum and reference that can be reached. Returns a report; `.faults` is empty if all is well.

        Parameters
        ----------
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes; True shows a bar.
        repair : bool
            Restore what can be restored, and verify again: `.faults` tells what is left, `.repairs` what was done.
            Nothing is deleted: what is replaced or moved away lies below `quarantine/` then. Commits wait meanwhile.
            Other processes, and objects that were opened before, have to open the repository anew. A repository that is
            well is not changed; a repair that was interrupted is run again.
        sources : bool
            Look also whether the files outside, in which values of the newest commit lie, are the same still, without
            reading them. A fault that names one is of `part` "source".
        """
        self._existing()
        with showing(progress, "verify") as told:
            report = verify_and_repair(self.engine.storage, told) if repair else verify(self.engine.commits, told)
        if sources:
            report.faults += check_sources(self.engine.storage, self.engine.sources)
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
        """Copy the repository as it is now to another directory or URL, while others go on writing it.

        The copy is a repository with the same id, history and tags. A second backup to the same place copies what
        is new. Interrupted, it is run again. What is staged is not copied.

        Parameters
        ----------
        destination : str or PathLike
            An empty or new place, or an older backup of this repository, without commits of its own.
        storage_options : mapping, optional
            Options of the fsspec file system of the destination.
        verify : bool
            Check all that was copied, before it becomes part of the copy.
        erase : bool
            Erase in the copy, too, what was erased here since the last backup: `erasures` has the records.
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes; True shows a bar.

        Raises
        ------
        BackupError
            The directory holds something else, or its history is not this one's.
        BackupErasureError
            Values would have to be erased in the copy, and `erase` is False: the message says which, and by whom.
        CorruptionError
            What is copied is damaged here. `verify` tells more; `verify=False` copies it as it is.
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

    # --- for readers that do not know TxStore

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
        """Bring a plain Zarr hierarchy to the head of a branch: only what has moved since the last time is written.

        Readers of its consolidated metadata see new arrays and appends whole or not at all; what is overwritten they
        see chunk by chunk. Interrupted, it is run again. See docs/how-to/publishing.md.

        Parameters
        ----------
        destination : str or PathLike
            A directory, or a URL of fsspec, outside the repository: empty, or a copy that this has made.
        follow : bool
            Do it again after each commit, until there is none for `timeout` seconds; by default, for ever.
        verify : bool
            Read back what was written, and compare.
        full : bool
            Compare everything with what is there, also what was not committed since: what others have changed in the
            copy is put right.
        storage_options : dict, optional
            Of the destination.
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes; True shows a bar.
        published : callable, optional
            Called after each publication with what was done, which is returned in the end.

        Raises
        ------
        PublishError
            The destination holds something else, or another process publishes to it.
        """
        from txstore.interchange import publish as bridge  # late, as all ways in and out: most processes take none

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
        """Write where in this repository each chunk of a tagged commit lies, for readers with zarr and fsspec only.

        No chunk is copied: readers open the packs, with fsspec's `reference://`. The references hold until the tag is
        deleted, and no longer: a vacuum keeps what is tagged. See docs/how-to/publishing.md.

        Parameters
        ----------
        destination : str or PathLike
            A path or an fsspec URL, whose name ends in `.json` or `.parquet`, which says what is written. A JSON file
            is replaced in one step. Parquet, which needs `txstore[references]`, is a new directory; it is for many
            chunks, and of Zarr format 2: what has no equivalent there is refused.
        tag : str
            Of the commit that is shown.
        create_tag : bool
            Tag the newest commit, unless there is such a tag.
        templates : bool
            Of JSON: say once where the repository is. Without, each reference is a full URL, for readers that do not
            know kerchunk's templates.
        storage_options : dict, optional
            Of the destination. Those of the repository are not written: readers give their own.

        Raises
        ------
        CommitNotFoundError
            There is no such tag.
        ExportError
            The references can't be there, or not as Parquet: the message says what to choose.
        """
        self._existing()
        from txstore.interchange.references import references

        return references(
            self, destination, tag=tag, create_tag=create_tag, templates=templates, storage_options=storage_options
        )

    # --- in and out (txstore/bridges)

    @keeps_nothing
    def import_from(
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
        """Import plain Zarr, NetCDF or HDF5 in one commit, everything or nothing; return it. `docs/how-to/import.md`.

        Parameters
        ----------
        sources : str, PathLike, or several
            Paths, fsspec URLs, or patterns. Plain Zarr is copied byte for byte, without consolidated metadata.
        path : str
            The group, or array, that it becomes. Nothing may be there yet.
        concat : str or int, optional
            Join several sources along this dimension: its name, or the number of an axis. Arrays without it must be
            equal in all of them; attributes are those of the first.
        chunks : dict, optional
            Lengths of chunks by the name of a dimension, or the number of an axis. By default those of the source.
            Those of plain Zarr stay.
        exclude : list of str
            Arrays and groups that are left out; patterns.
        format : {"zarr", "netcdf", "hdf5"}, optional
            By default what the source looks like.
        name : str, optional
            Of a transaction that survives this process: the same call goes on where it was interrupted.
        verify : bool
            Read back all that was written, and compare it.
        storage_options : dict, optional
            Of the sources.
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes; True shows a bar.

        Raises
        ------
        SourceError
            It can't be imported as it is, or it has changed meanwhile.
        FileExistsError
            Something is at this path.
        CorruptionError
            What was written is not what came back.
        """
        from txstore.interchange.import_files import import_from

        with showing(progress, "import") as told:
            return import_from(
                self, sources, path, concat=concat, chunks=chunks, exclude=exclude, format=format, branch=branch,
                message=message, name=name, verify=verify, storage_options=storage_options, progress=told,
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
        """Import references to the chunks of other files, in one commit; return it. No chunk is copied.

        `docs/how-to/virtual.md` says what that is worth. The files have to lie below the repository's `sources`, here
        and wherever the repository is read.

        Parameters
        ----------
        manifest : str, PathLike or dict
            A manifest of kerchunk's: a JSON file, a directory of Parquet files, or what such a JSON file holds. URLs in
            it that are relative are so to the manifest.
        path : str
            The group, or array, that it becomes. Nothing may be there yet.
        name : str, optional
            Of a transaction that survives this process: the same call ends it.
        storage_options : dict, optional
            Of the manifest; those of the files are in the repository's `sources`.
        progress : callable or bool, optional
            `progress(done, total)` is called with the bytes that are referred to; True shows a bar.

        Raises
        ------
        SourceError
            It is no manifest, or a file is missing, may not be read here, or does not hold the bytes.
        FileExistsError
            Something is at this path.
        """
        from txstore.interchange.import_references import import_references

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
        """Write one commit as a plain Zarr hierarchy, byte for byte. Interrupted, it is run again.

        Documents are written last, the root's at the very end: what can be opened is whole. Where an export of the same
        is finished, nothing is written: all of it is compared, and what is returned has `is_unchanged`.

        Parameters
        ----------
        destination : str or PathLike
            An empty or new directory, or any fsspec URL.
        at, branch, tag
            As in `snapshot`.
        path : str
            The array or group that is exported; by default everything.
        consolidated : bool
            Add consolidated metadata to the root, which xarray and others look for.
        verify : bool
            Read back all that was written, and compare it.
        storage_options : dict, optional
            Of the destination.
        progress : callable or bool, optional
            `progress(done, total)` is called with bytes; True shows a bar.

        Raises
        ------
        ExportError
            The place holds something else, or a key can't be a file there, or something else came back.
        CorruptionError
            What is exported is damaged here.
        """
        self._existing()
        from txstore.interchange.export import export

        with showing(progress, "export") as told:
            return export(
                self, destination, at=at, branch=branch, tag=tag, path=path, consolidated=consolidated, verify=verify,
                storage_options=storage_options, progress=told,
            )  # fmt: skip

    # --- maintenance

    @keeps_nothing
    def optimize(self, *, branch: str = MAIN, progress: Wanted = None) -> Commit | None:
        """Copy small packs, and packs that are mostly out of date, into large ones, and merge the runs.

        That is a commit which changes no content: others neither wait for it nor conflict with it. Nothing is deleted;
        what is needed by no commit any more goes with the next `vacuum`.

        `progress(done, total)` is called with bytes; True shows a bar. Returns the commit, None if there was nothing to
        do.
        """
        self._existing()
        with showing(progress, "optimize") as told:
            made = optimize(
                self.engine.commits, self.engine.snapshots, branch=self.engine.branch(branch), durable=self._durable,
                progress=told,
            )  # fmt: skip
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
        """Delete what no commit needs that is kept: all of them, unless `keep` or `older_than` say otherwise.

        Kept in any case are tagged commits, what branches begin behind and commits have merged, and all from the oldest
        on that a living process reads, or that a transaction is based on. What a deleted branch alone has goes. Reading
        a commit that is gone raises `SnapshotExpiredError`. Interrupted, it can be run again.

        Parameters
        ----------
        keep : int, optional
            Number of the newest commits to keep, those of `optimize` and `vacuum` included; older ones are given up.
        older_than : timedelta or datetime, optional
            Give up commits older than this; with `keep`, only commits beyond that number.
        dry_run : bool
            Change nothing; tell what would be done.
        branch : str
            Of which branch commits are given up; those of all others are kept.
        """
        self._existing()
        return vacuum(
            self.engine.commits, self.engine.snapshots, branch=self.engine.branch(branch), keep=keep,
            older_than=older_than, dry_run=dry_run,
        )  # fmt: skip

    @keeps_nothing
    def erase(self, *paths: str, timeout: float | None = 60.0) -> ErasureReport:
        """Erase every version of what lies below some arrays or groups: from every commit, branch and tag, for good.

        The files that hold it are put anew in their places, without it, and all files are walked through until nothing
        is left. All commits stay, with their ids: reading there what was erased raises `ErasedError`, which says who
        has erased it and when, and lists of keys leave it out. Commits wait meanwhile. Interrupted, it is done again:
        the same call goes on. What it can't reach: docs/maintenance.md, "Erasing".

        Parameters
        ----------
        *paths : str
            Arrays and groups. What was moved from one to another, or copied without its values, has to be erased
            together.
        timeout : float, optional
            For how many seconds readers of older commits, and open transactions, are waited for; None: for ever.

        Raises
        ------
        NodeNotFoundError
            No commit has ever had anything there.
        ErasureError
            Other keys share the values, or a quarantine is in the way: the message says what to do. Nothing was
            changed.
        ErasureTimeoutError
            Somebody still reads it, or has a transaction open: the message says who.
        ConstraintError
            A constraint is about it: drop that first.

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
        """
        self._existing()
        meant = check_paths(paths)

        def delete(head: Snapshot, branch: str) -> None:
            message = f"delete {', '.join(meant)}, to be erased"
            with self.engine.begin(head, branch=branch, message=message) as mapping:
                for path in meant:
                    mapping.delete_dir(path)

        return erase(self.engine.commits, self.engine.snapshots, meant, delete, timeout=timeout)

    def erasures(self) -> list[Erasure]:
        """Return what was erased, by whom and when, the oldest first."""
        return read_erasures(self._existing().storage)

    @keeps_nothing
    def usage(self, *, branch: str = MAIN) -> Usage:
        """Return how many bytes are live, history, staged, and needed by nothing; and the live ones by array."""
        self._existing()
        return usage(self.engine.commits, self.engine.snapshots, self.engine.branch(branch))

    @property
    def _durable(self) -> bool:
        return self.engine.durability == "fsync"

    def _existing(self) -> Commits:
        if not self.engine.exists():
            raise RepositoryNotFoundError(self.url)
        return self.engine.commits
