"""Rebuilds damaged parts of packs from other parts that hold the same facts. It writes nothing.

A run is rebuilt from the frames of its transaction, or from the runs that were merged into it; the beginning of a frame
from the run; a footer from the header; a header in which one bit has changed from its checksums. A value has no second
copy.
"""

from __future__ import annotations

import contextlib
import heapq
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from txstore._native import index as native
from txstore.commit import Stored
from txstore.errors import TxStoreError
from txstore.format import carried, commitfile, encoding, names, packfile
from txstore.format.commitfile import Footer, Header, RunName, Statistics
from txstore.format.consolidated import is_consolidated
from txstore.format.declarations import NOTHING_DECLARED
from txstore.format.encoding import crc32c
from txstore.format.keys import after_prefix, decode_key, decode_prefix, is_document
from txstore.format.packfile import PackName, Predecessor
from txstore.format.records import Branch, Tag
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot
from txstore.maintenance.check_file import Window, entries_of, frames_end, walk_frames
from txstore.segments import runs
from txstore.segments.ranged_packs import open_packs
from txstore.segments.ranged_runs import is_replaced, open_runs
from txstore.segments.runs import may_be_replaced, names_of
from txstore.transactions.participants.chains import Link
from txstore.transactions.staged_keys import StagedKeys

#: A header longer than this, in bytes, is not searched for one changed bit.
_HEADER_MOST = 64 << 10
#: If the footer is damaged, the header is searched for in this many bytes before the end.
_TAIL = 1 << 20


#: Candidate places of a header or footer that are tried.
_ENDS = 64

_FRAME_OF_REF = {**packfile.FRAME_OF_REF, packfile.REF_ERASED: packfile.FRAME_VALUE | packfile.FRAME_ERASED}

#: Bytes of a damaged frame that are searched for one changed bit.
_FRAME_START_MOST = 512


class Correction(NamedTuple):
    """The right bytes for an offset of a file."""

    offset: int
    content: bytes


class Rebuilt(NamedTuple):
    """A rebuilt run. `is_sure`: it has as many keys and bytes as the commit says that it wrote.

    If not, it may also have keys that were equal, or absent, in the base.
    """

    section: bytes
    is_sure: bool


# --- runs


def own_run(commits: Commits, stored: Stored, parent: Stored | None) -> Rebuilt | None:
    """Build the run of a commit from its frames; None if they are damaged, or do not form a write chain (I7)."""
    header = stored.header
    staged = StagedKeys(0)
    merged: dict[str, packfile.Frame] = {}  # by the commit itself
    erased: set[tuple[int, int]] = set()  # participants and sequences of frames with erased values
    storage_packs = open_packs(commits.storage)
    compaction_outputs = header.compaction_outputs
    staged_packs = [pack for pack in header.packs if pack.name not in compaction_outputs]
    packs = [pack.name for pack in staged_packs]
    parts = [(0, header.name, frames_end(stored))]
    parts += [(packfile.number_of(header.id, pack.name.id), pack.name, pack.end) for pack in staged_packs]
    for number, name, end in parts:
        window = Window(commits.storage, name.path)
        first = packfile.first_frame(bytes(window.at(0, packfile.HEAD_SIZE))) if packfile.nth_of(number) else 0
        for _, frame in walk_frames(window, end):
            if frame is None:
                return None
            is_value_new = frame.is_erased and is_replaced(storage_packs, name, frame.offset)
            # Refs to a value that was replaced have the kind that they had, and 0 as their checksum.
            as_referred = replace(frame, kind=frame.original_kind) if is_value_new else frame
            if not _stage(staged, merged, erased, number, first, as_referred):
                return None
    broken = staged.settle({}, lambda one, other: (one.length, one.checksum) == (other.length, other.checksum))
    if not merged.keys() >= set(broken):
        return None
    numbers = {packfile.number_of(header.id, pack.id): number for number, pack in enumerate(packs, 1)}
    base = Snapshot(parent, storage_packs, commits.storage.url)
    found = None
    for keeps_equal in (False, True):  # what else the committer read decided whether it left out equal values
        prefixes = [prefix for prefix in staged.prefixes if _was_below(base, prefix)]
        entries = list(_entries(staged, merged, erased, base, numbers, keeps_equal=keeps_equal))
        section = runs.build(entries, [prefix.encode() for prefix in prefixes], packs)
        values = [entry for entry in entries if entry[1] != packfile.REF_TOMBSTONE]
        counted = len(values), len(entries) - len(values), len(prefixes), sum(entry[3] for entry in values)
        found = Rebuilt(section, counted == header.statistics.as_tuple()[:4])
        if found.is_sure:
            return found
    # Values that a commit copied by reference are not fully described by its frames.
    complete = header.statistics.keys_set + header.statistics.keys_deleted == header.runs[0].entries <= len(entries)
    return found if complete and not packs else None


