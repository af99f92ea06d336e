"""Checks the arguments of a new transaction before any work is done, and writes them into its record."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from txstore.errors import TransactionStateError
from txstore.format import encoding
from txstore.format.records import SERIALIZABLE, SNAPSHOT, TransactionRecord
from txstore.history.snapshot import Snapshot
from txstore.storage.commit_lock import this_user

#: Bytes of message and properties together, as JSON, at most: docs/understand/format.md, "Bounds".
MAX_DESCRIPTION = 1 << 20
_DURABILITIES = ("fsync", "none")


def check_description(message: str | None, properties: Mapping[str, Any] | None) -> None:
    """Raise `TypeError` or `ValueError` if a commit can't store these: before the work is done, not after."""
    if message is not None:
        if not isinstance(message, str):
            raise TypeError(f"a commit's message is a string, not {type(message).__name__}")
        try:
            message.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the message {message!r} has a lone surrogate: it can't be stored as UTF-8") from None
    length = len(json.dumps(message)) if message else 0
    if properties:
        try:
            written = json.dumps(dict(properties), sort_keys=True).encode()
            encoding.json_object(written)  # every reader of the commit decodes it like this
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"a commit's properties are a JSON object: {error}") from error
        length += len(written)
    if length > MAX_DESCRIPTION:
        raise ValueError(
            f"message and properties of a commit have {length} bytes together, and at most {MAX_DESCRIPTION} are "
            "possible: every process that opens it reads them. Put larger data into attributes, or an array"
        )


def check_durability(durability: str) -> None:
    """Raise `ValueError` for an unknown durability."""
    if durability not in _DURABILITIES:
        raise ValueError(f"durability is one of {_DURABILITIES}, not {durability!r}")


def check_joinable(record: TransactionRecord, isolation: str) -> None:
    """Raise `TransactionStateError` if a transaction has less isolation than the joining process asks for."""
    if isolation == SERIALIZABLE != record.isolation:
        raise TransactionStateError(
            f"{record.name!r} was begun with isolation={record.isolation!r}, and what was read in it is not known: "
            "join it without isolation=, or commit it and begin another",
            state="open",
        )


def new_record(
    base: Snapshot,
    branch: str,
    durability: str,
    message: str | None,
    properties: Mapping[str, Any] | None,
    name: str | None = None,
    isolation: str = SNAPSHOT,
) -> TransactionRecord:
    """Return the record of a transaction that this process begins, from checked arguments."""
    return TransactionRecord(
        id=os.urandom(16),
        branch=branch,
        base=None if base.stored is None else (base.stored.header.version, base.stored.header.id.hex()),
        name=name,
        message=message,
        properties=dict(properties or {}),
        durability=durability,
        owner=f"{this_user()} {os.getpid()}",
        time=time.time_ns() // 1000,
        isolation=isolation,
    )
