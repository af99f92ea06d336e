"""Transaction: a base snapshot plus staged writes, ending in commit or rollback."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from txstore import format
from txstore.commits import MAIN, Commits
from txstore.committer import Committer, SyncFailedError
from txstore.errors import CommitUnknownError, CorruptionError, TransactionStateError
from txstore.keys import directory_prefix, encode_key
from txstore.listing import Hierarchy
from txstore.snapshot import Snapshot, Snapshots
from txstore.staging import Staging

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

_DURABILITIES = ("fsync", "none")


def check_description(message: str | None, properties: Mapping[str, Any] | None) -> None:
    """Raise `TypeError` or `ValueError` for what a commit can't carry: before the work is done, not after."""
    if message is not None:
        if not isinstance(message, str):
            raise TypeError(f"a commit's message is a string, not {type(message).__name__}")
        try:
            message.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the message {message!r} has a lone surrogate: it can't be stored as UTF-8") from None
    if properties:
        try:
            json.dumps(dict(properties), sort_keys=True)
        except (TypeError, ValueError) as error:
            raise TypeError(f"a commit's properties are a JSON object: {error}") from error


def _contiguous(value: Buffer) -> memoryview:
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"a value is bytes, or a buffer of them, not {type(value).__name__}") from None
    if not view.c_contiguous:
        raise ValueError("a value is a contiguous buffer: copy it first")
    return view


def check_durability(durability: str) -> None:
    """Raise `ValueError` for an unknown durability."""
    if durability not in _DURABILITIES:
        raise ValueError(f"durability is one of {_DURABILITIES}, not {durability!r}")