def _stage(
    staged: StagedKeys,
    merged: dict[str, packfile.Frame],
    erased: set[tuple[int, int]],
    number: int,
    first: int,
    frame: packfile.Frame,
) -> bool:
    """Add a frame of the numbered pack, before which its participant had written `first` frames.

    Return False if its key is not a valid one.
    """
    kind = frame.original_kind
    key = (decode_key if kind in packfile.FRAMES_WITH_KEY else decode_prefix)(frame.key)
    if key is None:
        return False
    participant, sequence = packfile.participant_of(number), first + frame.sequence
    if frame.is_erased:
        erased.add((participant, sequence))
    if kind == packfile.FRAME_PREFIX:
        staged.hide(key, participant, sequence, frame.seen)
    elif kind == packfile.FRAME_MERGED:
        merged[key] = frame
    elif kind in packfile.FRAMES_OF_KEYS:
        offset = packfile.join_offset(packfile.nth_of(number), frame.offset)
        link = Link(participant, sequence, frame.seen, kind, offset, frame.length, frame.checksum, frame.region)
        staged.add(key, link, later=True)  # settled at the end
    return True


def _entries(
    staged: StagedKeys,
    merged: dict[str, packfile.Frame],
    erased: set[tuple[int, int]],
    base: Snapshot,
    numbers: dict[int, int],
    *,
    keeps_equal: bool,
) -> Iterator[tuple[bytes, int, int, int, int, int]]:
    # Merged values may have been staged in packs that the commit does not need.
    rest = ((key, link) for key, link in staged.items() if key not in merged)
    for key, link in heapq.merge(((key, None) for key in sorted(merged)), rest, key=itemgetter(0)):
        if link is None:
            frame = merged[key]
            if frame.length:
                kind = packfile.REF_ERASED if frame.is_erased else packfile.REF_PACK
                yield key.encode(), kind, frame.offset, frame.length, frame.checksum, 0
            elif _was_there(base, key):
                yield key.encode(), packfile.REF_TOMBSTONE, 0, 0, 0, 0
        elif link.kind == packfile.FRAME_TOMBSTONE:
            if not staged.is_below_deleted(key) and _was_there(base, key):
                yield key.encode(), packfile.REF_TOMBSTONE, 0, 0, 0, 0
        else:
            is_erased = (link.participant, link.sequence) in erased
            kind = packfile.REF_ERASED if is_erased else packfile.REF_OF_FRAME[link.kind]
            if keeps_equal or not _is_unchanged(staged, base, key, link, kind):
                nth, offset = packfile.split_offset(link.offset)
                number = numbers.get(packfile.pack_number(link.participant, nth), 0)
                yield key.encode(), kind, offset, link.length, link.checksum, number


def _was_there(base: Snapshot, key: str) -> bool:
    found = base.runs.lookup(key.encode())
    return found is not None and found.kind in (*packfile.FRAME_OF_REF, packfile.REF_ERASED)


def _was_below(base: Snapshot, prefix: str) -> bool:
    if base.has_keys_below(prefix):
        return True
    stop = after_prefix(prefix)
    changes = base.runs.changes(prefix.encode(), None if stop is None else stop.encode(), 0)
    return any(change.kind == packfile.REF_ERASED for change in changes)


def _is_unchanged(staged: StagedKeys, base: Snapshot, key: str, link: Link, kind: int) -> bool:
    """Tell whether the commit took a value to equal the base's, as `View.is_unchanged` does."""
    is_metadata = is_document(key) or is_consolidated(key)
    if staged.is_below_deleted(key) or not (is_metadata or link.seen == packfile.SEEN_NOTHING):
        return False
    found = base.runs.lookup(key.encode())
    return found is not None and (found.kind, found.length, found.checksum) == (kind, link.length, link.checksum)


