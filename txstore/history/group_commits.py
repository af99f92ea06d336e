"""Makes several commits with one request on an object store: the group commit.

One request takes a version, so if several committers compete for it, all but one would have to try again. Instead,
committers that have lost a version write *proposals*: files beside the versions, each valid for one version. One
committer, the leader, takes the version for all. Its file holds the proposals, and so also decides the commits of the
next versions. Every reader of that file can derive each byte of these commits, and write their files. No process
writes anything else to these versions.

`docs/understand/remote-design.md`, "Group commits", says why each commit is made exactly once.
"""

from __future__ import annotations

import contextlib
import operator
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from txstore._native import index
from txstore.commit import Stored
from txstore.errors import CommitUnknownError, CorruptionError
from txstore.format import commitfile, encoding, names, packfile
from txstore.format.commitfile import Footer, GroupCommit, Header, RunName, Section
from txstore.format.keys import covering_prefixes, is_document
from txstore.segments.runs import names_of
from txstore.storage.late_answers import LateAnswers
from txstore.storage.objects.errors import is_refusal
from txstore.storage.objects.interface import Object, ObjectStore
from txstore.storage.request_threads import each_in_thread, executor

#: Longest commit file, in bytes, that a committer may propose: the leader has to read and write all proposals.
PROPOSED = 64 << 10
#: Bytes of all proposals in one group commit, at most.
_GROUP_COMMIT_BYTES = 1 << 20
#: Sorted runs that a header lists after a group commit, at most. The rest is for committers that can't compact.
_MOST_RUNS = commitfile.MAX_RUNS // 2
#: Round trips that the leader waits for proposals. The other committers look after the same time: a committer that
#: lost can then still propose to the next group. Then they wait for the group commit, and look more often near its end.
_GATHERING, _UNDER_WAY, _ARRIVING = 1.0, (1.0, 2.0), (0.3, 1.0)
#: The leader looks for committers that lost the version below at most this many times.
_YIELDS = 3
#: Seconds after which the leader omits a proposal: its committer has died, or has raised `CommitUnknownError`.
_YOUNG = 30.0
#: Seconds, at most, from the leader's look at the proposals to its request. A vacuum keeps staged data much longer.
_AWAKE = 300.0
#: Seconds, by the committer's clock. A version that was free this long ago was not freed by a vacuum (I10): a vacuum
#: deletes no commit until it has existed for twice as long.
TRUSTED = 5.0
#: Seconds: upper limit for a measured round trip, because a measurement includes any delay of the process.
_LONGEST_TRIP = 0.5
#: Round trips that a group commit takes at most, including earlier failed requests of its committers.
_TRIPS_OF_A_GROUP_COMMIT = 12
#: Round trips, at most, for which a single committer lets others commit first while they continue to propose.
_LET_PASS = 60
#: Proposals may be for versions this far below the head: a committer learns of a taken version a trip or two later.
BEHIND = 16
#: Seconds, and round trips, before another process leads, or writes the missing commits of a group.
_PATIENCE_SECONDS, _PATIENCE_TRIPS = 1.0, 20


class GroupCommitMember(NamedTuple):
    """One commit of a group commit, with its file."""

    stored: Stored
    content: bytes


class NoGroupCommitError(Exception):
    """A proposal, or the file in a version, does not form a valid group commit."""


# --- bytes


def join(content: bytes, leader: Stored, proposals: Sequence[bytes]) -> tuple[bytes, Stored]:
    """Return the leader's file: its own commit, and a section with the proposals that follow it."""
    start = leader.footer.header_offset
    section = b"".join(encoding.encode_varint(len(proposal)) + proposal for proposal in proposals)
    section = encoding.encode_varint(len(proposals)) + section
    padded = section + bytes(-len(section) % 8)
    header = replace(
        leader.header,
        sections=(*leader.header.sections, Section(commitfile.SECTION_GROUP_COMMIT, start, len(section))),
        group_commit=GroupCommit(0, len(proposals) + 1),
    )
    return _file(content[:start] + padded, header, leader)


def proposal_of(content: bytes, mine: Stored) -> bytes:
    """Return the part of a commit file that is valid after any other commit: its own frames and its own sorted run.

    The proposal inherits the other runs of the commit before it.
    """
    own = mine.header.sections[0]
    end = own.offset + own.length + -own.length % 8
    return _file(content[:end], replace(mine.header, sections=(own,), runs=mine.header.runs[:1]), mine)[0]


