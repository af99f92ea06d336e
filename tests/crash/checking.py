"""What every image has to hold: all that was promised, beyond it only whole commits, and a repository that goes on."""

from __future__ import annotations

from typing import NamedTuple

import txstore
from tests.crash.disk import Disk, Tree
from tests.crash.system import SYSTEM, URL, Process, forget_all
from tests.crash.world import World
from txstore import encoding, names, records
from txstore.verifying import Fault

_SEED = 1 << 20  # of what these processes draw: nothing that the workloads have drawn


class Looked(NamedTuple):
    """What became of one image."""

    commits: int  # that were found
    refused: bool  # scratch data is damaged, and says so


def look(tree: Tree, world: World, *, boot: int, lost_power: bool, go_on: bool = True) -> Looked:
    """Open an image in a new process, and compare. Raises what is wrong, as whatever it shows.

    `world` is what had been promised when it was taken. On the machine the image is that of `boot`.
    """
    SYSTEM.turn_on(Disk(tree), boot=boot, seed=_SEED + boot)
    promised = world.promised(durable_only=lost_power)
    try:
        found = _look(world, promised, lost_power=lost_power)
        if go_on:
            _resume(world, found)
            _go_on(world, lost_power=lost_power)
    except (txstore.CorruptionError, txstore.RepositoryNotFoundError) as error:
        if not (lost_power and _is_scratch(getattr(error, "path", names.FORMAT), world, promised)):
            raise
        _look_at_promised(world, promised)
        return Looked(0, True)
    return Looked(len(found), False)


def _look(world: World, promised: list[str], *, lost_power: bool) -> list[str]:
    with Process():
        repo = world.open()
        found = _history(repo, world, promised)
        _compare(repo, world, found, every=True)
        if repo.exists():
            guarded = _is_guarded(repo)
            assert guarded or world.unguarded or (_has_scratch(world) and not promised), "no guard"
            world.unguarded |= not guarded
        if found:
            _check_faults(repo, world, found, lost_power=lost_power)
        for tag in world.tags:
            assert repo.tags[tag.what].id == tag.commit, f"the tag {tag.what} is another"
        return found


def _is_guarded(repo: txstore.Repository) -> bool:
    storage = repo.engine.storage
    return storage.exists(names.GUARD) and storage.read(names.GUARD) == records.encode_guard()


def _history(repo: txstore.Repository, world: World, promised: list[str]) -> list[str]:
    """Return the ids of the commits, oldest first."""
    if not repo.exists():
        assert not promised, "there is no repository"
        return []
    found = [commit.id for commit in repo.log()][::-1]
    missing = [commit for commit in promised if commit not in found]
    assert not missing, f"acknowledged commits are missing: {missing}, of {promised}; found {found}"
    foreign = [commit for commit in found if commit not in world.made]
    assert not foreign, f"what nobody has committed is there: {foreign}"
    assert len(found) == len(set(found)), "a commit is there twice"
    return found


def _compare(repo: txstore.Repository, world: World, found: list[str], *, every: bool) -> None:
    for slot in range(len(found)) if every else ():
        assert dict(repo.mapping(slot)) == world.state(found[: slot + 1]), f"commit {slot} holds something else"
    if repo.exists():
        assert dict(repo.mapping()) == world.state(found), "the head holds something else"


def _is_scratch(path: str, world: World, promised: list[str]) -> bool:
    """Tell whether damage at a path can only concern commits that were not to survive.

    One that was made with `durability="none"` may be in its slot without content, until a durable one has followed.
    """
    if not _has_scratch(world):
        return False
    if path.startswith(names.commits_directory("main")):
        slot = names.parse_slot(path.rpartition("/")[2])
        return slot is not None and slot >= _safe(world, promised)
    return path == names.FORMAT and not promised


def _has_scratch(world: World) -> bool:
    return not all(made.durable for made in world.made.values())


def _safe(world: World, promised: list[str]) -> int:
    """How many slots are safe: a durable commit makes all durable that are below it."""
    order = [promise.commit for promise in world.commits]
    return max((order.index(commit) for commit in promised), default=-1) + 1


