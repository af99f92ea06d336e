"""Many committers at one branch of an object store, simulated: commits/s, fairness, the slowest, requests.

Nothing is measured here but the protocols themselves: a request takes half of its time to get to the server and half to
come back, the server does what it is asked in no time and one thing after the other, and a committer needs a few
milliseconds of its own for each commit. So it tells what a protocol can do with 1,000 committers 100 ms away, which no
machine at hand could run, and which of two protocols is better before either is built.

`alone` is what a commit does that meets nobody: begin by a listing, propose the file to the version, and after a lost
version read the next ones and try again. `group_commits` is docs/understand/remote-design.md, "Group commits".
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from benchmarks.harness import Row, Setting, percentile

#: What a committer does: it yields how long it waits, or what is done at once, of which it gets what that returns.
Steps = Generator[Any, Any, Any]
Questions = list[Callable[[], Any]]

#: Seconds that a committer needs by itself to stage and to build its file, and to read a file and judge it.
BUILDING, READING = 0.004, 0.001
LOOKED_AT = 4
MOST_IN_A_GROUP_COMMIT = 128
GATHERING, YIELDS = 1.0, 3
UNDER_WAY, ARRIVING = (1.0, 2.0), (0.3, 1.0)


class Clock:
    """Lets generators run in simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, Steps, Any]] = []
        self._numbers = itertools.count()

    def start(self, steps: Steps, delay: float = 0.0, value: Any = None) -> None:
        heapq.heappush(self._waiting, (self.now + delay, next(self._numbers), steps, value))

    def run(self, until: float) -> None:
        while self._waiting and self._waiting[0][0] <= until:
            self.now, _, steps, value = heapq.heappop(self._waiting)
            try:
                wait = steps.send(value)
            except StopIteration:
                continue
            if isinstance(wait, list):
                self._gather(steps, wait)
            else:
                self.start(steps, wait)

    def _gather(self, waiter: Steps, all_steps: list[Steps]) -> None:
        found: dict[int, Any] = {}

        def run(number: int, steps: Steps) -> Steps:
            found[number] = yield from steps
            if len(found) == len(all_steps):
                self.start(waiter, 0.0, [found[each] for each in range(len(found))])

        for number, steps in enumerate(all_steps):
            self.start(run(number, steps))


class GroupCommit(NamedTuple):
    """What is in a version: who has it, and what the commit that was put there has decided with it."""

    who: int
    first: int  # the version of the first commit that was decided together with this one
    members: tuple[int, ...]  # who has that version and those that follow

    @property
    def last(self) -> int:
        return self.first + len(self.members) - 1


@dataclass
class Server:
    """The objects of one branch."""

    clock: Clock
    seconds: float
    jitter: float
    versions: dict[int, GroupCommit] = field(default_factory=dict)
    proposals: dict[int, set[int]] = field(default_factory=dict)  # by version: who
    leads: dict[int, int] = field(default_factory=dict)  # by version: who
    requests: int = 0
    top: int = -1

    def ask(self, question: Callable[[], Any]) -> Steps:
        self.requests += 1
        yield self.seconds / 2 * random.uniform(1 - self.jitter, 1 + self.jitter)
        answer = question()
        yield self.seconds / 2 * random.uniform(1 - self.jitter, 1 + self.jitter)
        return answer

    def together(self, questions: Questions) -> Steps:
        return (yield [self.ask(question) for question in questions])

    def create(self, version: int, group_commit: GroupCommit) -> bool:
        if version in self.versions:
            return False
        self.versions[version] = group_commit
        self.top = max(self.top, version)
        return True

    def propose(self, version: int, who: int) -> None:
        self.proposals.setdefault(version, set()).add(who)

    def lead(self, version: int, who: int) -> bool:
        return self.leads.setdefault(version, who) == who

    def list_from(self, version: int) -> tuple[int, frozenset[int], bool]:
        """Return the last version taken from one on, who wants the next one, and whether one leads there."""
        above = version
        while above in self.versions:
            above += 1
        return above - 1, frozenset(self.proposals.get(above, ())), above in self.leads

    def left_over(self, version: int) -> set[int]:
        """Return who has wanted the version of the last group commit in vain, and has not been swept away."""
        below = self.versions.get(version - 1)
        return set() if below is None else self.proposals.get(below.first, set()) - set(below.members)

    def is_wanted(self, version: int) -> bool:
        """Tell whether several wanted the version below, or somebody wants this one."""
        below = self.versions.get(version - 1)
        return bool(self.proposals.get(version)) or (
            below is not None and (below.last > below.first or bool(self.proposals.get(below.first)))
        )


