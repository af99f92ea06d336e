"""Finds the head of a branch on an object store with few requests.

A listing that starts right below the newest known commit tells with one request whether that still exists, and which
commits are newer.
"""

from __future__ import annotations

import contextlib
import errno

from txstore.commit import Stored
from txstore.commit_queue.group_commits import BEHIND, Look
from txstore.errors import CorruptionError
from txstore.format import encoding, names
from txstore.format.records import HeadCache
from txstore.history import object_head_caches
from txstore.history.branch_names import BranchNames, OldestKept
from txstore.history.carried_commits import CarriedCommits
from txstore.history.commit_files import CommitFiles
from txstore.history.creation_proof import CreationProof
from txstore.history.decided_group_commits import DecidedCommits, WholeGroups
from txstore.history.heads import KnownHeads, check_not_lost
from txstore.history.listings import Contention, Listings, Looks
from txstore.history.object_head_caches import ObjectHeadCaches
from txstore.storage.objects.errors import NoListsError
from txstore.storage.objects.interface import Object
from txstore.storage.remote import RemoteStorage

_UNKNOWN = (
    "this server lists no names: the newest commit can't be found. Try again in a moment, commit once more, or let the "
    "server list directories"
)


class ObjectHeads:
    """The `Heads` of an object store."""

    def __init__(
        self,
        storage: RemoteStorage,
        branches: BranchNames,
        files: CommitFiles,
        oldest_kept: OldestKept,
        carried: CarriedCommits,
        head_caches: ObjectHeadCaches,
        known: KnownHeads,
        looks: Looks,
        listings: Listings,
        contention: Contention,
        decided: DecidedCommits,
        groups: WholeGroups,
        proof: CreationProof,
        *,
        makes_requests: bool,
    ) -> None:
        self._storage = storage
        self._branches = branches
        self._files = files
        self._oldest_kept = oldest_kept
        self._carried = carried
        self._head_caches = head_caches
        self._known = known
        self._looks = looks
        self._listings = listings
        self._contention = contention
        self._decided = decided
        self._groups = groups
        self._proof = proof
        self._makes_requests = makes_requests
        # Of each branch, the commit last met in a listing, and its time there.
        self._listed: dict[str, tuple[bytes, float | None]] = {}

    def to_follow(self, branch: str) -> Stored | None:
        newest, look = self._known.of(branch), self._looks.of(branch)
        if look is None or look.age >= object_head_caches.STAYS or not self._makes_requests:
            return self.find(branch)
        if newest is None:
            return None  # a moment ago there was no commit
        last = self._decided.last(branch, newest)
        group_commit = last.header.group_commit
        if group_commit is not None and group_commit.place + 1 < group_commit.length:
            return self.find(branch)  # the next version is decided: no other committer may propose to it
        return last  # the server says whether the next version is still free

    def find(self, branch: str) -> Stored | None:
        newest, look = self._known.of(branch), Look.now()
        known, head_cache = newest, None
        if newest is None or newest.header.branch != branch:
            head_cache, known = self._head_caches.commit(branch, self._files)
        found = self._look_above(branch, known) if known is not None else None
        if found is None:
            found = self._search(branch) or self._files.fork_point(branch)
        if newest is not None and found is not None and _has_taken_place_of(newest, found):
            self._branches.check_living(branch)
            raise self._proof.taken_away(newest)
        self._known.check(branch, newest, found)
        if head_cache is not None and self._head_caches.is_durable(head_cache) and _is_before(found, head_cache):
            check_not_lost(self._branches, self._oldest_kept, branch, head_cache)
        if found is not None:
            self._known.note_newer(branch, found)
        self._looks.note(branch, look)
        return found

    def _look_above(self, branch: str, known: Stored) -> Stored | None:
        """Return the newest commit from a known one on. None if neither that nor a newer one exists."""
        version = known.header.version
        listed = self._listings.above(branch, max(version - BEHIND, 0))
        if listed is None:
            return self._walk_above(branch, known)
        versions = {at: each for at, each in listed.versions.items() if at >= version}
        if not versions:
            # A listing may lag behind: a commit that this process has seen may exist all the same.
            return known if self._files.has_footer(known) else None
        top = max(versions)
        self._contention.notice(branch, top, listed)
        if top == version and self._is_same(known, versions[version]):
            return self._groups.whole(known, versions)
        stored = self._files.read(branch, top)
        if stored is None:
            return self._search(branch)  # its committer has given it back, or a vacuum has deleted it
        if top == version + 1 and not stored.follows(known):
            self._proof.doubt(known)
            return known  # an orphan
        if top > version and self._is_made_here(known) and not self._carried.is_before(known, stored):
            raise self._proof.taken_away(known)
        self._listed[branch] = stored.header.id, versions[top].modified
        return self._groups.whole(stored, versions)

    def _is_made_here(self, stored: Stored) -> bool:
        return self._head_caches.made.get(stored.header.branch) == stored.header.id

    def _is_same(self, known: Stored, listed: Object) -> bool:
        """Tell whether a listed object is the one from which a commit was read, and not a replacement.

        Objects never change: one with the same length and time is the same. The first listing gives the time; before
        that, the length has to match.
        """
        if listed.size != known.footer.file_length:
            return False
        branch = known.header.branch
        met = self._listed.get(branch)
        if met is None or met[0] != known.header.id:
            met = self._listed[branch] = known.header.id, listed.modified
        return met[1] == listed.modified

    def _walk_above(self, branch: str, known: Stored) -> Stored | None:
        found: Stored | None = known
        while found is not None:
            above = self._files.read(branch, found.header.version + 1)
            if above is None or not above.follows(found):
                break
            found = above
        if found is known and not self._files.has_footer(known):
            return None
        # I10: below the oldest kept version there are gaps.
        if found is not None and (
            self._oldest_kept.is_above(branch, found.header.version) or self._is_above(branch, found)
        ):
            return None
        return (
            None if found is None else self._groups.whole(found, range(known.header.version, found.header.version + 1))
        )

    def _is_above(self, branch: str, found: Stored) -> bool:
        """Tell whether the head cache names a commit above another one."""
        with contextlib.suppress(FileNotFoundError, encoding.MalformedError):
            return self._head_caches.read(branch).version > found.header.version
        return False

    def _search(self, branch: str) -> Stored | None:
        """Find the head in a listing of all versions."""
        try:
            versions = self._listings.all(branch).versions
        except NoListsError:
            return self._of_head_cache(branch)
        for version in sorted(versions, reverse=True):
            if (found := self._files.read(branch, version)) is not None:
                return self._groups.whole(found, versions)
        return None

    def _of_head_cache(self, branch: str) -> Stored | None:
        """Find the head where the server lists no names: the head cache alone tells which commit is the newest."""
        path, reason = names.head_cache_path(branch), "the commit that it names is gone"
        for _ in range(2):  # a vacuum may delete the commit meanwhile
            try:
                head_cache = self._head_caches.read(branch)
            except FileNotFoundError:
                fork = self._branches.fork(branch)
                if fork is not None and self._files.read(branch, fork.version + 1) is None:
                    return None  # it has no commits of its own
                words = f"there is no such file, and {_UNKNOWN}"
                raise NoListsError(errno.ENOTSUP, words, f"{self._storage.url}/{path}") from None
            except encoding.MalformedError as error:
                raise CorruptionError(path, reason=f"{error.reason}, and {_UNKNOWN}") from error
            found = self._files.read(branch, head_cache.version)
            if found is not None and found.header.id == head_cache.commit_id:
                while (above := self._files.read(branch, found.header.version + 1)) is not None and above.follows(
                    found
                ):
                    found = above
                return self._groups.whole(found, range(head_cache.version, found.header.version + 1))
        raise CorruptionError(path, reason=f"{reason}, and {_UNKNOWN}")


def _is_before(found: Stored | None, head_cache: HeadCache) -> bool:
    """Tell whether the newest commit shows that the one is gone that a head cache names."""
    if found is None or found.header.version < head_cache.version:
        return True
    return found.header.version == head_cache.version and found.header.id != head_cache.commit_id


def _has_taken_place_of(known: Stored, found: Stored) -> bool:
    """Tell whether another commit is in the version of a known one."""
    return found.header.version == known.header.version and found.header.id != known.header.id
