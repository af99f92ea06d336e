"""Taking a version: what has been written below `.staging/` becomes the next commit of a branch.

Whose commit it is, a transaction's or one of maintenance, is not known here. A `Plan` says what the header holds, when
the parent is known: under the commit lock.
"""

from __future__ import annotations

import contextlib
import platform
import struct
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from txstore.commit import Stored
from txstore.errors import (
    ClockWarning,
    CommitTimeoutError,
    CommitUnknownError,
    CommitWaitWarning,
    CorruptionError,
    SnapshotExpiredError,
    TxStoreError,
)
from txstore.format import commitfile, encoding, names, packfile
from txstore.format.commitfile import DataPack, Footer, Header, RunName, Section, Statistics
from txstore.history.commits import Commits
from txstore.history.find import first_since
from txstore.history.snapshot import Snapshot
from txstore.history.versions import VersionTakenError
from txstore.segments.packs import Staged, Writer
from txstore.steps import step
from txstore.storage.capabilities import LockOf
from txstore.storage.interface import Mapped, Storage
from txstore.storage.line import Line
from txstore.storage.turns import WARN_AFTER, this_user

#: A commit above this length is synced before the commit lock is taken, so that no committer waits for its data.
SYNC_BEFORE_LOCK = 1 << 20
#: Clocks order nothing, but a commit from the future takes all later commit times along (microseconds).
MAX_CLOCK_LEAD = 60 * 1_000_000
#: What a commit says of itself that stands in line: its id, and the version that it is on its way to.
_PLACE = struct.Struct("<16sq")
#: So much of a run is written at a time, in bytes.
_PIECE = 1 << 20


class LostPlaceError(Exception):
    """A commit can't be made as it was begun. Internal: nothing was published; try again.

    One that it was to follow was not made, or may not be; or its values lie elsewhere now.
    """


class SyncFailedError(Exception):
    """The medium refused to make data durable (I9). Internal: carries the `OSError`."""

    def __init__(self, cause: OSError) -> None:
        self.cause = cause


class Contents(NamedTuple):
    """What the header of a commit says besides who made it, when, and on which parent."""

    sections: tuple[Section, ...]
    runs: tuple[RunName, ...]
    statistics: Statistics = Statistics()
    packs: tuple[DataPack, ...] = ()  # besides the publisher's: durable, and in their places
    oldest_kept: int = 0  # at least the parent's
    required: int = 0  # features that a reader has to know, besides those of the parent
    constraints: Mapping[str, Any] | None = None  # None: those of the parent
    merged: Stored | None = None  # the other parent of a merge
    reach: Mapping[str, int] = MappingProxyType({})  # of a merge, and of what raises the oldest kept version
    joins: bool = False  # it may follow others, too, that touch nothing that it touches


class Plan(Protocol):
    """What a commit is to be, on top of whatever commit it will follow."""

    def catch_up(self) -> Snapshot:
        """Return the head as it is now, if the commit may follow that; else raise."""

    def contents(self, head: Snapshot) -> Contents | None:
        """Return what the header says if `head` is the parent; None: no commit is to be made."""


class LinedPlan(Plan, Protocol):
    """A plan that can follow a commit that is on its way, too, and be given up if that does not arrive."""

    def follow(self, ahead: Stored) -> Snapshot:
        """As `catch_up`, with `ahead` for the head: it has not taken its version yet."""


