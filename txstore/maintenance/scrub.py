"""Removes values from the files that hold them: `erase` does this in a repository, and a backup in an older copy.

A file keeps its length, and everything other files say of it: its commit, its hash, where its frames and runs are. In a
frame below an erased path, the value becomes zeros, and the kind says so. In an entry of a run, the kind says so, and
the checksum becomes zero. So the files can be replaced one by one, in any order. If another value replaces it, the kind
of the entry stays, and the checksum of zero says so.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from txstore._native import index, index_fallback
from txstore.commit import Stored
from txstore.errors import CorruptionError
from txstore.format import commitfile, encoding, names, packfile
from txstore.format.commitfile import RunName
from txstore.format.keys import after_prefix, directory_prefix, is_document
from txstore.format.packfile import Frame, PackName
from txstore.format.replacements import REPLACED, place_of
from txstore.history.commits import Commits
from txstore.maintenance.check_file import Window, frames_end, walk_frames
from txstore.maintenance.reachable import StagedPacks, data_packs
from txstore.segments.replaced import read_records, run_of
from txstore.storage.interface import StagedFile, Storage

_COPIED = 1 << 20
_WITH_VALUE = (packfile.FRAME_VALUE, packfile.FRAME_FOREIGN, packfile.FRAME_PARTIAL, packfile.FRAME_MERGED)
_LEADS_TO_VALUE = tuple(packfile.FRAME_OF_REF)


@dataclass(slots=True)
class _File:
    """One file to survey."""

    name: PackName
    size: int
    stored: Stored | None = None  # of a commit file
    end: int | None = None  # end of the valid frames of a data pack, if a commit says so
    runs: tuple[commitfile.Section, ...] = ()
    seq: int = 0  # of the entries without one of their own


class _RunRewrite(NamedTuple):
    """The changes to one run: ranges of its keys, and what becomes of the entries in these."""

    section: commitfile.Section
    ranges: list[tuple[bytes, bytes | None]]
    kind_after: index_fallback.KindAfter


class Fates(NamedTuple):
    """Says what becomes of each value below the paths, if not all of them are erased."""

    packs: frozenset[bytes]
    """The packs that are part of the answer: their values stay."""
    of: Callable[[PackName, int], int | None]
    """Returns the kind that refs to a value have afterwards; None if it stays. `REF_PACK`: another one replaces it."""


@dataclass(slots=True)
class Rewrite:
    """The changes to one file."""

    pack_id: bytes
    size: int
    holes: list[tuple[int, int]] = field(default_factory=list)  # offset and length of bytes that become zeros
    patches: list[tuple[int, bytes]] = field(default_factory=list)
    runs: list[_RunRewrite] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.holes or self.patches or self.runs)


@dataclass(slots=True)
class Survey:
    """The values to erase. `met` are the paths that have any values, erased or not."""

    changes: dict[str, Rewrite] = field(default_factory=dict)
    values: int = 0
    bytes: int = 0
    met: set[str] = field(default_factory=set)
    shared: dict[str, None] = field(default_factory=dict)  # nodes elsewhere that have the same values


def survey(
    commits: Commits, paths: Collection[str], until: Mapping[str, int] | None = None, fates: Fates | None = None
) -> Survey:
    """Search every file, reachable or not, for values below some paths.

    `until`: for each branch, the last version to erase; values of later commits stay. `fates`: what becomes of each of
    the others, but for documents, which stay; None: all are erased. Raises `CorruptionError` if a file can't be read.
    """
    return _Surveyor(commits, paths, until, fates).run()


class _Surveyor:
    def __init__(
        self, commits: Commits, paths: Collection[str], until: Mapping[str, int] | None, fates: Fates | None
    ) -> None:
        self._fates = fates
        self._commits = commits
        self._storage = commits.storage
        self._prefixes = {path: directory_prefix(path).encode() for path in paths}
        self._begin = tuple(self._prefixes.values())
        self._until = until
        # Packs newer than the versions to erase.
        self._young: set[bytes] = set() if fates is None else set(fates.packs)
        # Values that replace some in those packs: they stay, too.
        self._young_places: set[tuple[bytes, int]] = set()
        self._ends: dict[bytes, int] = {}  # ends of the valid frames of data packs
        self._compaction_outputs: dict[PackName, RunName] = {}  # each with its run
        self._referred: set[bytes] = set()  # packs that runs lead to
        self._found = Survey()
        self._offsets: dict[bytes, set[int]] = {}  # offsets of the values to erase, by pack
        self._blank: dict[bytes, set[int]] = {}  # those of the values below the paths that are erased already

    def run(self) -> Survey:
        packs = list(data_packs(self._commits))
        staged = StagedPacks(self._storage.list(names.STAGING))
        files = list(self._commit_files())
        with_runs = [*files, *self._files_of_compaction_outputs()]
        self._find_young_places()
        for file in with_runs:
            for section, run, tables in self._runs_of(file):
                self._look_through(file, section, run, tables)
        for file in (*files, *self._data_packs(packs, staged)):
            if file.name.id not in self._young:
                with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                    self._look_into(file)
        for file in with_runs:
            for _, run, tables in self._runs_of(file):
                self._look_beside(run, tables)
            self._look_into_group_commit(file)
        for table in self._tables():
            with contextlib.suppress(FileNotFoundError):  # a vacuum has deleted it
                self._look_into_table(table)
        return self._found

    def _commit_files(self) -> Iterator[_File]:
        for branch in self._commits.files.branch_directories():
            for version in sorted(self._commits.files.versions(branch)):
                stored = self._commits.files.read(branch, version)
                if stored is None:
                    continue
                header = stored.header
                self._ends.update((pack.name.id, pack.end) for pack in header.packs)
                compaction_outputs = header.compaction_outputs
                self._compaction_outputs.update(
                    (run.pack, run) for run in header.runs if run.pack in compaction_outputs
                )
                if self._until is not None and version > self._until.get(branch, -1):
                    self._young |= {header.id, *(pack.name.id for pack in header.packs)}
                runs = tuple([each for each in header.sections if each.kind == commitfile.SECTION_RUN])
                yield _File(header.name, stored.footer.file_length, stored, frames_end(stored), runs)

    def _files_of_compaction_outputs(self) -> Iterator[_File]:
        """Yield those that commits list. Runs in other ones only refer to values, and hold none."""
        for name, run in self._compaction_outputs.items():
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                size = self._storage.read_tail(name.path, 0)[1]
                runs = (commitfile.Section(commitfile.SECTION_RUN, run.offset, run.length),)
                yield _File(name, size, None, self._ends.get(name.id), runs)

    def _data_packs(self, packs: Collection[str], staged: StagedPacks) -> Iterator[_File]:
        """Yield the data packs, except those of open transactions.

        This lists `packs/` first, then the staged files, then the commits, as a vacuum does: the packs of a commit are
        in one of the three.
        """
        for folder in dict.fromkeys(map(posixpath.dirname, packs)):
            sizes = self._storage.sizes(folder)
            for path in packs:
                name = posixpath.basename(path)
                pack_id = names.parse_data_pack(name[:2], name)
                if posixpath.dirname(path) != folder or pack_id is None:
                    continue
                if path in staged and pack_id not in self._ends and pack_id not in self._referred:
                    continue
                if name in sizes:  # else it went meanwhile
                    yield _File(PackName(pack_id), sizes[name], None, self._ends.get(pack_id))

    # --- runs

    def _find_young_places(self) -> None:
        for name in self._tables() if self._until is not None else ():
            assert name.pack is not None
            with contextlib.suppress(FileNotFoundError):  # a vacuum has deleted it
                for _, run, tables in self._runs_of(self._file_of(name)):
                    for key, kind, _, number, offset, _, _ in _entries(run, REPLACED, None, name.pack.path):
                        if kind == packfile.REF_PACK and place_of(key)[0].id in self._young:
                            self._young_places.add((tables[number].id, offset))

    def _tables(self) -> list[RunName]:
        return [run for record in read_records(self._storage) if (run := run_of(record)) is not None]

    def _file_of(self, name: RunName) -> _File:
        """Return the file of a table. Raises `FileNotFoundError`."""
        assert name.pack is not None
        section = commitfile.Section(commitfile.SECTION_RUN, name.offset, name.length)
        return _File(name.pack, self._storage.read_tail(name.pack.path, 0)[1], runs=(section,), seq=name.seq)

    def _runs_of(self, file: _File) -> Iterator[tuple[commitfile.Section, index.Run, list[PackName]]]:
        for section in file.runs:
            try:
                content = self._storage.read_range(file.name.path, section.offset, section.length)
                run = index.Run(content, file.seq if file.stored is None else file.stored.header.seq)
                tables = [file.name, *map(PackName.decode, run.packs)]
            except FileNotFoundError:
                return  # it went meanwhile
            except ValueError as error:
                raise CorruptionError(file.name.path, offset=section.offset, reason=f"damaged run: {error}") from error
            yield section, run, tables

    def _look_through(self, file: _File, section: commitfile.Section, run: index.Run, tables: list[PackName]) -> None:
        self._referred.update(pack.id for pack in tables)

        def kind_after(key: bytes, number: int, offset: int) -> int | None:
            return self._fate_of(key, tables[number], offset)

        is_changed = False
        for path in self._prefixes:
            for key, kind, _, number, offset, _, checksum in _entries(run, *_range_of(path), file.name.path):
                if kind == packfile.REF_ERASED:
                    self._found.met.add(path)
                if kind in _LEADS_TO_VALUE and tables[number].id not in self._young:
                    self._found.met.add(path)
                    after = kind_after(key, number, offset)
                    if after is not None:
                        self._offsets.setdefault(tables[number].id, set()).add(offset)
                        is_changed |= (kind, checksum) != (after, 0)
        if is_changed:
            ranges = list(map(_range_of, self._prefixes))
            self._change(file).runs.append(_RunRewrite(section, ranges, kind_after))

    def _fate_of(self, key: bytes, pack: PackName, offset: int) -> int | None:
        """Return the kind that refs to a value below the paths have afterwards; None if the value stays."""
        if pack.id in self._young or (pack.id, offset) in self._young_places:
            return None
        if self._fates is None:
            return packfile.REF_ERASED
        return None if is_document(key.decode(errors="replace")) else self._fates.of(pack, offset)

    def _look_into_table(self, name: RunName) -> None:
        """Find the entries of another erasure's table that lead to values that are erased, for their checksums."""
        assert name.pack is not None
        path, file = name.pack.path, self._file_of(name)
        [section], size = file.runs, file.size
        for _, run, tables in self._runs_of(file):

            def kind_after(_: bytes, number: int, offset: int, tables: Sequence[PackName] = tables) -> int | None:
                pack = tables[number].id
                is_gone = any(offset in offsets.get(pack, ()) for offsets in (self._offsets, self._blank))
                return packfile.REF_ERASED if is_gone else None

            if any(
                kind in _LEADS_TO_VALUE and kind_after(key, number, offset) is not None
                for key, kind, _, number, offset, _, _ in _entries(run, b"", None, path)
            ):
                change = self._found.changes.setdefault(path, Rewrite(name.pack.id, size))
                change.runs.append(_RunRewrite(section, [(b"", None)], kind_after))

    def _look_beside(self, run: index.Run, tables: list[PackName]) -> None:
        """Find keys elsewhere that refer to values to erase: nodes moved, or copied by reference."""
        shared = self._found.shared
        if not self._offsets.keys() & {pack.id for pack in tables}:
            return
        for key, kind, _, number, offset, _, _ in _entries(run, b"", None, tables[0].path):
            if kind in _LEADS_TO_VALUE and not key.startswith(self._begin):
                offsets = self._offsets.get(tables[number].id)
                if offsets is not None and offset in offsets:
                    shared[_node_of(key.decode(errors="replace"))] = None

    def _look_into_group_commit(self, file: _File) -> None:
        """Remove the copies of commits that this file decided, and that have files of their own by now."""
        sections = () if file.stored is None else file.stored.header.sections
        for _, offset, length in (each for each in sections if each.kind == commitfile.SECTION_GROUP_COMMIT):
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                content = self._storage.read_range(file.name.path, offset, length)
                # The frames hold plain keys. Other bytes may look like one; no process needs the copy any more.
                if any(prefix in content for prefix in self._begin):
                    self._change(file).holes.append((offset, length))

    # --- frames

    def _look_into(self, file: _File) -> None:
        path = file.name.path
        window = Window(self._storage.read_range, path)
        listed = None if file.stored is not None else self._directory(file)
        end = file.end if file.end is not None else file.size
        if listed is not None:
            end = listed[0]
        head = bytes(window.at(0, packfile.HEAD_SIZE))
        try:
            if packfile.decode_head(head)[0] != file.name.id:
                raise encoding.MalformedError("the pack's head names another pack")
        except encoding.MalformedError as error:
            raise CorruptionError(path, offset=0, reason=error.reason) from error
        copy_at = 0 if listed is None else listed[1]
        for position, frame in walk_frames(window, end):
            if frame is None:
                if file.end is None and listed is None and window.is_zero(position, end):
                    break  # unused room
                raise CorruptionError(path, offset=position, reason="no whole frame is where one should begin")
            length = frame.head_end - position
            self._look_at(file, window, position, frame, copy_at)
            copy_at += length if listed is not None else 0
        if file.stored is None and listed is None and not window.is_zero(end, file.size):
            # A process that outlived its transaction left bytes after the valid frames.
            self._change(file).holes.append((end, file.size - end))

    def _directory(self, file: _File) -> tuple[int, int] | None:
        """Return the end of a data pack's frames, and the offset of their list; None if there is no list."""
        try:
            tail = self._storage.read_tail(file.name.path, packfile.DIRECTORY_SIZE)[0]
            end, length = packfile.decode_directory(tail, file.size)
        except encoding.MalformedError:
            return None
        return end, file.size - packfile.DIRECTORY_SIZE - length

    def _look_at(self, file: _File, window: Window, position: int, frame: Frame, copy_at: int) -> None:
        if frame.original_kind not in _WITH_VALUE:
            return
        offsets = self._offsets.get(file.name.id, ())
        path = next((path for path, prefix in self._prefixes.items() if frame.key.startswith(prefix)), None)
        if path is not None:
            self._found.met.add(path)
            if frame.is_erased:
                self._blank.setdefault(file.name.id, set()).add(frame.offset)
        is_meant = path is not None and self._fate_of(frame.key, file.name, frame.offset) is not None
        if not is_meant and frame.offset not in offsets:
            return
        if frame.is_erased:
            if not window.is_zero(frame.offset, frame.offset + frame.length):
                self._change(file).holes.append((frame.offset, frame.length))
            return
        self._offsets.setdefault(file.name.id, set()).add(frame.offset)
        head = packfile.erased(bytes(window.at(position, frame.head_end - position)))
        change = self._change(file)
        change.patches.append((position, head))
        if copy_at:
            change.patches.append((copy_at, head))
        if frame.length:
            change.holes.append((frame.offset, frame.length))
        self._found.values += 1
        self._found.bytes += frame.length

    def _change(self, file: _File) -> Rewrite:
        return self._found.changes.setdefault(file.name.path, Rewrite(file.name.id, file.size))


