"""Several commits in one trip, on an object store: the group commit.

One request takes a version, so of the committers that meet at a version all but one would have to try again. Committers
that have lost a version write *proposals* instead: files beside one another, each valid for one version. One committer,
the leader, takes the version for all: the file that it creates holds the proposals, and so decides the commits of the
versions that follow, too. Every reader of that file can derive each byte of these commits, and put them in their
places. No process puts anything else there.

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
from txstore.storage.late_answers import Creator
from txstore.storage.objects.errors import is_refusal
from txstore.storage.objects.interface import Object, ObjectStore
from txstore.storage.request_threads import each_in_thread, executor

#: A commit file up to this length can be proposed: more is not collected by one who works for all.
PROPOSED = 64 << 10
#: Bytes of all proposals of one group commit together, at most.
_GROUP_COMMIT_BYTES = 1 << 20
#: Runs that a header lists behind a group commit, at most: the rest is left to committers that can't merge.
_MOST_RUNS = commitfile.MAX_RUNS // 2
#: Round trips for which the leader waits for proposals. The others look then, too: a committer that comes late can
#: still propose to the next group. Then they wait for the group commit, and look more often when it is about to arrive.
_GATHERING, _UNDER_WAY, _ARRIVING = 1.0, (1.0, 2.0), (0.3, 1.0)
#: Times, at most, that the leader looks for the committers that lost the version below.
_YIELDS = 3
#: Seconds after which a proposal is left out: its committer has died, or has raised `CommitUnknownError`.
_YOUNG = 30.0
#: Seconds, at most, from the leader's look at the proposals to its request: far less than staged data is kept for.
_AWAKE = 300.0
#: Seconds, by the committer's clock. A version that was free this long ago was not freed by a vacuum (I10): a vacuum
#: deletes no commit until it has existed for twice as long.
TRUSTED = 5.0
#: Seconds: what a round trip takes is measured, with all that a process may have been held up by.
_LONGEST_TRIP = 0.5
#: Round trips that a group commit takes at most, with the requests that its committers have made in vain before.
_TRIPS_OF_A_GROUP_COMMIT = 12
#: Round trips, at most, for which a committer on its own lets others pass while they go on to propose.
_LET_PASS = 60
#: What they propose may be for versions so far below: each learns of what was taken a trip or two later.
BEHIND = 16
#: Seconds, and round trips, before another process leads, or puts missing commits in their places.
_PATIENCE_SECONDS, _PATIENCE_TRIPS = 1.0, 20


class GroupCommitMember(NamedTuple):
    """One commit of a group commit, with its file."""

    stored: Stored
    content: bytes


class NoGroupCommitError(Exception):
    """What is proposed, or is in a version, is not what makes a group commit."""


# --- bytes


def join(content: bytes, leader: Stored, proposals: Sequence[bytes]) -> tuple[bytes, Stored]:
    """Return the file that decides the commits of some proposals behind a commit that has a file of its own."""
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
    """Return as much of a commit file as its commit needs behind any other one: its own frames and its own run.

    Not a compaction output that it would install: the runs are those of the commit before it.
    """
    header, compaction_outputs = mine.header, mine.header.compaction_outputs
    packs = tuple([pack for pack in header.packs if pack.name not in compaction_outputs])
    own = header.sections[0]
    end = own.offset + own.length + -own.length % 8
    return _file(content[:end], replace(header, sections=(own,), runs=header.runs[:1], packs=packs), mine)[0]


def members(content: bytes, leader: Stored) -> list[GroupCommitMember]:
    """Return the commits that a file has decided, its own first. Raises `NoGroupCommitError`."""
    found, group_commit = [GroupCommitMember(leader, content)], leader.header.group_commit
    if group_commit is not None:
        for proposal in _proposals_in(content, leader.header, group_commit):
            found.append(couple(found[-1].stored, proposal, GroupCommit(len(found), group_commit.length)))
    return found


def _proposals_in(content: bytes, header: Header, group_commit: GroupCommit) -> Iterator[bytes]:
    sections = [each for each in header.sections if each.kind == commitfile.SECTION_GROUP_COMMIT]
    if group_commit.place or len(sections) != 1:
        raise NoGroupCommitError("this file does not decide what follows")
    reader = encoding.Reader(content[sections[0].offset : sections[0].offset + sections[0].length])
    try:
        if reader.varint() != group_commit.length - 1:
            raise NoGroupCommitError("the file has not as many proposals as it says")
        for _ in range(group_commit.length - 1):
            yield reader.take(reader.varint())
    except encoding.MalformedError as error:
        raise NoGroupCommitError(error.reason) from error


def couple(before: Stored, proposal: bytes, group_commit: GroupCommit) -> GroupCommitMember:
    """Return the commit that a proposal becomes behind another one: the same for everybody who works it out.

    Raises `NoGroupCommitError` if the proposal is none.
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
    """Return a commit file, given what it has before its header."""
    encoded = header.encode()
    total = len(content) + len(encoded) + commitfile.FOOTER_SIZE
    footer = Footer(len(encoded), len(content), total, header.id, encoding.crc32c(encoded))
    stored = Stored(header, footer, commitfile.header_hash(encoded), like.branch_name)
    return content + encoded + footer.encode(), stored


