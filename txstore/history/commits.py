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
    WrongFileTypeError,
)
from txstore.format import encoding, names, records
from txstore.format.commitfile import Header
from txstore.format.records import HeadCache
from txstore.history.branch_names import BranchNames
from txstore.history.chain import Chain, NothingTold, Told
from txstore.history.commit_files import CommitFiles, FileReads
from txstore.history.identity import Identity
from txstore.history.kept import KeptCommits
from txstore.history.oldest_kept import OldestKept
from txstore.history.tag_names import TagNames
from txstore.segments.compaction_outputs import CompactionOutputs
from txstore.segments.packs import PackWriter, Writer
from txstore.steps import step
from txstore.storage.interface import Storage

S = TypeVar("S")
T = TypeVar("T")

#: So often a search for the head begins anew that a vacuum has overtaken.
_SEARCHES = 20
#: Commits that may follow one another before their directory is synced: as many as a search has to read, at most.
MAX_PENDING = 64
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
        self.compaction_outputs = CompactionOutputs(storage, self.merged_at_once)
        self.is_tidy = False  # what dead processes had staged was looked for
        self._newest: dict[str, Stored] = {}  # of each branch, the head that was found last
        self._durable_versions: dict[str, int] = {}  # of each branch: known to be durable, with all versions below it
        self.warned_of = 0  # the time, ahead of the clock, that a commit was warned to be of
        self._copied: set[str] = set()  # branches of a copy: the original's files were durable, these were not synced

    def _tell(self) -> Told:
        return NothingTold(self.files)

    def new_pack(self, transaction: bytes, number: int) -> Writer:
        """Return a pack of a transaction to be written; that of number 0 becomes the commit file."""
        return PackWriter.of_participant(self.storage, transaction, number, self.identity.id)

    def staged_path(self, transaction: bytes, number: int) -> str:
        """Return where a pack of a transaction lies until it is committed."""
        return names.staging_path(transaction, number)

    def staged_packs(self, transaction: bytes) -> Collection[str]:
        """Return the names of what participants have stored beside their own packs, all with one request."""
        return ()

    def delete_staged_packs(self, transaction: bytes, numbers: Collection[int] | None = None) -> None:
        """Delete what is stored beside the participants' own packs: packs of these numbers, or all there are."""

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
            head_cache = self.read_head_cache(branch)
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
            (self._copied.discard if head_cache.place in (0, place) else self._copied.add)(branch)
            if (
                found is None
                or found.header.id != head_cache.commit_id
                or not (is_durable or is_of_boot or self._is_whole(found, newest))
            ):
                return None
        if (
            is_durable
            and found is not None
            and head_cache.version > self._durable_version(branch)
            and self.is_durable(head_cache)
        ):
            self._durable_versions[branch] = head_cache.version
        return found

    def read_head_cache(self, branch: str) -> HeadCache:
        """Raises `OSError` or `MalformedError`."""
        return HeadCache.decode(self.storage.read_range(names.head_cache_path(branch), 0, records.HEAD_CACHE_SIZE))

    def is_durable(self, head_cache: HeadCache) -> bool:
        """Tell whether a head cache says, of this directory, that its commit is durable."""
        return head_cache.durable and head_cache.place == self.storage.place() != 0

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
        if stored.header.branch in self._copied and self._has_gaps(stored, known):
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

    # --- files

    def paths_in(self, directory: str) -> list[str]:
        """Return what belongs to the repository in one of its directories. Other programs may leave files there."""
        found = (f"{directory}/{name}" for name in self.storage.list(directory))
        return [path for path in found if names.belongs(path)]

    def pack_folders(self) -> list[str]:
        return self.paths_in(names.PACKS)

    # --- taking a version

    def check_not_stopped(self, branch: str) -> None:
        """Raise `OSError` if commits may have taken each other's versions: only a repair knows what is needed then."""

    def _durable_version(self, branch: str) -> int:
        """Return up to which version a branch is known to be durable."""
        known = self._durable_versions.get(branch)
        if known is None:  # what it begins behind was made so before there was the branch
            fork = self.branches.fork(branch)
            known = self._durable_versions[branch] = -1 if fork is None else fork.version
        return known

    def pending(self, branch: str, parent: Stored | None) -> int:
        """Return how many commits of a branch, `parent` and those right below, are not known to be durable."""
        if parent is None or parent.header.branch != branch:
            return 0
        header = parent.header
        vouched = header.version - header.pending - 1 if header.synced else -1
        return max(0, header.version - max(vouched, self._durable_version(branch)))

    def is_fit_parent(self, branch: str, parent: Stored | None) -> bool:
        """Tell whether a durable commit may be made on top without `make_durable` (I1).

        Names may be pending: the sync of the directory that makes the new name durable does so for all below it. That
        of the directory itself is made durable for the first commit of a branch.
        """
        if branch in self._copied or parent is None or parent.header.branch != branch:
            return False
        pending = self.pending(branch, parent)
        return not pending or (parent.header.synced and pending <= MAX_PENDING)

    def ensure_durable(self, stored: Stored) -> None:
        """Make a commit and all before it durable, unless they are known to be. Raises `OSError`."""
        if stored.header.branch in self._copied or stored.header.version > self._durable_version(stored.header.branch):
            self.make_durable(stored)

    @step("make durable")
    def make_durable(self, newest: Stored | None, branch: str | None = None) -> None:
        """Make a commit and all before it durable, and that there is a repository, where that is not known (I1).

        Commits made with `durability="none"` are synced file by file, down to the first that was made durable: its
        committer did the same for those below it. `branch`: the one that is to be committed to. Raises `OSError`.
        """
        branch = branch or (MAIN if newest is None else newest.header.branch)
        self.identity.create(durable=True)  # of a copy, empty directories may be missing
        self.identity.make_durable()
        if self._copied:
            self._sync_all()
        for stored in self.chain.ancestors(newest):
            if stored.header.synced or stored.header.version <= self._durable_version(stored.header.branch):
                break
            try:
                self._sync_files(stored)
            except FileNotFoundError:
                if not self.oldest_kept.is_above(stored.header.branch, stored.header.version):
                    raise
                break  # a vacuum, which is durable, has removed it
        for each in dict.fromkeys([branch, branch if newest is None else newest.header.branch]):
            self.storage.sync_directory(names.commits_directory(each))
        self._copied.clear()
        if newest is not None:
            version = max(self._durable_version(newest.header.branch), newest.header.version)
            self._durable_versions[newest.header.branch] = version

    @step("sync copy")
    def _sync_all(self) -> None:
        of_commits = map(names.commits_directory, self.files.branch_directories())
        of_branches = [names.BRANCHES] if self.branches.files() else []
        for directory in [*self.pack_folders(), names.TAGS, *of_branches, *of_commits]:
            with contextlib.suppress(WrongFileTypeError):  # no directory, so that nothing of ours is in it
                for path in self.paths_in(directory):
                    with contextlib.suppress(FileNotFoundError):  # deleted by a vacuum since
                        self.storage.sync_file(path)
                self.storage.sync_directory(directory)
        self.storage.sync_directory(names.PACKS)

    @step("sync commit")
    def _sync_files(self, stored: Stored) -> None:
        packs = [pack.name for pack in stored.header.packs]
        for pack in packs:
            self.storage.sync_file(pack.path)
        for directory in sorted({names.data_pack_directory(pack.id) for pack in packs}):
            self.storage.sync_directory(directory)
        if packs:
            self.storage.sync_directory(names.PACKS)
        self.storage.sync_file(stored.path)

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

    def head_cache(self, stored: Stored, *, durable: bool) -> HeadCache:
        """Return the head cache that names a commit, true of this directory in this boot."""
        place = self.storage.place()
        if not durable and stored.header.branch in self._copied:
            place = place ^ 2 or 4  # of no directory: its readers have to know that nothing of the copy was synced
        return stored.head_cache(durable=durable, boot=self.storage.boot(), place=place)

    def give_back(self, stored: Stored) -> None:
        """Empty a version below the oldest kept one, which this process has just taken and no commit follows."""
        self._newest.pop(stored.header.branch, None)
        self.storage.delete(stored.path)

    def write_head_cache(self, stored: Stored, *, durable: bool) -> None:
        head_cache = self.head_cache(stored, durable=durable)
        # The commit stands whatever becomes of the head cache.
        with contextlib.suppress(OSError):
            self.storage.write_in_place(names.head_cache_path(stored.header.branch), head_cache.encode())

    def ensure_synced(self, stored: Stored) -> None:
        """As `ensure_durable`, where there may be no room to write anything."""
        self.ensure_durable(stored)

    def stop_head_caches(self) -> None:
        """Return when no head cache that was asked for by now is written any more."""

    def forget_head_caches(self) -> None:
        """Delete what head caches hold of commit files that are about to be replaced."""
        self.stop_head_caches()

    def pack_group(self, key: str) -> int:
        """Return in which of several packs a value lies when packs are rewritten: values of one group lie together."""
        return 0

    def write_head_cache_of_copy(self, stored: Stored) -> None:
        """Write the head cache of a durable commit that a backup has put in its place."""
        self.write_head_cache(stored, durable=True)

    @step("settle commit")
    def settle(self, stored: Stored) -> None:
        """Make the name of a commit durable that has just got it, and so those of all commits before it (I1).

        Raises `CommitUnknownError` (I3).
        """
        branch = stored.header.branch
        try:
            self.storage.sync_directory(names.commits_directory(branch))
        except OSError as error:
            raise CommitUnknownError(stored.header.id.hex(), reason="syncing the directory failed") from error
        self._durable_versions[branch] = max(self._durable_version(branch), stored.header.version)
        with contextlib.suppress(OSError, encoding.MalformedError):
            # else it has moved on, and should not go back
            if self.read_head_cache(branch).commit_id == stored.header.id:
                self.write_head_cache(stored, durable=True)