def _range_of(path: str) -> tuple[bytes, bytes | None]:
    """Return the range of the keys below a path: the first, and the end."""
    prefix = directory_prefix(path)
    stop = after_prefix(prefix)
    return prefix.encode(), None if stop is None else stop.encode()


def _node_of(key: str) -> str:
    """Return the array or group of a key, by its name alone."""
    array, chunk, _ = key.rpartition("/c/")
    return array if chunk else key.rpartition("/")[0]


def _entries(
    run: index.Run, start: bytes, stop: bytes | None, path: str
) -> Iterator[tuple[bytes, int, int, int, int, int, int]]:
    try:
        while page := run.scan(start, stop, 4096):
            yield from page
            start = page[-1][0] + b"\0"
    except ValueError as error:
        raise CorruptionError(path, reason=f"damaged run: {error}") from error


# --- writing


def rewrite(storage: Storage, path: str, change: Rewrite) -> None:
    """Replace a file by a copy without the erased values."""
    patches = list(change.patches)
    for section, ranges, kind_after in change.runs:
        content = storage.read_range(path, section.offset, section.length)
        patches.append((section.offset, index_fallback.erase(content, ranges, kind_after)))
    storage.make_directory(names.STAGING, durable=False)
    temporary = f"{names.STAGING}/{os.urandom(8).hex()}{names.NEW}"  # the next writer deletes what a dead process left
    file = storage.create(temporary, at_most=storage.permissions(path) | 0o700)
    try:
        _copy(storage, path, file, change)
        for offset, content in patches:
            file.write(offset, [content])
        file.sync()
        if not storage.exists(path):  # on an object store, replacing it would create it
            raise FileNotFoundError(path)
        # A process that opened the old file before keeps it open.
        storage.replace_blanked(temporary, path, change.holes)
    except BaseException:
        storage.delete(temporary)
        raise
    finally:
        file.close()


def _copy(storage: Storage, path: str, file: StagedFile, change: Rewrite) -> None:
    file.write(change.size - 1, [b"\0"])  # holes take no room on file systems with sparse files
    position = 0
    for offset, length in [*sorted(change.holes), (change.size, 0)]:
        while position < offset:
            part = storage.read_range(path, position, min(_COPIED, offset - position))
            if not part:
                raise CorruptionError(path, offset=position, reason="the file is too short")
            file.write(position, [part])
            position += len(part)
        position = max(position, offset + length)
