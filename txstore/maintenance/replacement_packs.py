"""Writes the values that replace others after an erasure of rows, and the table that says which replaces which.

They lie in packs of their own, which no commit lists: the record of the erasure does, before each of them is there. So
a vacuum leaves them alone. The table is written last: until its run is in the record, nothing was replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from txstore.errors import CorruptionError
from txstore.format import names, packfile
from txstore.format.commitfile import RunName
from txstore.format.encoding import MalformedError, crc32c
from txstore.format.packfile import PackName
from txstore.format.records import ErasureRecord, ReplacementTable
from txstore.format.replacements import KEPT, REPLACED, after_pack, kept_key, place_of, replaced_key
from txstore.history.commits import Commits
from txstore.maintenance.scrub import Fates
from txstore.segments.ranged_packs import open_packs
from txstore.segments.ranged_runs import open_runs
from txstore.segments.replaced import read_records
from txstore.segments.runs import build, name_run
from txstore.storage.interface import Mapped, Storage

#: Bytes of a pack, about. It is gathered in memory, and copied there once.
_PACK = 32 << 20

Entry = tuple[bytes, int, int, int, int, int]


class ValueAfter(NamedTuple):
    """What becomes of one stored value: the places at which refs lead to it, and the new value; None if it stays."""

    key: str
    places: tuple[tuple[PackName, int], ...]
    value: bytes | None


def write_replacements(
    commits: Commits, values: Iterable[ValueAfter], note: Callable[[ReplacementTable], object]
) -> ReplacementTable:
    """Write new values, and the table. `note` makes the record list a pack, durably, before the pack is written."""
    writing = _Writing(commits, note)
    for each in values:
        writing.add(each)
    return writing.finish()


class _Writing:
    def __init__(self, commits: Commits, note: Callable[[ReplacementTable], object]) -> None:
        self._commits = commits
        self._note = note
        self._packs: list[PackName] = []
        self._parts: list[memoryview | bytes] = []  # of the pack that is being gathered, behind its head
        self._frames = 0
        self._end = packfile.HEAD_SIZE
        self._entries: dict[bytes, Entry] = {}

    def add(self, after: ValueAfter) -> None:
        if after.value is None:
            for place in after.places:
                key = kept_key(*place)
                self._entries[key] = (key, packfile.REF_TOMBSTONE, 0, 0, 0, 0)
            return
        value, checksum = after.value, crc32c(after.value)
        head, offset, end = packfile.lay_frame(
            self._end, packfile.FRAME_VALUE, packfile.SEEN_NOTHING, self._frames, after.key.encode(), len(value),
            checksum,
        )  # fmt: skip
        self._parts += packfile.frame_parts(self._end, head, offset, value, end)
        for place in after.places:
            key = replaced_key(*place)
            self._entries[key] = (key, packfile.REF_PACK, offset, len(value), checksum, len(self._packs) + 1)
        self._frames, self._end = self._frames + 1, end
        if self._end >= _PACK:
            self._write_values()

    def _write_values(self) -> None:
        name = self._new_pack()
        head = packfile.encode_head(name.id, self._commits.identity.id)
        self._write(name, [head, *self._parts])
        self._parts, self._frames, self._end = [], 0, packfile.HEAD_SIZE

    def finish(self) -> ReplacementTable:
        if self._frames:
            self._write_values()
        entries = [self._entries[key] for key in sorted(self._entries)]
        section: Mapped = build(entries, (), self._packs, self._commits.storage)
        name = self._new_pack()
        length = len(memoryview(section))
        offset, end = packfile.compaction_output_layout(length)
        begin = packfile.encode_compaction_output(name.id, self._commits.identity.id, length)
        self._write(name, [begin, memoryview(section), bytes(end - offset - length)])
        run = name_run(section, 1, offset)
        return ReplacementTable(tuple(pack.id for pack in self._packs), offset, length, run.entries)

    def _new_pack(self) -> PackName:
        self._packs.append(PackName(os.urandom(16)))
        self._note(ReplacementTable(tuple(pack.id for pack in self._packs)))
        return self._packs[-1]

    def _write(self, name: PackName, parts: list[memoryview | bytes]) -> None:
        storage = self._commits.storage
        storage.make_directory(names.data_pack_directory(name.id), durable=True)
        storage.write_once(name.path, b"".join(parts), durable=True)
        storage.sync_directory(names.PACKS)


def packs_in_use(storage: Storage, needed: Collection[str]) -> set[str]:
    """Return the paths of the packs of all tables that need not be deleted. `needed` are the files of kept commits.

    A table counts if one of those files had a value that it names, or if its erasure has not ended.
    """
    found: set[str] = set()
    for record in read_records(storage):
        if record.table is None:
            continue
        packs = [PackName(pack).path for pack in record.table.packs]
        run = record.table.run
        is_needed = record.finished is None
        if not is_needed and run is not None and storage.exists(packs[-1]):
            is_needed = any(pack.path in needed or pack.path in found for pack in _packs_named(storage, run))
        if is_needed:
            found.update(packs)
    return found


def _packs_named(storage: Storage, run: RunName) -> Iterator[PackName]:
    """Yield the packs that a table names values in."""
    runs = open_runs([run], open_packs(storage))
    for start, stop in ((KEPT, REPLACED), (REPLACED, None)):
        key: bytes | None = start
        while key is not None and (key := next(runs.changed_keys(key, stop, 0), None)) is not None:
            try:
                yield place_of(key)[0]
            except MalformedError as error:
                assert run.pack is not None
                raise CorruptionError(run.pack.path, reason=error.reason) from error
            key = after_pack(key)


def row_fates(storage: Storage, record: ErasureRecord) -> Fates:
    """Return what an erasure of rows has decided of each value. Raises `CorruptionError` if its table is damaged.

    A value that the table does not name was in no kept commit when the table was written: it is erased. The table
    itself may be gone from the storage: a vacuum deletes it when no kept commit needs any of the values.

    Values that newer erasures have written are not judged: the table is older than they are.
    """
    table = record.table
    newer = [each.table for each in read_records(storage) if (each.time, each.id) > (record.time, record.id)]
    packs = frozenset(pack for each in (table, *newer) if each is not None for pack in each.packs)
    run = table.run if table is not None else None
    is_there = run is not None and run.pack is not None and storage.exists(run.pack.path)
    opened = open_runs([run], open_packs(storage)) if run is not None and is_there else None

    def fate(pack: PackName, offset: int) -> int | None:
        if opened is not None:
            kept, replaced = opened.refs([kept_key(pack, offset), replaced_key(pack, offset)])
            if replaced is not None:  # perhaps by a value that a newer erasure has erased: that one names this, too
                return packfile.REF_PACK
            if kept is not None:
                return None
        return packfile.REF_ERASED

    return Fates(packs, fate)
