"""Walking everything that can be reached, from the floor to the head: `verify` reports, and changes nothing.

Two passes: the frames of all packs, then the runs, whose refs must lead to them. What a fault touches is found last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from txstore import encoding, format, names, records
from txstore.checking import (
    COMMITS_TOLD,
    Checked,
    Fault,
    Values,
    Window,
    check_frames,
    check_sections,
    entries_of,
    frames_end,
    open_run,
)
from txstore.commits import MAIN, Commits, Stored
from txstore.errors import CorruptionError, KeyFormatError, TxStoreError, UnsupportedFormatError
from txstore.format import PackName, RunName
from txstore.index import names_of
from txstore.keys import check_name, decode_key, encode_key
from txstore.pack import Packs
from txstore.records import Tag, TransactionRecord
from txstore.snapshot import Snapshot

Progress = Callable[[int, int], None]  # bytes done, bytes in all
#: So many commits are looked at for a value of which it is not known where it was written.
_LOOKED_AT_MOST = 1000


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing that was done: `path` is the file that it was done to."""

    path: str
    action: str

    def __str__(self) -> str:
        return f"{self.path}: {self.action}"


@dataclass(slots=True)
class Report:
    """What `verify` found. After repairs: what is left, what was done, and the faults that are gone."""

    commits: int = 0
    values: int = 0
    refs: int = 0
    bytes: int = 0
    faults: list[Fault] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    repaired: list[Fault] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.faults


def verify(commits: Commits, progress: Progress | None = None) -> Report:
    """Check every commit from the floor on, with all that it refers to. See `Repository.verify`."""
    floor = _floor(commits)
    while True:
        report = Verifier(commits, progress).run()
        before, floor = floor, _floor(commits)
        if report.ok or floor == before:
            return report  # else a vacuum went on meanwhile, and what was missed may be what it has deleted


def _floor(commits: Commits) -> int | None:
    try:
        head = Commits(commits.storage).head(MAIN)
    except (TxStoreError, OSError):
        return None
    return None if head is None else head.header.floor


class _Listed(NamedTuple):
    """A run, and the slots of the first and last commit that list it: those between them do, too."""

    name: RunName
    first: int
    last: int


