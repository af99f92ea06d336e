"""Compares a repository with the format document, for the authors of other readers and writers.

`verify` finds what makes data unreadable. This finds also what our own readers take in good part, and others may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from txstore._native import index
from txstore.commit import Stored
from txstore.errors import TxStoreError
from txstore.format import encoding, names, packfile
from txstore.format.commitfile import (
    DECLARED_FEATURES,
    FEATURE_FOREIGN,
    FOOTER_SIZE,
    HEADER,
    REQUIRED_FEATURES_KNOWN,
    Footer,
    Header,
)
from txstore.format.keys import decode_key
from txstore.format.packfile import Frame, PackName
from txstore.format.records import HEAD_CACHE_SIZE, Branch, HeadCache, Tag
from txstore.history.commits import Commits
from txstore.maintenance.check_file import Window, entries_of, frames_end, walk_frames
from txstore.maintenance.reachable import living_branches
from txstore.maintenance.verify import Verifier
from txstore.progress import Progress
from txstore.segments.runs import build

#: Sections of docs/understand/format.md, by the directory of a file; of what `verify` finds in commits, by the part.
_OF_FILES = {
    "commits": "Packs", "packs": "Packs", "heads": "Finding the head", "erased": "Erased values",
    "oldest_kept": "Oldest kept version and maintenance",
}  # fmt: skip
_OF_PARTS = {"run": "Runs", "ref": "Runs", "orphan": "Finding the head", "link": "Packs"}
_FRAMES = {*range(packfile.FRAME_VALUE, packfile.FRAME_RUN + 1)}
_ERASABLE = {packfile.FRAME_VALUE, packfile.FRAME_FOREIGN, packfile.FRAME_PARTIAL, packfile.FRAME_MERGED}
_WITH_VALUE = {*_ERASABLE, packfile.FRAME_PARTICIPANT, packfile.FRAME_RUN}
_WITHOUT_KEY = {packfile.FRAME_PARTICIPANT, packfile.FRAME_SEAL, packfile.FRAME_RUN}
#: Types of a header's fields that the document defines.
_FIELDS = range(1, 17)
_VERSION = re.compile(r"[0-9]{10,19}")


@dataclass(frozen=True, slots=True)
class Departure:
    """A place where a repository is not as the document says: `section` is that of docs/understand/format.md."""

    path: str
    reason: str
    section: str
    offset: int | None = None

    def __str__(self) -> str:
        where = self.path + (f" at byte {self.offset}" if self.offset is not None else "")
        return f"{where}: {self.reason} (format.md, {self.section!r})"


def check_format(commits: Commits, progress: Progress | None = None) -> list[Departure]:
    """Return where the files of a repository depart from the document. No process should commit meanwhile."""
    found = [
        Departure(fault.path, fault.reason, _section(fault.path, fault.part), fault.offset)
        for fault in Verifier(commits, progress).run().faults
    ]
    at_fault = {each.path for each in found}
    for each in _Check(commits).run():
        if each.path not in at_fault:  # what is damaged departs from everything
            found.append(each)
    return found


def _section(path: str, part: str = "") -> str:
    return _OF_PARTS.get(part) or _OF_FILES.get(path.partition("/")[0], "Files")


class _Check:
    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._storage = commits.storage
        self._may_be_foreign = False  # whether a commit has set a foreign value, as far as its files tell

    def run(self) -> Iterator[Departure]:
        yield from self._records("heads", HeadCache, length=HEAD_CACHE_SIZE)
        yield from self._records(names.TAGS, Tag)
        yield from self._records(names.BRANCHES, Branch)
        try:
            branches = living_branches(self._commits)
        except (TxStoreError, OSError):
            return  # `verify` has said why
        for branch in branches:
            directory = f"commits/{branch}"
            yield from self._head_cache(branch)
            yield from self._records(names.oldest_kept_directory(branch), Tag)
            for name in sorted(self._storage.list(directory)):
                if _VERSION.fullmatch(name):
                    yield from self._commit(branch, int(name), f"{directory}/{name}")

    # --- small files

    def _records(
        self, directory: str, kind: type[Branch | HeadCache | Tag], length: int | None = None
    ) -> Iterator[Departure]:
        for name in sorted(self._storage.list(directory)):
            path = f"{directory}/{name}"
            if not names.belongs(path):
                continue
            try:
                content = self._storage.read(path)[:length]
                record = kind.decode(content)
            except (TxStoreError, OSError, encoding.MalformedError):
                continue  # `verify` has said so, or it is a cache that may be damaged
            if record.encode() != content:
                yield Departure(path, "its fields are written in another form than the document gives", _section(path))

    def _head_cache(self, branch: str) -> Iterator[Departure]:
        path = names.head_cache_path(branch)
        try:
            cache = HeadCache.decode(self._storage.read_range(path, 0, HEAD_CACHE_SIZE))
            there = self._commits.files.read(branch, cache.version)
        except (TxStoreError, OSError, encoding.MalformedError):
            return  # there is none, or what is wrong is reported where it is
        is_there = there is not None and there.header.id == cache.commit_id
        if not is_there and not self._commits.oldest_kept.is_above(branch, cache.version):
            yield Departure(path, "the commit that it names is not there", _section(path))

    # --- commits

    def _commit(self, branch: str, version: int, path: str) -> Iterator[Departure]:
        if names.commit_path(branch, version) != path:
            yield Departure(path, "the name has more zeros than a version has", "Files")
        self._may_be_foreign = False
        try:
            stored = self._commits.files.read(branch, version)
            if stored is None:
                return
            yield from self._header(stored)
            yield from self._pack(stored.header.name, frames_end(stored), is_commit=True)
            for pack in stored.header.packs:
                yield from self._pack(pack.name, pack.end, is_commit=False)
            yield from self._own_run(stored)
            yield from self._features(stored)
        except (TxStoreError, OSError, ValueError):
            return  # `verify` has said why

    def _header(self, stored: Stored) -> Iterator[Departure]:
        footer, path = stored.footer, stored.path
        encoded = bytes(self._storage.read_range(path, footer.header_offset, footer.header_length))
        if Header.decode(encoded).encode() != encoded and not _has_unknown_field(encoded):
            reason = "its fields are written in another form than the document gives"
            yield Departure(path, reason, "Packs", footer.header_offset)
        last = bytes(self._storage.read_range(path, footer.file_length - FOOTER_SIZE, FOOTER_SIZE))
        if Footer.decode(last).encode() != last:
            yield Departure(
                path, "bytes of its footer that have no meaning are set", "Packs", footer.file_length - FOOTER_SIZE
            )
        end = frames_end(stored)
        for section in sorted(stored.header.sections, key=lambda each: each.offset):
            if section.offset % 8:
                yield Departure(path, "a section begins at no multiple of 8", "Packs", section.offset)
            if section.offset < end:
                yield Departure(path, "a section overlaps what lies before it", "Packs", section.offset)
            end = section.offset + section.length

    def _pack(self, name: PackName, end: int, *, is_commit: bool) -> Iterator[Departure]:
        head = bytes(self._storage.read_range(name.path, 0, packfile.HEAD_SIZE))
        pack_id, repository_id, number = packfile.decode_head(head)
        if packfile.encode_head(pack_id, repository_id, number, packfile.first_frame(head)) != head:
            yield Departure(name.path, "bytes of its head that have no meaning are set", "Packs", 0)
        if packfile.first_frame(head) and not packfile.nth_of(number):
            yield Departure(name.path, "its head counts frames before it, and it is the first pack", "Packs", 0)
        window, is_behind = Window(self._storage.read_range, name.path), False
        for offset, frame in walk_frames(window, end):
            if frame is None:
                return
            for reason in reasons(frame):
                yield Departure(name.path, reason, "Packs", offset)
            is_merged = frame.original_kind == packfile.FRAME_MERGED
            if is_merged and not is_commit:
                yield Departure(name.path, "a frame of kind 12 stands outside of a commit file", "Packs", offset)
            if is_behind and not is_merged:
                yield Departure(name.path, "another frame follows one of kind 12", "Packs", offset)
            is_behind |= is_merged
            self._may_be_foreign |= frame.original_kind == packfile.FRAME_FOREIGN

    def _own_run(self, stored: Stored) -> Iterator[Departure]:
        """An own run has one form: processes that derive a commit of a group commit have to come to the same bytes."""
        for name in stored.header.runs:
            if name.pack is not None:
                continue
            content = bytes(self._storage.read_range(stored.path, name.offset, name.length))
            run = index.Run(content, name.seq)
            if run.max_seq == index.Run(content, name.seq + 1).max_seq:
                continue  # its entries name their commits: it is merged from several runs
            entries = [
                (key, kind, offset, length, checksum, pack)
                for page in entries_of(run)
                for key, kind, _, pack, offset, length, checksum in page
            ]
            packs = [PackName.decode(pack) for pack in run.packs]
            prefixes = [prefix for prefix, _ in run.prefixes]
            # A copy by reference may be one of a foreign value, which was erased since.
            self._may_be_foreign |= bool(set(packs) - {pack.name for pack in stored.header.packs})
            if bytes(build(entries, prefixes, packs)) != content:
                yield Departure(stored.path, "its own run is laid out in another form", "Runs", name.offset)

    def _features(self, stored: Stored) -> Iterator[Departure]:
        parent = self._commits.files.parent(stored)
        if not stored.follows(parent):
            return  # expired
        before, required = 0 if parent is None else parent.header.required, stored.header.required
        needed = FEATURE_FOREIGN if self._may_be_foreign else 0
        for feature, declared in zip(DECLARED_FEATURES, stored.header.declared, strict=True):
            needed |= feature if declared else 0
        for bits, reason in (
            (before & ~required, "its parent has required feature {}, and it has not"),
            (
                required & REQUIRED_FEATURES_KNOWN & ~(before | needed),
                "required feature {} is set, and nothing needs it",
            ),
        ):
            if bits:
                number = (bits & -bits).bit_length() - 1
                yield Departure(stored.path, reason.format(number), "Packs", stored.footer.header_offset)


def _has_unknown_field(header: bytes) -> bool:
    """Tell whether a header has fields that this version does not know, which are lost when it is encoded again."""
    at = HEADER.size
    while at < len(header):
        if int.from_bytes(header[at : at + 2], "little") not in _FIELDS:
            return True
        at += 6 + int.from_bytes(header[at + 2 : at + 6], "little")
    return False


def reasons(frame: Frame) -> Iterator[str]:
    """Yield what the document excludes of a frame."""
    kind, seen = frame.original_kind, frame.seen
    if kind not in _FRAMES:
        yield f"a frame of kind {kind}, which is in no registry"
    if frame.is_erased and kind not in _ERASABLE:
        yield f"a frame of kind {kind} is marked as erased"
    if frame.length and kind not in _WITH_VALUE:
        yield f"a frame of kind {kind} has a value"
    if frame.key and kind in _WITHOUT_KEY:
        yield f"a frame of kind {kind} has a key"
    if kind in packfile.FRAMES_WITH_KEY and decode_key(frame.key) is None:
        yield f"{frame.key!r} is no key"
    if kind in (packfile.FRAME_PREFIX, *packfile.FRAMES_READ[1:]) and frame.key and not frame.key.endswith(b"/"):
        yield f"the prefix {frame.key!r} does not end in a slash"
    if kind in (packfile.FRAME_MERGED, packfile.FRAME_RUN, *packfile.FRAMES_READ) and seen != packfile.SEEN_NOTHING:
        yield f"a frame of kind {kind} says that its writer had seen something"
    if kind == packfile.FRAME_RUN and frame.checksum:
        yield "a frame of kind 13 has a checksum"
