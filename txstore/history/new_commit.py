"""A new commit: its file below `.staging/`, and the turns in which the file takes the next version of its branch.

It does not know whether a transaction or maintenance commits. Who commits says what the header contains as soon as the
parent is known.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import platform
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from txstore import observing
from txstore.commit import Stored
from txstore.errors import (
    ClockWarning,
    CommitTimeoutError,
    CommitUnknownError,
    CommitWaitWarning,
    CorruptionError,
    SnapshotExpiredError,
    TxStoreError,
    warn,
)
from txstore.format import commitfile, encoding, names, packfile
from txstore.format.commitfile import (
    NOTHING_DECLARED,
    DataPack,
    Declarations,
    Footer,
    Header,
    RunName,
    Section,
    Statistics,
)
from txstore.history.branch_store import VersionTakenError
from txstore.history.commits import Commits
from txstore.history.find import first_since
from txstore.history.snapshot import Snapshot
from txstore.segments.pack_writer import Staged, Writer
from txstore.steps import step
from txstore.storage.commit_lock import WARN_AFTER, SyncQueue, this_user
from txstore.storage.interface import Mapped

_log = logging.getLogger(__name__)

#: The publisher syncs a longer commit (in bytes) before it takes the commit lock, so that no committer waits for its
#: data.
SYNC_BEFORE_LOCK = 1 << 20
#: Microseconds. Clocks order nothing, but a commit with a future time makes all later commits have future times, too.
MAX_CLOCK_LEAD = 60 * 1_000_000
#: A commit's entry in the queue: its id, and the version that it is about to take.
_PLACE = struct.Struct("<16sq")
#: Number of bytes of a sorted run to write at a time.
_PIECE = 1 << 20


class LostPlaceError(Exception):
    """The committer can't finish this attempt. Internal: nothing was published; try again.

    The commit that it was to follow was not made, or may not be. Or its values now lie in another place.
    """


class SyncFailedError(Exception):
    """The medium refused to make data durable (I9). Internal: carries the `OSError`."""

    def __init__(self, cause: OSError) -> None:
        self.cause = cause


@contextlib.contextmanager
def syncing() -> Iterator[None]:
    """Raise `SyncFailedError` for an `OSError` of the block, which makes data durable."""
    try:
        yield
    except OSError as error:
        raise SyncFailedError(error) from error


class Contents(NamedTuple):
    """The content of a commit's header, except author, time and parent."""

    sections: tuple[Section, ...]
    runs: tuple[RunName, ...]
    statistics: Statistics = Statistics()
    oldest_kept: int = 0  # at least the parent's
    required: int = 0  # features that a reader has to support, besides those of the parent
    declared: Declarations | None = None  # None: that of the parent
    merged: Stored | None = None  # the second parent of a merge
    reach: Mapping[str, int] = MappingProxyType({})  # for a merge, or a commit that raises the oldest kept version
    joins: bool = False  # it may also follow other commits that touch none of its keys


