"""The commit, read top to bottom: what is staged becomes a pack, the pack takes a slot."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from txstore import conflicts, encoding, format, index, names
from txstore.commits import Commits, SlotTakenError, Stored
from txstore.conflicts import Writes
from txstore.documents import kind_of_node
from txstore.errors import TransactionStateError, TxStoreError
from txstore.format import DataPack, Footer, Header, PackName, RunName, Section, Statistics
from txstore.keys import ancestors, directory_prefix, is_document
from txstore.snapshot import Snapshot, Snapshots
from txstore.staging import Staging

#: A commit above this length is synced before the commit lock is taken, so that nobody waits for its data.
SYNC_BEFORE_LOCK = 1 << 20
#: Clocks order nothing, but a parent from the future would push all later commit times ahead (microseconds).
MAX_CLOCK_LEAD = 3600 * 1_000_000


class SyncFailedError(Exception):
    """The medium refused to make data durable (I9). Internal: carries the `OSError`."""

    def __init__(self, cause: OSError) -> None:
        self.cause = cause


class _Merged(NamedTuple):
    section: Section
    run: RunName
    inputs: tuple[RunName, ...]


class Committer:
    """One attempt to commit what one transaction has staged."""

    def __init__(
        self,
        commits: Commits,
        snapshots: Snapshots,
        staging: Staging,
        *,
        branch: str,
        durable: bool,
        message: str,
        properties: Mapping[str, Any],
        fence: Callable[[], None],
    ) -> None:
        self.commits = commits
        self.storage = commits.storage
        self.snapshots = snapshots
        self.staging = staging
        self.base = self.head = staging.base
        self.writes: Writes | None = None
        self.writer = staging.commit_writer()
        self.branch = branch
        self.durable = durable
        self.message = message
        self.properties = properties
        self.fence = fence  # raises if what was locked no longer is
        self.packs = [DataPack(PackName(part.pack_id), part.end) for part in staging.parts()]
        self.end = _align(self.writer.size)
        self.unchanged: set[str] = set()
        self.offered = False  # the file to a slot, which may have taken it

    def run(self) -> Stored | None:
        """Return the new commit; None if all that is staged is as in the base.

        Raises `ConflictError`, `CommitUnknownError`, `CorruptionError`, `SyncFailedError` or `OSError`; then nothing
        was published (or, with `CommitUnknownError`, that is not known), and what is staged is still there.
        """
        # 1. The transaction's own run follows its values. What equals the base is left out.
        own, statistics = self._append_own_run()
        if own is None:
            return None

        # 2. Conflicts with all that is known by now are found before anybody has to wait for us.
        self._catch_up()

        # 3. Every now and then, the newest runs of the head are merged.
        merged = self._append_merged_run(self.head)

        # 4. I1: values and runs are durable before the header that names them: large ones now, small ones with it.
        # The file is created now in any case: that can take a millisecond where many others were deleted.
        self.writer.finish(self.end)
        if self.durable and self.end > SYNC_BEFORE_LOCK:
            self._sync()

        # The packs of other participants go where readers look for them.
        self._publish_packs()

        # 5. The lock gives everybody a turn. That a slot is taken once does not depend on it. Who waited looks at what
        # others have committed before it is let in: then it has only the last commit left to look at.
        with self.storage.lock(names.COMMIT_LOCK, self._catch_up):
            while True:
                self._catch_up()
                self.fence()
                if self.durable:
                    self._prepare_parent(self.head.stored)
                stored = self._write_header(own, merged, self.head.stored, self.head.run_names, statistics)
                if self.durable:
                    self._sync()
                # 6. The rename is the commit.
                self.offered = True
                try:
                    self.commits.take_slot(self.writer.path, stored)
                except SlotTakenError:
                    self.offered = False
                    continue  # I2: the slot is proven to be another's, so the file may be written again
                except OSError:
                    self.offered = False  # it was read back: nothing is there
                    raise
                except BaseException:
                    self.offered = self._may_be_published(stored)
                    raise
                break
            # 7. Others find the new head sooner.
            self.commits.write_hint(stored, durable=False)

        # 8. I1: before anybody is told, its name is made durable, and those of all before it. Others commit meanwhile.
        if self.durable:
            self.commits.settle(stored)
        return stored

    def _publish_packs(self) -> None:
        """Give each data pack its name in `packs/`. It keeps the one below `.staging/` until the commit is made."""
        for pack in self.packs:
            source, directory = self.staging.path_of(pack.name.id), names.data_pack_directory(pack.name.id)
            try:
                if self.durable:
                    self.storage.sync_file(source)
                self.storage.make_directory(directory, durable=self.durable)
                with contextlib.suppress(FileExistsError):  # by one who died while committing
                    self.storage.link(source, pack.name.path)
                if self.durable and pack is self.packs[-1]:
                    for path in (directory, names.PACKS):  # all of a transaction are in one
                        self.storage.sync_directory(path)
            except OSError as error:
                if not self.durable:
                    raise
                raise SyncFailedError(error) from error

    def withdraw_packs(self) -> None:
        """Take back the names in `packs/`: no commit refers to them."""
        for pack in self.packs:
            with contextlib.suppress(OSError):
                self.storage.delete(pack.name.path)

    def _may_be_published(self, stored: Stored) -> bool:
        try:
            there = self.commits.read(self.branch, stored.header.slot)
        except (OSError, TxStoreError):
            return True
        return there is not None and there.header.id == stored.header.id

    def _append(self, content: bytes) -> Section:
        section = Section(format.SECTION_RUN, self.end, len(content))
        self.end = _align(self.end + len(content))
        self.writer.write_at(section.offset, content + bytes(self.end - section.offset - len(content)))
        return section

    def _sync(self) -> None:
        """Make what was written durable."""
        try:
            self.writer.sync()
        except OSError as error:
            raise SyncFailedError(error) from error

    def _prepare_parent(self, parent: Stored | None) -> None:
        """Make the commit that this one follows durable, as far as the syncs of the two committers don't (I1)."""
        if not self.commits.is_fit_parent(parent):
            try:
                self.commits.make_durable(parent)
            except OSError as error:
                raise SyncFailedError(error) from error

    # --- runs

    def _append_own_run(self) -> tuple[Section | None, Statistics]:
        prefixes = [prefix for prefix in self.staging.prefixes if self.base.has_keys_below(prefix)]
        counter = _Counter(self.staging)
        packs = [pack.name for pack in self.packs]
        content = index.build(counter.counted(self._entries()), [prefix.encode() for prefix in prefixes], packs)
        statistics = counter.statistics(len(prefixes))
        if not (statistics.keys_set or statistics.keys_deleted or prefixes):
            return None, statistics
        return self._append(content), statistics

    def _entries(self) -> Iterator[tuple[str, int, int, int, int, int]]:
        """Yield what the run will hold, ascending, and remember in `unchanged` what it will not."""
        base_is_empty = not len(self.base.runs)
        numbers = {pack.name.id: number for number, pack in enumerate(self.packs, 1)}
        for key, link in self.staging.items_staged():
            if link.kind == format.FRAME_TOMBSTONE:
                # A key that was not there needs no tombstone; it still counts as written (`_writes`).
                if not base_is_empty and not self.staging.is_below_deleted(key) and key in self.base:
                    yield key, format.REF_TOMBSTONE, 0, 0, 0, 0
            elif not base_is_empty and self.staging.is_unchanged(key, link):
                self.unchanged.add(key)
            else:
                pack = self.staging.pack_id_of(link)
                number = 0 if pack == self.writer.id else numbers[pack]
                yield key, format.REF_PACK, link.offset, link.length, link.checksum, number

    def _append_merged_run(self, head: Snapshot) -> _Merged | None:
        count = head.runs.plan_merge()
        if not count:
            return None
        content = head.runs.merge(count)
        section = self._append(content)
        return _Merged(section, index.name_run(content, 0, section.offset), head.runs.names[:count])

    # --- conflicts

    def _writes(self) -> Writes:
        written: list[str] = []
        deleted: list[str] = []
        documents: dict[str, bytes | None] = {}
        for key, link in self.staging.items_staged():
            if key in self.unchanged:
                continue
            is_deleted = link.kind == format.FRAME_TOMBSTONE
            (deleted if is_deleted else written).append(key)
            if is_document(key):
                documents[key] = None if is_deleted else self.staging.read(link)
        return Writes(written, deleted, self.staging.prefixes, documents, self.staging.reads(self.unchanged))

    def _catch_up(self) -> None:
        """Move on to the newest commit, if there is no conflict with what is new in it."""
        checked = self.head
        found = self.commits.head(self.branch)
        if found is None or (checked.stored is not None and found.header.id == checked.stored.header.id):
            return
        head = self.snapshots.of(found)
        self.writes = self.writes or self._writes()
        conflicts.check(self.writes, self.base, head, checked.seq)
        self.head = head

    # --- the header, for one slot

    def _write_header(
        self,
        own: Section,
        merged: _Merged | None,
        parent: Stored | None,
        runs_of_head: tuple[RunName, ...],
        statistics: Statistics,
    ) -> Stored:
        slot, seq = (0, 1) if parent is None else (parent.header.slot + 1, parent.header.seq + 1)
        entries = statistics.keys_set + statistics.keys_deleted
        sections, runs = [own], list(runs_of_head)
        if merged is not None and (at := _find(merged.inputs, runs)) is not None:
            # Its inputs still stand side by side: nobody else has merged them meanwhile.
            runs[at : at + len(merged.inputs)] = [merged.run]
            sections.append(merged.section)
        header = Header(
            repository_id=self.commits.identity.id,
            id=self.writer.id,
            parent_id=encoding.NO_ID if parent is None else parent.header.id,
            parent_hash=encoding.NO_ID if parent is None else parent.hash,
            slot=slot,
            seq=seq,
            time=_commit_time(parent),
            branch=self.branch,
            author=default_author(),
            message=self.message,
            properties=self.properties,
            statistics=statistics,
            sections=tuple(sections),
            runs=(RunName(None, seq, own.offset, own.length, entries, seq), *runs),
            packs=tuple(self.packs),
            pending=self.commits.pending(parent) if self.durable else 0,
            optional=0 if self.durable else format.FEATURE_NOT_SYNCED,
        )
        encoded = header.encode()
        offset = _align(sections[-1].offset + sections[-1].length)
        total = offset + len(encoded) + format.FOOTER_SIZE
        footer = Footer(len(encoded), offset, total, header.id, encoding.crc32c(encoded))
        self.writer.write_at(offset, encoded + footer.encode())
        self.writer.finish(total)
        return Stored(header, footer, format.header_hash(encoded))