def _header_of(proposal: bytes) -> tuple[Header, int]:
    """Return the header of a proposal, and where its own run ends. Raises `NoGroupCommitError`."""
    try:
        footer = Footer.decode(proposal[-commitfile.FOOTER_SIZE :])
        encoded = proposal[footer.header_offset : footer.header_offset + footer.header_length]
        if footer.file_length != len(proposal) or encoding.crc32c(encoded) != footer.header_checksum:
            raise NoGroupCommitError("this is no commit file")
        header = Header.decode(encoded)
        header.check_placed(footer.header_offset)
    except encoding.MalformedError as error:
        raise NoGroupCommitError(error.reason) from error
    own = next(iter(header.sections), None)
    run = next(iter(header.runs), None)
    if (
        own is None
        or run is None
        or run.pack is not None
        or (run.offset, run.length) != (own.offset, own.length)
        or own.kind != commitfile.SECTION_RUN
    ):
        raise NoGroupCommitError("it has no run of its own")
    is_bound = header.constraints or header.merged or header.fork or header.reach or header.group_commit
    if is_bound or header.id != footer.pack_id:
        raise NoGroupCommitError("it can't follow another commit than its own parent")
    return header, min(own.offset + own.length + -own.length % 8, footer.header_offset)


class Touched(NamedTuple):
    """What a commit sets."""

    keys: set[str]
    nodes: set[str]  # the prefixes of all keys of the nodes whose documents are among them

    def is_apart_from(self, other: Touched) -> bool:
        """Tell whether neither sets what the other one sets, or anything of a node that the other one changes."""
        return self.keys.isdisjoint(other.keys) and not self._is_below(other) and not other._is_below(self)

    def _is_below(self, other: Touched) -> bool:
        return bool(other.nodes) and any(not other.nodes.isdisjoint(covering_prefixes(key)) for key in self.keys)


def touched_by(proposal: bytes) -> Touched:
    """Return what a proposal sets. Raises `NoGroupCommitError` if it does anything else."""
    header, _ = _header_of(proposal)
    own = header.sections[0]
    try:
        run = index.Run(proposal[own.offset : own.offset + own.length], header.seq)
        found = run.scan(b"", None, -1, 0)
        if run.prefixes or not all(kind in packfile.FRAME_OF_REF for _, kind, *_ in found):
            raise NoGroupCommitError("it does more than to set keys")
        keys = {entry[0].decode() for entry in found}
    except ValueError as error:
        raise NoGroupCommitError(str(error)) from error
    return Touched(keys, {next(covering_prefixes(key)) for key in keys if is_document(key)})