@dataclass
class Committer:
    """One that commits again and again; what it has measured."""

    server: Server
    number: int
    head: int = -1  # up to there it knows what was committed
    is_contended: bool = False
    is_led: bool = False  # whether another leads at the next version
    times: list[float] = field(default_factory=list)

    def work(self, commit: Callable[[Committer], Steps]) -> Steps:
        yield random.uniform(0, 0.1)
        while True:
            began = self.server.clock.now
            yield from self.begin()
            yield BUILDING * random.uniform(0.5, 1.5)
            yield from commit(self)
            self.times.append(self.server.clock.now - began)

    def begin(self) -> Steps:
        server, version = self.server, self.head + 1
        (top, _, self.is_led), self.is_contended = yield from server.ask(
            lambda: (server.list_from(version), server.is_wanted(server.list_from(version)[0] + 1))
        )
        if top > self.head:
            yield from self.read(top)

    def read(self, top: int) -> Steps:
        """Get to know what was committed up to a version."""
        versions, version = self.server.versions, self.head + 1
        first = yield from self.server.ask(lambda: versions[version])
        yield READING
        if first.last < top:
            last = yield from self.server.ask(lambda: versions[top])
            if last.first != top:
                yield from self.server.ask(lambda: versions[last.first])
            top = last.last
        self.head = max(top, first.last)

    def take(self, version: int) -> Steps:
        """Try to take a version for the own commit alone."""
        group_commit = GroupCommit(self.number, version, (self.number,))
        if not (yield from self.server.ask(lambda: self.server.create(version, group_commit))):
            return False
        self.head = version
        return True

    def look(self, version: int) -> Steps:
        """Return what is in some versions from one on."""
        get = self.server.versions.get
        found = yield from self.server.together([partial(get, at) for at in range(version, version + LOOKED_AT)])
        yield READING
        return found


# --- the protocols


def alone(self: Committer) -> Steps:
    """Try to take the next version; after a lost one, read those that follow, and pause for a part of a trip."""
    while True:
        version, asked = self.head + 1, self.server.clock.now
        if (yield from self.take(version)):
            return
        yield random.uniform(0, self.server.clock.now - asked)
        found = yield from self.look(version)
        self.head = version + (found.index(None) if None in found else LOOKED_AT) - 1


def group_commits(self: Committer) -> Steps:
    """Propose the file to the version; after a lost one, to whoever takes the next version for all."""
    server, has_lost = self.server, False
    while not self.is_contended:
        version = self.head + 1
        if (yield from self.take(version)):
            return
        last = max((each for each in (yield from self.look(version)) if each is not None), key=lambda each: each.last)
        # Who has met one other, once, tries again alone.
        self.is_contended = has_lost or last.last > version
        has_lost, self.head = True, last.last
    while not (yield from _propose(self, server, self.head + 1)):
        pass


