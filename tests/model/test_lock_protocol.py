"""Every way in which processes can take turns on one lock word, die on the way, and come back: a model of the table.

The model is that of one word of `_native/lock_words.h` and of the members of `_native/lock_members.h`. Each operation
on shared memory, each byte lock and each futex call is one step; any process may make the next one, and be killed
between any two. All states that can be reached are visited. In none of them may two processes be inside, or one that
was not told that the word is dirty; what is kept for a living transaction may not be taken by a stranger; and whoever
waits must be able to go on, without anybody's being killed or giving up.

What the C does by comparing and swapping in a loop is one step here: a swap that fails changes nothing and begins again
with what is there. `Weakness` names the mistakes that the model must catch, or it would prove nothing.
"""

import enum
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.long

FREE, DIRTY = 0, 1
#: Of `parked`: the member's transaction, or none.
NOBODY = 0


class Word(NamedTuple):
    """`owner` is FREE, DIRTY or the member whose transaction holds it or, if `group`, for which it is parked."""

    owner: int = FREE
    group: int = NOBODY  # the siblings that it is parked for
    waiters: bool = False
    hungry: bool = False

    @property
    def is_free(self) -> bool:
        return self.owner <= DIRTY

    def is_held_by(self, member: int) -> bool:
        return self.owner == member and not self.group


class At(enum.IntEnum):
    """Where a process is: what it does next."""

    OUT = 0  # no member: take somebody's place
    SWEEP = 1  # hold LIVE of that place: make dirty what the last one there left
    ENTER = 2  # mark the place as in use
    IDLE = 3
    LOOK = 4  # take the word, or mark it
    PROBE = 5  # ask whether the holder lives
    RECOVER = 6  # hold LIVE of a dead member: make its words dirty
    FORGET = 7  # mark its place as not in use
    RETURN = 8  # give its LIVE back
    SLEEP = 9  # sleep, if the word is still what was seen
    ASLEEP = 10
    GIVE_UP = 11  # pass on a wake-up that may have been for this one
    WAKE_ONE = 12
    WAKE_HUNGRY = 13
    UNRESERVE = 14
    WAKE_ALL = 15
    INSIDE = 16


WAITING = frozenset({At.LOOK, At.PROBE, At.RECOVER, At.FORGET, At.RETURN, At.SLEEP, At.ASLEEP})
RECOVERING = frozenset({At.RECOVER, At.FORGET, At.RETURN})
QUIET = frozenset({At.OUT, At.IDLE, At.ASLEEP})


class Process(NamedTuple):
    at: At = At.OUT
    member: int = 0
    seen: Word = Word()
    hungry: bool = False
    slept: bool = False
    woken: bool = False
    target: int = 0  # whom it recovers

    @property
    def rank(self) -> tuple[int, ...]:
        """What tells processes apart whatever their numbers are."""
        seen = self.seen
        return (-self.at, self.hungry, self.slept, self.woken, seen.waiters, seen.hungry, bool(seen.group))


class State(NamedTuple):
    word: Word
    processes: tuple[Process, ...]
    in_use: tuple[bool, ...]  # of members 2, 3, ...
    tainted: bool  # the last holder died inside, and nobody was told yet
    kills: int


class Weakness(enum.Enum):
    NONE = "none"
    STEAL = "who finds a holder dead takes its word, without holding its LIVE lock"
    NO_SWEEP = "a place is taken without making dirty what is left there"
    FORGET_FIRST = "a dead member's place is marked as free before its words are dirty"
    NO_PROBE = "what is parked is taken for a dead member's, without asking"
    NO_WAKE = "a word is released without waking"
    NO_HUNGRY_WAKE = "a word reserved for the hungry is released without waking"
    NO_PARK_WAKE = "a word is parked without waking"
    NO_MARK = "who was woken takes the word without marking that others may still sleep"
    NO_COMPARING = "to sleep without comparing the word with what was seen"
    NO_RESERVE_END = "a word stays reserved though none of the hungry sleeps"
    CLEAN = "a dead member's words become free, not dirty"