class _Counter:
    """Counts what goes into a run while it is built."""

    def __init__(self, view: Staging) -> None:
        self._view = view
        self._set = self._deleted = self._bytes = 0
        self._arrays: set[str] = set()
        self._last_array = "\0"  # with a slash: the next key lies there too, as a rule

    def counted(
        self, entries: Iterator[tuple[str, int, int, int, int, int]]
    ) -> Iterator[tuple[bytes, int, int, int, int, int]]:
        for key, kind, offset, length, checksum, pack in entries:
            if kind == format.REF_TOMBSTONE:
                self._deleted += 1
            else:
                self._set += 1
                self._bytes += length
            if not key.startswith(self._last_array):
                self._count_array(key)
            yield key.encode(), kind, offset, length, checksum, pack

    def _count_array(self, key: str) -> None:
        for path in ancestors(key):
            kind = kind_of_node(self._view, path)
            if kind == "array":
                self._arrays.add(path)
                self._last_array = directory_prefix(path)
            if kind != "absent":
                return

    def statistics(self, prefixes: int) -> Statistics:
        return Statistics(self._set, self._deleted, prefixes, self._bytes, len(self._arrays))


def _align(offset: int) -> int:
    return -(-offset // 8) * 8


def _find(inputs: tuple[RunName, ...], runs: list[RunName]) -> int | None:
    return next((i for i in range(len(runs)) if tuple(runs[i : i + len(inputs)]) == inputs), None)


def _commit_time(parent: Stored | None) -> int:
    now = time.time_ns() // 1000
    if parent is None:
        return now
    if parent.header.time - now > MAX_CLOCK_LEAD:
        raise TransactionStateError(
            f"commit {parent.commit} is dated {parent.commit.time.isoformat()}, over an hour ahead of this machine's "
            "clock: set the clock right, then commit again",
            state="open",
        )
    return max(now, parent.header.time + 1)


@cache
def default_author() -> str:
    """Return `user@host` of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # containers run as users that have no name
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return f"{user}@{platform.node()}".encode(errors="replace").decode()