class Publisher:
    """One file below `.staging/`, and the data packs beside it, on their way into a version."""

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
        self._keeps_out_others = self.storage.capabilities.lock_of is LockOf.ALL_PROCESSES
        self.writer = writer
        self.packs = packs  # each with the path of its file below `.staging/`
        self.branch = branch
        self.durable = durable
        self.message = message
        self.properties = properties or {}
        self.end = self._frames_end = align(writer.size)
        self._frames = writer.sequence
        self.proposed = False  # the file to a version, which may have taken it

    def append_value(self, key: bytes, value: bytes) -> Staged:
        """Write a value that the commit has made itself behind those that were staged; b"": the key is deleted.

        Runs are behind all values: what was written of them is to be written again. No process that reads staged values
        takes this one for staged, and a later attempt to commit overwrites it.
        """
        start, checksum = self._frames_end, encoding.crc32c(value)
        offset, end = packfile.frame_layout(start, len(key), len(value))
        head = packfile.encode_frame(
            packfile.FRAME_MERGED, packfile.SEEN_NOTHING, self._frames, key, len(value), checksum
        )
        self.writer.write_at(start, head + bytes(offset - start - len(head)) + value + bytes(end - offset - len(value)))
        staged = Staged(offset, len(value), checksum, self._frames)
        self.end = self._frames_end = end
        self._frames += 1
        return staged

    @property
    def place(self) -> tuple[int, int]:
        """Where the values end that were written so far, and how many frames there are."""
        return self._frames_end, self._frames

    def go_back(self, place: tuple[int, int]) -> None:
        """Forget the values that were written since, and the runs: what is written next takes their place."""
        self._frames_end, self._frames = place
        self.end = self._frames_end

    def append(self, content: Mapped) -> Section:
        """Write a run behind the values."""
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
        """I1: values and runs are durable before the header that names them: large ones now, small ones with it.

        The file is created now in any case: that can take a millisecond where many others were deleted. The data packs
        go where readers look for them. `head` is the newest commit that is known. Raises `SyncFailedError` or
        `OSError`.
        """
        if head is not None:
            self._compare_clocks(head)
            if head.header.branch != self.branch:  # the first commit of a branch
                self.storage.make_directory(names.commits_directory(self.branch), durable=self.durable)
        self.writer.finish(self.end)
        if self.durable and self.end > SYNC_BEFORE_LOCK:
            self._sync()
        for pack, source in self.packs:
            if source == pack.name.path:
                continue
            directory = names.data_pack_directory(pack.name.id)
            try:
                if self.durable:
                    self.storage.sync_file(source)
                self.storage.make_directory(directory, durable=self.durable)
                # It keeps the name below `.staging/` until the commit is made.
                with contextlib.suppress(FileExistsError):  # by one who died while committing
                    self.storage.link(source, pack.name.path)
                if self.durable and pack is self.packs[-1][0]:
                    for path in (directory, names.PACKS):  # all of a transaction are in one
                        self.storage.sync_directory(path)
            except OSError as error:
                if not self.durable:
                    raise
                raise SyncFailedError(error) from error

    def _compare_clocks(self, head: Stored) -> None:
        """Warn of commits that are dated later than it is now: who made the first, and what that means.

        Before anything is published: somebody may have made an error of the warning.
        """
        now = time.time_ns() // 1000
        if head.header.time - now <= MAX_CLOCK_LEAD or not self.commits.warns_of(head, MAX_CLOCK_LEAD):
            return
        # Commits above the first one have their dates because of it.
        first = self.commits.files.at(head.header.branch, first_since(self.commits, head, now)) or head
        ahead, commit = timedelta(microseconds=first.header.time - now), first.commit
        warnings.warn(
            f"{self.storage.url}: commit {commit} ({commit.id[:12]}) by {commit.author} is dated "
            f"{commit.time.isoformat(timespec='seconds')}, {_hours(ahead)} ahead of the clock of this machine "
            f"({platform.node()}): one of the two is wrong. Until that time, each commit is dated a microsecond after "
            "the one before, and is found by that date",
            ClockWarning,
            stacklevel=2,
        )

    @step("publish")
    def publish(self, plan: Plan) -> Stored | None:
        """Take the next version, while no other committer is on the way to one.

        Returns None if the plan says that no commit is to be made.

        Raises what the plan raises, `CommitUnknownError`, `CorruptionError`, `SyncFailedError` or `OSError`; then
        nothing was published (or, with `CommitUnknownError`, that is not known). `SnapshotExpiredError`: a vacuum has
        passed us by.
        """
        # The lock gives everybody a turn. That a version is taken once does not depend on it. Who waited looks at what
        # others have committed before it is let in: then it has only the last commit left to look at.
        with self.storage.lock(names.COMMIT_LOCK, plan.catch_up):
            lost = _Lost(self.storage)
            while True:
                head = self._next_head(plan.catch_up)  # which is pinned as long as this has it
                contents = plan.contents(head)
                if contents is None:
                    return None
                if not contents.joins and self.commits.versions.is_crowded(self.branch) and self.writer.set_aside():
                    raise LostPlaceError  # it would be late with all that it has to send
                stored = self._write_header(head.stored, contents)
                if self.durable:
                    self._sync()
                try:
                    stored = self._take_version(stored, joins=contents.joins)
                except VersionTakenError:
                    lost.one_more()  # I2: the version is proven to be another's, so the file may be written again
                    if self.writer.set_aside():
                        raise LostPlaceError from None
                    continue
                break
        return self._settled(stored)

    @step("publish in line")
    def publish_in_line(self, plan: LinedPlan) -> Stored | None:
        """As `publish`, but many are on the way at once: their syncs go on together, as if they were one.

        Under the lock a commit gets its header alone: it names as parent what the last in line is going to commit. Then
        it stands in line, and others have their turn. It is synced, and renamed when the parent has its version (I1).

        Raises `LostPlaceError` if the parent did not get it, and where `plan` would not have followed it.
        """
        # No sync takes long, or others would have to read too much.
        if not self.durable or self.end > SYNC_BEFORE_LOCK:
            return self.publish(plan)
        with self.storage.lock(names.COMMIT_LOCK, plan.catch_up, in_line=True) as line:
            ahead = None if line is None else self._last_in(line)
            try:
                head = self._next_head(plan.catch_up if ahead is None else partial(plan.follow, ahead))
                contents = plan.contents(head)
                if contents is None:
                    return None
                stored = self._write_header(head.stored, contents)
            except Exception as error:
                if ahead is None or isinstance(error, SyncFailedError):
                    raise
                raise LostPlaceError from error  # what is wrong with it may be due to what will not be there
            if line is not None:
                line.stand(_PLACE.pack(stored.header.id, stored.header.version))
            self._sync()
            if line is not None and ahead is not None:
                line.wait()
                if not self.commits.files.has(ahead):
                    raise LostPlaceError
            try:
                self._take_version(stored)
            except VersionTakenError:
                raise LostPlaceError from None
        return self._settled(stored)

    def _last_in(self, line: Line) -> Stored | None:
        """Return the commit that the last in line is about to make; None if the line is empty by now."""
        said = line.last()
        if said is None:
            return None
        with contextlib.suppress(OSError, TxStoreError, struct.error):
            commit_id, version = _PLACE.unpack(said)
            ahead = self.commits.files.read_staged(commit_id, self.branch, version)
            if ahead is not None and self.commits.durability.is_fit_parent(self.branch, ahead):
                return ahead
        line.drain()  # of another branch, say
        return None

    def _next_head(self, catch_up: Callable[[], Snapshot]) -> Snapshot:
        self.commits.branches.check_living(self.branch)
        head = catch_up()
        if self.durable:
            self._prepare_parent(head.stored)
        return head

    def _take_version(self, stored: Stored, *, joins: bool = False) -> Stored:
        """Rename the file into its version: this is the commit, which is returned. Raises `VersionTakenError`."""
        self.proposed = True
        try:
            stored = self.commits.versions.take(self.writer.path, stored, joins=joins)
        except (VersionTakenError, OSError):
            self.proposed = False  # it was read back: another commit is there, or nothing
            raise
        except BaseException:
            # I3: where the server may yet come to it, what the commit refers to must stay.
            self.proposed = self.commits.versions.may_have_taken(stored)
            raise
        self._check_oldest_kept(stored)
        if not self._keeps_out_others:  # else no process can delete it meanwhile
            self.commits.branches.check_living(self.branch)
        # Others find the new head sooner.
        self.commits.head_caches.write(stored, durable=False)
        return stored

    def _settled(self, stored: Stored) -> Stored:
        """I1: before anybody is told, its name is made durable, and those of all before it. Others commit meanwhile."""
        if self.durable:
            self.commits.durability.settle(stored)
        return stored

    def withdraw_packs(self) -> None:
        """Take back the names in `packs/`: no commit refers to them."""
        for pack, source in self.packs:
            if source != pack.name.path:  # else it is the only one
                with contextlib.suppress(OSError):
                    self.storage.delete(pack.name.path)

    def _check_oldest_kept(self, stored: Stored) -> None:
        """I10: who slept while a vacuum raised the oldest kept version may have taken a version that was freed, outside
        of history.

        Before the head cache names it: a version that was never taken is not below the oldest kept version, now or when
        it was taken.
        """
        if not self.commits.versions.is_passed(stored):
            return
        if self._keeps_out_others:
            self.proposed = False
            self.commits.versions.give_back(stored)
        else:
            # Others may have built on it, and a vacuum may have passed it then. It stays: what needs it is not known.
            above = self.commits.files.read(self.branch, stored.header.version + 1)
            if above is None:
                reason = "a vacuum has passed it since, or had passed its version before"
                raise CommitUnknownError(stored.header.id.hex(), reason=reason)
            if above.follows(stored):
                return
            self.proposed = False
        raise SnapshotExpiredError(self.commits.branches.label(self.branch, stored.header.version - 1))

    def _sync(self) -> None:
        """Make what was written durable."""
        try:
            self.writer.sync()
        except OSError as error:
            raise SyncFailedError(error) from error

    def _prepare_parent(self, parent: Stored | None) -> None:
        """Make the commit that this one follows durable, as far as the syncs of the two committers don't (I1)."""
        if not self.commits.durability.is_fit_parent(self.branch, parent):
            try:
                self.commits.durability.make(parent, self.branch)
            except OSError as error:
                raise SyncFailedError(error) from error

    def _write_header(self, parent: Stored | None, contents: Contents) -> Stored:
        version, seq, oldest_kept = (0, 1, 0) if parent is None else parent.next
        fork = None if parent is None or parent.header.branch == self.branch else parent.name
        if fork is not None:  # what lies below is another branch's to keep
            oldest_kept = fork.version
        required = contents.required | (0 if parent is None else parent.header.required)
        constraints = contents.constraints
        if constraints is None:
            constraints = {} if parent is None else parent.header.constraints
        sections = contents.sections
        offset = max((align(section.offset + section.length) for section in sections), default=self._frames_end)
        carried = self.commits.told.by_child(parent, self.branch)
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
            packs=(*[pack for pack, _ in self.packs], *contents.packs),
            pending=self.commits.durability.pending(self.branch, parent) if self.durable else 0,
            oldest_kept=max(oldest_kept, contents.oldest_kept),
            required=required | (commitfile.FEATURE_CONSTRAINTS if constraints else 0),
            constraints=constraints,
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


