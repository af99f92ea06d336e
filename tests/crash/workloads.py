"""What is going on when the power is lost. A new workload is a function here, and a line in the table at the end."""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import pytest

import txstore
from tests.crash.disk import ROOT, Disk, Tree
from tests.crash.system import PREFIX, SYSTEM, URL, Process, ProgramDied
from tests.crash.world import TORN, Made, Promise, World, some
from tests.tools.inside import branch_id, commits_of, existing, join_shared, open_named
from txstore.format import names
from txstore.format.regions import Region
from txstore.maintenance import vacuum as retention
from txstore.maintenance.vacuum import VacuumReport
from txstore.transactions.transaction import Transaction


def first_commit(world: World) -> None:
    """A repository comes to be."""
    world.put(world.open(), {"a": world.value(), "b/c": world.value(700)})


def series(world: World) -> None:
    """One process commits again and again; runs are merged meanwhile."""
    repo = world.open()
    world.put(repo, {"a": world.value(), "b/1": world.value(), "b/2": world.value(2000)})
    world.put(repo, {"a": world.value(), "c": world.value(600)})
    world.put(repo, {"a": None, "d": world.value()}, deleted=("b",))
    world.put(repo, {"b/3": world.value(), "c": world.value()})
    world.put(repo, {"a": world.value()})


def several_processes(world: World) -> None:
    """Each commit is made by a process of its own, which has seen nothing of the others but the disk."""
    for number in range(4):
        world.put(world.open(), {"a": world.value(), f"b/{number}": world.value(300)})


def conflict(world: World) -> None:
    """Of two transactions on one base the second fails; it is rolled back, and done again."""
    repo, other = world.open(), world.open()
    world.put(repo, {"a": world.value()})
    tx = repo.begin()
    tx["a"] = world.value()
    tx["lost"] = world.value(900)
    world.put(other, {"a": world.value(), "b": world.value()})
    with pytest.raises(txstore.ConflictError):
        tx.commit()
    tx.rollback()
    world.put(repo, {"a": world.value()})


def cooperative(world: World) -> None:
    """Three processes stage into one transaction, which then is one commit."""
    owner = world.open()
    world.put(owner, {"a": world.value()})
    for size in (300, 5000):
        changes: dict[str, bytes | None] = {"a": world.value(), "b/0": world.value(size)}
        tx = owner.begin()
        for key in ("a", "b/0"):
            tx[key] = changes[key]
        shared = tx.lifecycle.share()
        workers = []
        for number in (1, 2):
            worker = Process()
            workers.append(worker)
            with worker:
                repo = world.open()
                theirs = join_shared(repo, shared)
                changes[f"b/{number}"] = theirs[f"b/{number}"] = world.value(size)
                theirs.lifecycle.seal()
                theirs.lifecycle.end()
        for worker in workers:
            worker.die()
        world.commit(tx, changes)
    world.put(owner, {"c": world.value()})


_GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()

#: Bytes in one chunk, as they are.
_DOCUMENT = json.dumps(
    {
        "zarr_format": 3, "node_type": "array", "shape": [2000], "data_type": "uint8", "fill_value": 0,
        "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2000]}}, "codecs": [{"name": "bytes"}],
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    }
).encode()  # fmt: skip


def parts(world: World) -> None:
    """Two processes of one transaction write parts of one chunk, and so does a rival, which commits first."""
    repo, other = world.open(), world.open()
    chunk = bytearray(world.value(2000))
    world.put(repo, {"p/zarr.json": _DOCUMENT, "p/c/0": bytes(chunk)})

    def write(tx: Transaction, start: int, stop: int) -> None:
        value = world.value(stop - start)

        def change(found: memoryview | None) -> bytes:
            changed = bytearray(found or b"")
            changed[start:stop] = value
            return bytes(changed)

        tx.modify("p/c/0", change, Region.of_box(((start, stop),)))
        chunk[start:stop] = value

    for offset in (0, 7):
        tx, rival = repo.begin(), other.begin()
        tx["a"] = changed = world.value()
        shared, joined = tx.lifecycle.share(), []
        for worker in (Process(), Process()):
            with worker:
                there = world.open()
                joined.append((worker, join_shared(there, shared)))
                joined[-1][1].get("a")
        write(rival, 1500 + offset, 1600)
        world.commit(rival, {"p/c/0": bytes(chunk)})
        for number, (worker, theirs) in enumerate(joined):
            with worker:
                write(theirs, 600 * number + offset, 600 * number + 500)
                theirs.lifecycle.seal()
                theirs.lifecycle.end()
            worker.die()
        world.commit(tx, {"a": changed, "p/c/0": bytes(chunk)})


