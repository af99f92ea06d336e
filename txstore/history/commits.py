"""The history of a repository: versions, heads, tags. Commits are read here, and versions are taken here.

A branch is named by its id here, as it is everywhere below the facade: `branch_names` knows the names.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import TypeVar

from txstore.commit import MAIN, Stored
from txstore.commit_queue.strategy import CommitStrategy, UnderLock
from txstore.commit_queue.tickets import Turns
from txstore.errors import (
    CommitNotFoundError,
    CommitUnknownError,
    CorruptionError,
    SnapshotExpiredError,
    TxStoreError,
    UnsupportedFormatError,
    WrongFileTypeError,
)
from txstore.format import commitfile, encoding, names, records
from txstore.format.commitfile import CommitName, Footer, Header
from txstore.format.keys import check_name
from txstore.format.records import HeadCache, Tag, TransactionRecord
from txstore.history.branch_names import BranchNames
from txstore.history.identity import Identity
from txstore.segments.compaction_outputs import CompactionOutputs
from txstore.segments.packs import PackWriter, Writer
from txstore.steps import step
from txstore.storage.interface import Storage
from txstore.storage.request_threads import in_advance, in_background

S = TypeVar("S")
T = TypeVar("T")

#: So often a search for the head begins anew that a vacuum has overtaken.
_SEARCHES = 20
#: Commits that may follow one another before their directory is synced: as many as a search has to read, at most.
MAX_PENDING = 64
#: Decoded headers that are remembered, those of all repositories of a process together, and up to which size, in bytes.
_REMEMBERED, _REMEMBERED_SIZE = 512, 4096
#: Seconds between two looks at a name that is there and not seen yet.
_LOOK_AGAIN = 0.1


@lru_cache(_REMEMBERED)
def _remembered(encoded: bytes) -> Header:
    """Decode a header, or return what the same bytes were decoded to: a merge reads the same commits many times."""
    return Header.decode(encoded)


class VersionTakenError(Exception):
    """Another commit has the version. Internal: the committer goes on to the next one."""


class Commits:
    """The history of one repository."""

    #: Enough of a file's end to hold the header of all but very large commits: one read instead of two.
    tail_size = 4096
    #: Bytes of runs that a small commit merges, or a few times as many: it takes milliseconds.
    merged_at_once = 256 << 10
    #: Commits that are read at once for a reader that goes through all of them.
    read_at_once = 1
    strategy: CommitStrategy = UnderLock()

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.identity = Identity(storage)
        self.branches = BranchNames(storage, self.identity)
        self.compaction_outputs = CompactionOutputs(storage, self.merged_at_once)
        self.is_tidy = False  # what dead processes had staged was looked for
        self._newest: dict[str, Stored] = {}  # of each branch, the head that was found last
        self._durable_versions: dict[str, int] = {}  # of each branch: known to be durable, with all versions below it
        self.warned_of = 0  # the time, ahead of the clock, that a commit was warned to be of
        self._copied: set[str] = set()  # branches of a copy: the original's files were durable, these were not synced

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

    # --- reading commits

    def read(self, branch: str, version: int) -> Stored | None:
        """Return the commit in a version, None if the version is free. Raises `CorruptionError`."""
        found = self.read_with_end(branch, version)
        return None if found is None else found[0]

    def read_with_end(self, branch: str, version: int) -> tuple[Stored, bytes] | None:
        """As `read`; also return the bytes at the end of the file that were read: of a short one all there are."""
        path = names.commit_path(branch, version)
        try:
            tail, size = self.storage.read_tail(path, self.tail_size)
        except FileNotFoundError:
            return None
        return self.decode(path, branch, version, tail, size), tail

    def read_staged(self, commit_id: bytes, branch: str, version: int) -> Stored | None:
        """Return a commit that is on its way to a version, or has just taken it; None if it is neither."""
        path = self.staged_path(commit_id, 0)
        try:
            tail, size = self.storage.read_tail(path, self.tail_size)
        except FileNotFoundError:
            return self.read(branch, version)
        return self.decode(path, branch, version, tail, size)

    def has(self, stored: Stored) -> bool:
        """Tell whether a commit is in its version as it was read: of what the file says, nothing is decoded again."""
        footer = stored.footer
        try:
            tail, size = self.storage.read_tail(stored.path, footer.header_length + commitfile.FOOTER_SIZE)
        except FileNotFoundError:
            return False
        encoded = tail[: footer.header_length]
        return size == footer.file_length and commitfile.header_hash(encoded) == stored.hash

    def may_have_taken(self, stored: Stored) -> bool:
        """Tell whether a commit that was proposed has its version, or may yet come to have it."""
        try:
            there = self.read(stored.header.branch, stored.header.version)
        except (OSError, TxStoreError):
            return True
        return there is not None and there.header.id == stored.header.id

    def at(self, branch: str, version: int) -> Stored | None:
        """Return the commit in a version of a branch, or of the branches that it forked from; None if there is none."""
        return self.read(self.branches.owner(branch, version), version)

    def hold_kept(self, find: Callable[[], dict[str, int]], hold: Callable[[str, Stored], object]) -> dict[str, int]:
        """Pin each branch's oldest kept commit; return the oldest kept versions. `find` looks for these."""
        while True:
            found = find()
            for branch, oldest_kept in found.items():
                if (stored := self.at(branch, oldest_kept)) is not None:
                    hold(branch, stored)
            if find().items() <= found.items():  # else a vacuum may have looked for pins too early to see these
                return found

    def parent(self, stored: Stored) -> Stored | None:
        """Return what is in the version that a commit's parent had, be it that or not."""
        header = stored.header
        return self.read(header.fork or header.branch, header.version - 1) if header.version else None

    def each(self, function: Callable[[S], T], arguments: Iterable[S], *, wanted: int | None = None) -> Iterator[T]:
        """Yield what a function that reads commits makes of its arguments, in their order, some in advance.

        No more than are `wanted`, if it is known how many that are.
        """
        if self.read_at_once == 1:
            return map(function, arguments)
        return in_advance(function, arguments, min(wanted or self.read_at_once, self.read_at_once))

    def begin(self, function: Callable[[S], T], argument: S) -> Callable[[], T]:
        """Begin a request, if it takes one; return what returns its answer."""
        if self.read_at_once == 1:
            return partial(function, argument)
        return in_background(function, argument)

    def named(self, name: CommitName) -> Stored | None:
        """Return the commit that a branch or a merge names, None if it is not there."""
        stored = self.read(name.branch, name.version)
        return stored if stored is not None and stored.name == name else None

    def fork_point(self, branch: str) -> Stored | None:
        """Return the commit that a branch begins behind; None of the first branch."""
        fork = self.branches.fork(branch)
        if fork is None:
            return None
        stored = self.named(fork)
        if stored is None:
            self.check_living(branch)
            path = names.branch_path(self.branches.name_of(branch))
            reason = f"the commit that it begins behind is gone: {fork.id.hex()}, version {fork.version}"
            raise CorruptionError(path, reason=reason)
        return stored

    def label(self, branch: str, version: int) -> str:
        """Return how people call a version of a branch."""
        return f"{self.branches.name_of(branch)}@{version}"

    def decode(self, path: str, branch: str, version: int, tail: bytes, size: int) -> Stored:
        """Return the commit in a file of `size` bytes of which the last are `tail`. Raises `CorruptionError`."""
        try:
            footer = Footer.decode(tail[-commitfile.FOOTER_SIZE :])
            if footer.file_length != size:
                raise encoding.MalformedError(f"the file has {size} bytes instead of {footer.file_length}")
            start = len(tail) - commitfile.FOOTER_SIZE - footer.header_length
            if start >= 0:
                encoded = tail[start : start + footer.header_length]
            else:
                encoded = self.storage.read_range(path, footer.header_offset, footer.header_length)
            if encoding.crc32c(encoded) != footer.header_checksum:
                raise encoding.MalformedError("the header has a wrong checksum")
            header = (_remembered if len(encoded) <= _REMEMBERED_SIZE else Header.decode)(encoded)
            header.check_placed(footer.header_offset)
        except encoding.NewerFormatError as error:
            raise UnsupportedFormatError(path, found=error.reason, supported=f"version {encoding.VERSION}") from error
        except encoding.MalformedError as error:
            raise CorruptionError(path, reason=error.reason) from error
        if (header.repository_id, header.branch, header.version) != (self.identity.id, branch, version):
            raise CorruptionError(path, reason="this commit belongs to another repository, branch or version")
        if header.id != footer.pack_id:
            raise CorruptionError(path, reason="header and footer name different commits")
        return Stored(header, footer, commitfile.header_hash(encoded), self.branches.name_of)

    def head(self, branch: str = MAIN) -> Stored | None:
        """Return the newest commit, None if there is none yet; of a branch without its own, that it begins behind."""
        newest = self._newest.get(branch)
        found = self._follow_head_cache(branch, newest) or self._search(branch, newest) or self.fork_point(branch)
        for _ in range(_SEARCHES):
            while True:
                above = self.read(branch, 0 if found is None else found.header.version + 1)
                if above is None or not above.follows(found):  # nothing, or an orphan: not followed
                    break
                found = above
            # I10: below the oldest kept version there are gaps. A search may have been overtaken by a vacuum, a head
            # cache written late.
            if not self.is_below_oldest_kept(branch, -1 if found is None else found.header.version):
                break
            found = self._search(branch, newest) or self.fork_point(branch)
        else:
            raise CorruptionError(
                names.oldest_kept_directory(branch), reason="it names a version that is above all commits"
            )
        # `newest` is what was known when the search began: another thread may have found a newer one since.
        if found is None:
            self.identity.check_there()
        if newest is not None and (found is None or found.header.version < newest.header.version):
            self.check_living(branch)
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
            found = self.read(branch, head_cache.version)
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
        for version in sorted(self.versions(branch), reverse=True):
            if lowest is not None and version >= lowest:
                continue  # only commits that were read on the way down could vouch for it
            found = self.read(branch, version)
            if found is not None:
                lowest = self._break_below(found, newest)
                if lowest is None:
                    return found
        return None

    def _has_gaps(self, stored: Stored, known: Stored | None) -> bool:
        """Tell whether a version is missing. In a copy any may be: what commits vouch for was true of the original."""
        header, versions = stored.header, set(self.versions(stored.header.branch))
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
            below = self.parent(stored)
            if not stored.follows(below):
                is_removed = below is None and self.is_below_oldest_kept(header.branch, header.version - 1)
                return None if is_removed else header.version
            if header.fork:
                return None  # what a branch begins behind was made durable before there was the branch
            if header.synced:
                vouched = max(vouched, header.version - header.pending)
            if below is None or below.header.version < vouched:
                return None
            stored = below
        return None

    def versions(self, branch: str) -> list[int]:
        """Return the versions of a branch's own that hold a file, in no order."""
        return self._versions_in(names.commits_directory(branch))

    def _versions_in(self, directory: str) -> list[int]:
        return [version for version in map(names.parse_version, self.storage.list(directory)) if version is not None]

    def oldest_kept(self, branch: str) -> int:
        """Return the lowest version that every vacuum so far has kept; of a new branch, that of its parent."""
        raised = self._versions_in(names.oldest_kept_directory(branch))
        fork = None if raised else self.branches.fork(branch)
        return max(raised, default=0) if fork is None else fork.version

    def is_below_oldest_kept(self, branch: str, version: int) -> bool:
        """Tell whether a vacuum has given up a version, or what was there before the first one (-1)."""
        oldest_kept = self.oldest_kept(branch)
        return oldest_kept > 0 and version < oldest_kept

    def is_passed(self, stored: Stored) -> bool:
        """Tell whether a commit that was just made may have taken a version that a vacuum had freed (I10)."""
        return self.is_below_oldest_kept(stored.header.branch, stored.header.decided_in)

    def is_crowded(self, branch: str) -> bool:
        """Tell whether many committers are about to take the next version, and none of them waits for a turn."""
        return False

    def let_stand(self, paths: Collection[str]) -> None:
        """Wait, before files are deleted, until no committer can take their versions for ones that were never taken
        (I10).
        """

    def is_kept(self, stored: Stored) -> bool:
        """Tell whether a commit is one that no vacuum has given up.

        It is not below the oldest kept version of a branch that there is, or it is tagged, or a branch begins behind
        it, or it is the last that a commit that is kept has merged of a branch.
        """
        header = stored.header
        if self.oldest_kept(header.branch) <= header.version and self.branches.is_living(header.branch):
            return True
        return self._is_held(stored) or self._is_merged(stored)

    def ancestors(
        self,
        stored: Stored | None,
        *,
        wanted: int | None = None,
        as_told: bool = False,
        lowest: int | None = None,
    ) -> Iterator[Stored]:
        """Yield a commit and those before it that are kept, newest first. `wanted`: how many, if that is known.

        `as_told`: what later commits tell of them is enough, be their files there or not. `lowest`: an oldest kept
        version that may be below the one that the commit names, between which there may be nothing. Raises
        `CorruptionError` where the chain is broken.
        """
        if stored is None:
            return
        down = self._carried if as_told else self._down
        oldest_kept, given_up = stored.header.oldest_kept, -1  # below `given_up`, a commit of this branch may be gone
        if lowest is not None:
            oldest_kept, given_up = min(lowest, oldest_kept), oldest_kept
        line = down(stored, oldest_kept, wanted)
        # While that is asked for, those below are read.
        asked: Callable[[], int] | None = self.begin(self.oldest_kept, stored.header.branch)
        while True:
            yield stored
            header = stored.header
            if header.version <= oldest_kept:
                return
            if header.fork:
                line = down(stored, 0, wanted)
            error: Exception | None = None
            try:
                stored = next(line, None)
            except (TxStoreError, OSError) as raised:
                error = raised
            if asked is not None:
                oldest_kept, asked = max(oldest_kept, asked()), None
                if header.version <= oldest_kept:
                    return  # what is below may be anything
            if error is not None:
                raise error
            if stored is None and (
                header.version <= given_up or (oldest_kept := self.oldest_kept(header.branch)) >= header.version
            ):
                return  # a vacuum has overtaken us
            if stored is None and not self.branches.is_living(header.branch):
                return  # one has deleted what was left of the branch
            if header.fork:  # from here on, that branch says what is kept: nothing else, if it was deleted
                given_up = -1
                oldest_kept = self.oldest_kept(header.fork) if self.branches.is_living(header.fork) else header.version
            if stored is None or stored.header.id != header.parent_id or stored.hash != header.parent_hash:
                path = names.commit_path(header.fork or header.branch, header.version - 1)
                raise CorruptionError(path, reason=f"this is not the parent that version {header.version} names")

    def _down(self, stored: Stored, oldest_kept: int, wanted: int | None) -> Iterator[Stored | None]:
        """Yield what is in the version that a commit's parent had, and below it in the same branch, down to the oldest
        kept version.
        """
        branch = stored.header.fork or stored.header.branch
        return self.each(
            partial(self.read, branch), range(stored.header.version - 1, oldest_kept - 1, -1), wanted=wanted
        )

    def _carried(self, stored: Stored, oldest_kept: int, wanted: int | None) -> Iterator[Stored | None]:
        """As `_down`; where it takes requests, a commit may be told by one above it, and be gone."""
        return self._down(stored, oldest_kept, wanted)

    def carried_by_child(self, parent: Stored | None, branch: str) -> bytes:
        """Return what the commit after a parent tells of those before it, if it would take requests to read them."""
        return b""

    # --- tags, and the oldest kept version

    def tags(self) -> dict[str, Tag]:
        """Return all tags by their names. Raises `CorruptionError`."""
        found = {}
        for name in self.tag_names():
            with contextlib.suppress(CommitNotFoundError):  # deleted meanwhile
                found[name] = self.read_tag(name)
        return found

    def tag_names(self) -> list[str]:
        return [name for name in self.storage.list(names.TAGS) if names.is_name(name)]

    def read_tag(self, name: str) -> Tag:
        path = names.tag_path(check_name("tag", name))
        try:
            return Tag.decode(self.storage.read(path))
        except FileNotFoundError:
            self.identity.check_there()
            raise CommitNotFoundError(f"tag {name!r}", advice="there is no such tag; see repo.tags") from None
        except encoding.MalformedError as error:
            raise CorruptionError(path, reason=error.reason) from error

    @step("write tag")
    def write_tag(self, name: str, stored: Stored) -> None:
        """Create a tag. Raises `FileExistsError`: a tag is written once; `ValueError` if a branch has the name."""
        header = stored.header
        self._check_no_branch(name)
        self.make_durable(stored)  # I1: the tag is
        content = Tag(header.branch, header.version, header.id).encode()
        path = names.tag_path(check_name("tag", name))
        self.storage.write_once(path, content, durable=True)
        try:
            self._check_no_branch(name)  # a process that makes a branch looks for tags after that
        except ValueError:
            self.delete_tag(name)
            raise
        if not self._stays(stored, but_tag=name):
            # A vacuum may have looked for tags before this one was there.
            self.delete_tag(name)
            raise SnapshotExpiredError(self.label(header.branch, header.version))

    def _check_no_branch(self, name: str) -> None:
        """Raise `ValueError` if a branch has the name of a tag: `at=` takes both."""
        with contextlib.suppress(CommitNotFoundError):
            self.branches.id_of(name)
            raise ValueError(f"branch {name!r} exists, and at={name!r} would name either: choose another name")

    def _check_no_tag(self, name: str) -> None:
        if self.storage.exists(names.tag_path(check_name("tag", name))):
            raise ValueError(f"tag {name!r} exists, and at={name!r} would name either: choose another name")

    @step("delete tag")
    def delete_tag(self, name: str) -> None:
        """Delete a tag, durably. Raises `CommitNotFoundError` if there is none, `OSError`."""
        path = names.tag_path(check_name("tag", name))
        if not self.storage.exists(path):
            self.identity.check_there()
            raise CommitNotFoundError(f"tag {name!r}", advice="there is no such tag; see repo.tags")
        self.storage.delete(path)
        # A tag that came back after a power loss would name a commit that a vacuum may have deleted.
        self.storage.sync_directory(names.TAGS)

    def _stays(self, stored: Stored, *, but_tag: str | None = None, but_branch: str | None = None) -> bool:
        """Tell whether a commit is kept whatever becomes of one name that it has."""
        header = stored.header
        if header.version >= self.oldest_kept(header.branch) and self.branches.is_living(header.branch):
            return True
        return self._is_held(stored, but_tag=but_tag, but_branch=but_branch)

    def _is_held(self, stored: Stored, *, but_tag: str | None = None, but_branch: str | None = None) -> bool:
        """Tell whether a commit is tagged, or a branch begins behind it."""
        commit_id = stored.header.id
        if any(tag.commit_id == commit_id for name, tag in self.tags().items() if name != but_tag):
            return True
        return any(record.commit_id == commit_id for name, record in self.branches.all().items() if name != but_branch)

    def _is_merged(self, stored: Stored) -> bool:
        """Tell whether a commit that is kept has merged this one."""
        living = [MAIN, *(record.id for record in self.branches.all().values())]
        heads = [head for head in map(self.head, living) if head is not None]
        place, related = (stored.header.branch, stored.header.version), self.related()
        return any(place in self.kept_with(child, related) for head in heads for child in self.ancestors(head))

    def related(self) -> set[str]:
        """Return the ids of all branches, and of the branches that they forked from."""
        records = self.branches.all().values()
        return {MAIN, *(record.id for record in records), *(each for record in records for each, _ in record.lineage)}

    @staticmethod
    def kept_with(stored: Stored, related: Collection[str]) -> Iterator[tuple[str, int]]:
        """Yield the branches and versions of commits that are kept as long as a commit is: how far it reaches into
        others.

        They are what a later merge begins at, with any of the `related` branches.
        """
        header = stored.header
        if header.merged is not None:
            yield header.merged.branch, header.merged.version
        for branch, version in header.reach.items():
            if branch != header.branch and branch in related:
                yield branch, version

    # --- branches

    def create_branch(self, name: str, stored: Stored) -> str:
        """Begin a branch behind a commit, durably; return its id.

        Raises `ValueError` if a branch or a tag has the name.
        """
        self.branches.check_free(name)
        self._check_no_tag(name)
        header = stored.header
        self.ensure_durable(stored)  # I1: the branch is
        created = self.branches.create(name, stored.name).id
        try:
            self._check_no_tag(name)  # a process that makes a tag looks for branches after that
        except ValueError:
            self.branches.delete(name)
            raise
        if not self._stays(stored, but_branch=name):
            self.branches.delete(name)  # as a tag
            raise SnapshotExpiredError(self.label(header.branch, header.version))
        return created

    def delete_branch(self, name: str) -> None:
        """Delete a branch, durably. Its commits stay until a vacuum.

        Raises `CommitNotFoundError` if there is none, `ValueError` if a transaction with a name is open on it.
        """
        branch = self.branches.id_of(name)
        for record in self.recorded():
            if record.branch == branch and record.name is not None:
                raise ValueError(f"transaction {record.name!r} is open on branch {name!r}: commit it, or roll it back")
        with self.storage.lock(names.COMMIT_LOCK):  # no process commits to it meanwhile
            self.branches.delete(name)
        self.compaction_outputs.forget(branch)

    def rename_branch(self, name: str, new: str) -> None:
        """Give a branch another name. Raises `CommitNotFoundError` if there is none, `ValueError` if that is given."""
        self._check_no_tag(new)
        with self.storage.lock(names.COMMIT_LOCK):
            self.branches.rename(name, new)
            try:
                self._check_no_tag(new)
            except ValueError:
                self.branches.rename(new, name)
                raise

    def check_living(self, branch: str) -> None:
        """Raise `CommitNotFoundError` if a branch has been deleted."""
        if branch != MAIN and not self.branches.is_living(branch):
            advice = "it was deleted meanwhile: what is staged for it can still be read, but not be committed"
            raise CommitNotFoundError(f"branch {self.branches.name_of(branch)!r}", advice=advice)

    def recorded(self) -> Iterator[TransactionRecord]:
        """Yield the records of transactions that are open: what has a name outlives its processes."""
        files = self.storage.list(names.STAGING)
        transactions = set(map(names.parse_record, files)) - {None}
        # A record that was renamed while they were listed may be missing from the list; what was staged is there.
        transactions |= {staged[0] for staged in map(names.parse_staging, files) if staged is not None}
        for record in map(self._record, filter(None, transactions)):
            if record is not None:
                yield record

    def _record(self, transaction: bytes) -> TransactionRecord | None:
        """Return the record of a transaction; None if it has just ended, has none, or died while it was written."""
        # The first again: between two looks, it may have been unsealed.
        for path in (names.open_path(transaction), names.sealed_path(transaction), names.open_path(transaction)):
            with contextlib.suppress(FileNotFoundError, encoding.MalformedError):
                return TransactionRecord.decode(self.storage.read(path))
        return None

    def branch_directories(self) -> list[str]:
        """Return the ids of the branches that have commits of their own, deleted ones too."""
        return sorted(filter(names.is_branch_id, self.storage.list("commits")))

    @step("write oldest kept version")
    def write_oldest_kept(self, stored: Stored) -> None:
        """Say that what lies below the oldest kept version of a vacuum's commit, which is durable, goes now.

        Raises `OSError`.
        """
        header = stored.header
        content = Tag(header.branch, header.version, header.id).encode()
        self.storage.make_directory(names.oldest_kept_directory(header.branch), durable=True)
        # the process that made the branch's directory may not have done so
        self.storage.sync_directory(names.OLDEST_KEPT)
        with contextlib.suppress(FileExistsError):  # by a vacuum that was interrupted
            self.storage.write_once(names.oldest_kept_path(header.branch, header.oldest_kept), content, durable=True)

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
        for stored in self.ancestors(newest):
            if stored.header.synced or stored.header.version <= self._durable_version(stored.header.branch):
                break
            try:
                self._sync_files(stored)
            except FileNotFoundError:
                if not self.is_below_oldest_kept(stored.header.branch, stored.header.version):
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
        of_commits = map(names.commits_directory, self.branch_directories())
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
            while (there := self.read(header.branch, header.version)) is None and isinstance(error, FileExistsError):
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
            there = self.read(header.branch, header.version)
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