def merged_run(commits: Commits, stored: Stored, parent: Stored | None, run: RunName) -> Rebuilt | None:
    """Repeat a commit's merge of runs: those of its parent that it no longer lists.

    It may have merged some, and listed a merged run of others: each run is newer than all after it in the list.
    """
    if parent is None:
        return None
    listed = names_of(stored.header.runs, stored.header.name)
    older = max((name.max_seq for name in listed[listed.index(run) + 1 :]), default=-1)
    before = names_of(parent.header.runs, parent.header.name)
    merged = [i for i, name in enumerate(before) if name not in listed and older < name.max_seq <= run.max_seq]
    if not merged or merged != list(range(merged[0], merged[-1] + 1)):
        return None
    inputs = [before[i] for i in merged]
    section = open_runs(inputs, open_packs(commits.storage)).merge(len(inputs))
    return Rebuilt(section, is_sure=True)


def as_merged(section: bytes, name: RunName) -> bytes:
    """Return a run as it looks in another file than its own."""
    if name.pack is None:
        raise ValueError("the run was not placed in a file")
    run = native.Run(section, name.seq)
    return native.merge((run,), [[name.pack.encode(), *run.packs]])


def carried_headers(commits: Commits, stored: Stored, length: int) -> bytes | None:
    """Return the headers of earlier commits that a commit carries, as many as fill `length`; None if unreadable."""
    entries: list[tuple[bytes, bytes]] = []
    with contextlib.suppress(TxStoreError, OSError):
        for before in islice(commits.chain.ancestors(stored), 1, carried.GROUP):
            entries.append((before.header.encode(), before.footer.encode()))
            content = b""
            for header, footer in reversed(entries):
                content = carried.carry(header, footer, content)
            if len(content) >= length:
                return content if len(content) == length else None
    return None


# --- frames


def frame_starts(commits: Commits, stored: Stored, pack: PackName, end: int) -> list[Correction]:
    """Return the beginnings of damaged frames in which only one bit changed, or whose key the commit's run has."""
    if pack in stored.header.compaction_outputs:
        lengths = [run.length for run in stored.header.runs if run.pack == pack]
        return [Correction(0, packfile.encode_compaction_output(pack.id, stored.header.repository_id, lengths[0]))]
    refs = _refs_to(pack, commits, stored)
    window, parts = Window(commits.storage, pack.path), []
    walk = list(walk_frames(window, end))
    sequence = -1
    for i, (position, frame) in enumerate(walk):
        if frame is not None:
            sequence = frame.sequence
            continue
        stop = walk[i + 1][0] if i + 1 < len(walk) else end
        if (turned := _turned_back(window, position, stop, sequence + 1)) is not None:
            parts.append(turned)
            sequence += 1
            continue
        found: list[Correction] = []
        at = position
        between = refs[bisect_left(refs, (position + 1,)) : bisect_left(refs, (stop + 1,))]
        for offset, key, length, checksum, kind in between:
            part, at, sequence = _frame_start(window, at, sequence + 1, offset, kind, key, length, checksum)
            if part is None:
                break
            found.append(part)
        if at == stop:  # else there was something that no ref leads to
            parts += found
    return parts


def _refs_to(pack: PackName, commits: Commits, stored: Stored) -> list[tuple[int, bytes, int, int, int]]:
    """Return the refs of the commit's own run to a pack: offset, key, length, checksum and kind of frame, ascending.

    Raises `ValueError` if the run is damaged.
    """
    own = next((run for run in stored.header.runs if run.pack is None), None)
    if own is None:
        return []
    opened = native.Run(commits.storage.read_range(stored.path, own.offset, own.length), stored.header.seq)
    tables = [stored.header.name, *map(PackName.decode, opened.packs)]
    packs = open_packs(commits.storage)

    def frame_of(kind: int, offset: int, length: int, checksum: int) -> int:
        is_gone = may_be_replaced(kind, length, checksum) and is_replaced(packs, pack, offset)
        return _FRAME_OF_REF[packfile.REF_ERASED if is_gone else kind]

    return sorted(
        (offset, key, length, checksum, frame_of(kind, offset, length, checksum))
        for page in entries_of(opened)
        for key, kind, _, number, offset, length, checksum in page
        if kind != packfile.REF_TOMBSTONE and number < len(tables) and tables[number] == pack
    )


def _turned_back(window: Window, start: int, stop: int, sequence: int) -> Correction | None:
    """Return header, key and predecessor of a frame, if turning one bit makes them whole and it ends at `stop`."""
    content = bytes(window.at(start, min(_FRAME_START_MOST, stop - start)))
    for turned in _frames_with_one_bit_turned(content):
        try:
            frame = packfile.decode_frame(memoryview(turned), start, begin=start, size=stop)
        except encoding.MalformedError:
            continue
        if (frame.sequence, frame.end) == (sequence, stop):
            return Correction(start, turned[: frame.head_end - start])
    return None


