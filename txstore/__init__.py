"""Transactions for Zarr: pass a `TxStore` to `zarr.open`, from as many processes as you like."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txstore.commit import Commit
from txstore.errors import (
    BackupError,
    ClockWarning,
    CommitNotFoundError,
    CommitTimeoutError,
    CommitUnknownError,
    CommitWaitWarning,
    ConflictError,
    ConstraintError,
    CorruptionError,
    ExportError,
    KeyFormatError,
    LockRegionError,
    LocksLostError,
    LocksUnavailableError,
    LockTimeoutError,
    NodeNotFoundError,
    ParticipantLostError,
    PublishError,
    RepositoryNotFoundError,
    SchemaError,
    SnapshotExpiredError,
    SourceChangedError,
    SourceError,
    StaleArrayError,
    TransactionStateError,
    TxStoreError,
    UncommittedChangesWarning,
    UnsupportedFormatError,
    WrongFileTypeError,
)
from txstore.named import NamedTransaction
from txstore.regions import APPEND, METADATA, Append
from txstore.repository import Repository
from txstore.snapshot import Snapshot
from txstore.synchronized import synchronized
from txstore.transaction import Transaction

if TYPE_CHECKING:
    from txstore.store import TxStore

__version__ = "0.1.0"

__all__ = [
    "APPEND",
    "METADATA",
    "Append",
    "BackupError",
    "ClockWarning",
    "Commit",
    "CommitNotFoundError",
    "CommitTimeoutError",
    "CommitUnknownError",
    "CommitWaitWarning",
    "ConflictError",
    "ConstraintError",
    "CorruptionError",
    "ExportError",
    "KeyFormatError",
    "LockRegionError",
    "LockTimeoutError",
    "LocksLostError",
    "LocksUnavailableError",
    "NamedTransaction",
    "NodeNotFoundError",
    "ParticipantLostError",
    "PublishError",
    "Repository",
    "RepositoryNotFoundError",
    "SchemaError",
    "Snapshot",
    "SnapshotExpiredError",
    "SourceChangedError",
    "SourceError",
    "StaleArrayError",
    "Transaction",
    "TransactionStateError",
    "TxStore",
    "TxStoreError",
    "UncommittedChangesWarning",
    "UnsupportedFormatError",
    "WrongFileTypeError",
    "synchronized",
]


def __getattr__(name: str) -> Any:
    # Late: with zarr 2 only the mappings are there, and importing zarr costs those who only look at the history.
    if name == "TxStore":
        return import_module("txstore.store").TxStore
    raise AttributeError(f"module 'txstore' has no attribute {name!r}")