def _look_at_promised(world: World, promised: list[str]) -> None:
    """Where the newest is damaged, what is below it can still be read."""
    order = list(dict.fromkeys(promise.commit for promise in world.commits))
    for slot in range(_safe(world, promised)):
        repo = world.open()
        assert repo.commit(slot).id == order[slot]
        assert dict(repo.mapping(slot)) == world.state(order[: slot + 1])


def _check_faults(
    repo: txstore.Repository, world: World, found: list[str], *, lost_power: bool, tidy: bool = False
) -> None:
    """A loss of power may leave three kinds of faults, and no others.

    Commits above a hole, which nobody has acknowledged; the guard of a repository in which nothing was to survive; and,
    until the next process that writes has made things `tidy`, half of the record of a transaction without a name.
    """
    named = {part.transaction for part in world.parts}

    def is_legitimate(fault: Fault) -> bool:
        directory, _, name = fault.path.rpartition("/")
        slot = names.parse_slot(name)
        if directory == names.commits_directory("main"):
            return slot is not None and slot >= len(found)
        if directory == names.STAGING:
            return not tidy and names.parse_record(name) is not None and name.partition(".")[0] not in named
        return fault.path == names.GUARD and world.unguarded

    faults = [fault for fault in repo.verify().faults if not (lost_power and is_legitimate(fault))]
    assert faults == [], f"verify reports {[str(fault) for fault in faults]}"


def _resume(world: World, found: list[str]) -> None:
    """What was left in a transaction with a name is there, for the next process that gives the name."""
    for name in dict.fromkeys(part.name for part in world.parts):
        part = [part for part in world.parts if part.name == name][-1]
        staged = {
            key: value
            for each in world.parts
            if each.transaction == part.transaction
            for key, value in each.staged.items()
        }
        with Process():
            repo = world.open()
            tx = repo.engine.named(name)
            if part.transaction in found:
                assert tx.id != part.transaction, "it was committed, and goes on"
                tx.rollback()
                continue
            if tx.id != part.transaction:
                assert part.transaction in world.ending, "what was staged under a name is gone"
                tx.rollback()
                continue
            for key, value in staged.items():
                assert tx.get(key) == value, f"{key} is not staged any more"
            tx.leave()
            world.end(tx)
            finish(world, repo, name, staged)


def finish(world: World, repo: txstore.Repository, name: str, staged: dict[str, bytes]) -> None:
    """Commit a transaction with a name. What a process was doing when it died is done again."""
    tx = repo.engine.existing(name)
    try:
        world.commit(tx, {key: bytes(tx[key]) for key in tx.changes()["set"]})
    except txstore.ParticipantLostError as error:
        if set(error.keys) & set(staged):
            raise AssertionError("what was left in good order is lost") from error
        tx = repo.engine.named(name)
        world.leave(tx, name, {key: world.value() for key in error.keys})
        tx = repo.engine.existing(name)
        world.commit(tx, {key: bytes(tx[key]) for key in tx.changes()["set"]})


def _go_on(world: World, *, lost_power: bool) -> None:
    """New processes commit on top, see all of it, and clear away what the dead have left."""
    with Process():
        repo = world.open()
        for number in range(2):
            world.put(repo, {"went on": world.value(), f"after/{number}": world.value(50)})
    with Process():
        repo = world.open()
        found = _history(repo, world, world.promised(durable_only=lost_power))
        _compare(repo, world, found, every=False)
        _check_faults(repo, world, found, lost_power=lost_power, tidy=True)
        storage = repo.engine.storage
        left = storage.list(names.STAGING)
        kept = {name.partition(".")[0] for name in left if _is_named_record(storage.read(f"{names.STAGING}/{name}"))}
        # The file of pins may have its first name, too: nobody can delete that while somebody reads.
        staging, of_pins = SYSTEM.find(f"{URL}/{names.STAGING}"), SYSTEM.find(f"{URL}/{names.PINS}")
        kept |= {name.partition(".")[0] for name in left if SYSTEM.disk.directories[staging][name] == of_pins}
        dead = [name for name in left if names.parse_named(name) is None and name.partition(".")[0] not in kept]
        assert dead == [], f"what dead processes have staged is still there: {dead}"
    forget_all()


def _is_named_record(content: bytes) -> bool:
    try:
        return records.TransactionRecord.decode(content).name is not None
    except encoding.MalformedError:
        return False
