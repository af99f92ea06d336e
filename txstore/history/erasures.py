"""Tells users what was erased, by whom and when, from the records that `maintenance.erase` writes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from txstore.commit import EPOCH
from txstore.errors import ErasedError
from txstore.format.display import html_head
from txstore.format.keys import directory_prefix, is_related
from txstore.format.records import ErasureRecord
from txstore.segments.replaced import read_records
from txstore.storage.interface import Storage

#: The property of the commits in which a rechunk keeps its copy of an array, and how far it is. It names the path.
RECHUNK = "rechunk"


@dataclass(frozen=True, slots=True, repr=False)
class Erasure:
    """One call of `Repository.erase`.

    Attributes
    ----------
    paths : tuple of str
        The arrays and groups whose versions were all erased; of an erasure of rows, the arrays with these rows.
    by : str
        The user who called it.
    time : datetime
        The start of the erasure; aware.
    finished : datetime or None
        The end. None: it was interrupted, and has to be repeated.
    values, bytes : int
        The number of erased values, and their length together.
    dimensions : tuple of str
        Of an erasure of rows: the dimensions that the rows were chosen along. Their labels are in no record.
    """

    id: str
    paths: tuple[str, ...]
    by: str
    time: datetime
    finished: datetime | None
    values: int
    bytes: int
    dimensions: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = ", ".join(map(repr, self.paths))
        if self.dimensions:
            shown = f"rows of {shown} along {', '.join(map(repr, self.dimensions))}"
        when = self.time.astimezone().strftime("%Y-%m-%d %H:%M %Z")
        done = f"{self.values:,} values" if self.finished is not None else "interrupted: erase it again"
        return f"{shown} by {self.by}, {when}: {done}"

    def __repr__(self) -> str:
        return f"<Erasure {self}>"

    def _repr_html_(self) -> str:
        return html_head("Erasure", str(self))

    def error(self, key: str) -> ErasedError:
        return ErasedError(key, self.by, self.time, is_over=self.finished is not None)

    def covers(self, key: str) -> bool:
        return any(key.startswith(directory_prefix(path)) for path in self.paths)


def read_erasures(storage: Storage) -> list[Erasure]:
    """Return all erasures, also interrupted ones, oldest first. Raises `CorruptionError`."""
    return [as_erasure(record) for record in read_records(storage)]


def last_met(storage: Storage, branch: str, path: str) -> int | None:
    """Return the last version of a branch, by its id, that an erasure at, above or below a path was about.

    None: while the branch was there, there was no such erasure.
    """
    found = [
        record.until[branch]
        for record in read_records(storage)
        if branch in record.until and any(is_related(path, each) for each in record.paths)
    ]
    return max(found, default=None)


def as_erasure(record: ErasureRecord) -> Erasure:
    return Erasure(
        record.id, record.paths, record.by, _as_time(record.time),
        None if record.finished is None else _as_time(record.finished), record.values, record.length,
        record.dimensions,
    )  # fmt: skip


def _as_time(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)