def named(world: World) -> None:
    """A transaction with a name, of two processes one after the other; a third commits it."""
    world.put(world.open(), {"a": world.value()})
    changes: dict[str, bytes] = {}
    for number in range(2):
        process = Process()
        with process:
            tx = open_named(world.open(), "run")
            staged = {f"b/{number}": world.value(400), f"c/{number}": world.value()}
            world.leave(tx, "run", staged)
            changes |= staged
        process.die()
    with Process():
        repo = world.open()
        tx = existing(repo, "run")
        world.end(tx)
        world.commit(tx, changes)
        world.put(repo, {"a": world.value()})


def named_first(world: World) -> None:
    """A transaction with a name is the first that there is; it is left, and its name is given to another."""
    with Process():
        tx = open_named(world.open(), "run")
        world.leave(tx, "run", {"a": world.value(2000)})
    with Process():
        tx = existing(world.open(), "run")
        world.end(tx)
        tx.rollback()
    with Process():
        repo = world.open()
        tx = open_named(repo, "run")
        staged = {"b": world.value()}
        world.leave(tx, "run", staged)
        again = existing(repo, "run")
        world.end(again)
        world.commit(again, staged)


def cooperative_scratch(world: World) -> None:
    """What two processes have staged becomes a commit without durability; a durable one follows."""
    fast = world.open("none")
    world.put(fast, {"a": world.value()})
    tx = fast.begin()
    changes = {"b/0": world.value(300), "b/1": world.value(2000)}
    tx["b/0"] = changes["b/0"]
    shared = tx.lifecycle.share()
    with Process() as worker:
        repo = world.open("none")
        theirs = join_shared(repo, shared)
        theirs["b/1"] = changes["b/1"]
        theirs.lifecycle.seal()
        theirs.lifecycle.end()
    worker.die()
    world.commit(tx, changes)
    world.put(world.open(), {"c": world.value()})


def tags(world: World) -> None:
    """Commits get names, also one that was made without durability."""
    repo, scratch = world.open(), world.open("none")
    first = world.put(repo, {"a": world.value()})
    world.tag(repo, "one", first)
    second = world.put(scratch, {"a": world.value()})
    world.tag(world.open(), "two", second)
    world.put(repo, {"b": world.value()})


def branches(world: World) -> None:
    """Commits on two branches in turns, by several processes; then one is deleted."""
    repo = world.open()
    first = world.put(repo, {"a": world.value(), "b": world.value(300)})
    world.branch(repo, "dev", first)
    world.put_on(repo, "dev", {"a": world.value()})
    world.put(repo, {"a": world.value()})
    other = world.open()
    world.put_on(other, "dev", {"c": world.value(700)})
    world.branch(other, "more", repo.head().id)
    world.put_on(world.open(), "more", {"a": world.value()})
    world.unbranch(other, "dev")
    world.put(other, {"c": world.value()})


def branch_on_scratch(world: World) -> None:
    """A branch makes the commit durable that it begins behind."""
    scratch = world.open("none")
    world.put(scratch, {"a": world.value()})
    second = world.put(scratch, {"b": world.value(900)})
    world.branch(world.open(), "dev", second)
    world.put_on(world.open(), "dev", {"a": world.value()})


def branches_vacuumed(world: World) -> None:
    """What a branch begins behind, and has of another, is kept; what is left of a deleted one goes."""
    process = Process()
    with process:
        repo = world.open()
        for number in range(4):
            rest = {} if number == 2 else {f"b/{number}": world.value(200)}  # of that file nothing is read later
            commit = world.put(repo, {"a": world.value(), **rest})
            if number == 1:
                world.branch(repo, "dev", commit)
            if number == 2:
                world.branch(repo, "still", commit)
        for number in range(3):
            world.put_on(repo, "dev", {"a": world.value(), f"c/{number}": world.value(200)})
    process.die()
    with Process():
        repo = world.open()
        world.vacuum(repo, keep=1)
        repo.vacuum(keep=1, branch="dev")
        world.put_on(repo, "dev", {"a": world.value()})
        world.unbranch(repo, "dev")
        world.vacuum(repo)


