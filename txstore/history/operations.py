"""Records and lists what was done to a repository beside commits: maintenance, and changes of branches and tags.

Each operation has a file of its own, so that no two lose each other's record. The file is written before the operation
begins, and again, with the result, when it has ended: a process that is killed in between leaves a record without an
end. A record that can't be written is a warning in the log of the process, and never a reason for the operation to
fail.

A record has no label, no value and no path of an array: it would stay when these are erased. So it has the kind of an
error, and never its text.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from txstore import observing
from txstore.commit import EPOCH
from txstore.errors import CorruptionError, TxStoreError
from txstore.format import names
from txstore.format.display import html_head
from txstore.format.encoding import MalformedError
from txstore.format.records import OperationRecord
from txstore.steps import step
from txstore.storage.commit_lock import this_user
from txstore.storage.interface import Storage, paths_in, write_over

_log = logging.getLogger(__name__)

#: How many records a vacuum and a backup keep: the newest ones.
KEPT = 1000
#: What a record keeps of an error.
_KIND = re.compile(r"\w+( \(\w+\))?")


@dataclass(frozen=True, slots=True, repr=False)
class LoggedOperation:
    """One operation that is not a commit, or makes commits only by the way.

    Attributes
    ----------
    id : str
        Ids sort by the time when the operations began.
    operation : str
        "vacuum", "optimize", "retention", "erase", "repair", "create branch", "rename branch", "delete branch",
        "create tag" or "delete tag".
    arguments : dict
        What it was called with: the branch, the tag; of an erasure, the number of paths and dimensions.
    by : str
        The user and machine, as `Commit.author`.
    time : datetime
        When it began; aware.
    finished : datetime or None
        When it ended. None: it goes on, or its process was killed.
    result : dict
        Numbers of files, bytes and commits; the id of a commit.
    error : str or None
        The class of the error with which it failed.
    """

    id: str
    operation: str
    arguments: Mapping[str, Any]
    by: str
    time: datetime
    finished: datetime | None
    result: Mapping[str, Any]
    error: str | None

    @property
    def outcome(self) -> str:
        """The result in words."""
        if self.finished is None:
            return "not finished: it goes on, or its process was killed"
        if self.error is not None:
            return f"failed: {self.error}"
        return ", ".join(f"{name} {value}" for name, value in self.result.items()) or "done"

    def __str__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        when = self.time.astimezone().strftime("%Y-%m-%d %H:%M %Z")
        return f"{self.operation}({told}) by {self.by}, {when}: {self.outcome}"

    def __repr__(self) -> str:
        return f"<LoggedOperation {self}>"

    def _repr_html_(self) -> str:
        return html_head("LoggedOperation", str(self))

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        finished = None if self.finished is None else self.finished.isoformat()
        return asdict(self) | {"time": self.time.isoformat(), "finished": finished}


@contextmanager
def recorded(
    storage: Storage, operation: str, arguments: Mapping[str, Any], *, keeps_failed: bool = True
) -> Iterator[dict[str, Any]]:
    """Record an operation, with what its `with` block puts into the dict that it gets.

    `keeps_failed`: it may have changed something before it failed, so its record stays, with the error.
    """
    began = time.time_ns() // 1000
    record = OperationRecord(f"{began:018d}-{secrets.token_hex(8)}", operation, _plain(arguments), this_user(), began)
    _write(storage, record)
    result: dict[str, Any] = {}
    try:
        with observing.span(operation.replace(" ", "_"), url=storage.url):
            yield result
    except (TxStoreError, OSError, ValueError) as error:
        if keeps_failed and not isinstance(error, ValueError):  # else the arguments were refused
            _write(storage, replace(record, finished=time.time_ns() // 1000, error=_kind_of(error)))
        else:
            _drop(storage, record)
        raise
    _write(storage, replace(record, finished=time.time_ns() // 1000, result=_plain(result)))


def _kind_of(error: Exception) -> str:
    code = errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    return type(error).__name__ + (f" ({code})" if code else "")


def without_details(record: OperationRecord) -> OperationRecord:
    """Return a record without the paths and texts that it may have."""
    told = {name: len(value) if isinstance(value, list) else value for name, value in record.arguments.items()}
    is_kind = record.error is None or _KIND.fullmatch(record.error)
    return replace(record, arguments=told, error=record.error if is_kind else "TxStoreError")


def forget_details(storage: Storage) -> None:
    """Remove from all records what no record should have. Raises `CorruptionError`, `OSError`."""
    for path in paths_in(storage, names.OPERATIONS):
        with suppress(FileNotFoundError):  # a vacuum has just deleted it
            record = read_operation(storage, path)
            if (told := without_details(record)) != record:
                write_over(storage, path, told.encode())


def _plain(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what JSON can say of it: a record must not refuse what the operation would take, or refuses by itself."""
    said: dict[str, Any] = json.loads(json.dumps(dict(told), default=str, ensure_ascii=False).encode(errors="replace"))
    return said


@step("record operation")
def _write(storage: Storage, record: OperationRecord) -> None:
    # Synced even before the operation: a record that a power loss has torn would be a fault of the repository.
    try:
        storage.make_directory(names.OPERATIONS, durable=True)
        write_over(storage, names.operation_path(record.id), record.encode(), durable=True)
    except (TxStoreError, OSError) as error:
        _log.warning("%s: %r could not be recorded: %s", storage.url, record.operation, error)


def _drop(storage: Storage, record: OperationRecord) -> None:
    try:
        storage.delete(names.operation_path(record.id))
    except (TxStoreError, OSError) as error:
        _log.warning("%s: the record of %r, which failed, stays: %s", storage.url, record.operation, error)


def read_operation(storage: Storage, path: str) -> OperationRecord:
    """Return the record in a file. Raises `CorruptionError`, or `FileNotFoundError`."""
    try:
        return OperationRecord.decode(storage.read(path))
    except MalformedError as error:
        raise CorruptionError(path, reason=error.reason) from error


def read_operations(storage: Storage, limit: int | None = None) -> list[LoggedOperation]:
    """Return the recorded operations, newest first. Raises `CorruptionError`."""
    paths = sorted(paths_in(storage, names.OPERATIONS), reverse=True)[:limit]
    return [found for found in storage.dispatch.each(partial(_read, storage), paths) if found is not None]


def _read(storage: Storage, path: str) -> LoggedOperation | None:
    try:
        record = read_operation(storage, path)
    except FileNotFoundError:  # a vacuum has just deleted it, or the operation was refused
        return None
    finished = None if record.finished is None else _as_time(record.finished)
    return LoggedOperation(
        record.id, record.operation, record.arguments, record.by, _as_time(record.time), finished, record.result,
        record.error,
    )  # fmt: skip


def delete_old(storage: Storage) -> None:
    """Delete all records but the newest `KEPT`. A failure is only a warning: the next vacuum tries again."""
    try:
        old = sorted(paths_in(storage, names.OPERATIONS))[:-KEPT]
        for i in range(0, len(old), storage.capabilities.deleted_together):
            storage.delete(*old[i : i + storage.capabilities.deleted_together])
    except (TxStoreError, OSError) as error:
        _log.warning("%s: old records of operations stay: %s", storage.url, error)


def _as_time(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)
