"""What was written during a workload, and what of it was promised: the reference that images are compared with."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import txstore
from tests.crash.system import SYSTEM, URL, Process
from txstore.commit import Stored
from txstore.merging import merge_commits
from txstore.transactions.transaction import Transaction

State = dict[str, bytes]


class Made(NamedTuple):
    """A commit that was tried: what it changes, relative to the one before it."""

    changes: Mapping[str, bytes | None]
    deleted: tuple[str, ...]  # paths, before the changes
    durable: bool


class Promise(NamedTuple):
    """Something that was said to be done, when so many steps had been recorded."""

    step: int
    what: str  # a commit id; the name of a tag
    commit: str
    durable: bool


class Part(NamedTuple):
    """What a process has left in a transaction with a name, before it sealed its part."""

    step: int
    name: str
    transaction: str
    staged: Mapping[str, bytes]


class Vacuumed(NamedTuple):
    """A vacuum that had begun when so many steps had been recorded: what it was told to give up."""

    step: int
    oldest_kept: int  # the lowest version that it was to keep


@dataclass(frozen=True)
class Branched:
    """A branch, and what it held one after the other: first what it began behind, then each commit that was tried."""

    name: str
    states: tuple[State, ...]
    acknowledged: tuple[int, ...] = ()  # of the first so many of these, when so many steps had been recorded
    deleting: int | None = None  # since which step
    deleted: int | None = None

    def as_of(self, step: int) -> Branched:
        return replace(
            self,
            acknowledged=tuple(each for each in self.acknowledged if each <= step),
            deleting=None if self.deleting is None or self.deleting > step else self.deleting,
            deleted=None if self.deleted is None or self.deleted > step else self.deleted,
        )

    def rebased(self) -> Branched:
        return replace(
            self,
            acknowledged=(0,) * len(self.acknowledged),
            deleting=None if self.deleting is None else 0,
            deleted=None if self.deleted is None else 0,
        )


#: The messages of commits that change nothing.
MAINTENANCE = ("optimize", "vacuum", "runs rebuilt by verify")


#: In the place of the id of a commit that nobody will find whole.
TORN = "torn"


@dataclass
class World:
    made: dict[str, Made] = field(default_factory=dict)
    commits: list[Promise] = field(default_factory=list)
    tags: list[Promise] = field(default_factory=list)
    untagged: list[tuple[int, int, str]] = field(default_factory=list)  # from when to when, and which
    branches: list[Branched] = field(default_factory=list)
    scratch: dict[str, str] = field(default_factory=dict)  # of branches: safe when one of main is promised
    parts: list[Part] = field(default_factory=list)
    vacuums: list[Vacuumed] = field(default_factory=list)
    optimized: list[int] = field(default_factory=list)  # at which step each was done
    ending: dict[str, int] = field(default_factory=dict)  # transactions with a name, and since which step
    unguarded: bool = False  # a power loss has taken the guard, before anything was to survive
    torn: bool = False  # a power loss has torn what was not to survive, and nobody has repaired it yet
    mended: int = 0  # since which step a repair has put that right
    quarantined: tuple[str, ...] = ()  # what it has kept
    unsure: bool = False  # nothing had been promised then
    begun: int = 0  # crashes up to this step are of no interest
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def as_of(self, step: int) -> World:
        """What had been promised then. What was only tried may have been done."""
        is_torn = self.torn and (step < self.mended or not self.mended)
        return replace(
            self,
            made={commit: made for commit, made in self.made.items() if is_torn or commit != TORN},
            torn=is_torn,
            mended=0 if is_torn else self.mended,
            quarantined=() if is_torn else self.quarantined,
            unguarded=self.unguarded or step < self.mended,
            commits=[promise for promise in self.commits if promise.step <= step],
            tags=[
                promise
                for promise in self.tags
                if promise.step <= step
                and not any(promise.what == name for begun, _, name in self.untagged if begun <= step)
            ],
            untagged=[each for each in self.untagged if each[1] <= step],
            branches=[branch.as_of(step) for branch in self.branches],
            parts=[part for part in self.parts if part.step <= step],
            vacuums=[vacuum for vacuum in self.vacuums if vacuum.step <= step],
            optimized=[done for done in self.optimized if done <= step],
            ending={transaction: since for transaction, since in self.ending.items() if since <= step},
        )

    def rebased(self) -> World:
        """The same, before anything is done to another disk."""
        world = self.as_of(1 << 60)
        world.commits = [promise._replace(step=0) for promise in world.commits]
        world.tags = [promise._replace(step=0) for promise in world.tags]
        world.untagged = [(0, 0, name) for _, _, name in world.untagged]
        world.branches = [branch.rebased() for branch in world.branches]
        world.parts = [part._replace(step=0) for part in world.parts]
        world.vacuums = [vacuum._replace(step=0) for vacuum in world.vacuums]
        world.optimized = [0] * len(world.optimized)
        world.ending = dict.fromkeys(world.ending, 0)
        return world

    def promised(self, *, durable_only: bool) -> list[str]:
        return [promise.commit for promise in self.commits if promise.durable or not durable_only]

    @property
    def oldest_kept(self) -> int:
        """The lowest version that no vacuum was told to give up."""
        return max((vacuum.oldest_kept for vacuum in self.vacuums), default=0)

    def state(self, ids: list[str]) -> State:
        """What a commit holds with these ancestors, oldest first, itself included."""
        state: State = {}
        for commit in ids:
            made = self.made[commit]
            for path in made.deleted:
                state = {key: value for key, value in state.items() if not key.startswith(path + "/")}
            for key, value in made.changes.items():
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
        return state

    # --- writing

    def open(self, durability: str = "fsync", retention: int | None = None) -> txstore.Repository:
        """Open the repository as a new process does."""
        return txstore.Repository(URL, durability=durability, retention=retention)

    def value(self, length: int = 8) -> bytes:
        """Return bytes that were not written before."""
        return random.Random(next(self.numbers)).randbytes(length)

    def put(
        self,
        repo: txstore.Repository,
        changes: Mapping[str, bytes | None],
        deleted: tuple[str, ...] = (),
        tx: Transaction | None = None,
    ) -> str:
        """Commit; return the id."""
        tx = tx or repo.begin()
        for path in deleted:
            tx.delete_dir(path)
        for key, value in changes.items():
            if value is None:
                tx.delete(key)
            else:
                tx.set(key, value)
        return self.commit(tx, changes, deleted)

    def commit(self, tx: Transaction, changes: Mapping[str, bytes | None], deleted: tuple[str, ...] = ()) -> str:
        """Commit what is staged already."""
        durable = tx.staging.record.durability == "fsync"
        self.made[tx.id] = Made(dict(changes), deleted, durable)
        tx.commit()
        self.commits.append(Promise(len(SYSTEM.disk.steps), tx.id, tx.id, durable))
        return tx.id

    def tag(self, repo: txstore.Repository, name: str, commit: str) -> None:
        repo.tags[name] = commit
        self.tags.append(Promise(len(SYSTEM.disk.steps), name, commit, True))
        if commit not in self.promised(durable_only=True):  # a tag makes its commit durable
            self.commits.append(Promise(len(SYSTEM.disk.steps), commit, commit, True))

    def untag(self, repo: txstore.Repository, name: str) -> None:
        begun = len(SYSTEM.disk.steps)
        del repo.tags[name]
        self.untagged.append((begun, len(SYSTEM.disk.steps), name))

    # --- branches

    def branch(self, repo: txstore.Repository, name: str, commit: str) -> None:
        """Begin a branch behind a commit of main."""
        ids = [each.id for each in repo.log()][::-1]
        self.branches.append(Branched(name, (self.state(ids[: ids.index(commit) + 1]),)))
        repo.branches[name] = commit
        self.acknowledge(name)
        if commit not in self.promised(durable_only=True):  # a branch makes its commit durable
            self.commits.append(Promise(len(SYSTEM.disk.steps), commit, commit, True))

    def put_on(self, repo: txstore.Repository, name: str, changes: Mapping[str, bytes]) -> None:
        """Commit to a branch."""
        tx = repo.begin(branch=name)
        tx.update(changes)
        self.commit_on(tx, name, changes)

    def commit_on(self, tx: Transaction, name: str, changes: Mapping[str, bytes | None]) -> None:
        """Commit what is staged already to a branch."""
        at = self.number(name)
        branch = self.branches[at]
        state = {**branch.states[-1], **changes}
        held = {key: value for key, value in state.items() if value is not None}
        self.branches[at] = replace(branch, states=(*branch.states, held))
        tx.commit()
        self.acknowledge(name)

    def merging(self, repo: txstore.Repository, source: str, into: str = "main") -> Transaction:
        """Return a merge of one branch into another, to be committed."""
        engine = repo.engine
        ids = engine.branch(source), engine.branch(into)
        head = engine.newest(ids[1])
        change = merge_commits.of_branch(ids[0], source, engine, some(head.stored))
        assert change is not None
        plan = merge_commits.plan(
            engine, merge_commits.OpenedSnapshots(engine), change, head, merge_commits.Answers(None), append=None
        )
        assert not plan.conflicts
        tx = engine.begin(head, branch=ids[1], message=change.message, other_parent=change.merged)
        merge_commits.apply(plan, engine.snapshots.of(change.theirs), tx)
        return tx

    def unbranch(self, repo: txstore.Repository, name: str) -> None:
        at = self.number(name)
        self.branches[at] = replace(self.branches[at], deleting=len(SYSTEM.disk.steps))
        del repo.branches[name]
        self.branches[at] = replace(self.branches[at], deleted=len(SYSTEM.disk.steps))

    def acknowledge(self, name: str) -> None:
        at = self.number(name)
        branch = self.branches[at]
        self.branches[at] = replace(branch, acknowledged=(*branch.acknowledged, len(SYSTEM.disk.steps)))

    def number(self, name: str) -> int:
        return max(at for at, branch in enumerate(self.branches) if branch.name == name)

    # --- maintenance

    def optimize(self, repo: txstore.Repository) -> None:
        if (made := repo.optimize()) is not None:
            self.note(made.id, repo.engine.durability == "fsync")
            self.optimized.append(len(SYSTEM.disk.steps))

    def vacuum(self, repo: txstore.Repository, **arguments: int) -> int:
        """Return the oldest kept version, which is what it was told to raise it to if it fails."""
        begun, head = len(SYSTEM.disk.steps), repo.head()
        oldest_kept = 0 if head is None else head.version
        try:
            oldest_kept = repo.vacuum(**arguments).oldest_kept
        finally:
            self.vacuums.append(Vacuumed(begun, oldest_kept))
        self.note_maintenance(repo)
        return oldest_kept

    def note_maintenance(self, repo: txstore.Repository) -> None:
        for commit in [*repo.log()][::-1]:
            if commit.message in MAINTENANCE:  # a vacuum is durable in any case
                self.note(commit.id, commit.message == "vacuum" or repo.engine.durability == "fsync")

    def note(self, commit: str, durable: bool) -> None:
        if commit not in self.made:
            self.made[commit] = Made({}, (), durable)
            self.commits.append(Promise(len(SYSTEM.disk.steps), commit, commit, durable))

    def leave(self, tx: Transaction, name: str, staged: Mapping[str, bytes]) -> None:
        """Stage into a transaction with a name, and leave it."""
        for key, value in staged.items():
            tx.set(key, value)
        tx.lifecycle.leave()
        self.parts.append(Part(len(SYSTEM.disk.steps), name, tx.id, dict(staged)))

    def end(self, tx: Transaction) -> None:
        """Note that a transaction with a name is about to be ended."""
        self.ending.setdefault(tx.id, len(SYSTEM.disk.steps))

    # --- several processes

    def take_turns(self, seed: int, *programs: Callable[[], object]) -> None:
        """Run programs as if at once: before each call of the system, another one may come next."""
        Turns(seed, programs).run()


def some(stored: Stored | None) -> Stored:
    assert stored is not None
    return stored


class Turns:
    """Threads of which one runs at a time; which one, a seed decides."""

    _SWITCH = 0.3
    _DEADLINE = 30.0  # seconds, for a thread to get its turn

    def __init__(self, seed: int, programs: tuple[Callable[[], object], ...]) -> None:
        self.chance = random.Random(seed)
        self.programs = programs
        self.turn = threading.Condition()
        self.present = 0
        self.left = set(range(len(programs)))
        self.me = threading.local()
        self.errors: list[BaseException] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self._run, args=(number,)) for number in range(len(self.programs))]
        SYSTEM.before, before = lambda *_: self.pass_on(self._SWITCH), SYSTEM.before
        SYSTEM.wait = lambda: self.pass_on(1.0)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            SYSTEM.before, SYSTEM.wait = before, None
        if self.errors:
            raise self.errors[0]

    def _run(self, number: int) -> None:
        self.me.number = number
        try:
            self._await()
            with Process():
                pass
            self.programs[number]()
        except BaseException as error:  # noqa: BLE001 - it is raised again by `run`
            self.errors.append(error)
        with self.turn:
            self.left.discard(number)
            if self.left:
                self.present = self.chance.choice(sorted(self.left))
            self.turn.notify_all()

    def pass_on(self, likely: float) -> None:
        if self.chance.random() < likely and len(self.left) > 1:
            with self.turn:
                self.present = self.chance.choice(sorted(self.left - {self.me.number}))
                self.turn.notify_all()
            self._await()

    def _await(self) -> None:
        with self.turn:
            if not self.turn.wait_for(lambda: self.present == self.me.number, self._DEADLINE):
                raise TimeoutError("the other programs do not come to an end")