def moved(world: World) -> None:
    """Groups are moved, copied and restored, by several processes; then what they were is given up."""
    process = Process()
    with process:
        repo = world.open()
        held = {"g/zarr.json": _GROUP, "g/c/0": world.value(900), "g/c/1": world.value()}
        first = world.put(repo, held)
        tx = repo.begin()
        tx.nodes.move("g", "h")
        tx["h/c/1"] = changed = world.value()
        gone = dict.fromkeys(held)
        world.commit(tx, {**gone, **{"h" + key[1:]: value for key, value in held.items()}, "h/c/1": changed})
    process.die()
    with Process():
        repo = world.open()
        tx = repo.begin()
        tx.nodes.copy("g", "k", repo.mapping(at=first))
        world.commit(tx, {"k" + key[1:]: value for key, value in held.items()})
        tx = repo.begin()
        tx.nodes.restore("", repo.mapping(at=first))
        there = {key: None for key in repo.mapping() if key not in held}
        world.commit(tx, {**there, **held})
        world.optimize(repo)
        world.vacuum(repo, keep=1)
        world.put(repo, {"g/c/0": world.value()})


def merged(world: World) -> None:
    """Two branches are merged into each other; then the merges are given up, and a branch is deleted."""
    process = Process()
    with process:
        repo = world.open()
        first = world.put(repo, {"a": world.value(), "b/zarr.json": _GROUP})
        world.branch(repo, "dev", first)
        for number in range(2):
            theirs, ours = {f"b/{number}": world.value(300)}, {f"c/{number}": world.value()}
            world.put_on(repo, "dev", theirs)
            world.put(repo, ours)
            world.commit(world.merging(world.open(), "dev"), theirs)
            world.commit_on(world.merging(repo, "main", "dev"), "dev", ours)
    process.die()
    with Process():
        repo = world.open()
        repo.vacuum(keep=1, branch="dev")
        world.optimize(repo)
        world.vacuum(repo, keep=1)
        theirs = {"b/2": world.value(300)}
        world.put_on(repo, "dev", theirs)
        world.commit(world.merging(repo, "dev"), theirs)
        world.unbranch(repo, "dev")
        world.vacuum(repo)


def merged_scratch(world: World) -> None:
    """A durable merge, and a copy, of what was made on a branch without durability."""
    repo, scratch = world.open(), world.open("none")
    first = world.put(repo, {"a": world.value(), "b/zarr.json": _GROUP})
    repo.branches["dev"] = first  # what it holds is not to survive
    for number in range(2):
        theirs = {f"b/{number}": world.value(900)}
        with scratch.begin(branch="dev") as made:
            made.update(theirs)
        head = commits_of(scratch).head(branch_id(scratch, "dev"))
        process = Process()
        with process:
            there = world.open()
            if number:
                tx = there.begin()
                tx.nodes.restore("b", there.mapping(branch="dev"))
            else:
                tx = world.merging(there, "dev")
            world.scratch[some(head).path] = tx.id
            world.commit(tx, theirs)
        process.die()


def merged_while_pending(world: World) -> None:
    """Before a commit of a branch is made durable by its directory's sync, another process merges it."""
    repo = world.open()
    world.branch(repo, "dev", world.put(repo, {"a": world.value(), "b/zarr.json": _GROUP}))
    theirs = {"b/0": world.value(900)}
    dev = branch_id(repo, "dev")

    def before(call: str, path: str, site: str) -> None:
        if call == "sync names" and path.endswith(f"commits/{dev}"):
            SYSTEM.before = None
            world.commit(world.merging(world.open(), "dev"), theirs)

    world.put_on(repo, "dev", {"b/1": world.value()})
    theirs["b/1"] = repo.mapping(branch="dev")["b/1"]
    SYSTEM.before = before
    world.put_on(repo, "dev", {"b/0": theirs["b/0"]})


