"""Several commits in one trip, on an object store: the train.

A slot is taken by one request, so of those who meet at a slot all but one would have to try again. Those who have lost
one put their files beside one another instead: *offers*, which are good for one slot. One of them takes it for all: the
file that it creates there holds the offers, and so decides the commits of the slots that follow, too. Whoever reads it
can tell each byte of theirs, and put them in their places: nobody puts anything else there.

`docs/understand/remote-design.md`, "Trains", says why each commit is made exactly once.
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
from txstore.errors import CommitUnknownError, CorruptionError
from txstore.format import commitfile, encoding, names, packfile
from txstore.format.commitfile import Footer, Header, RunName, Section, Train
from txstore.format.keys import covering_prefixes, is_document
from txstore.history.commit import Stored
from txstore.history.runs import names_of
from txstore.storage.late_answers import LateAnswers
from txstore.storage.objects.errors import is_refusal
from txstore.storage.objects.interface import Object, ObjectStore
from txstore.storage.request_threads import each_in_thread, executor

#: A commit file up to this length can be offered: more is not collected by one who works for all.
OFFERED = 64 << 10
#: The offers of one train have so many bytes together, at most.
_TRAIN_BYTES = 1 << 20
#: A header lists so many runs, at most, behind a train: what is left is for those who can't merge.
_MOST_RUNS = commitfile.MAX_RUNS // 2
#: How many round trips whoever leads waits for offers. Others look then, too: who has come late can still offer to the
#: next one. Then they wait for the train, and look more often when it is about to arrive.
_GATHERING, _UNDER_WAY, _ARRIVING = 1.0, (1.0, 2.0), (0.3, 1.0)
#: So often, at most, whoever leads looks whether those have come who have wanted the slot below.
_YIELDS = 3
#: Seconds after which an offer is left out: whoever has made it has died, or was told that nothing is known of it.
_YOUNG = 30.0
#: Seconds from its look at the offers until whoever leads asks for the slot: far less than what is staged is kept for.
_AWAKE = 300.0
#: A slot that was free so many seconds ago, by the committer's clock, is no slot that a vacuum has freed (I10): that
#: deletes no commit until it has stood for twice as long.
TRUSTED = 5.0
#: Seconds: what a round trip takes is measured, with all that a process may have been held up by.
_LONGEST_TRIP = 0.5
#: So many round trips a train takes at most, together with what those in it have asked for in vain before.
_TRIPS_OF_A_TRAIN = 12
#: Whoever is alone lets others pass for so many round trips, at most, while they go on to offer.
_LET_PASS = 60
#: What they offer may be for slots so far below: each learns of what was taken a trip or two later.
BEHIND = 16
#: So many seconds, and round trips, pass before somebody else leads, or puts what is missing in its place.
_PATIENCE_SECONDS, _PATIENCE_TRIPS = 1.0, 20


class TrainMember(NamedTuple):
    """One commit of a train, with its file."""

    stored: Stored
    content: bytes


class NoTrainError(Exception):
    """What is offered, or is in a slot, is not what makes a train."""


# --- bytes


def join(content: bytes, leader: Stored, offers: Sequence[bytes]) -> tuple[bytes, Stored]:
    """Return the file that decides the commits of some offers behind a commit that has a file of its own."""
    start = leader.footer.header_offset
    section = b"".join(encoding.encode_varint(len(offer)) + offer for offer in offers)
    section = encoding.encode_varint(len(offers)) + section
    padded = section + bytes(-len(section) % 8)
    header = replace(
        leader.header,
        sections=(*leader.header.sections, Section(commitfile.SECTION_TRAIN, start, len(section))),
        train=Train(0, len(offers) + 1),
    )
    return _file(content[:start] + padded, header, leader)


def offer_of(content: bytes, mine: Stored) -> bytes:
    """Return as much of a commit file as its commit needs behind any other one: its own frames and its own run.

    Not a run pack that it would adopt: the runs are those of the commit before it.
    """
    header, run_packs = mine.header, mine.header.run_packs
    packs = tuple([pack for pack in header.packs if pack.name not in run_packs])
    own = header.sections[0]
    end = own.offset + own.length + -own.length % 8
    return _file(content[:end], replace(header, sections=(own,), runs=header.runs[:1], packs=packs), mine)[0]


def members(content: bytes, leader: Stored) -> list[TrainMember]:
    """Return the commits that a file has decided, its own first. Raises `NoTrainError`."""
    found, train = [TrainMember(leader, content)], leader.header.train
    if train is not None:
        for offer in _offers_in(content, leader.header, train):
            found.append(couple(found[-1].stored, offer, Train(len(found), train.length)))
    return found


def _offers_in(content: bytes, header: Header, train: Train) -> Iterator[bytes]:
    sections = [each for each in header.sections if each.kind == commitfile.SECTION_TRAIN]
    if train.place or len(sections) != 1:
        raise NoTrainError("this file does not decide what follows")
    reader = encoding.Reader(content[sections[0].offset : sections[0].offset + sections[0].length])
    try:
        if reader.varint() != train.length - 1:
            raise NoTrainError("the file has not as many offers as it says")
        for _ in range(train.length - 1):
            yield reader.take(reader.varint())
    except encoding.MalformedError as error:
        raise NoTrainError(error.reason) from error


def couple(before: Stored, offer: bytes, train: Train) -> TrainMember:
    """Return the commit that an offer becomes behind another one: the same for everybody who works it out.

    Raises `NoTrainError` if the offer is none.
    """
    header, end = _header_of(offer)
    own = header.sections[0]
    parent = before.header
    slot, seq, floor = before.next
    runs = (
        RunName(None, seq, own.offset, own.length, header.runs[0].entries, seq),
        *names_of(parent.runs, parent.name),
    )
    new = replace(
        header,
        parent_id=parent.id,
        parent_hash=before.hash,
        slot=slot,
        seq=seq,
        floor=floor,
        time=max(header.time, parent.time + 1),
        required=header.required | parent.required,
        sections=(own,),
        runs=runs,
        train=train,
    )
    content, stored = _file(offer[:end], new, before)
    return TrainMember(stored, content)


def _file(content: bytes, header: Header, like: Stored) -> tuple[bytes, Stored]:
    """Return a commit file, given what it has before its header."""
    encoded = header.encode()
    total = len(content) + len(encoded) + commitfile.FOOTER_SIZE
    footer = Footer(len(encoded), len(content), total, header.id, encoding.crc32c(encoded))
    stored = Stored(header, footer, commitfile.header_hash(encoded), like.branch_name)
    return content + encoded + footer.encode(), stored


def _header_of(offer: bytes) -> tuple[Header, int]:
    """Return the header of an offer, and where its own run ends. Raises `NoTrainError`."""
    try:
        footer = Footer.decode(offer[-commitfile.FOOTER_SIZE :])
        encoded = offer[footer.header_offset : footer.header_offset + footer.header_length]
        if footer.file_length != len(offer) or encoding.crc32c(encoded) != footer.header_checksum:
            raise NoTrainError("this is no commit file")
        header = Header.decode(encoded)
        header.check_placed(footer.header_offset)
    except encoding.MalformedError as error:
        raise NoTrainError(error.reason) from error
    own = next(iter(header.sections), None)
    run = next(iter(header.runs), None)
    if (
        own is None
        or run is None
        or run.pack is not None
        or (run.offset, run.length) != (own.offset, own.length)
        or own.kind != commitfile.SECTION_RUN
    ):
        raise NoTrainError("it has no run of its own")
    is_bound = header.constraints or header.merged or header.fork or header.reach or header.train
    if is_bound or header.id != footer.pack_id:
        raise NoTrainError("it can't follow another commit than its own parent")
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


def touched_by(offer: bytes) -> Touched:
    """Return what an offer sets. Raises `NoTrainError` if it does anything else."""
    header, _ = _header_of(offer)
    own = header.sections[0]
    try:
        run = index.Run(offer[own.offset : own.offset + own.length], header.seq)
        found = run.scan(b"", None, -1, 0)
        if run.prefixes or not all(kind in packfile.FRAME_OF_REF for _, kind, *_ in found):
            raise NoTrainError("it does more than to set keys")
        keys = {entry[0].decode() for entry in found}
    except ValueError as error:
        raise NoTrainError(str(error)) from error
    return Touched(keys, {next(covering_prefixes(key)) for key in keys if is_document(key)})


def fitting(mine: bytes, leader: Stored, offers: Sequence[bytes]) -> list[bytes]:
    """Return those offers that were made for a leader's slot and touch nothing that another one touches."""
    taken, ids, chosen = [touched_by(mine)], {leader.header.id}, list[bytes]()
    room = _TRAIN_BYTES
    for offer in offers:
        try:
            header, _ = _header_of(offer)
            touched = touched_by(offer)
        except NoTrainError:
            continue
        is_for_it = (
            header.repository_id == leader.header.repository_id
            and header.branch == leader.header.branch
            and header.slot == leader.header.slot
            and (header.parent_id, header.parent_hash) == (leader.header.parent_id, leader.header.parent_hash)
        )
        is_full = (
            len(chosen) + 2 > commitfile.MAX_TRAIN
            or len(offer) > room
            or len(leader.header.runs) + len(chosen) + 1 > _MOST_RUNS
        )
        if not is_for_it or is_full or header.id in ids or not all(map(touched.is_apart_from, taken)):
            continue
        chosen.append(offer)
        taken.append(touched)
        ids.add(header.id)
        room -= len(offer)
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
    """What a listing of a branch from some slot on has shown."""

    slots: dict[int, Object]
    offers: dict[tuple[int, bytes], Object]  # by slot and commit
    leads: dict[int, Object]
    tickets: dict[tuple[int, bytes], Object]  # by the slot at which each was drawn, and the commit that it is for
    stops: Sequence[tuple[int, bytes]] = ()  # commits that may have taken another's slot, or lost their own

    @classmethod
    def of(cls, found: Collection[Object]) -> BranchListing:
        listed, stops = cls({}, {}, {}, {}), list[tuple[int, bytes]]()
        for each in found:
            if (slot := names.parse_slot(each.name)) is not None:
                listed.slots[slot] = each
            elif (offer := names.parse_offer(each.name)) is not None:
                listed.offers[offer] = each
            elif (led := names.parse_lead(each.name)) is not None:
                listed.leads[led] = each
            elif (ticket := names.parse_ticket(each.name)) is not None:
                listed.tickets[ticket] = each
            elif (stop := names.parse_stop(each.name)) is not None:
                stops.append(stop)
        return listed._replace(stops=stops)