def members(content: bytes, leader: Stored) -> list[GroupCommitMember]:
    """Return the commits that a file decides, starting with its own. Raises `NoGroupCommitError`."""
    found, group_commit = [GroupCommitMember(leader, content)], leader.header.group_commit
    if group_commit is not None:
        for proposal in _proposals_in(content, leader.header, group_commit):
            found.append(couple(found[-1].stored, proposal, GroupCommit(len(found), group_commit.length)))
    return found


def decided(content: bytes, leader: Stored) -> list[GroupCommitMember]:
    """Return the commits that a stored file decides, its own first. Raises `CorruptionError`."""
    try:
        return members(content, leader)
    except NoGroupCommitError as error:
        raise CorruptionError(leader.path, reason=str(error)) from error


def _proposals_in(content: bytes, header: Header, group_commit: GroupCommit) -> Iterator[bytes]:
    sections = [each for each in header.sections if each.kind == commitfile.SECTION_GROUP_COMMIT]
    if group_commit.place or len(sections) != 1:
        raise NoGroupCommitError("this file is not the leader's file of a group commit")
    reader = encoding.Reader(content[sections[0].offset : sections[0].offset + sections[0].length])
    try:
        if reader.varint() != group_commit.length - 1:
            raise NoGroupCommitError("the number of proposals differs from the header's")
        for _ in range(group_commit.length - 1):
            yield reader.take(reader.varint())
    except encoding.MalformedError as error:
        raise NoGroupCommitError(error.reason) from error


def couple(before: Stored, proposal: bytes, group_commit: GroupCommit) -> GroupCommitMember:
    """Return the commit that a proposal becomes after another commit. Every process derives the same bytes.

    Raises `NoGroupCommitError` if the proposal is invalid.
    """
    header, end = _header_of(proposal)
    own = header.sections[0]
    parent = before.header
    version, seq, oldest_kept = before.next
    runs = (
        RunName(None, seq, own.offset, own.length, header.runs[0].entries, seq),
        *names_of(parent.runs, parent.name),
    )
    new = replace(
        header,
        parent_id=parent.id,
        parent_hash=before.hash,
        version=version,
        seq=seq,
        oldest_kept=oldest_kept,
        time=max(header.time, parent.time + 1),
        required=header.required | parent.required,
        sections=(own,),
        runs=runs,
        group_commit=group_commit,
    )
    content, stored = _file(proposal[:end], new, before)
    return GroupCommitMember(stored, content)


def _file(content: bytes, header: Header, like: Stored) -> tuple[bytes, Stored]:
    """Return a commit file, given its bytes before the header."""
    encoded = header.encode()
    total = len(content) + len(encoded) + commitfile.FOOTER_SIZE
    footer = Footer(len(encoded), len(content), total, header.id, encoding.crc32c(encoded))
    stored = Stored(header, footer, commitfile.header_hash(encoded), like.branch_name)
    return content + encoded + footer.encode(), stored


def _header_of(proposal: bytes) -> tuple[Header, int]:
    """Return the header of a proposal, and the offset at which its own run ends. Raises `NoGroupCommitError`."""
    try:
        footer = Footer.decode(proposal[-commitfile.FOOTER_SIZE :])
        encoded = proposal[footer.header_offset : footer.header_offset + footer.header_length]
        if footer.file_length != len(proposal) or encoding.crc32c(encoded) != footer.header_checksum:
            raise NoGroupCommitError("this is no commit file")
        header = Header.decode(encoded)
        header.check_placed(footer.header_offset)
    except encoding.MalformedError as error:
        raise NoGroupCommitError(error.reason) from error
    if header.encode() != encoded:  # processes that know the rest would derive other bytes than this one
        raise NoGroupCommitError("it has fields that this version does not know")
    own = next(iter(header.sections), None)
    run = next(iter(header.runs), None)
    if (
        own is None
        or run is None
        or run.pack is not None
        or (run.offset, run.length) != (own.offset, own.length)
        or own.kind != commitfile.SECTION_RUN
    ):
        raise NoGroupCommitError("it has no sorted run of its own")
    is_bound = header.declared or header.merged or header.fork or header.reach or header.group_commit
    if is_bound or header.id != footer.pack_id:
        raise NoGroupCommitError("it can follow only its own parent")
    return header, min(own.offset + own.length + -own.length % 8, footer.header_offset)