def fitting(mine: bytes, leader: Stored, proposals: Sequence[bytes]) -> list[bytes]:
    """Return those proposals that were made for a leader's version and touch nothing that another one touches."""
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
    """When it was looked for what there is of a branch."""

    monotonic: float
    wall: float

    @classmethod
    def now(cls) -> Look:
        return cls(time.monotonic(), time.time())

    @property
    def age(self) -> float:
        """Seconds since then: one of the clocks may have stood still, or been set back."""
        return max(time.monotonic() - self.monotonic, time.time() - self.wall)


class BranchListing(NamedTuple):
    """What a listing of a branch from some version on has shown."""

    versions: dict[int, Object]
    proposals: dict[tuple[int, bytes], Object]  # by version and commit
    leads: dict[int, Object]
    tickets: dict[tuple[int, bytes], Object]  # by the version at which each was drawn, and the commit that it is for
    stops: Sequence[tuple[int, bytes]] = ()  # commits that may have taken another's version, or lost their own

    @classmethod
    def of(cls, found: Collection[Object]) -> BranchListing:
        listed, stops = cls({}, {}, {}, {}), list[tuple[int, bytes]]()
        for each in found:
            if (version := names.parse_version(each.name)) is not None:
                listed.versions[version] = each
            elif (proposal := names.parse_proposal(each.name)) is not None:
                listed.proposals[proposal] = each
            elif (led := names.parse_lead(each.name)) is not None:
                listed.leads[led] = each
            elif (ticket := names.parse_ticket(each.name)) is not None:
                listed.tickets[ticket] = each
            elif (stop := names.parse_stop(each.name)) is not None:
                stops.append(stop)
        return listed._replace(stops=stops)


class GroupCommitHistory(Protocol):
    """The history that group commits are put into: `DecidedCommits`."""

    def list_from(self, branch: str, version: int) -> BranchListing:
        """Return what there is of a branch from a version on."""

    def read_file(self, branch: str, version: int) -> GroupCommitMember | None:
        """Return the commit in a version and its whole file."""

    def decided(self, found: Sequence[GroupCommitMember]) -> None:
        """Note the commits of a group commit, which follow the known ones."""

    def missing(self, branch: str, upto: int, there: Collection[int]) -> list[GroupCommitMember]:
        """Return the commits up to a version that were decided, and are not in their places as far as is known."""

    def first_unseen(self, branch: str) -> int:
        """Return the first version that is not known to be in its place."""


class Proof(Protocol):
    """Whether the server creates objects exclusively."""

    def confirm(self, stored: Stored) -> None:
        """Raise `CommitUnknownError` if a commit that was just made may have taken another's place."""


