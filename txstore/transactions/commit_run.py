"""Builds the sorted run of a commit: the refs of its writes, without values that equal the base."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from txstore.format import packfile
from txstore.format.commitfile import DataPack, Section, Statistics
from txstore.format.documents import kind_of_node
from txstore.format.keys import ancestors, directory_prefix
from txstore.history.publisher import Publisher
from txstore.history.snapshot import Snapshot
from txstore.segments import runs as index
from txstore.segments.pack_writer import Staged
from txstore.transactions.merges import Merges
from txstore.transactions.participants.chains import Link
from txstore.transactions.staging import Staging
from txstore.transactions.view import View

#: Number of paths without a node to remember.
_ABSENT = 4096


class CommitRun:
    """The run of one attempt to commit. It may be built anew, on top of another head."""

    def __init__(self, staging: Staging, publisher: Publisher, packs: Sequence[DataPack], merges: Merges) -> None:
        self.packs = packs  # which participants have staged besides the commit's own file
        self.section: Section | None = None  # where it lies in the commit's own file. None: there is nothing to list
        self.statistics = Statistics()
        self.unchanged: set[str] = set()  # staged keys that it omits
        self._staging = staging
        self._view = staging.view
        self._publisher = publisher
        self._merges = merges
        self._together: dict[str, Staged] = {}  # documents copied next to each other in the commit's own file

    def append(self, head: Snapshot) -> None:
        """Write the run behind the values, for a commit on top of `head`. Raises `OSError`."""
        self.section = None
        prefixes = [prefix for prefix in self._view.staged.prefixes if self._view.base.has_keys_below(prefix)]
        counter, storage = _Counter(self._view), self._publisher.storage
        packs = [pack.name for pack in self.packs]
        entries = counter.counted(self._entries(head))
        if self._view.reflinks.any:
            # At one place, written values are newer than reflinks, and reflinks are newer than deletions.
            sections = [index.build(entries, (), packs, storage)]
            sections += self._view.reflinks.sections(storage)
            sections.append(index.build((), [prefix.encode() for prefix in prefixes]))
            content = index.merge_own(sections, storage)
            counter.count_refs(index.name_run(content, 1, 0).entries)
        else:
            content = index.build(entries, [prefix.encode() for prefix in prefixes], packs, storage)
        self.statistics = counter.statistics(len(prefixes))
        if self.statistics.keys_set or self.statistics.keys_deleted or prefixes:
            self.section = self._publisher.append(content)

    def _entries(self, head: Snapshot) -> Iterator[tuple[str, int, int, int, int, int]]:
        """Yield the entries of the run, ascending. Add keys that the run omits to `unchanged`."""
        base_is_empty = not len(self._view.base.runs)
        transaction = self._publisher.writer.id
        numbers = {packfile.number_of(transaction, pack.name.id): at for at, pack in enumerate(self.packs, 1)} | {0: 0}
        made = self._merges.values
        besides = iter(sorted(key for key in self._merges.besides if key not in self._view.staged))
        first = next(besides, None)
        for key, link in self._view.staged.items():
            while first is not None and first < key:
                yield from self._made(first, head)
                first = next(besides, None)
            if key in made:
                yield from self._made(key, head)
            elif link.kind == packfile.FRAME_TOMBSTONE:
                # A key that did not exist needs no tombstone, but it still counts as written (`_writes`).
                if self._view.reflinks.any and (there := self._view.reflinks.find(key)) is not None:
                    if there[1] in there[0]:
                        yield key, packfile.REF_TOMBSTONE, 0, 0, 0, 0
                elif not base_is_empty and not self._view.staged.is_below_deleted(key) and key in self._view.base:
                    yield key, packfile.REF_TOMBSTONE, 0, 0, 0, 0
            elif not base_is_empty and self._view.is_unchanged(key, link):
                self.unchanged.add(key)
            elif (copy := self._beside_others(key, link)) is not None:
                yield key, packfile.REF_PACK, copy.offset, copy.length, copy.checksum, 0
            else:
                pack, (_, offset) = numbers[self._staging.part.number_of(link)], packfile.split_offset(link.offset)
                yield key, packfile.REF_OF_FRAME[link.kind], offset, link.length, link.checksum, pack
        while first is not None:
            yield from self._made(first, head)
            first = next(besides, None)

    def _made(self, key: str, head: Snapshot) -> Iterator[tuple[str, int, int, int, int, int]]:
        """Yield the entry of a value that the commit itself has made."""
        made = self._merges.values[key]
        if made.length:
            yield key, packfile.REF_PACK, made.offset, made.length, made.checksum, 0
        elif key in head or (self._view.reflinks.any and self._view.reflinks.find(key) is not None):
            yield key, packfile.REF_TOMBSTONE, 0, 0, 0, 0

    def _beside_others(self, key: str, link: Link) -> Staged | None:
        """Return the location of a document's copy next to other documents: opening a group then reads them at once."""
        if key not in self._together and not link.participant and link.kind == packfile.FRAME_VALUE:
            document = self._publisher.writer.document(link.offset)
            if document is not None:
                self._together[key] = self._publisher.append_value(key.encode(), document)
        return self._together.get(key)


class _Counter:
    """Counts the entries of a run while it is built."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._set = self._deleted = self._bytes = 0
        self._arrays: set[str] = set()
        self._last_array = "\0"  # with a slash at the end: usually the next key is in the same array
        self._absent: set[str] = set()  # paths without a node, because each look-up may need requests
        self._elsewhere = "\0"  # a directory whose direct keys are in no array

    def counted(
        self, entries: Iterator[tuple[str, int, int, int, int, int]]
    ) -> Iterator[tuple[bytes, int, int, int, int, int]]:
        for key, kind, offset, length, checksum, pack in entries:
            if kind == packfile.REF_TOMBSTONE:
                self._deleted += 1
            else:
                self._set += 1
                self._bytes += length
            if not key.startswith(self._last_array):
                self._count_array(key)
            yield key.encode(), kind, offset, length, checksum, pack

    def _count_array(self, key: str) -> None:
        directory = key.rpartition("/")[0]
        if directory == self._elsewhere:
            return
        for path in ancestors(key):
            if path in self._absent:
                continue
            kind = kind_of_node(self._view, path)
            if kind == "array":
                self._arrays.add(path)
                self._last_array = directory_prefix(path)
                return
            if kind != "absent":
                break
            if len(self._absent) < _ABSENT:
                self._absent.add(path)
        self._elsewhere = directory

    def count_refs(self, entries: int) -> None:
        """Count keys that were set by reference, without an own value. `entries` is the number of all entries."""
        self._set = entries - self._deleted

    def statistics(self, prefixes: int) -> Statistics:
        return Statistics(self._set, self._deleted, prefixes, self._bytes, len(self._arrays))