class Verifier:
    """One walk. `runs` and `damaged_packs` serve those who repair."""

    def __init__(self, commits: Commits, progress: Progress | None = None) -> None:
        self.commits = commits
        self.storage = commits.storage
        self.report = Report()
        self.runs: dict[tuple[bytes, int], _Listed] = {}
        self._progress = progress
        self._total = 0
        self._ids: dict[int, bytes] = {}  # by slot, of the commits that can be read
        self._damaged: set[bytes] = set()  # packs whose head or file is damaged: nothing in them can be read
        self._readers: dict[bytes, set[tuple[int, int]]] = {}  # of those, from which slot to which they are read
        self._known: set[str] = set()  # files that are accounted for
        self._brought: dict[str, int] = {}  # the slot that a pack came with
        self._floor = 0
        self._tagged: set[int] = set()  # slots
        self._oldest: dict[int, Snapshot] = {}  # by slot, of those looked into

    def run(self) -> Report:
        self._check_small_files()
        try:
            repository_id = self.commits.identity.id
        except (TxStoreError, OSError) as error:
            self._add_error(error, names.FORMAT, part="format")
            return self.report
        self._check_tags()
        self._check_chain()
        slots = sorted(self._ids)
        values = Values()
        try:
            for slot in slots:
                self._check_commit(slot, repository_id, values)
            self._total = self.report.bytes  # what others have added meanwhile does not count
            for key, listed in list(self.runs.items()):
                self._check_run(key, listed, values)
        finally:
            values.close()
        self._check_staging()
        self._check_names()
        if self.report.faults:
            self.report.faults = [self._with_commits(fault) for fault in self.report.faults]
        return self.report

    # --- the history

    def _check_chain(self) -> None:
        """Find the commits that can be read, and report those that can't, and links that do not hold."""
        slots = self.commits.slots(MAIN)  # before the head is looked for: others may be committing
        floor, top = min(slots, default=0), max(slots, default=-1)
        try:
            head = self.commits.head(MAIN)
            floor, top = (0, -1) if head is None else (head.header.floor, head.header.slot)
        except (TxStoreError, OSError) as error:
            self._add_error(error, names.commits_directory(MAIN))
            floor = max((s.header.floor for s in map(self._read_quietly, slots) if s is not None), default=floor)
        for slot in sorted(slots):
            if slot > top:
                path = names.commit_path(MAIN, slot)
                self._add(Fault(path, "this commit does not follow the one in the slot before it", part="orphan"))
        self._check_hint()
        child: Stored | None = None
        for slot in range(top, floor - 1, -1):
            path, stored = names.commit_path(MAIN, slot), None
            try:
                stored = self.commits.read(MAIN, slot)
                if stored is None:
                    self._add(Fault(path, "the file is missing", part="missing"))
            except (TxStoreError, OSError) as error:
                self._add_error(error, path)
            if stored is not None:
                self._ids[slot] = stored.header.id
                self._total += stored.footer.file_length + sum(pack.end for pack in stored.header.packs)
                named = None if child is None else (child.header.parent_id, child.header.parent_hash)
                if named not in (None, (stored.header.id, stored.hash)):
                    self._add(Fault(path, f"this is not the parent that slot {slot + 1} names", part="link"))
            child = stored
        for slot in slots:
            if slot < floor and slot in self._tagged and (stored := self._read_quietly(slot)) is not None:
                self._ids[slot] = stored.header.id  # a vacuum has kept it; who is damaged is reported with the tag
        self._floor = floor

    def _read_quietly(self, slot: int) -> Stored | None:
        try:
            return self.commits.read(MAIN, slot)
        except (TxStoreError, OSError):
            return None

    def _check_hint(self) -> None:
        """Report a damaged hint, and the loss of the newest commits: of a durable one that it names."""
        path = names.hint_path(MAIN)
        try:
            hint = self.commits.read_hint(MAIN)
        except FileNotFoundError:
            return
        except OSError as error:
            self._add_error(error, path, part="hint")
            return
        except encoding.MalformedError as error:
            content = self.storage.read(path)
            if any(content):  # else its writer was killed, or the power lost, before it was written
                self._add(Fault(path, error.reason, part="hint"))
            return
        if not self.commits.is_durable(hint):
            return
        try:
            stored = self.commits.read(MAIN, hint.slot)
        except (OSError, TxStoreError):
            return  # it is only a hint; a damaged commit is reported where its slot is read
        if stored is None or stored.header.id != hint.commit_id:
            reason = f"commit {hint.commit_id.hex()} was durable in this slot and is not there"
            self._add(Fault(names.commit_path(MAIN, hint.slot), reason, part="missing"))

    # --- the first pass: packs

    def _check_commit(self, slot: int, repository_id: bytes, values: Values) -> None:
        path = names.commit_path(MAIN, slot)
        try:
            stored = self.commits.read(MAIN, slot)
            if stored is None:
                return  # gone since: a vacuum
            self.report.commits += 1
            for pack in stored.header.packs:
                self._check_pack(slot, pack.name, repository_id, pack.end, values)
            self._check_pack(slot, stored.header.name, repository_id, frames_end(stored), values)
            for fault in check_sections(self.storage, stored):
                self._add(fault)
            self.report.bytes += stored.footer.file_length - frames_end(stored)
        except (TxStoreError, OSError) as error:
            self._add_error(error, path)
            return
        for name in names_of(stored.header.runs, stored.header.name):
            if name.pack is None:
                continue
            key = (name.pack.id, name.offset)
            listed = self.runs.get(key)
            self.runs[key] = _Listed(name, slot if listed is None else listed.first, slot)
        self._tell()

    def _check_pack(self, slot: int, name: PackName, repository_id: bytes, end: int, values: Values) -> None:
        self._known.add(name.path)
        self._brought[name.path] = slot
        try:
            checked = check_frames(self.storage, name, repository_id, end, values)
        except FileNotFoundError:
            self._damaged.add(name.id)
            if slot >= self._floor:  # else what of it is still read, is found missing by the refs
                self._add(Fault(name.path, "the file is missing", part="missing"))
            return
        except OSError as error:
            self._add_error(error, name.path)
            self._damaged.add(name.id)
            return
        self._take(checked, name, end)

    def _take(self, checked: Checked, name: PackName, end: int) -> None:
        self.report.values += checked.values
        self.report.bytes += end
        for fault in checked.faults:
            self._add(fault)
            if fault.part == "head":
                self._damaged.add(name.id)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.report.bytes, max(self._total, self.report.bytes))

    # --- the second pass: runs

    def _check_run(self, key: tuple[bytes, int], listed: _Listed, values: Values) -> None:
        name, path = listed.name, listed.name.pack.path if listed.name.pack is not None else ""
        try:
            run, packs = open_run(self.storage, name, path)
        except OSError as error:
            if path not in self._known or not isinstance(error, FileNotFoundError):
                self._add_error(error, path)
            return
        except ValueError as error:
            self._add(Fault(path, f"damaged run: {error}", name.offset, part="run"))
            return
        tables = [name.pack, *packs]
        for pack in tables:
            if pack is not None and pack.id in self._damaged:
                self._readers.setdefault(pack.id, set()).add((listed.first, listed.last))
        for page in entries_of(run):
            self.report.refs += len(page)
            for encoded, kind, _, number, offset, length, checksum in page:
                if decode_key(encoded) is None:
                    self._add(Fault(path, f"key {encoded!r} is not UTF-8", name.offset, part="run"))
                pack = tables[number]
                if kind != format.REF_PACK or pack is None:
                    continue
                if not values.has(pack.id, offset, length, checksum):
                    self._check_ref(values, pack, encoded, offset, length, checksum, listed.first)

    def _check_ref(
        self, values: Values, pack: PackName, encoded: bytes, offset: int, length: int, checksum: int, first: int
    ) -> None:
        """Look at a value itself: its frame is damaged, or its pack lies below the floor and was not walked."""
        key = encoded.decode(errors="backslashreplace")
        if values.has(pack.id, offset, length, checksum) is False:
            self._add(Fault(pack.path, "a ref leads to where no such value is", offset, key, part="ref"))
            return
        try:
            found = Window(self.storage, pack.path).checksum(offset, length)
        except FileNotFoundError:
            if pack.path not in self._known and self._is_read(first, pack, encoded, offset):
                self._known.add(pack.path)
                self._add(Fault(pack.path, "the file is missing", part="missing"))
            return
        except OSError as error:
            self._add_error(error, pack.path)
            return
        self._known.add(pack.path)
        if found != checksum:
            self._add(Fault(pack.path, "the value has a wrong checksum", offset, key, part="value"))

    def _is_read(self, slot: int, pack: PackName, encoded: bytes, offset: int) -> bool:
        """Tell whether the oldest commit that lists a run sees a value of it: else none does, and it may be gone."""
        if slot not in self._oldest:
            self._oldest = {slot: Snapshot(self.commits.read(MAIN, slot), Packs(self.storage), self.storage.url)}
        runs = self._oldest[slot].runs
        found = runs.lookup(encoded)
        return found is not None and (found.offset, runs.pack_name(found.run, found.pack)) == (offset, pack)

    # --- the other files

    def _check_small_files(self) -> None:
        try:
            if self.storage.read(names.GUARD) != records.encode_guard():
                self._add(Fault(names.GUARD, "this is not the guard that keeps plain zarr out", part="guard"))
        except FileNotFoundError:
            self._add(Fault(names.GUARD, "the file is missing", part="guard"))
        except OSError as error:
            self._add_error(error, names.GUARD, part="guard")

    def _check_tags(self) -> None:
        for name in sorted(self.storage.list("tags")):
            try:
                check_name("tag", name)
                self._tagged.add(self.commits.by_tag(name).header.slot)
            except KeyFormatError:
                continue  # told by `_check_names`
            except UnsupportedFormatError as error:
                self._add_error(error, error.path)
            except (TxStoreError, OSError) as error:
                self._add_error(error, names.tag_path(name), part="tag")
        for name in sorted(self.storage.list(f"{names.FLOOR}/{MAIN}")):
            path = f"{names.FLOOR}/{MAIN}/{name}"
            try:
                Tag.decode(self.storage.read(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                self._add_error(error, path)
            except encoding.MalformedError as error:
                self._add(Fault(path, error.reason, part="floor"))

    def _check_staging(self) -> None:
        for file in sorted(self.storage.list(names.STAGING)):
            path = f"{names.STAGING}/{file}"
            name = names.parse_named(file)
            if names.parse_record(file) is None and name is None:
                continue
            try:
                content = self.storage.read(path)
                if name is None and content:  # empty: its owner is about to write it, or died before
                    TransactionRecord.decode(content)
                elif content and (len(content) != 32 or len(bytes.fromhex(content.decode())) != 16):
                    raise encoding.MalformedError("it names no transaction")
            except FileNotFoundError:
                continue  # the transaction has ended
            except OSError as error:
                self._add_error(error, path, part="staging")
            except ValueError as error:
                self._add(Fault(path, str(error), part="staging"))

    def _check_names(self) -> None:
        """Report what has a name that no file of a repository has."""
        for path in unknown_names(self.commits):
            self._add(Fault(path, "no file of a repository is called so", part="unknown"))

    # --- what a fault touches

    def _with_commits(self, fault: Fault) -> Fault:
        slots = sorted(self._touched(fault))
        if not slots or fault.commits:
            return fault
        ids = [self._ids[slot].hex() for slot in islice(slots, COMMITS_TOLD)]
        return Fault(fault.path, fault.reason, fault.offset, fault.key, fault.part, tuple(ids), len(slots))

    def _touched(self, fault: Fault) -> set[int]:
        """Return the slots of the commits that a fault touches."""
        own = names.parse_slot(fault.path.rpartition("/")[2]) if fault.path.startswith("commits/") else None
        found = {own} if own is not None else set()
        if fault.part in ("value", "ref") and fault.key is not None and fault.offset is not None:
            return self._readers_of(fault.path, fault.key, fault.offset)
        if fault.part == "run" and fault.offset is not None:
            for listed in self.runs.values():
                if listed.name.pack is not None and (listed.name.pack.path, listed.name.offset) == (
                    fault.path,
                    fault.offset,
                ):
                    found |= set(range(listed.first, listed.last + 1))
        elif fault.part in ("head", "missing", "unreadable"):
            for listed in self.runs.values():
                if listed.name.pack is not None and listed.name.pack.path == fault.path:
                    found |= set(range(listed.first, listed.last + 1))
            for pack_id, ranges in self._readers.items():
                if fault.path.endswith(pack_id.hex()) or (own is not None and self._ids.get(own) == pack_id):
                    for first, last in ranges:
                        found |= set(range(first, last + 1))
        return found & self._ids.keys()

    def _readers_of(self, path: str, key: str, offset: int) -> set[int]:
        """Return the slots in which a key has the value that lies there: they follow one another."""
        packs = Packs(self.storage)

        def reads(slot: int) -> bool | None:
            try:
                stored = self.commits.read(MAIN, slot)
                snapshot = Snapshot(stored, packs, self.storage.url)
                found = snapshot.runs.lookup(encode_key(key))
                if found is None or found.kind != format.REF_PACK:
                    return False
                return found.offset == offset and snapshot.runs.pack_name(found.run, found.pack).path == path
            except (TxStoreError, OSError):
                return None

        slots = sorted(self._ids)
        begin = bisect_left(slots, self._brought.get(path, 0))
        if begin < len(slots) and reads(slots[begin]):
            end = bisect_left(range(begin, len(slots)), True, key=lambda i: reads(slots[i]) is not True) + begin
            return set(slots[begin:end])
        return {slot for slot in slots[:_LOOKED_AT_MOST] if reads(slot)}

    # --- noting

    def _add_error(self, error: TxStoreError | OSError, path: str, *, part: str | None = None) -> None:
        if isinstance(error, CorruptionError):
            self._add(Fault(error.path, error.reason, error.offset, error.key, part or "header"))
        elif isinstance(error, OSError):
            self._add(Fault(path, f"it can't be read: {error}", part=part or "unreadable"))
        else:
            self._add(Fault(str(getattr(error, "path", path)), str(error), part=part or "header"))

    def _add(self, fault: Fault) -> None:
        if fault not in self.report.faults:  # a damaged head is met twice
            self.report.faults.append(fault)


def unknown_names(commits: Commits) -> list[str]:
    """Return the paths that no file of a repository has. Hidden files at the top are somebody else's."""
    storage = commits.storage
    found = [name for name in storage.list("") if not name.startswith(".") and name not in names.TOP]
    for name in storage.list(names.commits_directory(MAIN)):
        slot, _, rest = name.partition(".orphan-")
        if names.parse_slot(slot) is None or (rest and len(rest) < 32):
            found.append(f"{names.commits_directory(MAIN)}/{name}")
    for name in storage.list("tags"):
        try:
            check_name("tag", name)
        except KeyFormatError:
            found.append(f"tags/{name}")
    found += [f"heads/{name}" for name in storage.list("heads") if name != MAIN]
    found += [f"commits/{name}" for name in storage.list("commits") if name != MAIN]
    for directory in storage.list(names.PACKS):
        try:
            for name in storage.list(f"{names.PACKS}/{directory}"):
                if not (name.startswith(directory) and len(name) == 32 and len(directory) == 2):
                    found.append(f"{names.PACKS}/{directory}/{name}")
        except NotADirectoryError:
            found.append(f"{names.PACKS}/{directory}")
    return sorted(found)