def scratch(world: World) -> None:
    """Commits without durability, and durable ones on top of them."""
    fast, safe = world.open("none"), world.open()
    world.put(fast, {"a": world.value()})
    world.put(fast, {"b": world.value(900)})
    world.put(safe, {"a": world.value()})
    world.put(fast, {"c": world.value()})
    world.put(world.open(), {"d": world.value()})
    world.put(fast, {"a": world.value(700)})


def on_scratch(world: World) -> None:
    """What was made without durability gets a tag, and a durable transaction with a name on top of it."""
    fast = world.open("none")
    commit = world.put(fast, {"a": world.value(900)})
    world.tag(world.open(), "one", commit)


def named_on_scratch(world: World) -> None:
    world.put(world.open("none"), {"a": world.value(900)})
    with Process():
        repo = world.open()
        staged = {"b": world.value()}
        world.leave(open_named(repo, "run"), "run", staged)
        tx = existing(repo, "run")
        world.end(tx)
        world.commit(tx, staged)


def large(world: World) -> None:
    """Commits of more than a megabyte are synced before the lock is taken, too."""
    repo = world.open()
    world.put(repo, {"a": world.value(1_100_000), "b": world.value()})
    world.put(repo, {f"c/{number}": world.value(300_000) for number in range(4)})
    world.put(repo, {"b": world.value()})


def overtaken(world: World) -> None:
    """Before a commit is made durable by its directory's sync, another follows it, and another one that."""
    world.put(world.open(), {"a": world.value()})

    def overtake(left: int) -> Callable[[str, str, str], None]:
        def before(call: str, path: str, site: str) -> None:
            if call == "sync names" and path.endswith("commits/main"):
                SYSTEM.before = overtake(left - 1) if left > 1 else None
                world.put(world.open(), {"a": world.value(), f"b/{left}": world.value(100)})

        return before

    SYSTEM.before = overtake(2)
    world.put(world.open(), {"a": world.value(), "b/3": world.value(100)})
    world.put(world.open(), {"a": world.value()})


def rivals(seed: int) -> Callable[[World], None]:
    def rivals(world: World) -> None:
        """Two processes commit at once, each three times, from the very first commit on."""

        def program(number: int) -> Callable[[], None]:
            def run() -> None:
                repo = world.open()
                for each in range(3):
                    world.put(repo, {f"{number}/{each}": world.value(100), f"{number}/last": world.value()})

            return run

        world.take_turns(seed, program(1), program(2))

    return rivals


def crowd(seed: int) -> Callable[[World], None]:
    def crowd(world: World) -> None:
        """Four processes commit at once: each on top of what those ahead of it in the queue are about to commit."""
        world.put(world.open(), {"a": world.value()})

        def program(number: int) -> Callable[[], None]:
            def run() -> None:
                repo = world.open()
                for each in range(2):
                    world.put(repo, {f"{number}/{each}": world.value(100), f"{number}/last": world.value()})

            return run

        world.take_turns(seed, *map(program, range(4)))

    return crowd


def killed_in_the_queue(world: World) -> None:
    """The one that a process is about to follow is killed before it is in its version."""
    world.put(world.open(), {"a": world.value()})
    first = Process()

    def before(call: str, path: str, site: str) -> None:
        if call == "sync" and "/.staging/" in path:
            SYSTEM.before, SYSTEM.wait = None, first.die
            with Process() as second:
                world.put(world.open(), {"b": world.value()})
            second.die()
            SYSTEM.wait = None
            raise ProgramDied

    with first:
        tx = world.open().begin()
        tx["lost"] = world.value(300)
        SYSTEM.before = before
        with contextlib.suppress(ProgramDied, OSError):
            tx.commit()
        tx.lifecycle.end()
    assert "lost" not in dict(world.open().mapping()), "a commit that nobody has made is there"
    world.put(world.open(), {"c": world.value()})


def upkeep_behind_a_line(world: World) -> None:
    """A commit queues when somebody wants to be alone: who vacuums waits until that is in its version."""
    for _ in range(3):
        world.put(world.open(), {"a": world.value()})

    def commit() -> None:
        repo = world.open()
        for number in range(3):
            world.put(repo, {"a": world.value(), f"{number}": world.value(100)})

    def keep_house() -> None:
        repo = world.open()
        world.optimize(repo)
        world.vacuum(repo, keep=1)

    world.take_turns(5, commit, keep_house)


