"""What another process does after programs were killed: on the same disk, where much of theirs is not durable yet."""

from collections.abc import Callable

from tests.crash.checking import finish
from tests.crash.system import Process
from tests.crash.world import World
from tests.tools.inside import existing, join_shared, open_named


def commit_and_tag(world: World) -> None:
    with Process():
        repo = world.open()
        commit = world.put(repo, {"followed/0": world.value(), "followed/1": world.value(300)})
        world.tag(repo, "followed", commit)


def cooperate(world: World) -> None:
    """Commit what two processes have staged: the directories of `packs` may be new, and not durable."""
    with Process():
        repo = world.open()
        tx = repo.begin()
        changes = {"followed/1": world.value(), "followed/2": world.value(600)}
        tx["followed/1"] = changes["followed/1"]
        shared = tx.lifecycle.share()
        with Process() as worker:
            theirs = join_shared(world.open(), shared)
            theirs["followed/2"] = changes["followed/2"]
            theirs.lifecycle.seal()
            theirs.lifecycle.end()
        worker.die()
        world.commit(tx, changes)


def resume(world: World) -> None:
    """Go on with the transaction that has a name, or begin one; commit it."""
    with Process():
        repo = world.open()
        found = {commit.id for commit in repo.log()} if repo.exists else set()
        tx = open_named(repo, "run")
        assert tx.id not in found, "it was committed, and goes on"
        world.leave(tx, "run", {"followed/1": world.value(300)})
        world.end(tx)
        finish(world, repo, "run", {})


def roll_back(world: World) -> None:
    """Give a transaction with a name up, and begin another one with that name."""
    with Process():
        repo = world.open()
        tx = open_named(repo, "run")
        tx.lifecycle.leave()
        tx = existing(repo, "run")
        world.end(tx)
        tx.rollback()
        world.put(repo, {"followed/1": world.value()})


def maintain(world: World) -> None:
    """Do what somebody may have been killed at: it is begun again."""
    with Process():
        repo = world.open()
        world.put(repo, {"followed/1": world.value(), "followed/2": world.value(300)})
        world.optimize(repo)
        world.vacuum(repo, keep=2)


def sweep(world: World) -> None:
    """Delete what is left over of what others have given up, and nothing else."""
    with Process():
        repo = world.open()
        if repo.exists:
            world.vacuum(repo)


FOLLOW_UPS: dict[str, Callable[[World], None]] = {
    "commit and tag": commit_and_tag,
    "cooperate": cooperate,
    "resume": resume,
    "roll back": roll_back,
    "maintain": maintain,
    "sweep": sweep,
}