class Violation(Exception):
    pass


@dataclass(frozen=True)
class Model:
    """`groups`: which transaction each process belongs to; those of one are siblings. Members are numbered from 2."""

    groups: tuple[int, ...]
    members: int
    kills: int
    slices: bool = True  # whoever is hungry also wakes up by itself
    settled: bool = False  # all are members from the beginning, and none leaves
    gives_up: bool = True
    keeps_mark: bool = False  # a word that is released stays marked until nobody sleeps; the C clears the mark at once
    weakness: Weakness = Weakness.NONE

    def start(self) -> State:
        count = len(self.groups)
        processes = tuple(Process(At.IDLE, 2 + number) if self.settled else Process() for number in range(count))
        return State(Word(), processes, (self.settled,) * self.members, False, self.kills)

    def lives(self, state: State, member: int) -> int | None:
        """Return who holds the LIVE lock of a member."""
        for number, process in enumerate(state.processes):
            if process.at != At.OUT and process.member == member:
                return number
            if process.at in RECOVERING and process.target == member and not self.steals:
                return number
        return None

    @property
    def steals(self) -> bool:
        return self.weakness is Weakness.STEAL

    def steps(self, state: State) -> Iterator[tuple[State, str]]:
        """Yield all states that may follow, each with what happened."""
        for number, process in enumerate(state.processes):
            yield from self.steps_of(state, number, process)
            if state.kills and process.at != At.OUT:
                tainted = state.tainted or state.word.is_held_by(process.member)
                yield self.stepped(state, number, Process(), tainted=tainted, kills=state.kills - 1), "kill"

    def stepped(self, state: State, number: int, process: Process, **changes: object) -> State:
        processes = (*state.processes[:number], process, *state.processes[number + 1 :])
        return state._replace(processes=processes, **changes)

    def may_take(self, number: int, process: Process, word: Word) -> bool:
        return word.is_free or (word.group != NOBODY and word.group == self.groups[number])

    def steps_of(self, state: State, number: int, process: Process) -> Iterator[tuple[State, str]]:
        word = state.word
        match process.at:
            case At.OUT:
                for member in self.places(state):
                    sweeps = state.in_use[member - 2] and self.weakness is not Weakness.NO_SWEEP
                    at = At.SWEEP if sweeps else At.ENTER
                    yield self.stepped(state, number, Process(at, member)), "claim"
            case At.SWEEP:
                yield self.sweep(state, number, process._replace(at=At.ENTER), process.member), "sweep"
            case At.ENTER:
                entered = self.stepped(state, number, Process(At.IDLE, process.member))
                yield self.marked(entered, process.member, in_use=True), "enter"
            case At.IDLE:
                yield from self.idle(state, number, process)
            case At.LOOK:
                yield from self.look(state, number, process)
            case At.PROBE:
                yield from self.probe(state, number, process)
            case At.RECOVER:
                if self.weakness is Weakness.FORGET_FIRST:
                    marked = self.marked(state, process.target, in_use=False)
                    yield self.stepped(marked, number, process._replace(at=At.FORGET)), "forget first"
                else:
                    yield self.sweep(state, number, process._replace(at=At.FORGET), process.target), "recover"
            case At.FORGET:
                if self.weakness is Weakness.FORGET_FIRST:
                    yield self.sweep(state, number, process._replace(at=At.RETURN), process.target), "recover late"
                else:
                    marked = self.marked(state, process.target, in_use=False)
                    yield self.stepped(marked, number, process._replace(at=At.RETURN)), "forget"
            case At.RETURN:
                yield self.stepped(state, number, process._replace(at=At.LOOK, target=0, seen=Word())), "return"
            case At.SLEEP:
                if word == process.seen or self.weakness is Weakness.NO_COMPARING:
                    yield self.stepped(state, number, process._replace(at=At.ASLEEP)), "sleep"
                else:
                    awake = process._replace(at=At.LOOK, slept=True, woken=False, seen=Word())
                    yield self.stepped(state, number, awake), "has changed"
            case At.ASLEEP:
                if self.slices or not process.hungry:  # hunger comes with the first slice
                    awake = process._replace(at=At.LOOK, hungry=True, slept=True, woken=False, seen=Word())
                    yield self.stepped(state, number, awake), "slice"
            case At.GIVE_UP:
                if word.is_free:
                    after = self.stepped(state, number, self.idly(process, At.WAKE_ONE))
                    left = Word(word.owner, NOBODY, waiters=word.waiters and self.keeps_mark)
                    yield after._replace(word=left), "pass on"
                else:
                    yield self.stepped(state, number, self.idly(process)), "give up"
            case At.WAKE_ONE:
                if self.keeps_mark and word == Word(waiters=True) and not self.anybody_sleeps(state):
                    yield self.stepped(state, number, self.idly(process))._replace(word=Word()), "unmark"
                else:
                    yield from self.wake(state, number, self.idly(process), "any")
            case At.WAKE_ALL:
                yield from self.wake(state, number, self.idly(process), "all")
            case At.WAKE_HUNGRY:
                if self.weakness is Weakness.NO_HUNGRY_WAKE:
                    yield self.stepped(state, number, self.idly(process)), "no wake"
                elif any(self.sleeps(other, "hungry") for other in state.processes):
                    yield from self.wake(state, number, self.idly(process), "hungry")
                else:
                    yield self.stepped(state, number, self.idly(process, At.UNRESERVE)), "nobody hungry"
            case At.UNRESERVE:
                if word == Word(FREE, NOBODY, True, True) and self.weakness is not Weakness.NO_RESERVE_END:
                    after = self.stepped(state, number, self.idly(process, At.WAKE_ONE))
                    yield after._replace(word=Word(waiters=self.keeps_mark)), "unreserve"
                else:
                    yield self.stepped(state, number, self.idly(process)), "unreserve: changed"
            case At.INSIDE:
                yield from self.inside(state, number, process)

    def places(self, state: State) -> Iterator[int]:
        """Yield the members that nobody is; of those that nothing is left of only the first, as they are all alike."""
        is_first = True
        for member in range(2, 2 + self.members):
            if self.lives(state, member) is None:
                is_blank = not state.in_use[member - 2] and state.word.owner != member
                if is_first or not is_blank:
                    yield member
                is_first = is_first and not is_blank

    def idly(self, process: Process, at: At = At.IDLE) -> Process:
        return Process(at, process.member)

    def idle(self, state: State, number: int, process: Process) -> Iterator[tuple[State, str]]:
        word = state.word
        yield self.stepped(state, number, process._replace(at=At.LOOK)), "begin to wait"
        if self.may_take(number, process, word):
            yield self.take(state, number, process, word.waiters, word.hungry), "try"
        if word.owner == process.member:
            yield self.release(state, number, process), "close"
        elif not self.settled:
            yield self.stepped(state, number, Process()), "leave"  # its place stays in use: the next one sweeps

    def look(self, state: State, number: int, process: Process) -> Iterator[tuple[State, str]]:
        word = state.word
        if word.is_held_by(process.member):
            raise Violation("a process takes a word for its own that it never took")
        may_take = self.may_take(number, process, word)
        if may_take and (process.hungry or not word.hungry):
            waiters = word.waiters or process.slept
            if self.weakness is Weakness.NO_MARK:
                waiters = False
            yield self.take(state, number, process, waiters, hungry=False), "take"
            return
        if self.gives_up:
            at = At.GIVE_UP if process.slept else At.IDLE
            yield self.stepped(state, number, self.idly(process, at)), "deadline"
        if may_take:
            yield self.stepped(state, number, process._replace(at=At.SLEEP, seen=word)), "reserved"
            return
        marked = word._replace(waiters=True, hungry=word.hungry or (process.hungry and not word.group))
        at = At.SLEEP if process.woken else At.PROBE
        yield self.stepped(state, number, process._replace(at=at, seen=marked))._replace(word=marked), "mark"

    def probe(self, state: State, number: int, process: Process) -> Iterator[tuple[State, str]]:
        holder = process.seen.owner
        is_dead = self.lives(state, holder) is None
        if self.weakness is Weakness.NO_PROBE and process.seen.group and holder != process.member:
            is_dead = True
        if is_dead and holder != process.member:
            yield self.stepped(state, number, process._replace(at=At.RECOVER, target=holder)), "holder is dead"
        else:
            yield self.stepped(state, number, process._replace(at=At.SLEEP)), "holder lives"

    def inside(self, state: State, number: int, process: Process) -> Iterator[tuple[State, str]]:
        word = state.word
        if not word.is_held_by(process.member):
            raise Violation("a word was taken from a living process")
        yield self.release(state, number, process), "release"
        for other, sibling in enumerate(state.processes):
            if self.groups[other] == self.groups[number] and sibling.member and sibling.at > At.ENTER:
                at = At.WAKE_ALL if word.waiters and self.weakness is not Weakness.NO_PARK_WAKE else At.IDLE
                parked = word._replace(owner=sibling.member, group=self.groups[number])
                yield self.stepped(state, number, self.idly(process, at))._replace(word=parked), "park"

    def take(self, state: State, number: int, process: Process, waiters: bool, hungry: bool) -> State:
        if state.tainted and state.word.owner != DIRTY:
            raise Violation("a holder died inside, and the next one is not told")
        after = self.stepped(state, number, self.idly(process, At.INSIDE), tainted=False)
        return after._replace(word=Word(process.member, NOBODY, waiters, hungry))

    def release(self, state: State, number: int, process: Process) -> State:
        word = state.word
        at = At.WAKE_HUNGRY if word.hungry else At.WAKE_ONE if word.waiters else At.IDLE
        if self.weakness is Weakness.NO_WAKE and at == At.WAKE_ONE:
            at = At.IDLE
        left = Word(FREE, NOBODY, word.waiters if self.keeps_mark else word.hungry, word.hungry)
        return self.stepped(state, number, self.idly(process, at))._replace(word=left)

    def sweep(self, state: State, number: int, process: Process, member: int) -> State:
        word = state.word
        after = self.stepped(state, number, process)
        if word.owner != member:
            return after
        for other, living in enumerate(state.processes):
            if living.member == member and living.at > At.ENTER and other != number:
                raise Violation("a word was taken from a living transaction")
        left = Word(FREE if self.weakness is Weakness.CLEAN else DIRTY)
        return self.awake(after, range(len(self.groups)))._replace(word=left)

    def marked(self, state: State, member: int, in_use: bool) -> State:
        marked = (*state.in_use[: member - 2], in_use, *state.in_use[member - 1 :])
        return state._replace(in_use=marked)

    # --- symmetry

    def canonical(self, state: State) -> State:
        """Return one of the states that differ only in how processes and members are numbered.

        Processes may be exchanged if their groups are all different, or within a group; members always.
        """
        processes = state.processes
        are_strangers = len(set(self.groups)) == len(self.groups)
        order = sorted(
            range(len(processes)),
            key=lambda number: (0 if are_strangers else self.groups[number], processes[number].rank),
        )
        named = [processes[number].member for number in order]
        named += [processes[number].target for number in order]
        named += sorted(range(2, 2 + self.members), key=lambda member: not state.in_use[member - 2])
        members = {FREE: FREE, DIRTY: DIRTY}
        for member in named:
            if member not in members:
                members[member] = len(members)
        groups = {self.groups[number]: self.groups[new] for new, number in enumerate(order)} if are_strangers else {}
        if order == sorted(order) and all(old == new for old, new in members.items()):
            return state

        def word(old: Word) -> Word:
            return old._replace(owner=members[old.owner], group=groups.get(old.group, old.group))

        renumbered = tuple(
            processes[number]._replace(
                member=members[processes[number].member],
                target=members[processes[number].target],
                seen=word(processes[number].seen),
            )
            for number in order
        )
        in_use = [False] * self.members
        for old, new in members.items():
            if old > DIRTY:
                in_use[new - 2] = state.in_use[old - 2]
        return state._replace(word=word(state.word), processes=renumbered, in_use=tuple(in_use))

    # --- futex

    def sleeps(self, process: Process, who: str) -> bool:
        return process.at == At.ASLEEP and (who != "hungry" or process.hungry)

    def anybody_sleeps(self, state: State) -> bool:
        return any(process.at == At.ASLEEP for process in state.processes)

    def awake(self, state: State, numbers: range | list[int]) -> State:
        processes = list(state.processes)
        for number in numbers:
            if processes[number].at == At.ASLEEP:
                processes[number] = processes[number]._replace(at=At.LOOK, slept=True, woken=True, seen=Word())
        return state._replace(processes=tuple(processes))

    def wake(self, state: State, number: int, then: Process, who: str) -> Iterator[tuple[State, str]]:
        sleeping = [other for other, process in enumerate(state.processes) if self.sleeps(process, who)]
        after = self.stepped(state, number, then)
        if who == "all" or not sleeping:
            yield self.awake(after, sleeping), "wake all"
        else:
            for other in sleeping:
                yield self.awake(after, [other]), "wake one"

    # --- what has to be true

    def check(self, state: State) -> None:
        if sum(process.at == At.INSIDE for process in state.processes) > 1:
            raise Violation("two processes are inside")
        if not self.slices and all(process.at in QUIET for process in state.processes):
            for number, process in enumerate(state.processes):
                may_take = self.may_take(number, process, state.word)
                reserved = state.word.hungry and not process.hungry
                if process.at == At.ASLEEP and may_take and not reserved:
                    raise Violation("a process sleeps that could go on, and nobody is about to wake it")