def _several_packs(world: World) -> None:
    """Three commits; what one of them holds lies in packs of two processes."""
    owner = world.open()
    world.put(owner, {"a": world.value(), "b/0": world.value(600)})
    with Process() as process:
        tx = owner.begin()
        changes = {"b/1": world.value(300), "b/2": world.value(300)}
        tx["b/1"] = changes["b/1"]
        shared = tx.lifecycle.share()
        worker = Process()
        with worker:
            repo = world.open()
            theirs = join_shared(repo, shared)
            theirs["b/2"] = changes["b/2"]
            theirs.lifecycle.seal()
            theirs.lifecycle.end()
        worker.die()
        world.commit(tx, changes)
    process.die()
    world.put(owner, {"a": None, "b/1": world.value()}, deleted=("c",))


def optimized(world: World) -> None:
    """Small packs and their runs are copied into one, which the commits after that need."""
    _several_packs(world)
    with Process():
        repo = world.open()
        world.optimize(repo)
        world.put(repo, {"a": world.value()})
        world.optimize(repo)


def vacuumed(world: World) -> None:
    """All commits but the newest are given up; what it needs of them was copied by then."""
    _several_packs(world)
    process = Process()
    with process:
        repo = world.open()
        assert world.vacuum(repo, keep=1) == 2  # the files of the others are still needed
        world.put(repo, {"a": world.value()})
        world.optimize(repo)
    process.die()
    with Process():
        repo = world.open()
        assert world.vacuum(repo, keep=1) == 5
        world.put(repo, {"a": world.value(), "b/3": world.value()})


def vacuumed_scratch(world: World) -> None:
    """Commits without durability, packs of two processes among them, are given up; a vacuum is durable."""
    for durability in ("none", "fsync", "none"):
        process = Process()
        with process:
            repo = world.open("none")
            for number in range(2):
                world.put(repo, {"a": world.value(), f"b/{number}": world.value(700)})
            world.optimize(world.open(durability))
        process.die()
        with Process() as process:
            world.vacuum(world.open("none"), keep=1)
        process.die()
    world.put(world.open(), {"a": world.value()})


def vacuumed_around(world: World) -> None:
    """A commit that has a tag, and those since the base of a transaction with a name, are kept."""
    process = Process()
    with process:
        repo = world.open()
        for number in range(5):
            commit = world.put(repo, {"a": world.value(), f"b/{number}": world.value(200)})
            if number == 1:
                world.tag(repo, "one", commit)
            if number == 3:
                world.leave(open_named(world.open(), "run"), "run", {"c": world.value(300)})
        world.optimize(repo)
    process.die()
    process = Process()
    with process:
        repo = world.open()
        assert world.vacuum(repo, keep=1) == 3
        tx = existing(repo, "run")
        world.end(tx)
        world.commit(tx, {"c": world.parts[-1].staged["c"]})
    process.die()
    with Process():
        repo = world.open()
        assert world.vacuum(repo, keep=1) == 7
        world.untag(repo, "one")
        world.vacuum(repo, keep=1)


def retained(world: World) -> None:
    """Every second commit gives up those that are out of date."""

    def vacuum(*arguments: object, **named: object) -> VacuumReport:
        world.vacuum(repo, keep=2)
        return VacuumReport(0, 0, 0, 0)

    repo = world.open(retention=2)
    with mock.patch.object(retention, "STEP", 2), mock.patch.object(retention, "vacuum", vacuum):
        for number in range(8):
            world.put(repo, {"a": world.value(), f"b/{number % 3}": world.value(300)})
    assert world.oldest_kept > 2


def housekeeping(seed: int) -> Callable[[World], None]:
    def housekeeping(world: World) -> None:
        """One process optimizes and vacuums again and again, while another commits."""
        world.put(world.open(), {"a": world.value(), "0": world.value(100)})

        def keep_house() -> None:
            repo = world.open()
            for _ in range(2):
                world.optimize(repo)
                world.vacuum(repo, keep=2)

        def commit() -> None:
            repo = world.open()
            for number in range(4):
                world.put(repo, {"a": world.value(), f"{number}": world.value(100)})

        world.take_turns(seed, keep_house, commit)

    return housekeeping