def _frames_with_one_bit_turned(content: bytes) -> Iterator[bytes]:
    """Yield the candidates for a frame in which one bit has turned."""
    if len(content) < packfile.FRAME_SIZE:
        return
    yield content
    _, kind, seen, key_length, *_ = packfile.FRAME.unpack_from(content)
    rest = content[packfile.FRAME_SIZE :]
    rest = rest[: packfile.rest_length(kind, seen, key_length, rest)]
    stored = encoding.CHECKSUM.unpack_from(content, packfile.FRAME.size)[0]
    checked = content[: packfile.FRAME.size] + rest
    bit = turned_bit(len(checked), crc32c(checked) ^ stored)
    if bit is not None:
        yield _with_turned(content, bit if bit < 8 * packfile.FRAME.size else bit + 8 * encoding.CHECKSUM.size)
    # Bits of the checksum, and of the fields that say which bytes it covers: kind, seen, lengths of key and region.
    for other in (*range(8 * packfile.FRAME.size, 8 * packfile.FRAME_SIZE), *range(8 * 4, 8 * 8)):
        yield _with_turned(content, other)
    if kind == packfile.FRAME_PARTIAL:
        named = packfile.FRAME_SIZE + packfile.rest_length(0, seen, key_length, b"")
        for other in range(8 * named, min(8 * (named + packfile.REGION.size), 8 * len(content))):
            yield _with_turned(content, other)


def _frame_start(
    window: Window, start: int, sequence: int, offset: int, kind: int, key: bytes, length: int, checksum: int
) -> tuple[Correction | None, int, int]:
    """Return header and key of the frame whose value a ref names, where the next one starts, and its number."""
    there = bytes(window.at(start, offset - start))
    behind = packfile.FRAME_SIZE + len(key)
    choices: list[packfile.Seen] = [packfile.SEEN_BASE, packfile.SEEN_NOTHING]
    if len(there) >= behind + packfile.PREDECESSOR.size:
        choices.append(Predecessor(*packfile.PREDECESSOR.unpack_from(there, behind)))
    fits = []
    for seen in choices:
        content, begins, end = packfile.lay_frame(start, kind, seen, sequence, key, length, checksum)
        if begins == offset:
            differs = sum(a != b for a, b in zip(content, there, strict=False))
            fits.append((differs, content + bytes(offset - start - len(content)), end))
    if not fits:
        return None, start, sequence
    _, content, end = min(fits)
    return Correction(start, content), end, sequence


# --- the ends of commit files


def whole_end(
    commits: Commits, path: str, version: int, size: int, parent: Stored | None, child: Stored | None
) -> tuple[Correction, int] | None:
    """Return header and footer of a commit file if one of them is whole, and the file's resulting length."""
    begin = max(size - _TAIL, 0)
    tail = commits.storage.read_range(path, begin, size - begin)
    for header_at, header_end, checksum in _ends(tail, begin):
        encoded = tail[header_at - begin : header_end - begin]
        for corrected in _corrected(encoded, checksum):
            if child is not None and commitfile.header_hash(corrected) != child.header.parent_hash:
                continue
            header = _decoded(corrected)
            if header is None or (header.repository_id, header.version) != (commits.identity.id, version):
                continue
            if child is None and checksum is None and not _fits(header, corrected, parent):
                continue
            length = header_end + commitfile.FOOTER_SIZE
            footer = Footer(len(corrected), header_at, length, header.id, crc32c(corrected))
            return Correction(header_at, corrected + footer.encode()), length
    return None


def _fits(header: Header, encoded: bytes, parent: Stored | None) -> bool:
    """Tell whether a header without a valid checksum is plausible as written on top of its parent."""
    above = (encoding.NO_ID, encoding.NO_ID) if parent is None else (parent.header.id, parent.hash)
    return header.encode() == encoded and (header.parent_id, header.parent_hash) == above


