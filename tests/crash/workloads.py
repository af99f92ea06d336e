"""What is going on when the power is lost. A new workload is a function here, and a line in the table at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

import txstore
from tests.crash.disk import ROOT, Disk, Tree
from tests.crash.system import SYSTEM, Process
from tests.crash.world import Made, Promise, World


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
        shared = tx.share()
        workers = []
        for number in (1, 2):
            worker = Process()
            workers.append(worker)
            with worker:
                repo = world.open()
                theirs = repo.engine.join(shared, repo.engine.commits.identity.id)
                changes[f"b/{number}"] = theirs[f"b/{number}"] = world.value(size)
                theirs.seal()
                theirs._finalizer.detach()
        for worker in workers:
            worker.die()
        world.commit(tx, changes)
    world.put(owner, {"c": world.value()})


_COPIED = {"a": b"copied"}


def _copied_commit(world: World) -> None:
    tx = world.open().engine.begin()
    tx["a"] = _COPIED["a"]
    tx.commit()


def cooperative_on_copy(world: World) -> None:
    """The same on a repository that has a commit, and whose empty directories are missing."""
    (found,) = world.open().log()
    world.made[found.id] = Made(_COPIED, (), True)
    world.commits.append(Promise(0, found.id, found.id, True))
    cooperative(world)


def named(world: World) -> None:
    """A transaction with a name, of two processes one after the other; a third commits it."""
    world.put(world.open(), {"a": world.value()})
    changes: dict[str, bytes] = {}
    for number in range(2):
        process = Process()
        with process:
            tx = world.open().engine.named("run")
            staged = {f"b/{number}": world.value(400), f"c/{number}": world.value()}
            world.leave(tx, "run", staged)
            changes |= staged
        process.die()
    with Process():
        repo = world.open()
        tx = repo.engine.existing("run")
        world.end(tx)
        world.commit(tx, changes)
        world.put(repo, {"a": world.value()})


def named_first(world: World) -> None:
    """A transaction with a name is the first that there is; it is left, and its name is given to another."""
    with Process():
        tx = world.open().engine.named("run")
        world.leave(tx, "run", {"a": world.value(2000)})
    with Process():
        tx = world.open().engine.existing("run")
        world.end(tx)
        tx.rollback()
    with Process():
        repo = world.open()
        tx = repo.engine.named("run")
        staged = {"b": world.value()}
        world.leave(tx, "run", staged)
        again = repo.engine.existing("run")
        world.end(again)
        world.commit(again, staged)


def tags(world: World) -> None:
    """Commits get names, also one that was made without durability."""
    repo, scratch = world.open(), world.open("none")
    first = world.put(repo, {"a": world.value()})
    world.tag(repo, "one", first)
    second = world.put(scratch, {"a": world.value()})
    world.tag(world.open(), "two", second)
    world.put(repo, {"b": world.value()})


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
        world.leave(repo.engine.named("run"), "run", staged)
        tx = repo.engine.existing("run")
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


def copied(write: Callable[[World], object] | None = None) -> Tree:
    """A repository that was copied, after `write`, by a tool that does not copy empty directories.

    All inodes are others than before.
    """
    SYSTEM.turn_on(Disk(), boot=1)
    world = World()
    world.open().engine.commits.identity.create(durable=True)
    if write is not None:
        write(world)
    directories, files = SYSTEM.disk.directories, SYSTEM.disk.files
    full = {inode for inode, found in directories.items() if any(below in files for below in found.values())}
    full |= {inode for inode, found in directories.items() if full & set(found.values())}
    copy = {inode: inode if inode == ROOT else inode + 1000 for inode in (ROOT, *directories, *files)}
    kept = {
        copy[inode]: {
            name: copy[below] for name, below in directories[inode].items() if below in files or below in full
        }
        for inode in {ROOT} | full
    }
    return kept, {copy[inode]: bytes(content) for inode, content in files.items()}


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
    "named": Workload(named),
    "named first": Workload(named_first),
    "tags": Workload(tags),
    "scratch": Workload(scratch),
    "tag on scratch": Workload(on_scratch),
    "named on scratch": Workload(named_on_scratch),
    "large": Workload(large),
    "overtaken": Workload(overtaken),
    "rivals 1": Workload(rivals(1)),
    "rivals 2": Workload(rivals(2)),
    "rivals 3": Workload(rivals(3)),
    "copied": Workload(first_commit, copied),
    "copied with a commit": Workload(cooperative_on_copy, lambda: copied(_copied_commit)),
    "links": Workload(several_processes, has_noreplace=False),
    "links, named": Workload(named, has_noreplace=False),
}