def reader(when: str) -> Callable[[World], None]:
    def reader(world: World) -> None:
        """A process reads an old commit: since before a vacuum, or since that has raised the oldest kept version, but
        not said so.
        """
        for _ in range(3):
            world.put(world.open(), {"a": world.value(), "b": world.value(300)})
        expected = world.state([promise.commit for promise in world.commits[:2]])
        process, read = Process(), []

        def begin() -> None:
            with process:
                read.append(world.open().mapping(1))

        def before(call: str, path: str, site: str) -> None:
            if call == "rename" and "/oldest_kept/main/" in path:
                SYSTEM.before = None
                begin()

        if when == "early":
            begin()
        else:
            SYSTEM.before = before
        with Process():
            repo = world.open()
            world.optimize(repo)
            world.vacuum(repo, keep=1)
        (mapping,) = read
        assert dict(mapping) == expected, "what a process reads was changed"
        process.die()

    return reader


def late_tag(world: World) -> None:
    """A commit that is about to get a tag, and whose pin is lost, is given up by a vacuum: there is no tag then."""
    with Process() as process:
        commit = world.put(world.open(), {"a": world.value()})
        world.put(world.open(), {"a": world.value()})
    process.die()
    repo = world.open()

    def before(call: str, path: str, site: str) -> None:
        if call == "rename" and "/tags/" in path:
            SYSTEM.before = None
            SYSTEM.unlink(f"{URL}/{names.PINS}")
            with Process() as process:
                other = world.open()
                world.optimize(other)
                world.vacuum(other, keep=1)
            process.die()

    SYSTEM.before = before
    with pytest.raises(txstore.SnapshotExpiredError):
        repo.tags["late"] = commit
    assert dict(repo.tags) == {}
    world.begun = len(SYSTEM.disk.steps)  # who is killed before leaves a tag of nothing, which `verify` reports
    world.put(world.open(), {"b": world.value()})


def linked(world: World) -> None:
    """What two processes have staged has its name in `packs/`, and no commit yet, when somebody vacuums."""
    _several_packs(world)

    def before(call: str, path: str, site: str) -> None:
        if call == "rename" and "/commits/main/" in path:
            SYSTEM.before = None
            with Process() as process:
                world.vacuum(world.open())
            process.die()

    SYSTEM.before = None
    owner = world.open()
    tx = owner.begin()
    changes = {"c/0": world.value(300), "c/1": world.value(300)}
    tx["c/0"] = changes["c/0"]
    shared = tx.lifecycle.share()
    with Process() as worker:
        repo = world.open()
        theirs = join_shared(repo, shared)
        theirs["c/1"] = changes["c/1"]
        theirs.lifecycle.seal()
        theirs.lifecycle.end()
    worker.die()
    SYSTEM.before = before
    world.commit(tx, changes)


def sleeper(world: World) -> None:
    """A process is about to take a version when the locks are lost: others take it, and a vacuum frees it again."""
    world.put(world.open(), {"a": world.value()})

    def before(call: str, path: str, site: str) -> None:
        if call == "rename" and "/commits/main/" in path:
            SYSTEM.before = None
            for lock in (names.COMMIT_LOCK, names.PINS):
                SYSTEM.unlink(f"{URL}/{lock}")
            with Process() as process:
                repo = world.open()
                for _ in range(3):
                    world.put(repo, {"a": world.value()})
                world.optimize(repo)
            process.die()
            with Process() as process:
                world.vacuum(world.open(), keep=1)
            process.die()

    SYSTEM.before = before
    process = Process()
    with process:
        repo = world.open()
        tx = repo.begin()
        tx["b"] = world.value()  # what nobody may see
        with pytest.raises(txstore.SnapshotExpiredError):
            tx.commit()
        assert 1 not in commits_of(repo).files.versions("main"), "a version outside of the history is not given back"
        tx.rollback()
    process.die()
    world.put(world.open(), {"a": world.value()})