def _ends(tail: bytes, begin: int) -> Iterator[tuple[int, int, int | None]]:
    """Yield the places where a header may be, each with its checksum if a whole footer has it."""
    starts = [len(tail) - commitfile.FOOTER_SIZE]
    while (at := tail.rfind(b"TXSTFOOT", 0, starts[-1] if len(starts) > 1 else None)) >= 0 and len(starts) <= _ENDS:
        starts.append(at)
    for start in starts:
        if start < 0:
            continue
        for content in _sealed_with_one_bit_turned(tail[start : start + commitfile.FOOTER_SIZE]):
            try:
                footer = Footer.decode(content)
            except encoding.MalformedError:
                continue
            if footer.header_offset >= begin:
                yield footer.header_offset, footer.header_offset + footer.header_length, footer.header_checksum
    end = begin + len(tail) - commitfile.FOOTER_SIZE
    at, found = tail.rfind(b"TXHD"), 0
    while at >= 0 and found < _ENDS:
        if (begin + at) % 8 == 0 and begin + at < end:
            yield begin + at, end, None
            found += 1
        at = tail.rfind(b"TXHD", 0, at)


def _corrected(encoded: bytes, checksum: int | None) -> Iterator[bytes]:
    """Yield candidates for the original header: unchanged, or with the one bit turned that fits the checksum."""
    if checksum is None or crc32c(encoded) == checksum:
        yield encoded
    elif len(encoded) <= _HEADER_MOST:
        bit = turned_bit(len(encoded), crc32c(encoded) ^ checksum)
        if bit is not None:
            yield _with_turned(encoded, bit)


def _sealed_with_one_bit_turned(content: bytes) -> Iterator[bytes]:
    """Yield candidates for bytes that end in their checksum, and in which one bit has turned."""
    yield content
    size = len(content) - encoding.CHECKSUM.size
    if size > 0:
        difference = crc32c(content[:size]) ^ encoding.CHECKSUM.unpack_from(content, size)[0]
        bit = turned_bit(size, difference)
        if bit is not None:
            yield _with_turned(content, bit)
        if difference.bit_count() == 1:
            yield _with_turned(content, 8 * size + difference.bit_length() - 1)


def turned_bit(length: int, difference: int) -> int | None:
    """Return which single bit of `length` bytes has turned; None if no single bit explains the difference.

    `difference` is the exclusive or of their checksum now and before. For one bit it depends only on the number of
    bytes that follow: so no checksum of the bytes is computed for each bit.
    """
    zero = crc32c(b"\0")
    differences = [crc32c(bytes([1 << bit])) ^ zero for bit in range(8)]
    for position in range(length - 1, -1, -1):
        if difference in differences:
            return 8 * position + differences.index(difference)
        differences = [crc32c(b"\0", each) ^ zero for each in differences]
    return None