def explore(model: Model) -> int:
    """Visit every state. Returns how many there are; raises `Violation`, whose message tells how it comes about."""
    start = model.start()
    numbers = {start: 0}
    states = [start]
    first_way: list[tuple[int, str]] = [(0, "")]
    before: list[list[int]] = [[]]  # the states that lead to a state without a kill, and without anybody's giving up
    goals: list[int] = []
    waiting: list[int] = []
    number = 0
    try:
        while number < len(states):
            state = states[number]
            places = [process.at for process in state.processes]
            if At.INSIDE in places:
                goals.append(number)
            elif not WAITING.isdisjoint(places):
                waiting.append(number)
            for after, what in model.steps(state):
                after = model.canonical(after)
                known = numbers.setdefault(after, len(states))
                if known == len(states):
                    states.append(after)
                    first_way.append((number, what))
                    before.append([])
                    model.check(after)
                if what not in ("kill", "deadline"):
                    before[known].append(number)
            number += 1
        number = _first_that_never_leads(waiting, goals, before)
        if number >= 0:
            raise Violation("whoever waits, waits for ever")
    except Violation as violation:
        if number < len(states) - 1 and len(first_way) == len(states) and first_way[-1][0] == number:
            number = len(states) - 1
        raise Violation(f"{violation}\n{_story(number, states, first_way)}") from None
    return len(states)


