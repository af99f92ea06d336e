"""The history of a repository: versions, heads, tags. Commits are read here, and versions are taken here.

A branch is named by its id here, as it is everywhere below the facade: `branch_names` knows the names.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import TypeVar

from txstore.commit import MAIN, Stored
from txstore.commit_queue.strategy import CommitStrategy, UnderLock
from txstore.commit_queue.tickets import Turns
from txstore.errors import (
    CommitUnknownError,
    CorruptionError,
    TxStoreError,
)
from txstore.format import encoding, names
from txstore.format.commitfile import Header
from txstore.history.branch_names import BranchNames
from txstore.history.chain import Chain, NothingTold, Told
from txstore.history.commit_files import CommitFiles, FileReads
from txstore.history.durability import Durability, SyncedFiles
from txstore.history.durable_versions import DurableVersions
from txstore.history.head_caches import FileHeadCaches, HeadCaches
from txstore.history.identity import Identity
from txstore.history.kept import KeptCommits
from txstore.history.oldest_kept import OldestKept
from txstore.history.staged_packs import PacksInStaging, StagingPlace
from txstore.history.tag_names import TagNames
from txstore.segments.compaction_outputs import CompactionOutputs
from txstore.steps import step
from txstore.storage.interface import Storage

S = TypeVar("S")
T = TypeVar("T")

#: So often a search for the head begins anew that a vacuum has overtaken.
_SEARCHES = 20
#: Seconds between two looks at a name that is there and not seen yet.
_LOOK_AGAIN = 0.1


_FILE_READS = FileReads()


class VersionTakenError(Exception):
    """Another commit has the version. Internal: the committer goes on to the next one."""


class Commits:
    """The history of one repository."""

    #: Bytes of runs that a small commit merges, or a few times as many: it takes milliseconds.
    merged_at_once = 256 << 10
    strategy: CommitStrategy = UnderLock()

    def __init__(self, storage: Storage, identity: Identity | None = None, reads: FileReads = _FILE_READS) -> None:
        self.storage = storage
        self.identity = identity or Identity(storage)
        self.branches = BranchNames(storage, self.identity)
        self.tags = TagNames(storage, self.identity)
        self.files = CommitFiles(storage, self.identity, self.branches, reads)
        self.oldest_kept = OldestKept(storage, self.branches)
        self.told = self._tell()
        self.chain = Chain(self.files, self.oldest_kept, self.branches, self.told)
        self.kept = KeptCommits(self.branches, self.tags, self.oldest_kept, self.chain, self.head)
        self._durable = DurableVersions(self.branches)
        self._make_parts()
        self.compaction_outputs = CompactionOutputs(storage, self.merged_at_once)
        self._newest: dict[str, Stored] = {}  # of each branch, the head that was found last
        self.warned_of = 0  # the time, ahead of the clock, that a commit was warned to be of

    head_caches: HeadCaches
    durability: Durability
    staged: StagingPlace

    def _make_parts(self) -> None:
        self.head_caches = head_caches = FileHeadCaches(self.storage, self._durable)
        self.durability = SyncedFiles(
            self.storage,
            self.identity,
            self.branches,
            self.files,
            self.oldest_kept,
            self.chain,
            self._durable,
            head_caches,
        )
        self.staged = PacksInStaging(self.storage, self.identity)

    def _tell(self) -> Told:
        return NothingTold(self.files)

    def may_have_taken(self, stored: Stored) -> bool:
        """Tell whether a commit that was proposed has its version, or may yet come to have it."""
        try:
            there = self.files.read(stored.header.branch, stored.header.version)
        except (OSError, TxStoreError):
            return True
        return there is not None and there.header.id == stored.header.id

    def hold_kept(self, find: Callable[[], dict[str, int]], hold: Callable[[str, Stored], object]) -> dict[str, int]:
        """Pin each branch's oldest kept commit; return the oldest kept versions. `find` looks for these."""
        while True:
            found = find()
            for branch, oldest_kept in found.items():
                if (stored := self.files.at(branch, oldest_kept)) is not None:
                    hold(branch, stored)
            if find().items() <= found.items():  # else a vacuum may have looked for pins too early to see these
                return found

    def head(self, branch: str = MAIN) -> Stored | None:
        """Return the newest commit, None if there is none yet; of a branch without its own, that it begins behind."""
        newest = self._newest.get(branch)
        found = self._follow_head_cache(branch, newest) or self._search(branch, newest) or self.files.fork_point(branch)
        for _ in range(_SEARCHES):
            while True:
                above = self.files.read(branch, 0 if found is None else found.header.version + 1)
                if above is None or not above.follows(found):  # nothing, or an orphan: not followed
                    break
                found = above
            # I10: below the oldest kept version there are gaps. A search may have been overtaken by a vacuum, a head
            # cache written late.
            if not self.oldest_kept.is_above(branch, -1 if found is None else found.header.version):
                break
            found = self._search(branch, newest) or self.files.fork_point(branch)
        else:
            raise CorruptionError(
                names.oldest_kept_directory(branch), reason="it names a version that is above all commits"
            )
        # `newest` is what was known when the search began: another thread may have found a newer one since.
        if found is None:
            self.identity.check_there()
        if newest is not None and (found is None or found.header.version < newest.header.version):
            self.branches.check_living(branch)
            # I4: what was there is not missing but lost.
            reason = f"version {newest.header.version} was there and is gone: the repository was deleted or replaced"
            raise CorruptionError(names.commits_directory(branch), reason=reason)
        if found is not None:
            self._newest[branch] = found
        return found

    def head_to_follow(self, branch: str) -> Stored | None:
        """Return the newest commit, or one that was the newest a moment ago: a committer that proposes to follow it is
        told.
        """
        return self.head(branch)

    def turns(self, branch: str) -> AbstractContextManager[Turns | None]:
        """Return the turns of a committer that repeats work after a conflict; None where committers do not queue."""
        return contextlib.nullcontext()

    def _follow_head_cache(self, branch: str, newest: Stored | None) -> Stored | None:
        try:
            head_cache = self.head_caches.read(branch)
        except (OSError, encoding.MalformedError):
            return None  # it is only a cache: the versions are the truth
        is_durable = head_cache.durable
        if newest is not None and newest.header.id == head_cache.commit_id:
            # A commit never changes; but is it still there?
            found = newest if self.storage.exists(newest.path) else None
        else:
            found = self.files.read(branch, head_cache.version)
            # All that was below it when the head cache was written is there, unless the power was lost since, or this
            # is a copy: what was true of the original need not be true of it.
            place = self.storage.place()
            is_here = head_cache.place == place != 0
            is_durable = is_here and head_cache.durable
            is_of_boot = is_here and head_cache.boot == self.storage.boot() != 0
            (self._durable.copied.discard if head_cache.place in (0, place) else self._durable.copied.add)(branch)
            if (
                found is None
                or found.header.id != head_cache.commit_id
                or not (is_durable or is_of_boot or self._is_whole(found, newest))
            ):
                return None
        if (
            is_durable
            and found is not None
            and head_cache.version > self._durable.version(branch)
            and self.head_caches.is_durable(head_cache)
        ):
            self._durable.reach(branch, head_cache.version)
        return found

    def _search(self, branch: str, newest: Stored | None) -> Stored | None:
        """Find a commit near the head without a head cache: the highest one whose chain of parents is whole."""
        lowest: int | None = None  # version, of those whose chain breaks where that of a commit above them did
        for version in sorted(self.files.versions(branch), reverse=True):
            if lowest is not None and version >= lowest:
                continue  # only commits that were read on the way down could vouch for it
            found = self.files.read(branch, version)
            if found is not None:
                lowest = self._break_below(found, newest)
                if lowest is None:
                    return found
        return None

    def _has_gaps(self, stored: Stored, known: Stored | None) -> bool:
        """Tell whether a version is missing. In a copy any may be: what commits vouch for was true of the original."""
        header, versions = stored.header, set(self.files.versions(stored.header.branch))
        fork = self.branches.fork(header.branch)
        first = max(
            header.oldest_kept, -1 if known is None else known.header.version, 0 if fork is None else fork.version + 1
        )
        return any(version not in versions for version in range(first, header.version))

    def _is_whole(self, stored: Stored, known: Stored | None) -> bool:
        return self._break_below(stored, known) is None

    def _break_below(self, stored: Stored, known: Stored | None) -> int | None:
        """Return where the parents of a commit are not there any more: the version above that. None: the chain is
        whole.

        It is if they exist down to one that was durable before its child was made. A commit that was synced vouches for
        all commits below it but the pending ones that it lists (I1); one made with `durability="none"` vouches for
        none.
        """
        if stored.header.branch in self._durable.copied and self._has_gaps(stored, known):
            return stored.header.version
        vouched = 0  # what lies below this version was durable when a commit was made that we have met
        oldest_kept = 0
        while known is None or stored.header.id != known.header.id:
            header = stored.header
            oldest_kept = max(oldest_kept, header.oldest_kept)
            if header.version <= oldest_kept:
                return None  # a vacuum, which is durable before it deletes anything, may have removed what was below
            below = self.files.parent(stored)
            if not stored.follows(below):
                is_removed = below is None and self.oldest_kept.is_above(header.branch, header.version - 1)
                return None if is_removed else header.version
            if header.fork:
                return None  # what a branch begins behind was made durable before there was the branch
            if header.synced:
                vouched = max(vouched, header.version - header.pending)
            if below is None or below.header.version < vouched:
                return None
            stored = below
        return None

    def is_passed(self, stored: Stored) -> bool:
        """Tell whether a commit that was just made may have taken a version that a vacuum had freed (I10)."""
        return self.oldest_kept.is_above(stored.header.branch, stored.header.decided_in)

    def is_crowded(self, branch: str) -> bool:
        """Tell whether many committers are about to take the next version, and none of them waits for a turn."""
        return False

    def let_stand(self, paths: Collection[str]) -> None:
        """Wait, before files are deleted, until no committer can take their versions for ones that were never taken
        (I10).
        """

    # --- taking a version

    def check_not_stopped(self, branch: str) -> None:
        """Raise `OSError` if commits may have taken each other's versions: only a repair knows what is needed then."""

    @step("take version")
    def take_version(self, source: str, stored: Stored, *, joins: bool = False) -> Stored:
        """Rename a finished file into its version: the moment of commit (I2). Return the commit as it was made.

        `joins`: it may follow other commits than its own parent, if these touch nothing that it touches.

        Raises `VersionTakenError` if a foreign commit has the version, `CommitUnknownError` if it can't be told whose
        commit it has (I3), `OSError` if the commit was not made.
        """
        header = stored.header
        try:
            self.storage.rename_noreplace(source, stored.path)
        except OSError as error:
            # I3: "it exists", or any error, is no proof of having lost. Only the version's content is.
            there = self._read_back(header, error)
            if there is None:
                refused = self.not_taken(header, error)
                try:
                    if refused is error:
                        raise
                    raise refused from error
                finally:
                    del refused  # its traceback has this frame: they would hold one another, and all callers' pins
            if there.hash != stored.hash:
                if there.has_parent_of(stored):
                    raise VersionTakenError from error
                self._move_aside(there)
                return self.take_version(source, stored)
        self._newest[header.branch] = stored
        return stored

    def not_taken(self, header: Header, error: OSError) -> Exception:
        """Return what to raise for a version that is still free after the file was proposed to it."""
        return error

    def _read_back(self, header: Header, error: OSError) -> Stored | None:
        try:
            deadline = time.monotonic() + self.storage.capabilities.stale_seconds
            while (there := self.files.read(header.branch, header.version)) is None and isinstance(
                error, FileExistsError
            ):
                if time.monotonic() >= deadline:
                    break  # it has been emptied since
                time.sleep(_LOOK_AGAIN)
            return there
        except OSError:
            raise CommitUnknownError(header.id.hex(), reason="the version can't be read back") from error

    def _move_aside(self, orphan: Stored) -> None:
        header = orphan.header
        aside = names.orphan_path(header.branch, header.version, header.id)
        try:
            self.storage.rename_noreplace(orphan.path, aside)
        except (FileExistsError, FileNotFoundError):
            there = self.files.read(header.branch, header.version)
            if there is not None and there.header.id == header.id:
                # A crash between link and unlink left both names. The lock keeps the version as it was just read.
                self.storage.rename_noreplace(orphan.path, f"{aside}-{os.urandom(4).hex()}")

    def give_back(self, stored: Stored) -> None:
        """Empty a version below the oldest kept one, which this process has just taken and no commit follows."""
        self._newest.pop(stored.header.branch, None)
        self.storage.delete(stored.path)