def _propose(self: Committer, server: Server, version: int) -> Steps:
    """Propose the file to a version, and wait until it is taken; return whether the file was committed."""
    asked = self.server.clock.now
    questions: Questions = [lambda: server.propose(version, self.number)]
    if not self.is_led:
        questions.append(lambda: server.lead(version, self.number))
    leads = (yield from server.together(questions))[1:] == [True]
    trip = self.server.clock.now - asked
    yield trip * GATHERING
    if leads and (yield from _lead(self, version, trip)):
        return True
    self.is_led = False
    tries = 0
    while True:
        top, _, led = yield from server.ask(lambda: server.list_from(version))
        if top >= version:
            break
        yield trip * random.uniform(*(ARRIVING if tries else UNDER_WAY))
        tries += 1
        if tries > 20 * random.uniform(1, 2) and (yield from _lead(self, version, trip)):
            return True
    group_commit = yield from server.ask(lambda: server.versions[version])
    yield READING
    self.head = group_commit.last
    self.is_contended, self.is_led = True, led and top == group_commit.last
    if self.number in group_commit.members:
        mine = version + group_commit.members.index(self.number)
        while top < mine:
            yield trip * random.uniform(*ARRIVING)
            top, _, _ = yield from server.ask(lambda: server.list_from(version))
        return True
    if top > self.head:
        yield from self.read(top)
    return False


def _lead(self: Committer, version: int, trip: float) -> Steps:
    server = self.server
    for _ in range(YIELDS):
        top, proposals, _ = yield from server.ask(lambda: server.list_from(version))
        if top >= version:
            return False
        if server.left_over(version) <= proposals:
            break
        yield trip / 2
    others = [who for who in sorted(proposals, key=lambda who: hash((who, version))) if who != self.number]
    others = others[: MOST_IN_A_GROUP_COMMIT - 1]
    if others:
        yield from server.together([lambda: None for _ in others])
        yield READING * len(others) / 4
    group_commit = GroupCommit(self.number, version, (self.number, *others))
    if not (yield from server.ask(lambda: server.create(version, group_commit))):
        return False
    self.head, self.is_contended, self.is_led = group_commit.last, bool(others), False
    if others:
        yield from server.together(
            [partial(server.create, at, group_commit._replace(who=who)) for at, who in enumerate(others, version + 1)]
        )
    server.requests += 1  # deletes the proposals, when nobody waits for it
    return True


# --- what is told


def simulate(
    protocol: Callable[[Committer], Steps], committers: int, distance: float, jitter: float, seconds: float
) -> dict[str, Any]:
    """Return commits a second, the fewest of a committer by the most, the slowest percent, and requests a commit."""
    random.seed(17)
    clock = Clock()
    server = Server(clock, distance, jitter)
    crew = [Committer(server, number) for number in range(committers)]
    for each in crew:
        clock.start(each.work(protocol))
    clock.run(seconds)
    made = [len(each.times) for each in crew]
    times = [time for each in crew for time in each.times]
    there = Counter(server.versions[version].who for version in range(server.top + 1) if version in server.versions)
    for who, number in enumerate(made):  # each commit that one was told of is there
        if not 0 <= there[who] - number <= 1:
            raise AssertionError(f"{who} was told of {number} commits, and {there[who]} are there")
    return {
        "protocol": protocol.__name__, "committers": committers, "ms": distance * 1e3, "jitter": jitter,
        "commits/s": sum(made) / seconds, "share": min(made) / max(1, *made), "p99": percentile(times, 99),
        "requests": server.requests / max(1, sum(made)),
    }  # fmt: skip


def protocols(setting: Setting) -> list[Row]:
    cases = [(32, 0.03, 0.0), (32, 0.03, 0.5)]  # when quick, for ten seconds only
    if not setting.quick:
        cases = [(1, 0.03, 0.5), (8, 0.03, 0.5), *cases, (32, 0.1, 0.5), (200, 0.03, 0.5), (1000, 0.03, 0.5)]
        cases.append((1000, 0.1, 0.5))
    seconds = setting.rounds(60, 10)
    figures = [simulate(each, *case, seconds) for each in (alone, group_commits) for case in cases]
    times = figures[-1]["commits/s"] / figures[len(cases) - 1]["commits/s"]
    what = f"{cases[-1][0]:,} committers, simulated: commits a second, of those without group commits"
    return [Row("simulate-commits", what, times, 2, at_least=True, figures=figures)]


CASES = {"simulate-commits": protocols}