class GroupCommits:
    """Makes commits together with others."""

    def __init__(
        self,
        line: GroupCommitHistory,
        objects: ObjectStore,
        late_answers: Creator,
        proof: Proof,
        is_freed: Callable[[str, int], bool],
    ) -> None:
        """`is_freed` tells whether a vacuum may have freed a version of a branch."""
        self._line = line
        self._proof = proof
        self._is_freed = is_freed
        self._objects = objects
        self._late_answers = late_answers
        # by branch: the last version that was fought for, whose proposals may lie about
        self._last: dict[str, int] = {}

    def commit(self, content: bytes, mine: Stored, look: Look | None, *, is_led: bool) -> GroupCommitMember | None:
        """Make a commit together with others; return it as it was made, None if its version is another's.

        `look`: when its version was seen to be free. `is_led`: somebody else is about to take it for all.

        Raises `CommitUnknownError`; any other `OSError` says that nothing was made.
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
            # What lies above says that it was taken, or was taken and freed, where it is not listed itself.
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
        """Wait for a group commit that is about to take a version; return whether the version is taken, by any process.

        They need a few trips for that. Who takes versions alone needs one, and would always be faster.
        """
        began = heard = asked = time.monotonic()
        trip, top, proposals = _LONGEST_TRIP, version - 1, set[tuple[int, bytes]]()
        while asked - heard < _TRIPS_OF_A_GROUP_COMMIT * trip and asked - began < _LET_PASS * trip:
            listed = self._line.list_from(branch, max(version - BEHIND, 0))
            before, top = top, max(listed.versions, default=top)
            trip = min(trip, time.monotonic() - asked)
            # they live, and were refused a version by others who are alone
            if not listed.proposals.keys() <= proposals:
                heard, proposals = asked, proposals | listed.proposals.keys()
            if top > before:
                found = self._line.read_file(branch, top)
                if found is not None and found.stored.header.group_commit is not None:
                    return True  # else the committer there has let them pass before
            time.sleep(trip * random.uniform(*_ARRIVING))
            asked = time.monotonic()
        return top >= version

    def _propose(self, proposed: bytes, mine: Stored, *, is_led: bool) -> bool:
        """Put a file where the leader finds it; return whether that is this process."""
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
            del refused  # else it and this frame, with all that have called it, would hold one another
        return leads == [True]  # a proposal whose answer was lost may be there: its version will say

    def _withdraw(self, mine: Stored) -> None:
        """Take back what was proposed: who is told that nothing is known may do the work again, and soon.

        A leader that has read the proposal may put it into a group commit all the same.
        """
        with contextlib.suppress(OSError):
            self._objects.delete([names.proposal_path(mine.header.branch, mine.header.version, mine.header.id)])

    def _lead(self, content: bytes, mine: Stored, trip: float) -> GroupCommitMember | None:
        """Take the version for all; None if another has it."""
        branch, version = mine.header.branch, mine.header.version
        # Not all that was ever proposed in vain: many pages take so long that the version is another's by then.
        low = min(self._line.first_unseen(branch), max(self._last.get(branch, version), version - BEHIND))
        self._last[branch] = version
        for _ in range(_YIELDS):
            look = Look.now()
            listed = self._line.list_from(branch, low)
            if max(listed.versions, default=-1) >= version:
                _later(self._sweep, branch, version - 1, listed)
                return None
            proposed = {who for at, who in listed.proposals if at == version}
            # The committers that lost the version below are about to propose again. The leader waits for them, or one
            # that is a little faster could win for ever.
            if {who for at, who in listed.proposals if at < version} <= proposed:
                break
            time.sleep(trip * 0.5)
        # T5: else, if all died now, there would be a gap below.
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
            return None  # it was suspended: a vacuum may have deleted data packs of committers that have died since
        try:
            self._late_answers.create(leader.path, [file])
        except OSError as error:
            if is_refusal(error) and not isinstance(error, FileExistsError):
                raise
            return None  # it may be there: the version is read, or proposed again, which is to create it or not
        self._check_made(mine, look)
        self._line.decided(group_commit)
        there = self._follow(group_commit) | listed.versions.keys() | {version}
        self._await(branch, version, there, trip)
        _later(self._sweep, branch, version, listed)
        return group_commit[0]

    def _is_history(self, branch: str, version: int, look: Look | None) -> bool:
        """Tell whether a group commit is one that no vacuum has passed. `look`: when its version was free.

        Else the version may have been taken when a vacuum had freed it. Nothing is put behind that: there may be
        versions that never were taken. A group commit that a vacuum has passed since is complete.
        """
        return (look is not None and look.age < TRUSTED) or not self._is_freed(branch, version)

    def _check_made(self, mine: Stored, look: Look | None) -> None:
        """Raise an error if a vacuum has passed a group commit, or if another commit may have had its version."""
        if not self._is_history(mine.header.branch, mine.header.version, look):
            raise FileNotFoundError(f"version {mine.header.version} was freed by a vacuum")
        self._proof.confirm(mine)

    def _follow(self, group_commit: Sequence[GroupCommitMember]) -> set[int]:
        """Put what follows a leader in its place; return what is there then."""
        with contextlib.suppress(OSError):  # those whose commits they are do so, too
            self._put(group_commit[1:])
            return {each.stored.header.version for each in group_commit}
        return set()

    def _get(self, path: str) -> bytes | None:
        with contextlib.suppress(OSError):  # it went meanwhile: its committer will see that it was left out
            return self._objects.get(path)
        return None

    def _settle(self, mine: Stored, listed: BranchListing, look: Look | None, trip: float) -> GroupCommitMember | None:
        """Read what has taken the version, which says whether a commit was made."""
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
        # The answer to the one who leads may have been lost.
        there = self._follow(group_commit) if made is group_commit[0] else set()
        self._await(branch, made.stored.header.version, there | listed.versions.keys(), trip)
        return made

    def read(self, branch: str, version: int) -> list[GroupCommitMember]:
        """Return the commits that the file in a version has decided, its own first; none if the version is free.

        Raises `CorruptionError`, `OSError`.
        """
        first = self._line.read_file(branch, version)
        if first is None:
            return []
        try:
            return members(first.content, first.stored)
        except NoGroupCommitError as error:
            raise CorruptionError(first.stored.path, reason=str(error)) from error

    def _put(self, group_commit: Sequence[GroupCommitMember]) -> None:
        """Put commits that were decided in their places, where they are not there yet."""
        for _ in each_in_thread(self._put_one, group_commit):
            pass

    def _put_one(self, member: GroupCommitMember) -> None:
        with contextlib.suppress(FileExistsError):  # no process puts anything else there
            self._objects.create(member.stored.path, [member.content])

    def _await(self, branch: str, upto: int, there: Collection[int], trip: float) -> None:
        """Return when all commits up to a version are in their places, where others look for them."""
        patience = _patience(trip)
        while missing := self._line.missing(branch, upto, there):
            if time.monotonic() > patience:
                self._put(missing)
                patience = _patience(trip)
            else:
                time.sleep(trip * random.uniform(*_ARRIVING))
            there = self._look(branch, upto).versions.keys()

    def _look(self, branch: str, version: int) -> BranchListing:
        """List a branch from the first version on that is not known to be in its place, or from a lower one."""
        return self._line.list_from(branch, min(self._line.first_unseen(branch), version))

    def _sweep(self, branch: str, version: int, listed: BranchListing) -> None:
        """Delete the proposals for a version that was taken, and for those below."""
        directory = names.commits_directory(branch)
        done = [proposal.name for (at, _), proposal in listed.proposals.items() if at <= version]
        done += [lead.name for at, lead in listed.leads.items() if at <= version]
        with contextlib.suppress(OSError):  # a vacuum does so, too
            self._objects.delete([f"{directory}/{name}" for name in done])

    def wait_for(self, branch: str, upto: int) -> None:
        """Return when all commits up to a version that were decided are in their places. Raises `OSError`."""
        began = time.monotonic()
        there = self._look(branch, upto).versions.keys()
        self._await(branch, upto, there, time.monotonic() - began)

    def complete(self, branch: str, first: int) -> None:
        """Put the commits of a group commit in their places whose leader has died before it has done so.

        Raises `OSError`.
        """
        group_commit = self.read(branch, first)
        if not self._is_freed(branch, first):  # else it was complete, or is outside of history
            self._put(group_commit[1:])


def _is_young(proposal: Object, own: Object | None) -> bool:
    """Tell whether the committer of a proposal may still wait for its outcome, by the server's clock."""
    if own is None or own.modified is None or proposal.modified is None:
        return True
    return own.modified - proposal.modified <= _YOUNG


def _patience(trip: float) -> float:
    """Return until when others are waited for: not all lose their patience at once."""
    return time.monotonic() + max(_PATIENCE_SECONDS, _PATIENCE_TRIPS * trip) * random.uniform(1.0, 2.0)


def _later(function: Callable[..., None], *arguments: object) -> None:
    """Call a function in the background."""
    with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads: a vacuum does it
        executor("sweep", 2).submit(function, *arguments)
