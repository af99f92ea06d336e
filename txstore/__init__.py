"""Transactions for Zarr: pass a `TxStore` to `zarr.open`, from as many processes as you like."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txstore.errors import (
    BackupErasureError,
    BackupError,
    BarePathError,
    CheckoutError,
    ClockWarning,
    CodecRefusedError,
    CommitNotFoundError,
    CommitTimeoutError,
    CommitUnknownError,
    CommitWaitWarning,
    ConflictError,
    ConstraintError,
    CorruptionError,
    ErasedError,
    ErasureError,
    ErasureTimeoutError,
    ExportError,
    FeedExpiredError,
    FeedMovedError,
    FeedNotFoundError,
    KeyFormatError,
    LabelConflictError,
    LockRegionError,
    LocksLostError,
    LocksUnavailableError,
    LockTimeoutError,
    MergeConflictError,
    MisalignedError,
    NoCommonAncestorError,
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
    ViewError,
    WrongFileTypeError,
)
from txstore.interchange.bare_path import keep_repositories

if TYPE_CHECKING:
    from txstore import aio, constraints, loaders, views
    from txstore.commit import Commit
    from txstore.history.snapshot import Snapshot
    from txstore.interchange.virtual_datasets import write_virtual
    from txstore.labels.upsert import Upserted, upsert
    from txstore.labels.window import prepend, roll
    from txstore.repository import Repository
    from txstore.store import TxStore
    from txstore.synchronized_arrays import synchronized
    from txstore.transactions.participants.named import NamedTransaction
    from txstore.transactions.regions import APPEND, METADATA, Append
    from txstore.transactions.transaction import Transaction

__version__ = "0.1.0"

__all__ = [
    "APPEND",
    "METADATA",
    "Append",
    "BackupErasureError",
    "BackupError",
    "BarePathError",
    "CheckoutError",
    "ClockWarning",
    "CodecRefusedError",
    "Commit",
    "CommitNotFoundError",
    "CommitTimeoutError",
    "CommitUnknownError",
    "CommitWaitWarning",
    "ConflictError",
    "ConstraintError",
    "CorruptionError",
    "ErasedError",
    "ErasureError",
    "ErasureTimeoutError",
    "ExportError",
    "FeedExpiredError",
    "FeedMovedError",
    "FeedNotFoundError",
    "KeyFormatError",
    "LabelConflictError",
    "LockRegionError",
    "LockTimeoutError",
    "LocksLostError",
    "LocksUnavailableError",
    "MergeConflictError",
    "MisalignedError",
    "NamedTransaction",
    "NoCommonAncestorError",
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
    "Upserted",
    "ViewError",
    "WrongFileTypeError",
    "aio",
    "constraints",
    "loaders",
    "prepend",
    "roll",
    "synchronized",
    "upsert",
    "views",
    "write_virtual",
]

# Where the other public names are; "" is a module. Each is imported when it is asked for: zarr costs a program that
# only looks at the history half a second, and with zarr 2 only the mappings are there.
_LATE = {
    "APPEND": "transactions.regions",
    "Append": "transactions.regions",
    "Commit": "commit",
    "METADATA": "transactions.regions",
    "NamedTransaction": "transactions.participants.named",
    "Repository": "repository",
    "Snapshot": "history.snapshot",
    "Transaction": "transactions.transaction",
    "TxStore": "store",
    "Upserted": "labels",
    "aio": "",
    "constraints": "",
    "loaders": "",
    "prepend": "labels",
    "roll": "labels",
    "synchronized": "synchronized_arrays",
    "upsert": "labels",
    "views": "",
    "write_virtual": "interchange.virtual_datasets",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'txstore' has no attribute {name!r}")
    module = _LATE[name]
    found = getattr(import_module(f"txstore.{module}"), name) if module else import_module(f"txstore.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__


keep_repositories()
