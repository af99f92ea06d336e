"""Finds the keys that differ between two commits, for diff, blame, the log below a path, and merges.

The cost grows with the changes, not with the repository. Candidates are the keys of entries, including tombstones, that
are newer than the common ancestor, and the keys below prefixes deleted since then. For each candidate, the two refs are
compared. Values are read only if maintenance may have moved one: if two refs to different places have equal length and
checksum.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from txstore.commit import MAIN, Commit, Stored
from txstore.errors import CorruptionError, SnapshotExpiredError
from txstore.format import encoding, packfile
from txstore.format.keys import after_prefix, decode_key, directory_prefix
from txstore.format.packfile import PackName
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot
from txstore.segments.runs import Found, Runs

V = TypeVar("V")

#: Number of candidates to look up at a time.
_PAGE = 1024


class Ref(NamedTuple):
    """The location of a live value, in a form that is equal in every snapshot, and the seq of its commit."""

    kind: int  # packfile.REF_PACK or REF_FOREIGN
    seq: int
    pack: PackName
    offset: int
    length: int
    checksum: int


class KeyChange(NamedTuple):
    """A key whose value differs between two commits. None: the commit does not have the key."""

    key: str
    before: Ref | None
    after: Ref | None


class Differing(NamedTuple, Generic[V]):
    """As `KeyChange`, but with each snapshot's own refs, or with values. Most callers do not need the conversion."""

    key: str
    before: V | None
    after: V | None


def changed(before: Snapshot, after: Snapshot, below: str = "", base: Snapshot | None = None) -> Iterator[KeyChange]:
    """Yield the keys below a path whose values differ, in the order of their bytes, as `differing` finds them."""
    for key, was, is_now in differing(before, after, below, base):
        yield KeyChange(key, _ref(before.runs, was), _ref(after.runs, is_now))


def differing(
    before: Snapshot, after: Snapshot, below: str = "", base: Snapshot | None = None
) -> Iterator[Differing[Found]]:
    """Yield the keys below a path whose values differ, in the order of their bytes.

    Without `base`, the older of the two snapshots is an ancestor of the newer one. Otherwise `base` is their newest
    common ancestor along first parents. Second parents of merges do not count, because their seqs are from another
    history. If there is no common ancestor, `base` is an empty snapshot, and every key is compared.

    Raises `CorruptionError`.
    """
    since = min(before.seq, after.seq) if base is None else base.seq
    if max(_forgotten(before), _forgotten(after)) > since:
        since = 0  # a deletion since then may have left no tombstone
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
    """Return the newest common ancestor along first parents. None if it is not kept.

    Second parents of merges do not count: see `differing`.
    """
    lines = [_line(commits, each) for each in (one, other)]
    if None in lines:
        return _met(commits, one, other)
    here, there = (dict(line or ()) for line in lines)
    for branch, version in here.items():
        if branch in there:
            met = branch, min(version, there[branch])
            known = [each for each in (one, other) if (each.header.branch, each.header.version) == met]
            found = known[0] if known else commits.files.read(*met)
            return found if found is not None and commits.kept.has(found) else None
    return None


def _line(commits: Commits, stored: Stored) -> list[tuple[str, int]] | None:
    """Return the branches of a commit and its ancestors, each with its highest version. None if one was deleted."""
    header = stored.header
    lineage = commits.branches.lineage(header.branch)
    return [(header.branch, header.version), *lineage] if lineage or header.branch == MAIN else None


def _met(commits: Commits, one: Stored, other: Stored) -> Stored | None:
    """Find the common commit by reading both histories backwards."""
    lines = commits.chain.ancestors(one), commits.chain.ancestors(other)
    here, there = next(lines[0], None), next(lines[1], None)
    while here is not None and there is not None and here.header.id != there.header.id:
        if here.header.seq >= there.header.seq:
            here = next(lines[0], None)
        else:
            there = next(lines[1], None)
    return here if there is not None else None


def parent_of(commits: Commits, stored: Stored) -> Stored | None:
    """Return the parent of a commit. None for the first commit. Raises `SnapshotExpiredError` if it is not kept."""
    if stored.header.parent_id == encoding.NO_ID:
        return None
    parent = next(islice(commits.chain.ancestors(stored), 1, None), None)
    if parent is None and (below := commits.files.parent(stored)) is not None and stored.follows(below):
        parent = below if commits.kept.has(below) else None  # a tag, say, keeps it below the oldest kept version
    if parent is None:
        raise SnapshotExpiredError(f"{stored.commit.branch}@{stored.header.version - 1}")
    return parent


def commits_of(commits: Commits, head: Stored, seqs: Sequence[int]) -> dict[int, Commit | None]:
    """Return the commits of a history by their seqs. None for a commit that is not kept.

    This usually needs one read per commit: if the versions of two commits are as far apart as their seqs, there is no
    merge between them.
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


def keys_changed_since(snapshot: Snapshot, seq: int, path: str) -> list[str] | None:
    """Return the keys below a path that commits after a seq have set or deleted one by one.

    None if that can't be told from the newest runs alone: a prefix was deleted there, or old tombstones are gone.
    """
    prefix, recent = directory_prefix(path), snapshot.runs_since(seq)
    if _forgotten(snapshot) > seq:
        return None
    if any(each.startswith(prefix) or prefix.startswith(each) for each in recent.new_prefixes(seq)):
        return None
    stop = after_prefix(prefix)
    found = recent.changed_keys(prefix.encode(), None if stop is None else stop.encode(), seq)
    return [key for encoded in found if (key := decode_key(encoded)) is not None]


def ref_of(snapshot: Snapshot, key: str) -> Ref | None:
    """Return the ref of a live key, in a form that can be compared with refs of other snapshots."""
    return _ref(snapshot.runs, snapshot.lookup(key))


def refs_of(snapshot: Snapshot, keys: Iterable[str]) -> Iterator[tuple[str, Ref]]:
    """Yield the live keys among these, with their refs, as `ref_of` returns them."""
    rest = iter(keys)
    while page := [*islice(rest, _PAGE)]:
        found = snapshot.runs.lookup_all([key.encode() for key in page])
        for key, each in zip(page, found, strict=True):
            if (ref := _ref(snapshot.runs, _live(each))) is not None:
                yield key, ref


def _forgotten(snapshot: Snapshot) -> int:
    """Return the seq up to which tombstones may be missing, because `optimize` omits old ones."""
    return snapshot.seq - (snapshot.version - snapshot.oldest_kept) if snapshot.oldest_kept else 0


def _candidates(before: Snapshot, after: Snapshot, since: int, start: bytes, stop: bytes | None) -> Iterator[bytes]:
    """Yield the keys that may differ, ascending, each once."""
    streams: list[Iterator[bytes]] = []
    for snapshot, other in ((before, after), (after, before)):
        recent = snapshot.runs_since(since)
        if not recent:
            continue
        streams.append(recent.changed_keys(start, stop, since))
        # If `since` is 0, every key of the other snapshot is already a candidate by its own entry.
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
    """Tell whether two refs lead to the same bytes. This reads values only if equal refs lie in different places.

    `name` is the key of the first ref, if it differs from `key`.
    """
    if (found.kind, found.length, found.checksum) != (other.kind, other.length, other.checksum):
        return False
    here, there = runs.pack_name(found.run, found.pack), others.pack_name(other.run, other.pack)
    return (here, found.offset) == (there, other.offset) or runs.stored(name or key, found) == others.stored(key, other)