def _first_that_never_leads(waiting: list[int], goals: list[int], before: list[list[int]]) -> int:
    reach = set(goals)
    while goals:
        for number in before[goals.pop()]:
            if number not in reach:
                reach.add(number)
                goals.append(number)
    return next((number for number in waiting if number not in reach), -1)


def _story(number: int, states: list[State], first_way: list[tuple[int, str]]) -> str:
    lines = []
    while number:
        number, what = first_way[number][0], f"{first_way[number][1]}: {_shown(states[number])}"
        lines.append(what)
    return "\n".join(reversed(lines))


def _shown(state: State) -> str:
    word = state.word
    marks = "W" * word.waiters + "H" * word.hungry
    owner = (
        f"parked for {word.owner}" if word.group else {FREE: "free", DIRTY: "dirty"}.get(word.owner, str(word.owner))
    )
    processes = ", ".join(f"{process.at.name}({process.member})" for process in state.processes)
    return f"{owner} {marks} | {processes}"


#: Two siblings; two strangers, with places to spare; three strangers, nobody of whom dies.
SIBLINGS = Model(groups=(1, 1), members=3, kills=2)
STRANGERS = Model(groups=(1, 2), members=3, kills=2)
THREE = Model(groups=(1, 2, 3), members=3, kills=0, settled=True)
#: Without slices each wake-up counts.
WAKING = replace(THREE, slices=False, gives_up=False)
PARKING = Model(groups=(1, 1), members=2, kills=0, slices=False, settled=True)
BETTER = Model(groups=(1, 1, 2), members=3, kills=0, slices=False, settled=True, keeps_mark=True)