class Touched(NamedTuple):
    """The keys that a commit sets."""

    keys: set[str]
    nodes: set[str]  # the key prefixes of the nodes whose documents the commit sets

    def is_apart_from(self, other: Touched) -> bool:
        """Tell whether two commits share no key, and neither sets a key of a node whose document the other sets."""
        return self.keys.isdisjoint(other.keys) and not self._is_below(other) and not other._is_below(self)

    def _is_below(self, other: Touched) -> bool:
        return bool(other.nodes) and any(not other.nodes.isdisjoint(covering_prefixes(key)) for key in self.keys)


def touched_by(proposal: bytes) -> Touched:
    """Return the keys that a proposal sets. Raises `NoGroupCommitError` if it does anything else."""
    header, _ = _header_of(proposal)
    own = header.sections[0]
    try:
        run = index.Run(proposal[own.offset : own.offset + own.length], header.seq)
        found = run.scan(b"", None, -1, 0)
        if run.prefixes or not all(kind in packfile.FRAME_OF_REF for _, kind, *_ in found):
            raise NoGroupCommitError("it does more than set keys")
        keys = {entry[0].decode() for entry in found}
    except ValueError as error:
        raise NoGroupCommitError(str(error)) from error
    return Touched(keys, {next(covering_prefixes(key)) for key in keys if is_document(key)})


def fitting(mine: bytes, leader: Stored, proposals: Sequence[bytes]) -> list[bytes]:
    """Return the proposals for the leader's version whose keys no other chosen commit touches."""
    taken, ids, chosen = [touched_by(mine)], {leader.header.id}, list[bytes]()
    room = _GROUP_COMMIT_BYTES
    for proposal in proposals:
        try:
            header, _ = _header_of(proposal)
            touched = touched_by(proposal)
        except NoGroupCommitError:
            continue
        is_for_it = (
            header.repository_id == leader.header.repository_id
            and header.branch == leader.header.branch
            and header.version == leader.header.version
            and (header.parent_id, header.parent_hash) == (leader.header.parent_id, leader.header.parent_hash)
        )
        is_full = (
            len(chosen) + 2 > commitfile.MAX_GROUP_COMMIT
            or len(proposal) > room
            or len(leader.header.runs) + len(chosen) + 1 > _MOST_RUNS
        )
        if not is_for_it or is_full or header.id in ids or not all(map(touched.is_apart_from, taken)):
            continue
        chosen.append(proposal)
        taken.append(touched)
        ids.add(header.id)
        room -= len(proposal)
    return chosen


# --- requests


class Look(NamedTuple):
    """The time of a listing of a branch, by two clocks."""

    monotonic: float
    wall: float

    @classmethod
    def now(cls) -> Look:
        return cls(time.monotonic(), time.time())

    @property
    def age(self) -> float:
        """Seconds since then, by the clock that shows more: one clock may have stopped, or been set back."""
        return max(time.monotonic() - self.monotonic, time.time() - self.wall)


class BranchListing(NamedTuple):
    """The objects in a listing of a branch from some version on."""

    versions: dict[int, Object]
    proposals: dict[tuple[int, bytes], Object]  # by version and commit
    leads: dict[int, Object]
    stops: Sequence[tuple[int, bytes]] = ()  # commits that may have taken another's version, or lost their own

    @classmethod
    def of(cls, found: Collection[Object]) -> BranchListing:
        listed, stops = cls({}, {}, {}), list[tuple[int, bytes]]()
        for each in found:
            if (version := names.parse_version(each.name)) is not None:
                listed.versions[version] = each
            elif (proposal := names.parse_proposal(each.name)) is not None:
                listed.proposals[proposal] = each
            elif (led := names.parse_lead(each.name)) is not None:
                listed.leads[led] = each
            elif (stop := names.parse_stop(each.name)) is not None:
                stops.append(stop)
        return listed._replace(stops=stops)


class GroupCommitHistory(Protocol):
    """The history to which group commits are added: `DecidedCommits`."""

    def list_from(self, branch: str, version: int) -> BranchListing:
        """List the objects of a branch from a version on."""

    def read_file(self, branch: str, version: int) -> GroupCommitMember | None:
        """Return the commit in a version and its whole file."""

    def decided(self, found: Sequence[GroupCommitMember]) -> None:
        """Record the commits of a group commit, which follow the known commits."""

    def missing(self, branch: str, upto: int, there: Collection[int]) -> list[GroupCommitMember]:
        """Return decided commits up to a version whose files this process has not seen."""

    def first_unseen(self, branch: str) -> int:
        """Return the first version whose file this process has not seen."""