class Transaction(Hierarchy, MutableMapping[str, bytes]):
    """Staged writes over a base snapshot, as a `MutableMapping[str, bytes]`.

    Nothing is seen by others before `commit` returns; then everything is. Reading sees what was staged. Staged values
    are in files below `.staging/`, never in memory. Any number of threads may read and write.

    As a context manager it commits on a clean exit and rolls back on an exception.

    The states: "open", then "poisoned" by a failed write, "committed", "rolled back", or "of unknown outcome".
    """

    def __init__(
        self,
        commits: Commits,
        snapshots: Snapshots,
        base: Snapshot,
        *,
        branch: str = MAIN,
        durability: str = "fsync",
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        check_durability(durability)
        check_description(message, properties)
        self.state = "open"
        self._commits = commits
        self._snapshots = snapshots
        self._branch = branch
        self._durable = durability == "fsync"
        self._message = message
        self._properties = dict(properties or {})
        self._staging = Staging(commits, base, durable=self._durable)
        self._finalizer = weakref.finalize(self, Staging.abandon, self._staging)
        self._lock = threading.Lock()  # of state and _in_flight
        self._idle = threading.Condition(self._lock)  # nothing is in flight
        self._in_flight = 0
        self._cause: BaseException | None = None

    @property
    def base(self) -> Snapshot:
        """The snapshot that the transaction began at."""
        return self._staging.base

    @property
    def id(self) -> str:
        """32 hexadecimal digits; the id of the commit that the transaction becomes."""
        return self._staging.id.hex()

    @property
    def staged_count(self) -> int:
        """How many keys and prefixes are set or deleted here and not committed."""
        return 0 if self.state == "committed" else self._staging.count

    def __repr__(self) -> str:
        staged = f", {self.staged_count} staged, NOT COMMITTED" if self.staged_count else ""
        return f"<Transaction {self._staging.url} {self.base.commit or '(empty)'}{staged}>"

    # --- reading

    def get_view(self, key: str) -> memoryview | None:
        return self._staging.get_view(key)

    def get_part(self, key: str, part: slice) -> memoryview | None:
        """Return a part of a value."""
        return self._staging.get_part(key, part)

    def size_of(self, key: str) -> int | None:
        return self._staging.size_of(key)

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        return self._staging.keys_between(start, stop, batch=batch)

    # --- writing

    def set(self, key: str, value: Buffer) -> None:
        """Stage a value. It is copied before this returns.

        Raises `KeyFormatError` for an impossible key; any `OSError` poisons the transaction until `rollback`.
        """
        self._stage(format.FRAME_VALUE, key, encode_key(key), _contiguous(value))

    def delete(self, key: str) -> None:
        """Stage the deletion of a key, whether it exists or not."""
        self._stage(format.FRAME_TOMBSTONE, key, encode_key(key), b"")

    def delete_dir(self, path: str) -> None:
        """Stage the deletion of everything below a path: one entry, however many keys there are."""
        prefix = directory_prefix(path)
        self._stage(format.FRAME_PREFIX, prefix, prefix.encode(), b"")

    def _stage(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        with self._lock:
            if self.state != "open" or self._staging.process != os.getpid():
                self._check_open()
            self._in_flight += 1
        try:
            self._staging.stage(kind, key, encoded, value)
        except BaseException as error:
            self.poison(error)
            raise
        finally:
            with self._lock:
                self._in_flight -= 1
                if self.state != "open":
                    self._idle.notify_all()

    def poison(self, error: BaseException) -> None:
        """Refuse everything but `rollback` from now on: what is half done must not be committed (I6)."""
        with self._lock:
            if self.state == "open":
                self.state, self._cause = "poisoned", error

    def _check_open(self) -> None:
        if self._staging.process != os.getpid():
            raise TransactionStateError(
                "this transaction belongs to another process: open the repository in this one", state="foreign"
            )
        if self.state == "poisoned":
            raise TransactionStateError(
                f"an earlier write of this transaction failed ({self._cause!r}): call rollback(), then write again",
                state=self.state,
            ) from self._cause
        if self.state != "open":
            raise TransactionStateError(
                f"this transaction is {self.state}: begin a new one with repo.transaction()", state=self.state
            )

    # --- the mapping face

    def __setitem__(self, key: str, value: Buffer) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    def clear(self) -> None:
        self.delete_dir("")

    def rmdir(self, path: str = "") -> None:
        """Delete everything below a path, and the key itself (zarr 2)."""
        self.delete_dir(path)
        if path and path in self:
            self.delete(path)

    def setitems(self, values: Mapping[str, Buffer]) -> None:
        """Stage several values (zarr 2)."""
        for key, value in values.items():
            self.set(key, value)

    # --- the end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self.state in ("open", "poisoned"):
                self.commit()
        finally:
            self.rollback()

    def changes(self) -> dict[str, list[str]]:
        """Return what is staged: `set` and `deleted` keys, and `deleted_below`: the paths cleared as a whole."""
        found: dict[str, list[str]] = {"set": [], "deleted": [], "deleted_below": []}
        if self.state == "committed":
            return found
        for key, staged in self._staging.items_staged():
            found["deleted" if staged is None else "set"].append(key)
        found["deleted_below"] = [prefix.rstrip("/") for prefix in self._staging.prefixes]
        return found

    def rollback(self) -> None:
        """Drop what is staged. Late writes of other threads raise `TransactionStateError` from now on."""
        with self._lock:
            if self.state in ("open", "poisoned"):
                self.state = "rolled back"
            self._idle.wait_for(lambda: self._in_flight == 0)
        if self.state == "rolled back":
            self._staging.discard()
            self._finalizer.detach()

    def commit(self, message: str | None = None) -> Snapshot:
        """Publish everything staged, in one step; with `durability="fsync"` it survives power loss from then on.

        Returns a snapshot of the new commit, or the base if there is nothing to publish.

        Raises
        ------
        ConflictError
            Somebody else committed what this transaction relies on; what is staged is still there.
        CommitUnknownError
            It can't be told whether the commit was made.
        TransactionStateError
            Writes are in flight, an earlier write failed, or the transaction has ended.
        OSError
            The medium failed; nothing was published.
        """
        check_description(message, None)
        with self._lock:
            self._check_open()
            if self._in_flight:
                raise TransactionStateError(
                    f"{self._in_flight} writes are in flight: wait for the threads that write, then commit",
                    state="open",
                )
            self.state = "committing"
        result = self.base
        committer = None
        try:
            if self.staged_count:
                committer = self._committer(message)
                if (stored := committer.run()) is not None:
                    result = self._snapshots.of(stored)
        except SyncFailedError as error:
            self.state = "open"
            self.poison(error.cause)  # I9: never retried as if the data were still there
            raise error.cause from None
        except BaseException as error:
            if committer is None or not committer.offered:
                self.state = "open"
                raise
            # I2: also after an interrupt, what may stand in a slot is never written again.
            self.state = "of unknown outcome"
            self._finalizer.detach()  # I3: nothing staged is deleted
            self._finalizer = weakref.finalize(self, Staging.close, self._staging)
            if isinstance(error, OSError | CorruptionError):
                raise CommitUnknownError(self.id, reason=f"it can't be read back ({error})") from error
            raise
        self.state = "committed"
        self._staging.settle(result)
        self._finalizer.detach()
        return result

    def _committer(self, message: str | None) -> Committer:
        return Committer(
            self._commits,
            self._snapshots,
            self._staging,
            branch=self._branch,
            durable=self._durable,
            message=(self._message or "") if message is None else message,
            properties=self._properties,
        )
