"""Reads commits from later commits' files: on an object store, the last commit of each group has copies of the others.

So a reader of a long chain makes one request for each group, not for each commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from txstore.commit import Stored
from txstore.format import carried, commitfile, encoding
from txstore.history.branch_names import BranchNames
from txstore.history.chain import Told
from txstore.history.commit_files import CommitFiles
from txstore.history.identity import Identity
from txstore.storage.kept import PackCache
from txstore.storage.request_threads import in_advance, in_parallel

#: Groups of commits of which the last is read for a reader that looks at the newest commit.
_GROUPS_FIRST = 8


class CarriedCommits(Told):
    """The `Told` of an object store."""

    def __init__(self, files: CommitFiles, identity: Identity, branches: BranchNames, cache: PackCache) -> None:
        super().__init__(files)
        self._identity = identity
        self._branches = branches
        self._cache = cache

    def by_child(self, parent: Stored | None, branch: str) -> bytes:
        if parent is None or parent.header.branch != branch or not (parent.header.version + 1) % carried.GROUP:
            return b""
        encoded = parent.header.encode()
        if commitfile.header_hash(encoded) != parent.hash:
            return b""  # this process does not know all commits of the group
        return carried.carry(encoded, parent.footer.encode(), self._carried_by(parent) or b"")

    def is_before(self, known: Stored, newest: Stored) -> bool:
        """Tell whether a commit is in its version, as far as a newer one tells of that which is at hand."""
        with contextlib.suppress(encoding.MalformedError):
            for header, _, hash_ in carried.decode_carried(self._carried_by(newest) or b""):
                if header.version == known.header.version:
                    return (header.id, hash_) == (known.header.id, known.hash)
        return True

    def _carried_by(self, stored: Stored) -> bytes | None:
        """Return the commits that a commit carries, if this process has them at hand."""
        for kind, offset, length in stored.header.sections:
            if kind == commitfile.SECTION_CARRIED:
                found = self._cache.find(stored.header.id, offset, length)
                return None if found is None else bytes(found)
        return None

    def below(self, stored: Stored, oldest_kept: int, wanted: int | None) -> Iterator[Stored | None]:
        branch = stored.header.fork or stored.header.branch
        top = stored.header.version - 1
        if wanted is not None:
            oldest_kept = max(oldest_kept, stored.header.version - wanted)
        if stored.header.fork is None:
            begin = stored.header.version - stored.header.version % carried.GROUP
            yield from self._told_by(stored, max(begin, oldest_kept))
        else:
            begin = top - top % carried.GROUP
            yield from self._group(branch, oldest_kept, top)
        ends = range(begin - 1, oldest_kept - 1, -carried.GROUP)
        for group in in_advance(
            partial(self._group, branch, oldest_kept), ends, self._files.read_at_once, first=_GROUPS_FIRST
        ):
            yield from group

    def _group(self, branch: str, oldest_kept: int, end: int) -> list[Stored | None]:
        """Return the commit in a version, and those below it down to the start of its group."""
        last = self._files.read(branch, end)
        return [None] if last is None else [last, *self._told_by(last, max(end - end % carried.GROUP, oldest_kept))]

    def _told_by(self, last: Stored, first: int) -> list[Stored | None]:
        """Return the commits of a branch before one, down to a version: carried by it, or from their own files."""
        branch = last.header.branch
        found: list[Stored | None] = []
        with contextlib.suppress(encoding.MalformedError):
            for header, footer, hash_ in carried.decode_carried(self._carried_by(last) or b""):
                told = Stored(header, footer, hash_, self._branches.name_of)
                place = header.repository_id, header.branch, header.version
                if place != (self._identity.id, branch, last.header.version - 1) or not last.follows(told):
                    break
                if header.version < first:
                    break
                found.append(told)
                last = told
        rest = range(last.header.version - 1, first - 1, -1)
        return [*found, *in_parallel(partial(self._files.read, branch), rest)]
