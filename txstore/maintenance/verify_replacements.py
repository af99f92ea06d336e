"""Checks the values that replace others after erasures of rows, and the tables that lead to them."""

from __future__ import annotations

from collections.abc import Callable

from txstore.errors import CorruptionError
from txstore.format import packfile
from txstore.format.commitfile import RunName
from txstore.format.packfile import PackName
from txstore.maintenance.check_file import Checked, Values, check_frames, entries_of, open_run
from txstore.maintenance.report import Fault
from txstore.segments.ranged_packs import open_packs
from txstore.segments.ranged_runs import is_replaced
from txstore.segments.replaced import read_records, run_of
from txstore.storage.interface import Storage


class ReplacementChecks:
    """The tables of one repository, and the packs with the new values.

    A vacuum deletes those that no kept commit needs. So a missing one is a fault only where a ref asks for it.
    """

    def __init__(self, storage: Storage, repository_id: bytes, add: Callable[[Fault], object]) -> None:
        self._storage = storage
        self._id = repository_id
        self._add = add
        self._packs = open_packs(storage)

    def check(self, values: Values) -> list[Checked]:
        """Check what is there; return the counts of each pack. Raises `CorruptionError`, `OSError`."""
        found, tables = list[Checked](), list[RunName]()
        for record in read_records(self._storage):
            run = run_of(record)
            packs = [PackName(pack) for pack in record.table.packs] if record.table is not None else []
            there = [pack for pack in packs if self._storage.exists(pack.path)]
            for pack in there:
                end = self._storage.read_tail(pack.path, 0)[1]
                found.append(check_frames(self._storage, pack, self._id, end, values))
            if run is not None and packs[-1] in there:
                tables.append(run)
        for run in tables:  # behind all packs: from the first question on, `values` takes no more
            self._check_table(run, values)
        return found

    def _check_table(self, name: RunName, values: Values) -> None:
        assert name.pack is not None
        try:
            run, packs = open_run(self._storage, name, name.pack.path)
        except ValueError as error:
            self._add(Fault(name.pack.path, f"damaged run: {error}", name.offset, part="run"))
            return
        tables = [name.pack, *packs]
        for page in entries_of(run):
            for key, kind, _, number, offset, length, checksum in page:
                if kind == packfile.REF_PACK and not values.has(tables[number].id, kind, offset, length, checksum):
                    reason = "the table of an erasure leads to where no such value is"
                    self._add(Fault(tables[number].path, reason, offset, key.decode(errors="backslashreplace"), "ref"))

    def has(self, pack: PackName, offset: int) -> bool:
        """Tell whether a table says which value replaces one."""
        try:
            return is_replaced(self._packs, pack, offset)
        except CorruptionError:
            return False