_STARTED = {"a": b"started"}


def _start() -> None:
    tx = txstore.Repository(URL).begin()
    tx["a"] = _STARTED["a"]
    tx.commit()


def _found_started(world: World, *, durable: bool) -> txstore.Repository:
    repo = world.open()
    commit = repo.commit(0).id
    world.made[commit] = Made(_STARTED, (), durable)
    world.commits.append(Promise(len(SYSTEM.disk.steps), commit, commit, durable))
    return repo


def tidied(world: World) -> None:
    """Whoever has a repository without its empty directories does not begin with a transaction."""
    repo = _found_started(world, durable=True)
    world.tag(repo, "one", repo.commit(0).id)
    world.vacuum(world.open(), keep=1)


def vacuumed_at_once(world: World) -> None:
    _found_started(world, durable=True)
    world.vacuum(world.open())
    world.put(world.open(), {"b": world.value()})


_IN_A_PACK = {"p": b"in a pack"}


def started() -> Tree:
    SYSTEM.turn_on(Disk(), boot=1)
    _start()
    return SYSTEM.disk.image()


def torn(what: str) -> Tree:
    """A repository that has one commit, over which the power was lost: over another one, or over its guard."""
    SYSTEM.turn_on(Disk(), boot=1)
    _start()
    path = names.GUARD
    if what == "head":
        tx = txstore.Repository(URL, durability="none").begin()
        tx["b"] = bytes(900)
        tx.commit()
        path = names.commit_path("main", 1)
        del SYSTEM.disk.directories[SYSTEM.find(URL)][names.LOCKS]
    inode = SYSTEM.find(f"{URL}/{path}")
    SYSTEM.disk.files[inode] = bytes(len(SYSTEM.disk.files[inode]))
    return SYSTEM.disk.image()


def repaired(world: World) -> None:
    """What was torn is moved away, or made anew; it is kept. The commit stays."""
    repo = _found_started(world, durable=True)
    world.torn, world.made[TORN] = True, Made({}, (), False)
    with Process():
        report = repo.verify(repair=True)
        assert report.ok
        assert report.repairs
        world.mended = len(SYSTEM.disk.steps)
        tree = {path.removeprefix("data.tx/"): content for path, content in SYSTEM.disk.tree().items()}
        kept = [path for path, content in tree.items() if path.startswith(names.QUARANTINE) and content is not None]
        assert kept
        world.quarantined = tuple(kept)
    with Process():
        world.put(world.open(), {"c": world.value()})


def cooperative_on_copy(world: World) -> None:
    """The same on a repository that has a commit, and whose empty directories are missing."""
    _found_started(world, durable=True)
    cooperative(world)


def copying(world: World) -> None:
    """A repository is copied, nothing is synced; the first durable commit to the copy does that."""
    directories, files = _ORIGINAL
    left = [(ROOT, PREFIX.rstrip("/"))]
    while left:
        inode, path = left.pop()
        if inode in files:
            descriptor = SYSTEM.open(path, os.O_CREAT | os.O_WRONLY)
            SYSTEM.pwrite(descriptor, files[inode], 0)
            SYSTEM.close(descriptor)
        elif inode != ROOT:
            SYSTEM.mkdir(path)
        left += [(below, f"{path}/{name}") for name, below in directories.get(inode, {}).items()]
    world.begun, world.torn = len(SYSTEM.disk.steps), True
    repo = _found_started(world, durable=False)
    packed = repo.commit(1).id
    world.made[packed] = Made(_IN_A_PACK, (), False)
    world.commits.append(Promise(len(SYSTEM.disk.steps), packed, packed, False))
    world.put(repo, {"b": world.value()})
    world.tags.append(Promise(len(SYSTEM.disk.steps), "one", repo.commit(0).id, True))


def without_empty_directories(tree: Tree, more: int = 0) -> Tree:
    """A tree as some tools copy it; `more` is added to the number of each inode."""
    directories, files = tree
    full = {inode for inode, found in directories.items() if any(below in files for below in found.values())}
    full |= {inode for inode, found in directories.items() if full & set(found.values())}
    full |= {inode for inode, found in directories.items() if full & set(found.values())}
    number = {inode: inode if inode == ROOT else inode + more for inode in (*directories, *files)}
    kept = {
        number[inode]: {
            name: number[below] for name, below in directories[inode].items() if below in files or below in full
        }
        for inode in {ROOT} | full
    }
    return kept, {number[inode]: content for inode, content in files.items()}