class NewCommit:
    """The file of a commit, and the data packs beside it, until it has a version."""

    def __init__(
        self,
        commits: Commits,
        writer: Writer,
        packs: Sequence[tuple[DataPack, str]] = (),
        *,
        branch: str,
        durable: bool,
        message: str = "",
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.commits = commits
        self.storage = commits.storage
        self.writer = writer
        self.packs = packs  # each with the path of its staged file
        self.branch = branch
        self.durable = durable
        self.message = message
        self.properties = properties or {}
        self.end = self._frames_end = align(writer.size)
        self._frames = writer.sequence
        self.proposed = False  # True: the file may have taken a version

    def append_value(self, key: bytes, value: bytes) -> Staged:
        """Write a value that the commit itself computed, after the staged values. b"" deletes the key.

        Sorted runs come after all values, so runs already written have to be written again. A process that reads staged
        values ignores this value, and the next attempt to commit overwrites it.
        """
        start, checksum = self._frames_end, encoding.crc32c(value)
        head, offset, end = packfile.lay_frame(
            start, packfile.FRAME_MERGED, packfile.SEEN_NOTHING, self._frames, key, len(value), checksum
        )
        self.writer.write_at(start, b"".join(packfile.frame_parts(start, head, offset, value, end)))
        staged = Staged(offset, len(value), checksum, self._frames)
        self.end = self._frames_end = end
        self._frames += 1
        return staged

    @property
    def place(self) -> tuple[int, int]:
        """The offset at which the values end, and the number of frames."""
        return self._frames_end, self._frames

    def go_back(self, place: tuple[int, int]) -> None:
        """Drop the values written since `place`, and the runs: the next writes overwrite them."""
        self._frames_end, self._frames = place
        self.end = self._frames_end

    def append(self, content: Mapped) -> Section:
        """Write a sorted run after the values."""
        view = memoryview(content)
        section = Section(commitfile.SECTION_RUN, self.end, len(view))
        self.end = align(section.offset + section.length)
        padding = bytes(self.end - section.offset - section.length)
        last = section.length // _PIECE * _PIECE
        for begin in range(0, last, _PIECE):
            self.writer.write_at(section.offset + begin, view[begin : begin + _PIECE])
        self.writer.write_at(section.offset + last, bytes(view[last:]) + padding)
        return section

    @step("prepare")
    def prepare(self, head: Stored | None) -> None:
        """Prepare the file and the data packs for the commit. `head` is the newest known commit.

        I1: values and runs are durable before the header that names them. This syncs large files now; small ones are
        synced with the header. It creates the file in any case, because creation can take a millisecond on a file
        system with many deleted files. It links data packs to their final names. Raises `SyncFailedError` or `OSError`.
        """
        if head is not None:
            self._compare_clocks(head)
            if head.header.branch != self.branch:  # the first commit of a branch
                self.storage.make_directory(names.commits_directory(self.branch), durable=self.durable)
        self.writer.finish(self.end)
        if self.durable and self.end > SYNC_BEFORE_LOCK:
            self.sync()
        for pack, source in self.packs:
            if source == pack.name.path:
                continue
            directory = names.data_pack_directory(pack.name.id)
            try:
                if self.durable:
                    self.storage.sync_file(source)
                self.storage.make_directory(directory, durable=self.durable)
                # The pack keeps its staged name until the commit is made.
                with contextlib.suppress(FileExistsError):  # a committer linked it, and died
                    self.storage.link(source, pack.name.path)
                if self.durable and pack is self.packs[-1][0]:
                    for path in (directory, names.PACKS):  # all packs of a transaction are in one directory
                        self.storage.sync_directory(path)
            except OSError as error:
                if not self.durable:
                    raise
                raise SyncFailedError(error) from error

    def _compare_clocks(self, head: Stored) -> None:
        """Warn if the head's time is in the future: name the first such commit, its author, and the consequence.

        This runs before anything is published, because a user may have turned the warning into an error.
        """
        now = time.time_ns() // 1000
        if head.header.time - now <= MAX_CLOCK_LEAD or not self.commits.warns_of(head, MAX_CLOCK_LEAD):
            return
        # Commits above the first one have future times only because of it.
        first = self.commits.files.at(head.header.branch, first_since(self.commits, head, now)) or head
        ahead, commit = timedelta(microseconds=first.header.time - now), first.commit
        warn(
            f"{self.storage.url}: commit {commit} ({commit.id[:12]}) by {commit.author} is dated "
            f"{commit.time.isoformat(timespec='seconds')}, {_hours(ahead)} ahead of the clock of this machine "
            f"({platform.node()}): one of the two clocks is wrong. Until that time, each new commit is dated a "
            "microsecond after its parent, and at= finds it by that date",
            ClockWarning,
        )

    def in_turn(
        self, catch_up: Callable[[], object], *, queues: bool = False
    ) -> contextlib.AbstractContextManager[SyncQueue | None]:
        """Take turns with other committers, for `turns`. This serves fairness: a version is taken once even without it.

        A waiting committer calls `catch_up` just before its turn, so that it has to check only the last commit then.

        With `queues`, committers on a disk queue, so that the syncs of several commits run at the same time. Within its
        turn, a commit only gets its header, which names as parent the commit of the last committer in the queue. Then
        it joins the queue, and the next committer has its turn. Each is synced, and renamed after its parent has its
        version (I1). Raises `CommitTimeoutError`.
        """
        # Large commits do not queue: their sync takes long, and the next committer would have to read much.
        queues = queues and self.durable and self.end <= SYNC_BEFORE_LOCK
        return self.storage.lock(names.COMMIT_LOCK, catch_up, queues=queues)

    def turns(self, queue: SyncQueue | None) -> Iterator[CommitTurn]:
        """Yield a turn for each version that the commit may try, until one was taken. `queue` is that of `in_turn`."""
        began, is_warned = time.monotonic(), False
        for lost in itertools.count(1):
            self.commits.branches.check_living(self.branch)
            turn = CommitTurn(self, queue, None if queue is None else self._last_in(queue))
            yield turn
            # I2: another commit has the version for certain, so the file may be rewritten.
            is_warned = self._has_lost(lost, time.monotonic() - began, is_warned)

    def _has_lost(self, versions: int, waited: float, is_warned: bool) -> bool:
        """Raise `CommitTimeoutError` after `commit_timeout`; warn of a long wait, and return whether that was done."""
        url, timeout = self.storage.url, self.storage.lock_timeout
        if timeout is not None and waited >= timeout:
            whose = f"another committer ({versions} versions went to others)"
            raise CommitTimeoutError(url, "the next version each time", whose, timeout)
        if waited < WARN_AFTER or is_warned:
            return is_warned
        times = "once" if versions == 1 else f"{versions} times"
        told = f"{url}: a commit has tried for {waited:.0f} s: others were first {times}, and an attempt took "
        told += f"{waited / versions:.1f} s. If that is long, the server is slow, or does not answer"
        with contextlib.suppress(CommitWaitWarning):  # if warnings are errors: the commit itself has no error
            warn(f"{told}; commit_timeout= limits that", CommitWaitWarning)
        return True

    @step("publish")
    def publish(
        self, catch_up: Callable[[], Snapshot], contents: Callable[[Snapshot], Contents | None]
    ) -> Stored | None:
        """Take the next version, on top of the head that `catch_up` finds. None if `contents` says so.

        Raises the errors of both and of `CommitTurn`. After `CommitUnknownError` it is unknown whether the commit was
        published; after any other error it was not.
        """
        with self.in_turn(catch_up) as queue:
            for turn in self.turns(queue):
                head = catch_up()
                self.follow(head.stored)
                told = contents(head)
                if told is None:
                    return None
                turn.write_header(head.stored, told)
                if turn.take():
                    break
        return self.settled(turn.stored)

    def follow(self, parent: Stored | None) -> None:
        """Make the parent durable (I1), unless the syncs of the two committers already ensure that.

        Raises `SyncFailedError`.
        """
        if self.durable and not self.commits.store.is_fit_parent(self.branch, parent):
            with syncing():
                self.commits.store.make_durable(parent, self.branch)

    def settled(self, stored: Stored) -> Stored:
        """Return a commit that has its version, after its name and those of all its ancestors are durable (I1).

        Other committers may commit meanwhile. Raises `CommitUnknownError` (I3).
        """
        if self.durable:
            self.commits.store.settle(stored)
        return stored

    def _last_in(self, queue: SyncQueue) -> Stored | None:
        """Return the commit that the last committer in the queue is about to make. None if the queue is empty."""
        said = queue.last()
        if said is None:
            return None
        with contextlib.suppress(OSError, TxStoreError, struct.error):
            commit_id, version = _PLACE.unpack(said)
            ahead = self.commits.files.read_staged(commit_id, self.branch, version)
            if ahead is not None and self.commits.store.is_fit_parent(self.branch, ahead):
                return ahead
        queue.drain()  # this commit can't follow it: it may be on another branch
        return None

    def take_version(self, stored: Stored, *, joins: bool) -> Stored:
        """Rename the file to its version: this makes the commit. Returns the commit. Raises `VersionTakenError`."""
        self.proposed = True
        try:
            stored = self.commits.store.take(self.writer.path, stored, joins=joins)
        except (VersionTakenError, OSError):
            self.proposed = False  # the version was read back: it is free, or has another commit
            raise
        except BaseException:
            # I3: if the server may still execute the request, the files that the commit refers to must stay.
            self.proposed = self.commits.store.may_have_taken(stored)
            raise
        self._check_oldest_kept(stored)
        if not self.commits.store.keeps_out_others:  # else the lock keeps other processes from deleting the branch
            self.commits.branches.check_living(self.branch)
        # With the head cache, other processes find the new head sooner.
        self.commits.store.head_caches.write(stored, durable=False)
        return stored

    def withdraw_packs(self) -> None:
        """Delete the packs' names in `packs/`: no commit refers to them."""
        for pack, source in self.packs:
            if source != pack.name.path:  # else this is the pack's only name
                with contextlib.suppress(OSError):
                    self.storage.delete(pack.name.path)

    def _check_oldest_kept(self, stored: Stored) -> None:
        """Check that the commit did not take a version that a vacuum has freed (I10).

        A committer that slept during a vacuum may do that; its commit is then not part of the history. This runs before
        the head cache names the commit. A version that was never taken before is never below the oldest kept version.
        """
        if not self.commits.store.is_passed(stored):
            return
        if self.commits.store.keeps_out_others:
            self.proposed = False
            self.commits.store.give_back(stored)
        else:
            # Other commits may follow it, and a vacuum may have passed it only then. So it stays: they may need it.
            above = self.commits.files.read(self.branch, stored.header.version + 1)
            if above is None:
                reason = "a vacuum has expired it since, or had expired its version before it was made"
                raise CommitUnknownError(stored.header.id.hex(), reason=reason)
            if above.follows(stored):
                return
            self.proposed = False
        raise SnapshotExpiredError(self.commits.branches.label(self.branch, stored.header.version - 1))

    def sync(self) -> None:
        """Make the written file durable. Raises `SyncFailedError`."""
        with syncing():
            self.writer.sync()

    def write_header(self, parent: Stored | None, contents: Contents) -> Stored:
        """Write the header and the footer. Raises `OSError`, and `CorruptionError` if none can follow the parent."""
        version, seq, oldest_kept = (0, 1, 0) if parent is None else parent.next
        fork = None if parent is None or parent.header.branch == self.branch else parent.name
        if fork is not None:  # lower versions belong to another branch, which keeps them
            oldest_kept = fork.version
        required = contents.required | (0 if parent is None else parent.header.required)
        self.commits.identity.check_features(required)
        declared = contents.declared
        if declared is None:
            declared = NOTHING_DECLARED if parent is None else parent.header.declared
        for feature, names_of in zip(commitfile.DECLARED_FEATURES, declared, strict=True):
            required |= feature if names_of else 0
        sections = contents.sections
        offset = max((align(section.offset + section.length) for section in sections), default=self._frames_end)
        carried = self.commits.chain.told.by_child(parent, self.branch)
        if carried:
            sections = (*sections, Section(commitfile.SECTION_CARRIED, offset, len(carried)))
            self.writer.write_at(offset, carried + bytes(-len(carried) % 8))
            offset = align(offset + len(carried))
        header = Header(
            repository_id=self.commits.identity.id,
            id=self.writer.id,
            parent_id=encoding.NO_ID if parent is None else parent.header.id,
            parent_hash=encoding.NO_ID if parent is None else parent.hash,
            version=version,
            seq=seq,
            time=_commit_time(parent, contents.merged),
            branch=self.branch,
            author=this_user(),
            message=self.message,
            properties=self.properties,
            statistics=contents.statistics,
            sections=sections,
            runs=contents.runs,
            packs=tuple([pack for pack, _ in self.packs]),
            pending=self.commits.store.pending(self.branch, parent) if self.durable else 0,
            oldest_kept=max(oldest_kept, contents.oldest_kept),
            required=required,
            declared=declared,
            optional=0 if self.durable else commitfile.FEATURE_NOT_SYNCED,
            fork=None if fork is None else fork.branch,
            merged=None if contents.merged is None else contents.merged.name,
            reach=contents.reach,
        )
        try:
            header.check_bounds()
        except encoding.MalformedError as error:
            path = names.commit_path(self.branch, version - 1)
            raise CorruptionError(path, reason=f"no commit can follow this one: {error.reason}") from error
        encoded = header.encode()
        total = offset + len(encoded) + commitfile.FOOTER_SIZE
        footer = Footer(len(encoded), offset, total, header.id, encoding.crc32c(encoded))
        self.writer.write_at(offset, encoded + footer.encode())
        self.writer.finish(total)
        return Stored(header, footer, commitfile.header_hash(encoded), self.commits.branches.name_of)


class CommitTurn:
    """One attempt of a new commit to take a version: the one after its parent's."""

    stored: Stored  # the commit, as its header says

    def __init__(self, new: NewCommit, queue: SyncQueue | None, ahead: Stored | None) -> None:
        self.ahead = ahead  # what the last committer in the queue is about to make: the parent. None: the head is
        self._new = new
        self._queue = queue
        self._joins = False

    def write_header(self, parent: Stored | None, contents: Contents) -> None:
        """Write the header, for the version after the parent's. Raises `LostPlaceError` and the errors of the file."""
        new = self._new
        if not contents.joins and new.commits.store.is_crowded(new.branch) and new.writer.set_aside():
            raise LostPlaceError  # with so much to upload, it would lose the version
        self.stored, self._joins = new.write_header(parent, contents), contents.joins

    def take(self) -> bool:
        """Sync the file, and let it take the version. False: another commit has it.

        The next committer in the queue has its turn meanwhile. Raises `LostPlaceError` if the parent was not made,
        `CommitUnknownError`, `CorruptionError`, `SyncFailedError`, or `OSError`. `SnapshotExpiredError`: a vacuum has
        raised the oldest kept version above this commit.
        """
        new, queue = self._new, self._queue
        if queue is not None:
            queue.join(_PLACE.pack(self.stored.header.id, self.stored.header.version))
        if new.durable:
            new.sync()
        if queue is not None and self.ahead is not None:
            queue.wait()
            if not new.commits.files.has(self.ahead):
                raise LostPlaceError
        try:
            self.stored = new.take_version(self.stored, joins=self._joins)
        except VersionTakenError:
            if queue is not None:
                raise LostPlaceError from None
            _log.debug("%s: another commit has version %d", new.storage.url, self.stored.header.version)
            observing.count("commit.retries", 1, reason="VersionTakenError")
            if new.writer.set_aside():
                raise LostPlaceError from None
            return False
        return True


def align(offset: int) -> int:
    return -(-offset // 8) * 8


def _commit_time(*parents: Stored | None) -> int:
    """Return a time later than the times of all parents."""
    earliest = max((parent.header.time + 1 for parent in parents if parent is not None), default=0)
    return min(max(time.time_ns() // 1000, earliest), encoding.MAX_TIME)


def _hours(ahead: timedelta) -> str:
    minutes = round(ahead.total_seconds() / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