def _with_turned(content: bytes, bit: int) -> bytes:
    turned = bytearray(content)
    turned[bit // 8] ^= 1 << bit % 8
    return bytes(turned)


def _decoded(encoded: bytes) -> Header | None:
    try:
        return Header.decode(encoded)
    except encoding.MalformedError:
        return None


def is_of_another(commits: Commits, branch: str, version: int, size: int, others: Collection[Stored]) -> bool:
    """Tell whether the file in a version is that of another version's commit: with its header, or by its id.

    `others`: the readable commits of the branch. A header is never made anew for it: no commit had that state.
    """
    path = names.commit_path(branch, version)
    with contextlib.suppress(encoding.MalformedError):
        footer = Footer.decode(commits.storage.read_tail(path, commitfile.FOOTER_SIZE)[0])
        encoded = commits.storage.read_range(path, footer.header_offset, footer.header_length)
        if footer.file_length == size and crc32c(encoded) == footer.header_checksum:
            return True
    expected: bytes | None = None
    with contextlib.suppress(OSError, encoding.MalformedError):
        head_cache = commits.head_caches.read(branch)
        expected = head_cache.commit_id if head_cache.version == version else None
    with contextlib.suppress(encoding.MalformedError):
        commit_id = packfile.decode_head(commits.storage.read_range(path, 0, packfile.HEAD_SIZE))[0]
        return expected not in (None, commit_id) or any(commit_id == other.header.id for other in others)
    return False


def new_end(
    commits: Commits, branch: str, version: int, size: int, parent: Stored | None
) -> tuple[Correction, int] | None:
    """Make a new header for the newest commit of a branch, whose header is lost, if its frames and run are whole.

    None if they are damaged: then the number of frames is not known.
    """
    path = names.commit_path(branch, version)
    is_first = parent is not None and parent.header.branch != branch
    window = Window(commits.storage, path)
    try:
        commit_id, repository_id, participant = packfile.decode_head(bytes(window.at(0, packfile.HEAD_SIZE)))
    except encoding.MalformedError:
        return None
    if repository_id != commits.identity.id or participant:
        return None
    position = packfile.HEAD_SIZE
    while (frame := window.frame(position, size)) is not None:
        if frame.length and window.checksum(frame.offset, frame.length) != frame.checksum:
            return None
        position = frame.end
    seq = version + 1 if parent is None else parent.header.seq + 1
    found = _first_run(commits.storage.read_range(path, position, size - position), seq)
    if found is None:
        return None
    section, run = found
    packs = []
    try:
        names_of_packs = [PackName.decode(entry) for entry in run.packs]
    except encoding.MalformedError:
        return None
    for name in names_of_packs:
        if name.branch is not None or name.id[:12] != commit_id[:12]:
            continue  # moved or copied values are in packs of other commits
        frames = walk_frames(Window(commits.storage, name.path), 1 << 62)
        packs.append(commitfile.DataPack(name, next((start for start, frame in frames if frame is None))))
    refs = [entry for page in entries_of(run) for entry in page]
    values = [entry for entry in refs if entry[1] != packfile.REF_TOMBSTONE]
    required = commitfile.FEATURE_FOREIGN if any(entry[1] == packfile.REF_FOREIGN for entry in refs) else 0
    header = Header(
        repository_id, commit_id,
        encoding.NO_ID if parent is None else parent.header.id,
        encoding.NO_ID if parent is None else parent.hash,
        version, seq,
        time=1 if parent is None else parent.header.time + 1,
        branch=branch,
        message="header rebuilt by verify: time, author, message and constraints declared here are lost",
        statistics=Statistics(
            len(values), len(refs) - len(values), len(run.prefixes), sum(entry[5] for entry in values)
        ),
        sections=(commitfile.Section(commitfile.SECTION_RUN, position, len(section)),),
        runs=(
            RunName(None, seq, position, len(section), run.entries, seq),
            *(() if parent is None else names_of(parent.header.runs, parent.header.name)),
        ),
        packs=tuple(packs),
        oldest_kept=0 if parent is None else parent.header.version if is_first else parent.header.oldest_kept,
        fork=parent.header.branch if parent is not None and is_first else None,
        required=required | (0 if parent is None else parent.header.required),
        declared=NOTHING_DECLARED if parent is None else parent.header.declared,
    )  # fmt: skip
    encoded = header.encode()
    end = position + len(section)
    offset = -(-end // 8) * 8
    length = offset + len(encoded) + commitfile.FOOTER_SIZE
    footer = Footer(len(encoded), offset, length, commit_id, crc32c(encoded))
    return Correction(end, bytes(offset - end) + encoded + footer.encode()), length


def _first_run(rest: bytes, seq: int) -> tuple[bytes, native.Run] | None:
    view, at = memoryview(rest), rest.find(b"TXRN")
    while at >= 0:
        try:
            run = native.Run(view[: at + 64], seq)
            run.verify()
        except ValueError:
            at = rest.find(b"TXRN", at + 1)
            continue
        return rest[: at + 64], run
    return None


# --- small files


def tag(commits: Commits, content: bytes, heads: Sequence[Stored]) -> bytes | None:
    """Return the tag that `content` nearly equals, if exactly one commit of the history fits."""
    found = set()
    for head in heads:
        with contextlib.suppress(TxStoreError, OSError):  # the rest of the history can't be read
            for stored in commits.chain.ancestors(head):
                header = stored.header
                candidate = Tag(header.branch, header.version, header.id).encode()
                if len(candidate) == len(content):
                    differs = sum(a != b for a, b in zip(candidate, content, strict=True))
                    if differs <= 4:
                        found.add(candidate)
    return found.pop() if len(found) == 1 else None


def branch_with_one_bit_turned(file: str, content: bytes) -> Branch | None:
    """Return the record of a branch in which one bit has turned."""
    for turned in _sealed_with_one_bit_turned(content):
        with contextlib.suppress(encoding.MalformedError):
            found = Branch.decode(turned)
            if names.branch_path(found.name) == names.branch_path(file):
                return found
    return None


def branch(commits: Commits, file: str, branch_id: str) -> Branch | None:
    """Return the record of a branch as told by its first commit, if that exists. Capital letters are lost."""
    versions = commits.files.versions(branch_id)
    try:
        first = commits.files.read(branch_id, min(versions)) if versions else None
        if first is None or first.header.fork is None:
            return None
        header = first.header
        lineage = ((first.header.fork, header.version - 1), *commits.branches.lineage(first.header.fork))
        return Branch(file, branch_id, header.parent_id, header.parent_hash, lineage)
    except (TxStoreError, OSError):
        return None