def copied() -> Tree:
    return without_empty_directories(started(), more=1000)


_ORIGINAL: Tree = ({}, {})


def elsewhere() -> Tree:
    """An empty disk; what is to be copied to it has three commits, a tag, and data packs."""
    global _ORIGINAL
    SYSTEM.turn_on(Disk(), boot=1)
    repo = World().open()
    _start()
    tx = repo.begin()
    shared = tx.lifecycle.share()
    with Process() as process:
        other = World().open()
        theirs = join_shared(other, shared)
        theirs["p"] = _IN_A_PACK["p"]
        theirs.lifecycle.seal()
        theirs.lifecycle.end()
    process.die()
    tx.commit()
    repo.tags["one"] = repo.commit(0)
    _ORIGINAL = SYSTEM.disk.image()
    return {ROOT: {}}, {}


def copied_before_any_commit() -> Tree:
    SYSTEM.turn_on(Disk(), boot=1)
    World().open().engine.commits.identity.create(durable=True)
    return without_empty_directories(SYSTEM.disk.image(), more=1000)


@dataclass(frozen=True)
class Workload:
    run: Callable[[World], None]
    start: Callable[[], Tree] | None = None  # what is on the disk before; else nothing
    has_noreplace: bool = True  # a rename that does not replace; else a link and an unlink


WORKLOADS: dict[str, Workload] = {
    "first commit": Workload(first_commit),
    "series": Workload(series),
    "several processes": Workload(several_processes),
    "conflict": Workload(conflict),
    "cooperative": Workload(cooperative),
    "parts": Workload(parts),
    "named": Workload(named),
    "named first": Workload(named_first),
    "tags": Workload(tags),
    "branches": Workload(branches),
    "branch on scratch": Workload(branch_on_scratch),
    "branches vacuumed": Workload(branches_vacuumed),
    "moved": Workload(moved),
    "merged": Workload(merged),
    "merged scratch": Workload(merged_scratch),
    "merged while pending": Workload(merged_while_pending),
    "scratch": Workload(scratch),
    "cooperative scratch": Workload(cooperative_scratch),
    "tag on scratch": Workload(on_scratch),
    "named on scratch": Workload(named_on_scratch),
    "large": Workload(large),
    "overtaken": Workload(overtaken),
    "rivals 1": Workload(rivals(1)),
    "rivals 2": Workload(rivals(2)),
    "rivals 3": Workload(rivals(3)),
    "crowd 1": Workload(crowd(1)),
    "crowd 2": Workload(crowd(2)),
    "killed in the queue": Workload(killed_in_the_queue),
    "upkeep behind a line": Workload(upkeep_behind_a_line),
    "copied": Workload(first_commit, copied_before_any_commit),
    "copied with a commit": Workload(cooperative_on_copy, copied),
    "copying": Workload(copying, elsewhere),
    "swept": Workload(cooperative_on_copy, lambda: without_empty_directories(started())),
    "copied, tidied": Workload(tidied, copied),
    "swept, tidied": Workload(tidied, lambda: without_empty_directories(started())),
    "copied, vacuumed": Workload(vacuumed_at_once, copied),
    "optimized": Workload(optimized),
    "vacuumed": Workload(vacuumed),
    "vacuumed scratch": Workload(vacuumed_scratch),
    "vacuumed around": Workload(vacuumed_around),
    "retained": Workload(retained),
    "housekeeping 1": Workload(housekeeping(1)),
    "housekeeping 2": Workload(housekeeping(2)),
    "early reader": Workload(reader("early")),
    "late reader": Workload(reader("late")),
    "late tag": Workload(late_tag),
    "linked": Workload(linked),
    "sleeper": Workload(sleeper),
    "repaired": Workload(repaired, lambda: torn("head")),
    "repaired guard": Workload(repaired, lambda: torn("guard")),
    "links": Workload(several_processes, has_noreplace=False),
    "links, named": Workload(named, has_noreplace=False),
}