class GroupCommits:
    """Makes commits together with those of other committers."""

    def __init__(
        self,
        line: GroupCommitHistory,
        objects: ObjectStore,
        late_answers: LateAnswers | ObjectStore,
        confirm: Callable[[Stored], None],
        is_freed: Callable[[str, int], bool],
    ) -> None:
        """`is_freed` tells whether a vacuum may have freed a version of a branch.

        `confirm` raises `CommitUnknownError` if a new commit may have taken the version of another commit.
        """
        self._line = line
        self._confirm = confirm
        self._is_freed = is_freed
        self._objects = objects
        self._late_answers = late_answers
        # by branch: the last contested version, whose proposals may still exist
        self._last: dict[str, int] = {}

    def commit(self, content: bytes, mine: Stored, look: Look | None, *, is_led: bool) -> GroupCommitMember | None:
        """Make a commit together with others; return the resulting commit, or None if another commit has its version.

        `look` is the time when the version was free. `is_led`: another committer is about to take it as the leader.

        Raises `CommitUnknownError`. Any other `OSError` says that no commit was made.
        """
        header = mine.header
        branch, version = header.branch, header.version
        began = time.monotonic()
        leads = self._propose(proposal_of(content, mine), mine, is_led=is_led)
        trip = min(time.monotonic() - began, _LONGEST_TRIP)
        try:
            time.sleep(trip * _GATHERING)
            if leads and (made := self._lead(content, mine, trip)) is not None:
                return made
            patience, pause = _patience(trip), _UNDER_WAY
            # If a higher version exists, this version was taken, even if it is not listed (a vacuum may have freed it).
            while max((listed := self._look(branch, version)).versions, default=-1) < version:
                if time.monotonic() > patience:  # the leader has died, or makes no progress
                    if (made := self._lead(content, mine, trip)) is not None:
                        return made
                    patience = _patience(trip)
                else:
                    time.sleep(trip * random.uniform(*pause))
                    pause = _ARRIVING
            return self._settle(mine, listed, look, trip)
        except KeyboardInterrupt:
            _later(self._withdraw, mine)
            raise
        except (OSError, CorruptionError) as error:
            _later(self._withdraw, mine)
            # I3: the proposal may be in a group commit that this process has not seen.
            reason = f"it was proposed to the leader of version {version}, and its outcome can't be read ({error})"
            raise CommitUnknownError(header.id.hex(), reason=reason) from error

    def let_pass(self, branch: str, version: int) -> bool:
        """Wait for a group commit that is about to take a version; return whether any process has taken the version.

        A group commit needs a few round trips. A single committer needs one, and would always be faster.
        """
        began = heard = asked = time.monotonic()
        trip, top, proposals = _LONGEST_TRIP, version - 1, set[tuple[int, bytes]]()
        while asked - heard < _TRIPS_OF_A_GROUP_COMMIT * trip and asked - began < _LET_PASS * trip:
            listed = self._line.list_from(branch, max(version - BEHIND, 0))
            before, top = top, max(listed.versions, default=top)
            trip = min(trip, time.monotonic() - asked)
            # New proposals: their committers live, and have lost a version to a single committer.
            if not listed.proposals.keys() <= proposals:
                heard, proposals = asked, proposals | listed.proposals.keys()
            if top > before:
                found = self._line.read_file(branch, top)
                if found is not None and found.stored.header.group_commit is not None:
                    return True  # else a single committer took it, which had let the group pass before
            time.sleep(trip * random.uniform(*_ARRIVING))
            asked = time.monotonic()
        return top >= version

    def _propose(self, proposed: bytes, mine: Stored, *, is_led: bool) -> bool:
        """Write a proposal for the leader to find; return whether this process is the leader."""
        branch, version, commit_id = mine.header.branch, mine.header.version, mine.header.id

        def propose() -> OSError | None:
            try:
                self._objects.put(names.proposal_path(branch, version, commit_id), [proposed])
            except OSError as error:
                return error
            return None

        def lead() -> bool:
            try:
                self._objects.create(names.lead_path(branch, version), [commit_id])
            except OSError:
                return False
            return True

        requests: list[Callable[[], OSError | bool | None]] = [propose] if is_led else [propose, lead]
        refused, *leads = each_in_thread(operator.call, requests)
        try:
            if isinstance(refused, OSError) and is_refusal(refused):
                raise refused
        finally:
            del refused  # else the error and this frame refer to each other, and keep all calling frames
        return leads == [True]  # if the answer was lost, the proposal may exist: the version will show it

    def _withdraw(self, mine: Stored) -> None:
        """Delete the proposal: a caller that gets `CommitUnknownError` may soon repeat the work.

        A leader that has already read the proposal may still include it in a group commit.
        """
        with contextlib.suppress(OSError):
            self._objects.delete([names.proposal_path(mine.header.branch, mine.header.version, mine.header.id)])

    def _lead(self, content: bytes, mine: Stored, trip: float) -> GroupCommitMember | None:
        """Take the version as the leader. None if another commit has it."""
        branch, version = mine.header.branch, mine.header.version
        # List only recent proposals. A listing of many pages takes so long that another committer takes the version.
        low = min(self._line.first_unseen(branch), max(self._last.get(branch, version), version - BEHIND))
        self._last[branch] = version
        for _ in range(_YIELDS):
            look = Look.now()
            listed = self._line.list_from(branch, low)
            if max(listed.versions, default=-1) >= version:
                _later(self._sweep, branch, version - 1, listed)
                return None
            proposed = {who for at, who in listed.proposals if at == version}
            # The committers that lost the version below are about to propose again. The leader waits for them.
            # Otherwise a slightly faster committer could win every time.
            if {who for at, who in listed.proposals if at < version} <= proposed:
                break
            time.sleep(trip * 0.5)
        # T5: without this, there would be a gap below if all committers died now.
        self._await(branch, version - 1, listed.versions.keys(), trip)
        own = listed.proposals.get((version, mine.header.id))
        wanted = [
            proposal.name
            for (at, who), proposal in listed.proposals.items()
            if at == version and who != mine.header.id and proposal.size <= 2 * PROPOSED and _is_young(proposal, own)
        ]
        random.shuffle(wanted)
        directory = names.commits_directory(branch)
        found = each_in_thread(self._get, [f"{directory}/{name}" for name in wanted[: commitfile.MAX_GROUP_COMMIT]])
        chosen = fitting(content, mine, [proposal for proposal in found if proposal is not None])
        file, leader = join(content, mine, chosen) if chosen else (content, mine)
        group_commit = members(file, leader)
        if look.age > _AWAKE:
            return None  # this process was suspended: a vacuum may have deleted data packs of dead committers
        try:
            self._late_answers.create(leader.path, [file])
        except OSError as error:
            if is_refusal(error) and not isinstance(error, FileExistsError):
                raise
            return None  # the file may exist: the caller reads the version, or tries to create it again
        self._check_made(mine, look)
        self._line.decided(group_commit)
        there = self._follow(group_commit) | listed.versions.keys() | {version}
        self._await(branch, version, there, trip)
        _later(self._sweep, branch, version, listed)
        return group_commit[0]

    def _is_history(self, branch: str, version: int, look: Look | None) -> bool:
        """Tell whether a group commit is above the oldest kept version. `look` is the time when its version was free.

        If not, a committer may have taken the version after a vacuum freed it. No process writes commits after such a
        file: there may be versions that no commit ever took. If a vacuum passed a real group commit, that is complete.
        """
        return (look is not None and look.age < TRUSTED) or not self._is_freed(branch, version)

    def _check_made(self, mine: Stored, look: Look | None) -> None:
        """Raise an error if a vacuum has passed a group commit, or if another commit may have had its version."""
        if not self._is_history(mine.header.branch, mine.header.version, look):
            raise FileNotFoundError(f"version {mine.header.version} was freed by a vacuum")
        self._confirm(mine)

    def _follow(self, group_commit: Sequence[GroupCommitMember]) -> set[int]:
        """Write the files of the commits after the leader's; return the versions that then exist."""
        with contextlib.suppress(OSError):  # the committers write their own files, too
            self._put(group_commit[1:])
            return {each.stored.header.version for each in group_commit}
        return set()

    def _get(self, path: str) -> bytes | None:
        with contextlib.suppress(OSError):  # the proposal is gone: its committer will see that it was omitted
            return self._objects.get(path)
        return None

    def _settle(self, mine: Stored, listed: BranchListing, look: Look | None, trip: float) -> GroupCommitMember | None:
        """Read the file that took the version. It says whether this commit was made."""
        branch, version = mine.header.branch, mine.header.version
        group_commit = self.read(branch, version)
        if not group_commit:
            raise FileNotFoundError(f"version {version} was taken, and is empty again")
        if group_commit[0].stored.header.parent_id != mine.header.parent_id:
            raise CorruptionError(group_commit[0].stored.path, reason="it does not follow the commit below it")
        made = next((each for each in group_commit if each.stored.header.id == mine.header.id), None)
        if made is None:
            if self._is_history(branch, version, look):
                self._line.decided(group_commit)
            return None
        self._check_made(mine, look)
        self._line.decided(group_commit)
        # If this commit is the leader's, the server's answer was lost, and the files after it may be missing.
        there = self._follow(group_commit) if made is group_commit[0] else set()
        self._await(branch, made.stored.header.version, there | listed.versions.keys(), trip)
        return made

    def read(self, branch: str, version: int) -> list[GroupCommitMember]:
        """Return the commits that the file in a version decides, its own first. Empty if the version is free.

        Raises `CorruptionError`, `OSError`.
        """
        first = self._line.read_file(branch, version)
        return [] if first is None else decided(first.content, first.stored)

    def _put(self, group_commit: Sequence[GroupCommitMember]) -> None:
        """Write the files of decided commits that do not exist yet."""
        for _ in each_in_thread(self._put_one, group_commit):
            pass

    def _put_one(self, member: GroupCommitMember) -> None:
        with contextlib.suppress(FileExistsError):  # an existing file has the same bytes
            self._objects.create(member.stored.path, [member.content])

    def _await(self, branch: str, upto: int, there: Collection[int], trip: float) -> None:
        """Wait until the files of all commits up to a version exist, so that other processes find them."""
        patience = _patience(trip)
        while missing := self._line.missing(branch, upto, there):
            if time.monotonic() > patience:
                self._put(missing)
                patience = _patience(trip)
            else:
                time.sleep(trip * random.uniform(*_ARRIVING))
            there = self._look(branch, upto).versions.keys()

    def _look(self, branch: str, version: int) -> BranchListing:
        """List a branch from the first version that this process has not seen, or from `version` if that is lower."""
        return self._line.list_from(branch, min(self._line.first_unseen(branch), version))

    def _sweep(self, branch: str, version: int, listed: BranchListing) -> None:
        """Delete the proposals for a version that was taken, and for lower versions."""
        directory = names.commits_directory(branch)
        done = [proposal.name for (at, _), proposal in listed.proposals.items() if at <= version]
        done += [lead.name for at, lead in listed.leads.items() if at <= version]
        with contextlib.suppress(OSError):  # a vacuum does so, too
            self._objects.delete([f"{directory}/{name}" for name in done])

    def wait_for(self, branch: str, upto: int) -> None:
        """Wait until the files of all decided commits up to a version exist. Raises `OSError`."""
        began = time.monotonic()
        there = self._look(branch, upto).versions.keys()
        self._await(branch, upto, there, time.monotonic() - began)

    def complete(self, branch: str, first: int) -> None:
        """Write the missing commit files of a group commit whose leader died before it wrote them.

        Raises `OSError`.
        """
        group_commit = self.read(branch, first)
        if not self._is_freed(branch, first):  # else it was complete, or is not in the history
            self._put(group_commit[1:])


def _is_young(proposal: Object, own: Object | None) -> bool:
    """Tell, by the server's clock, whether the committer of a proposal may still wait for its outcome."""
    if own is None or own.modified is None or proposal.modified is None:
        return True
    return own.modified - proposal.modified <= _YOUNG


def _patience(trip: float) -> float:
    """Return the time until which to wait for others. It is random, so that not all stop waiting at once."""
    return time.monotonic() + max(_PATIENCE_SECONDS, _PATIENCE_TRIPS * trip) * random.uniform(1.0, 2.0)


def _later(function: Callable[..., None], *arguments: object) -> None:
    """Call a function in the background."""
    with contextlib.suppress(RuntimeError):  # the interpreter ends and starts no threads: a vacuum does this instead
        executor("sweep", 2).submit(function, *arguments)
