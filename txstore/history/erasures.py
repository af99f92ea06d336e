"""Reads the records of erasures: what was erased, by whom and when. `maintenance.erase` writes them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from txstore.commit import EPOCH
from txstore.errors import CorruptionError
from txstore.format import names
from txstore.format.display import html_head
from txstore.format.encoding import MalformedError
from txstore.format.keys import directory_prefix
from txstore.format.records import ErasureRecord
from txstore.storage.interface import Storage


@dataclass(frozen=True, slots=True, repr=False)
class Erasure:
    """One call of `Repository.erase`.

    Attributes
    ----------
    paths : tuple of str
        The arrays and groups whose versions were all erased.
    by : str
        The user who called it.
    time : datetime
        The start of the erasure; aware.
    finished : datetime or None
        The end. None: it was interrupted, and has to be repeated.
    values, bytes : int
        The number of erased values, and their length together.
    """

    id: str
    paths: tuple[str, ...]
    by: str
    time: datetime
    finished: datetime | None
    values: int
    bytes: int

    def __str__(self) -> str:
        shown = ", ".join(map(repr, self.paths))
        when = self.time.astimezone().strftime("%Y-%m-%d %H:%M %Z")
        done = f"{self.values:,} values" if self.finished is not None else "interrupted: erase it again"
        return f"{shown} by {self.by}, {when}: {done}"

    def __repr__(self) -> str:
        return f"<Erasure {self}>"

    def _repr_html_(self) -> str:
        return html_head("Erasure", str(self))

    def covers(self, key: str) -> bool:
        return any(key.startswith(directory_prefix(path)) for path in self.paths)


def read_records(storage: Storage) -> list[ErasureRecord]:
    """Return all records, oldest first. Raises `CorruptionError`."""
    found = []
    for name in storage.list(names.ERASED):
        path = f"{names.ERASED}/{name}"
        if names.belongs(path):
            with contextlib.suppress(FileNotFoundError):
                found.append(read_record(storage, path))
    return sorted(found, key=lambda record: (record.time, record.id))


def read_record(storage: Storage, path: str) -> ErasureRecord:
    """Return the record in a file. Raises `CorruptionError`, or `FileNotFoundError`."""
    try:
        return ErasureRecord.decode(storage.read(path))
    except MalformedError as error:
        raise CorruptionError(path, reason=error.reason) from error


def read_erasures(storage: Storage) -> list[Erasure]:
    """Return all erasures, also interrupted ones, oldest first. Raises `CorruptionError`."""
    return [as_erasure(record) for record in read_records(storage)]


def as_erasure(record: ErasureRecord) -> Erasure:
    return Erasure(
        record.id, record.paths, record.by, _as_time(record.time),
        None if record.finished is None else _as_time(record.finished), record.values, record.length,
    )  # fmt: skip


def _as_time(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)
