"""Finds the values that replace others: those of which an erasure has erased some rows.

A ref to a value that was replaced has 0 as its checksum, and the value is zeros where it lay. The tables of the
erasures say where the new value lies; that of the newest erasure counts. They are read when such a ref is first met: a
repository without one never looks for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from txstore import processes
from txstore.errors import CorruptionError
from txstore.format import names
from txstore.format.commitfile import RunName
from txstore.format.encoding import MalformedError
from txstore.format.packfile import PackName
from txstore.format.records import ErasureRecord
from txstore.format.replacements import replaced_key
from txstore.storage.interface import Storage


class Replacement(NamedTuple):
    """Where a new value lies; its pack by the number that `ReplacedValues` gives it."""

    pack: int
    offset: int
    length: int
    checksum: int


#: Packs of new values have numbers from here on; a run numbers the packs of its table far below.
FIRST_NUMBER = 1 << 40

#: Tells where a table says that the new value of a key lies: pack, offset, length and checksum.
Table = Callable[[bytes], tuple[PackName, int, int, int] | None]
OpenTable = Callable[[RunName], Table]


class ReplacedValues:
    """The tables of one repository. Safe in threads. Each pack keeps its number as long as this lives."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._tables: dict[RunName, Table] = {}
        self._newest_first: tuple[Table, ...] | None = None
        self._numbers: dict[PackName, int] = {}
        self._names: list[PackName] = []
        self._lock = processes.new_lock()

    def forget(self) -> None:
        """Look again for erasures at the next question."""
        self._newest_first = None

    def may_be_any(self) -> bool:
        """Tell whether there was ever an erasure. This reads no record."""
        return bool(self._storage.list(names.ERASED))

    def pack_name(self, number: int) -> PackName:
        return self._names[number - FIRST_NUMBER]

    def find(
        self, pack: PackName, offset: int, open_table: OpenTable, *, looks_again: bool = True
    ) -> Replacement | None:
        """Return what replaces the value at an offset of a pack; None if nothing does.

        `looks_again`: an erasure may have ended since the last question. Raises `CorruptionError` if a table that may
        say so is missing or damaged.
        """
        is_new = self._newest_first is None
        found = self._find(pack, offset, open_table)
        if found is None and looks_again and not is_new:  # there may be an erasure since the last look
            self.forget()
            found = self._find(pack, offset, open_table)
        return found

    def _find(self, pack: PackName, offset: int, open_table: OpenTable) -> Replacement | None:
        key, damage = replaced_key(pack, offset), None
        for table in self._opened(open_table):
            try:
                place = table(key)
                if place is not None:
                    return Replacement(self._number(place[0]), *place[1:])
            except CorruptionError as error:
                damage = error
        if damage is not None:
            raise damage
        return None

    def _opened(self, open_table: OpenTable) -> tuple[Table, ...]:
        """Return the tables, that of the newest erasure first."""
        found = self._newest_first
        if found is None:
            runs = [run for record in reversed(read_records(self._storage)) if (run := run_of(record)) is not None]
            with self._lock:
                for run in runs:
                    if run not in self._tables:
                        with contextlib.suppress(CorruptionError):  # a vacuum has deleted it: no commit needs it
                            self._tables[run] = open_table(run)
                found = tuple(self._tables[run] for run in runs if run in self._tables)
                self._newest_first = found
        return found

    def _number(self, name: PackName) -> int:
        with self._lock:
            if name not in self._numbers:
                self._names.append(name)
                self._numbers[name] = FIRST_NUMBER + len(self._names) - 1
            return self._numbers[name]


def run_of(record: ErasureRecord) -> RunName | None:
    """Return the table of an erasure; None if it has none, or not yet."""
    return None if record.table is None else record.table.run


def read_records(storage: Storage) -> list[ErasureRecord]:
    """Return the records of all erasures, oldest first. Raises `CorruptionError`."""
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