class TrainHistory(Protocol):
    """The history that trains are put into: `RemoteCommits`."""

    def list_from(self, branch: str, slot: int) -> BranchListing:
        """Return what there is of a branch from a slot on."""

    def read_file(self, branch: str, slot: int) -> TrainMember | None:
        """Return the commit in a slot and its whole file."""

    def decided(self, found: Sequence[TrainMember]) -> None:
        """Note the commits of a train, which follow those that are known."""

    def missing(self, branch: str, upto: int, there: Collection[int]) -> list[TrainMember]:
        """Return the commits up to a slot that were decided, and are not in their places as far as is known."""

    def first_unseen(self, branch: str) -> int:
        """Return the first slot that is not known to be in its place."""

    def is_below_floor(self, branch: str, slot: int) -> bool:
        """Tell whether a vacuum may have freed a slot."""

    def confirm(self, stored: Stored) -> None:
        """Raise `CommitUnknownError` if a commit that was just made may have taken another's place."""


class Trains:
    """Makes commits together with others."""

    def __init__(self, line: TrainHistory, objects: ObjectStore, late_answers: LateAnswers) -> None:
        self._line = line
        self._objects = objects
        self._late_answers = late_answers
        self._last: dict[str, int] = {}  # by branch: the last slot that was fought for, whose offers may lie about

    def commit(self, content: bytes, mine: Stored, look: Look | None, *, is_led: bool) -> TrainMember | None:
        """Make a commit together with others; return it as it was made, None if its slot is another's.

        `look`: when its slot was seen to be free. `is_led`: somebody else is about to take it for all.

        Raises `CommitUnknownError`; any other `OSError` says that nothing was made.
        """
        header = mine.header
        branch, slot = header.branch, header.slot
        began = time.monotonic()
        leads = self._offer(offer_of(content, mine), mine, is_led=is_led)
        trip = min(time.monotonic() - began, _LONGEST_TRIP)
        try:
            time.sleep(trip * _GATHERING)
            if leads and (made := self._lead(content, mine, trip)) is not None:
                return made
            patience, pause = _patience(trip), _UNDER_WAY
            # What lies above says that it was taken, or was taken and freed, where it is not listed itself.
            while max((listed := self._look(branch, slot)).slots, default=-1) < slot:
                if time.monotonic() > patience:  # whoever leads has died, or can't get on
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
            # I3: the offer may be in a train that this process has not seen.
            reason = f"it was offered to whoever takes slot {slot}, and what came of it can't be read ({error})"
            raise CommitUnknownError(header.id.hex(), reason=reason) from error

    def let_pass(self, branch: str, slot: int) -> bool:
        """Wait for those who are about to take a slot together; return whether that is taken, by whomever.

        They need a few trips for that. Who takes slots alone needs one, and would always be faster.
        """
        began = heard = asked = time.monotonic()
        trip, top, offers = _LONGEST_TRIP, slot - 1, set[tuple[int, bytes]]()
        while asked - heard < _TRIPS_OF_A_TRAIN * trip and asked - began < _LET_PASS * trip:
            listed = self._line.list_from(branch, max(slot - BEHIND, 0))
            before, top = top, max(listed.slots, default=top)
            trip = min(trip, time.monotonic() - asked)
            if not listed.offers.keys() <= offers:  # they live, and were refused a slot by others who are alone
                heard, offers = asked, offers | listed.offers.keys()
            if top > before:
                found = self._line.read_file(branch, top)
                if found is not None and found.stored.header.train is not None:
                    return True  # else whoever is there has let them pass before
            time.sleep(trip * random.uniform(*_ARRIVING))
            asked = time.monotonic()
        return top >= slot

    def _offer(self, offered: bytes, mine: Stored, *, is_led: bool) -> bool:
        """Put a file where whoever leads finds it; return whether that is this process."""
        branch, slot, commit_id = mine.header.branch, mine.header.slot, mine.header.id

        def offer() -> OSError | None:
            try:
                self._objects.put(names.offer_path(branch, slot, commit_id), [offered])
            except OSError as error:
                return error
            return None

        def lead() -> bool:
            try:
                self._objects.create(names.lead_path(branch, slot), [commit_id])
            except OSError:
                return False
            return True

        requests: list[Callable[[], OSError | bool | None]] = [offer] if is_led else [offer, lead]
        refused, *leads = each_in_thread(operator.call, requests)
        try:
            if isinstance(refused, OSError) and is_refusal(refused):
                raise refused
        finally:
            del refused  # else it and this frame, with all that have called it, would hold one another
        return leads == [True]  # an offer whose answer was lost may be there: its slot will say

    def _withdraw(self, mine: Stored) -> None:
        """Take back what was offered: who is told that nothing is known may do the work again, and soon.

        A leader that has read the offer may put it into a train all the same.
        """
        with contextlib.suppress(OSError):
            self._objects.delete([names.offer_path(mine.header.branch, mine.header.slot, mine.header.id)])

    def _lead(self, content: bytes, mine: Stored, trip: float) -> TrainMember | None:
        """Take the slot for all; None if another has it."""
        branch, slot = mine.header.branch, mine.header.slot
        # Not all that was ever offered in vain: many pages take so long that the slot is another's by then.
        low = min(self._line.first_unseen(branch), max(self._last.get(branch, slot), slot - BEHIND))
        self._last[branch] = slot
        for _ in range(_YIELDS):
            look = Look.now()
            listed = self._line.list_from(branch, low)
            if max(listed.slots, default=-1) >= slot:
                _later(self._sweep, branch, slot - 1, listed)
                return None
            offered = {who for at, who in listed.offers if at == slot}
            # Those who have wanted the slot below in vain are about to offer again: else one could win for ever who is
            # a little faster than they are.
            if {who for at, who in listed.offers if at < slot} <= offered:
                break
            time.sleep(trip * 0.5)
        # T5: else, if all died now, there would be a gap below.
        self._await(branch, slot - 1, listed.slots.keys(), trip)
        own = listed.offers.get((slot, mine.header.id))
        wanted = [
            offer.name
            for (at, who), offer in listed.offers.items()
            if at == slot and who != mine.header.id and offer.size <= 2 * OFFERED and _is_young(offer, own)
        ]
        random.shuffle(wanted)
        directory = names.commits_directory(branch)
        found = each_in_thread(self._get, [f"{directory}/{name}" for name in wanted[: commitfile.MAX_TRAIN]])
        chosen = fitting(content, mine, [offer for offer in found if offer is not None])
        file, leader = join(content, mine, chosen) if chosen else (content, mine)
        train = members(file, leader)
        if look.age > _AWAKE:
            return None  # it has slept: of the data packs of those who have died since, a vacuum may have deleted some
        try:
            self._late_answers.create(leader.path, [file])
        except OSError as error:
            if is_refusal(error) and not isinstance(error, FileExistsError):
                raise
            return None  # it may be there: the slot is read, or offered again, which is to create it or not
        self._check_made(mine, look)
        self._line.decided(train)
        there = self._follow(train) | listed.slots.keys() | {slot}
        self._await(branch, slot, there, trip)
        _later(self._sweep, branch, slot, listed)
        return train[0]

    def _is_history(self, branch: str, slot: int, look: Look | None) -> bool:
        """Tell whether a train is one that no vacuum has passed. `look`: when its slot was free.

        Else the slot may have been taken when a vacuum had freed it. Nothing is put behind that: there may be slots
        that never were taken. A train that a vacuum has passed since is complete.
        """
        return (look is not None and look.age < TRUSTED) or not self._line.is_below_floor(branch, slot)

    def _check_made(self, mine: Stored, look: Look | None) -> None:
        """Raise an error if a vacuum has passed a train, or had before, or its slot may have been another's."""
        if not self._is_history(mine.header.branch, mine.header.slot, look):
            raise FileNotFoundError(f"slot {mine.header.slot} was freed by a vacuum")
        self._line.confirm(mine)

    def _follow(self, train: Sequence[TrainMember]) -> set[int]:
        """Put what follows a leader in its place; return what is there then."""
        with contextlib.suppress(OSError):  # those whose commits they are do so, too
            self._put(train[1:])
            return {each.stored.header.slot for each in train}
        return set()

    def _get(self, path: str) -> bytes | None:
        with contextlib.suppress(OSError):  # it went meanwhile: whoever has made it will see that it was left out
            return self._objects.get(path)
        return None

    def _settle(self, mine: Stored, listed: BranchListing, look: Look | None, trip: float) -> TrainMember | None:
        """Read what has taken the slot, which says whether a commit was made."""
        branch, slot = mine.header.branch, mine.header.slot
        train = self.read(branch, slot)
        if not train:
            raise FileNotFoundError(f"slot {slot} was taken, and is empty again")
        if train[0].stored.header.parent_id != mine.header.parent_id:
            raise CorruptionError(train[0].stored.path, reason="it does not follow the commit below it")
        made = next((each for each in train if each.stored.header.id == mine.header.id), None)
        if made is None:
            if self._is_history(branch, slot, look):
                self._line.decided(train)
            return None
        self._check_made(mine, look)
        self._line.decided(train)
        # The answer to the one who leads may have been lost.
        there = self._follow(train) if made is train[0] else set()
        self._await(branch, made.stored.header.slot, there | listed.slots.keys(), trip)
        return made

    def read(self, branch: str, slot: int) -> list[TrainMember]:
        """Return the commits that the file in a slot has decided, its own first; none if the slot is free.

        Raises `CorruptionError`, `OSError`.
        """
        first = self._line.read_file(branch, slot)
        if first is None:
            return []
        try:
            return members(first.content, first.stored)
        except NoTrainError as error:
            raise CorruptionError(first.stored.path, reason=str(error)) from error

    def _put(self, train: Sequence[TrainMember]) -> None:
        """Put commits that were decided in their places, where they are not there yet."""
        for _ in each_in_thread(self._put_one, train):
            pass

    def _put_one(self, member: TrainMember) -> None:
        with contextlib.suppress(FileExistsError):  # nobody puts anything else there
            self._objects.create(member.stored.path, [member.content])

    def _await(self, branch: str, upto: int, there: Collection[int], trip: float) -> None:
        """Return when all commits up to a slot are in their places, where others look for them."""
        patience = _patience(trip)
        while missing := self._line.missing(branch, upto, there):
            if time.monotonic() > patience:
                self._put(missing)
                patience = _patience(trip)
            else:
                time.sleep(trip * random.uniform(*_ARRIVING))
            there = self._look(branch, upto).slots.keys()

    def _look(self, branch: str, slot: int) -> BranchListing:
        """List a branch from the first slot on that is not known to be in its place, or from a lower one."""
        return self._line.list_from(branch, min(self._line.first_unseen(branch), slot))

    def _sweep(self, branch: str, slot: int, listed: BranchListing) -> None:
        """Delete the offers for a slot that was taken, and for those below."""
        directory = names.commits_directory(branch)
        done = [offer.name for (at, _), offer in listed.offers.items() if at <= slot]
        done += [lead.name for at, lead in listed.leads.items() if at <= slot]
        with contextlib.suppress(OSError):  # a vacuum does so, too
            self._objects.delete([f"{directory}/{name}" for name in done])

    def wait_for(self, branch: str, upto: int) -> None:
        """Return when all commits up to a slot that were decided are in their places. Raises `OSError`."""
        began = time.monotonic()
        there = self._look(branch, upto).slots.keys()
        self._await(branch, upto, there, time.monotonic() - began)

    def complete(self, branch: str, first: int) -> None:
        """Put the commits of a train in their places whose leader has died before it has done so. Raises `OSError`."""
        train = self.read(branch, first)
        if not self._line.is_below_floor(branch, first):  # else it was complete, or is outside of history
            self._put(train[1:])


def _is_young(offer: Object, own: Object | None) -> bool:
    """Tell whether whoever has made an offer may still wait for what comes of it, by the server's clock."""
    if own is None or own.modified is None or offer.modified is None:
        return True
    return own.modified - offer.modified <= _YOUNG


def _patience(trip: float) -> float:
    """Return until when others are waited for: not all lose their patience at once."""
    return time.monotonic() + max(_PATIENCE_SECONDS, _PATIENCE_TRIPS * trip) * random.uniform(1.0, 2.0)


def _later(function: Callable[..., None], *arguments: object) -> None:
    """Call a function that nobody waits for."""
    with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads: a vacuum does it
        executor("sweep", 2).submit(function, *arguments)
