"""Which keys differ between two commits: what diff, blame, the log below a path, and merges stand on.

The cost follows what has changed, not what there is. Candidates are the keys of entries that are newer than what both
commits have in common, tombstones too, and the keys below prefixes that were deleted since; of each the two refs are
compared. Values are read only where maintenance may have moved one: two refs of equal length and checksum to different
places.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from txstore.commit import MAIN, Commit, Stored
from txstore.errors import CorruptionError, SnapshotExpiredError
from txstore.format import encoding, packfile
from txstore.format.keys import after_prefix, decode_key, directory_prefix
from txstore.format.packfile import PackName
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot
from txstore.segments.runs import Found, Runs

#: Candidates that are looked up at a time.
_PAGE = 1024


class Ref(NamedTuple):
    """Where a live value lies, in words that are the same in every snapshot, and the seq of who wrote it."""

    kind: int  # packfile.REF_PACK or REF_FOREIGN
    seq: int
    pack: PackName
    offset: int
    length: int
    checksum: int


class KeyChange(NamedTuple):
    """A key whose value is not the same in two commits; None: it is not there."""

    key: str
    before: Ref | None
    after: Ref | None


class Differing(NamedTuple):
    """The same, in the words of the two snapshots: what most callers do not need to have translated."""

    key: str
    before: Found | None
    after: Found | None


def changed(before: Snapshot, after: Snapshot, below: str = "", base: Snapshot | None = None) -> Iterator[KeyChange]:
    """Yield the keys below a path whose values differ, in the order of their bytes, as `differing` finds them."""
    for key, was, is_now in differing(before, after, below, base):
        yield KeyChange(key, _ref(before.runs, was), _ref(after.runs, is_now))


def differing(before: Snapshot, after: Snapshot, below: str = "", base: Snapshot | None = None) -> Iterator[Differing]:
    """Yield the keys below a path whose values differ, in the order of their bytes.

    Without `base`, the older of the two snapshots is an ancestor of the newer one. Else `base` is the newest commit
    that both have come from, going from parent to parent: not through the other parents of merges, whose entries have
    seqs of their own. Where the two have nothing in common, it is an empty snapshot, and everything is compared.

    Raises `CorruptionError`.
    """
    since = min(before.seq, after.seq) if base is None else base.seq
    if max(_forgotten(before), _forgotten(after)) > since:
        since = 0  # what was deleted since then may have left no tombstone
    prefix = directory_prefix(below)
    stop = after_prefix(prefix)
    candidates = _candidates(before, after, since, prefix.encode(), None if stop is None else stop.encode())
    while page := [*islice(candidates, _PAGE)]:
        old, new = before.runs.lookup_all(page), after.runs.lookup_all(page)
        for encoded, found, now in zip(page, old, new, strict=True):
            was, is_now = _live(found), _live(now)
            if was is None and is_now is None:
                continue
            key = decode_key(encoded)
            if key is None:
                raise CorruptionError(after.url, reason=f"{encoded!r} is no key")
            if was is None or is_now is None or not is_equal(before.runs, was, after.runs, is_now, key):
                yield Differing(key, was, is_now)


def common_ancestor(commits: Commits, one: Stored, other: Stored) -> Stored | None:
    """Return the newest commit that both have come from, going from parent to parent; None if it is not kept.

    Not through the other parents of merges: see `changed`.
    """
    lines = [_line(commits, each) for each in (one, other)]
    if None in lines:
        return _met(commits, one, other)
    here, there = (dict(line or ()) for line in lines)
    for branch, version in here.items():
        if branch in there:
            found = commits.files.read(branch, min(version, there[branch]))
            return found if found is not None and commits.kept.has(found) else None
    return None


def _line(commits: Commits, stored: Stored) -> list[tuple[str, int]] | None:
    """Return in which branches a commit and those before it lie, and up to which versions; None if a branch is gone."""
    header = stored.header
    lineage = commits.branches.lineage(header.branch)
    return [(header.branch, header.version), *lineage] if lineage or header.branch == MAIN else None


def _met(commits: Commits, one: Stored, other: Stored) -> Stored | None:
    """Find the same commit by going down both lines."""
    lines = commits.chain.ancestors(one), commits.chain.ancestors(other)
    here, there = next(lines[0], None), next(lines[1], None)
    while here is not None and there is not None and here.header.id != there.header.id:
        if here.header.seq >= there.header.seq:
            here = next(lines[0], None)
        else:
            there = next(lines[1], None)
    return here if there is not None else None


def parent_of(commits: Commits, stored: Stored) -> Stored | None:
    """Return the parent of a commit; None of the first. Raises `SnapshotExpiredError` if it is not kept."""
    if stored.header.parent_id == encoding.NO_ID:
        return None
    parent = next(islice(commits.chain.ancestors(stored), 1, None), None)
    if parent is None and (below := commits.files.parent(stored)) is not None and stored.follows(below):
        parent = below if commits.kept.has(below) else None  # below the oldest kept version, by a name of its own
    if parent is None:
        raise SnapshotExpiredError(f"{stored.commit.branch}@{stored.header.version - 1}")
    return parent


def commits_of(commits: Commits, head: Stored, seqs: Sequence[int]) -> dict[int, Commit | None]:
    """Return the commits of a line that have these seqs; None for one that is not kept.

    Mostly one read for each: where as many versions as seqs lie between two commits, nothing was merged between them.
    """
    found: dict[int, Commit | None] = {}
    line: Iterator[Stored] = commits.chain.ancestors(head)
    last: Stored | None = next(line)
    for seq in sorted(seqs, reverse=True):
        found[seq] = None
        while last is not None and last.header.seq > seq:
            version = last.header.version - (last.header.seq - seq)
            guess = commits.files.at(last.header.branch, version) if version >= 0 else None
            if guess is not None and version < commits.oldest_kept.of(guess.header.branch):
                guess = None
            if guess is not None and guess.header.seq == seq:
                last, line = guess, commits.chain.ancestors(guess)
                next(line)
            else:
                last = next(line, None)
        if last is not None and last.header.seq == seq:
            found[seq] = last.commit
    return found


def ref_of(snapshot: Snapshot, key: str) -> Ref | None:
    """Return the ref of a live key, to be compared with those of other snapshots."""
    return _ref(snapshot.runs, snapshot.lookup(key))


def refs_of(snapshot: Snapshot, keys: Iterable[str]) -> Iterator[tuple[str, Ref]]:
    """Yield those of these keys that are live, with their refs, as `ref_of` returns them."""
    rest = iter(keys)
    while page := [*islice(rest, _PAGE)]:
        found = snapshot.runs.lookup_all([key.encode() for key in page])
        for key, each in zip(page, found, strict=True):
            if (ref := _ref(snapshot.runs, _live(each))) is not None:
                yield key, ref


def _forgotten(snapshot: Snapshot) -> int:
    """Return up to which seq tombstones may be missing, because `optimize` has left them out."""
    return snapshot.seq - (snapshot.version - snapshot.oldest_kept) if snapshot.oldest_kept else 0


def _candidates(before: Snapshot, after: Snapshot, since: int, start: bytes, stop: bytes | None) -> Iterator[bytes]:
    """Yield the keys that may differ, ascending, each once."""
    streams: list[Iterator[bytes]] = []
    for snapshot, other in ((before, after), (after, before)):
        recent = snapshot.runs_since(since)
        streams.append(recent.changed_keys(start, stop, since))
        # Where `since` is 0, every key that the other has is a candidate by its own entry.
        streams.append(_keys_in(other, recent.new_prefixes(since) if since else (), start, stop))
    last = None
    for key in heapq.merge(*streams):
        if key != last:
            last = key
            yield key


def _keys_in(snapshot: Snapshot, prefixes: Iterable[str], start: bytes, stop: bytes | None) -> Iterator[bytes]:
    """Yield the live keys below any of these prefixes and in a range, ascending."""
    covered: str | None = None
    for prefix in sorted(prefixes):
        if covered is not None and prefix.startswith(covered):
            continue
        covered = prefix
        end = after_prefix(prefix)
        low = max(start, prefix.encode())
        ends = [each for each in (stop, None if end is None else end.encode()) if each is not None]
        yield from (item.key for item in snapshot.runs.scan_between(low, min(ends, default=None)))


def _live(found: Found | None) -> Found | None:
    return found if found is not None and found.kind in packfile.FRAME_OF_REF else None


def _ref(runs: Runs, found: Found | None) -> Ref | None:
    if found is None:
        return None
    pack = runs.pack_name(found.run, found.pack)
    return Ref(found.kind, found.seq, pack, found.offset, found.length, found.checksum)


def is_equal(runs: Runs, found: Found, others: Runs, other: Found, key: str, name: str | None = None) -> bool:
    """Tell whether two refs lead to the same bytes. Only where they may, and lie in two places, these are read.

    `name` is the key of the first one, if it is another.
    """
    if (found.kind, found.length, found.checksum) != (other.kind, other.length, other.checksum):
        return False
    here, there = runs.pack_name(found.run, found.pack), others.pack_name(other.run, other.pack)
    return (here, found.offset) == (there, other.offset) or runs.stored(name or key, found) == others.stored(key, other)