class _Lost:
    """The versions that one commit has lost. Where many commit at once, it may be long until it has one."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._began = time.monotonic()
        self._versions = 0
        self._is_warned = False

    def one_more(self) -> None:
        """Raises `CommitTimeoutError` when it was tried for long enough."""
        self._versions += 1
        url, timeout, waited = self._storage.url, self._storage.lock_timeout, time.monotonic() - self._began
        if timeout is not None and waited >= timeout:
            whose = f"another committer ({self._versions} versions went to others)"
            raise CommitTimeoutError(url, "the next version each time", whose, timeout)
        if waited >= WARN_AFTER and not self._is_warned:
            self._is_warned = True
            times = "once" if self._versions == 1 else f"{self._versions} times"
            told = f"{url}: a commit has tried for {waited:.0f} s: others were first {times}, and a try took "
            told += f"{waited / self._versions:.1f} s. If that is long, the server is slow, or does not answer"
            with contextlib.suppress(CommitWaitWarning):  # where warnings are errors: nothing is wrong with the commit
                warnings.warn(f"{told}; commit_timeout= limits that", CommitWaitWarning, stacklevel=2)


def align(offset: int) -> int:
    return -(-offset // 8) * 8


def _commit_time(*parents: Stored | None) -> int:
    """Return a time later than that of all parents."""
    earliest = max((parent.header.time + 1 for parent in parents if parent is not None), default=0)
    return min(max(time.time_ns() // 1000, earliest), encoding.MAX_TIME)


def _hours(ahead: timedelta) -> str:
    minutes = round(ahead.total_seconds() / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