MODELS = {"siblings": SIBLINGS, "strangers": STRANGERS, "three": THREE, "waking": WAKING, "parking": PARKING}
MORE = {
    "three strangers, one death": replace(THREE, kills=1),
    "two siblings and a stranger, one death": replace(THREE, kills=1, groups=(1, 1, 2)),
    "two strangers, three deaths": replace(STRANGERS, kills=3),
    "if marks were kept": BETTER,
}
UNTIL_THE_SLICE_ENDS = {
    "who is woken gives up": replace(WAKING, gives_up=True),
    "a sibling parks": replace(BETTER, keeps_mark=False, gives_up=False),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_protocol(model):
    assert explore(model) > 500


@pytest.mark.skipif("TXSTORE_ALL_STATES" not in os.environ, reason="takes minutes: set TXSTORE_ALL_STATES")
@pytest.mark.parametrize("model", MORE.values(), ids=MORE)
def test_more_of_the_protocol(model):
    assert explore(model) > 10_000


@pytest.mark.parametrize(
    ("weakness", "model", "what"),
    [
        (Weakness.STEAL, replace(STRANGERS, groups=(1, 2, 3)), "was taken from a living"),
        (Weakness.NO_SWEEP, STRANGERS, "that it never took"),
        (Weakness.FORGET_FIRST, STRANGERS, "that it never took"),
        (Weakness.CLEAN, STRANGERS, "is not told"),
        (Weakness.NO_PROBE, STRANGERS, "from a living transaction"),
        (Weakness.NO_WAKE, WAKING, "nobody is about to wake it"),
        (Weakness.NO_HUNGRY_WAKE, WAKING, "nobody is about to wake it"),
        (Weakness.NO_RESERVE_END, replace(WAKING, gives_up=True), "nobody is about to wake it"),
        (Weakness.NO_MARK, WAKING, "nobody is about to wake it"),
        (Weakness.NO_COMPARING, WAKING, "nobody is about to wake it"),
        (Weakness.NO_PARK_WAKE, PARKING, "nobody is about to wake it"),
    ],
    ids=lambda value: value.name if isinstance(value, Weakness) else "",
)
def test_a_mistake_is_found(weakness, model, what):
    with pytest.raises(Violation, match=what):
        explore(replace(model, weakness=weakness))


@pytest.mark.parametrize("model", UNTIL_THE_SLICE_ENDS.values(), ids=UNTIL_THE_SLICE_ENDS)
def test_what_the_slices_are_for(model):
    """A release clears the mark that somebody sleeps, and whom it wakes sets it again, or is too late: it gives up, or
    a sibling has parked the word before. Then the others sleep until their slices end, 20 ms at most."""
    with pytest.raises(Violation, match="nobody is about to wake it"):
        explore(model)
