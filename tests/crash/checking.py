"""What every image has to hold: all that was promised, beyond it only whole commits, and a repository that goes on."""

from typing import NamedTuple

import txstore
from tests.crash.disk import Disk, Tree
from tests.crash.system import SYSTEM, URL, Process, forget_all
from tests.crash.world import MAINTENANCE, Made, World
from tests.tools.inside import commits_of, existing, open_named, storage_of, stored_commit
from txstore.format import encoding, names, records
from txstore.format.commitfile import Header
from txstore.format.records import Tag
from txstore.maintenance.verify import Fault

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
    world.unsure |= world.torn and not promised
    go_on &= not world.unsure
    try:
        found = _look(world, promised, lost_power=lost_power)
        if go_on:
            _resume(world, found)
            _go_on(world, lost_power=lost_power)
    except (txstore.CorruptionError, txstore.RepositoryNotFoundError) as error:
        path = getattr(error, "path", names.FORMAT)
        if not ((lost_power or world.torn) and _is_scratch(path, world, promised)):
            raise
        if path != names.FORMAT:
            _look_at_promised(world, promised)
            if go_on:
                _repair(world, promised)
        return Looked(0, True)
    return Looked(len(found.ids), False)


class Found(NamedTuple):
    """The history that an image holds."""

    ids: list[str]  # of all commits, oldest first
    oldest_kept: int  # the lowest version that can be read

    def slot_of(self, commit: str) -> int:
        return self.ids.index(commit)


def _look(world: World, promised: list[str], *, lost_power: bool) -> Found:
    with Process():
        repo = world.open()
        found = _history(repo, world, promised)
        if repo.exists:
            guarded = _is_guarded(repo)
            assert guarded or world.unguarded or (_has_scratch(world) and not promised), "no guard"
            world.unguarded |= not guarded
        _compare(repo, world, found, every=True)
        for path in world.quarantined:
            assert storage_of(repo).exists(path), f"{path} is gone, and a repair deletes nothing"
        if found.ids:
            _check_faults(repo, world, found, promised, lost_power=lost_power)
        return found


def _is_guarded(repo: txstore.Repository) -> bool:
    storage = storage_of(repo)
    return storage.exists(names.GUARD) and storage.read(names.GUARD) == records.encode_guard()


def _history(repo: txstore.Repository, world: World, promised: list[str]) -> Found:
    """Return all commits, also those that a vacuum has given up, which those that are left name as their parents."""
    if not repo.exists:
        assert not promised, "there is no repository"
        return Found([], 0)
    kept = [commit.id for commit in repo.log()][::-1]
    stored = commits_of(repo).head()
    headers = [] if stored is None else _chain(stored.hash)
    ids = [header.id.hex() for header in headers][::-1]
    assert ids[len(ids) - len(kept) :] == kept, "the log is another than the chain of parents"
    missing = [commit for commit in promised if commit not in ids]
    assert not missing, f"acknowledged commits are missing: {missing}, of {promised}; found {ids}"
    _note_maintenance(world, headers)
    foreign = [commit for commit in ids if commit not in world.made]
    assert not foreign, f"what nobody has committed is there: {foreign}"
    assert len(ids) == len(set(ids)), "a commit is there twice"
    oldest_kept = len(ids) - len(kept)
    assert oldest_kept <= world.oldest_kept, (
        f"what lies below version {oldest_kept} is gone; a vacuum was to keep it from {world.oldest_kept} on"
    )
    return Found(ids, oldest_kept)


def _compare(repo: txstore.Repository, world: World, found: Found, *, every: bool) -> None:
    for version in range(len(found.ids)) if every else ():
        state = world.state(found.ids[: version + 1])
        try:
            held = dict(repo.mapping(version))
        except txstore.SnapshotExpiredError:
            assert version < found.oldest_kept, (
                f"commit {version} can't be read, and the oldest kept version is {found.oldest_kept}"
            )
            continue
        assert held == state, f"commit {version} holds something else"
    if repo.exists:
        assert dict(repo.mapping()) == world.state(found.ids), "the head holds something else"
    for _, _, name in world.untagged:
        assert name not in repo.tags, f"the tag {name} is back"
    done = repo.log(operations=True) if world.tags or world.optimized else []
    recorded = [operation.arguments["tag"] for operation in done if operation.operation == "create tag"]
    optimized = sum(operation.operation == "optimize" for operation in done)
    assert optimized >= len(world.optimized), "nothing tells of an optimize"
    for tag in world.tags:
        assert tag.what in recorded, f"nothing tells who made the tag {tag.what}"
        assert repo.tags[tag.what].id == tag.commit, f"the tag {tag.what} is another"
        state = world.state(found.ids[: found.slot_of(tag.commit) + 1])
        assert dict(repo.mapping(tag=tag.what)) == state, f"the tag {tag.what} holds something else"
    _compare_branches(repo, world)


def _compare_branches(repo: txstore.Repository, world: World) -> None:
    """What was acknowledged on a branch is there; beyond it only what was tried; and none that was deleted is back."""
    there = list(repo.branches) if repo.exists else []
    for branch in {each.name: each for each in world.branches}.values():
        if branch.deleted is not None:
            assert branch.name not in there, f"the branch {branch.name} is back"
        elif branch.deleting is None and branch.acknowledged:
            assert branch.name in there, f"the branch {branch.name} is gone"
        if branch.name in there:
            held = dict(repo.mapping(branch=branch.name))
            may_hold = branch.states[max(0, len(branch.acknowledged) - 1) :]
            assert held in may_hold, f"the branch {branch.name} holds something else"


def _is_scratch(path: str, world: World, promised: list[str]) -> bool:
    """Tell whether damage at a path can only concern commits that were not to survive.

    One that was made with `durability="none"` may be in its version without content, until a durable one has followed.
    """
    if not _has_scratch(world):
        return False
    if path in world.scratch:
        return world.scratch[path] not in promised
    if path.startswith(names.commits_directory("main")):
        version = names.parse_version(path.rpartition("/")[2])
        return version is not None and version >= _safe(world, promised)
    if path.startswith(names.PACKS):
        versions = [
            header.version for header in SYSTEM.headers.values() if path in {pack.name.path for pack in header.packs}
        ]
        return min(versions, default=0) >= _safe(world, promised)
    return path == names.FORMAT and not promised


def _has_scratch(world: World) -> bool:
    return bool(world.scratch) or not all(made.durable for made in world.made.values())


def _safe(world: World, promised: list[str]) -> int:
    """How many versions are safe: a durable commit, or a vacuum that deletes, makes all durable that is below it."""
    order = [promise.commit for promise in world.commits]
    oldest_kept_versions = [
        Tag.decode(world.open().engine.storage.read(path)).version for path in _oldest_kept_versions(world)
    ]
    return max([*oldest_kept_versions, *(order.index(commit) for commit in promised)], default=-1) + 1


def _oldest_kept_versions(world: World) -> list[str]:
    directory = names.oldest_kept_directory("main")
    return [f"{directory}/{name}" for name in world.open().engine.storage.list(directory)]


def _look_at_promised(world: World, promised: list[str]) -> None:
    """Where the newest is damaged, what is below it can still be read."""
    repo = world.open()
    oldest_kept, safe = commits_of(repo).oldest_kept.of("main"), _safe(world, promised)
    ids: list[str] = []
    for version in range(oldest_kept, safe):
        stored = stored_commit(repo, version)
        assert stored is not None, f"commit {version} is gone, and only those below {oldest_kept} were to go"
        headers = _chain(stored.hash)
        _note_maintenance(world, headers)
        ids = [header.id.hex() for header in headers][::-1]
        assert dict(repo.mapping(version)) == world.state(ids), f"commit {version} holds something else"
    missing = [commit for commit in promised if commit not in ids]
    assert not missing, f"acknowledged commits are missing: {missing}, of {promised}; found {ids}"


def _chain(hash: bytes) -> list[Header]:
    """Return a commit and its ancestors, also those whose files are gone."""
    found = []
    while hash in SYSTEM.headers:
        found.append(SYSTEM.headers[hash])
        hash = found[-1].parent_hash
    return found


def _note_maintenance(world: World, headers: list[Header]) -> None:
    for header in headers:
        if header.message in MAINTENANCE:
            world.made.setdefault(header.id.hex(), Made({}, (), header.synced))


def _repair(world: World, promised: list[str]) -> None:
    """A repair moves away what was not to survive, unless values are all that is torn. What was promised stays."""
    with Process():
        report = world.open().verify(repair=True)
    faults = [fault for fault in report.faults if not _is_half_a_record(fault, world)]
    for fault in faults:
        assert _is_scratch(fault.path, world, promised), f"a repair leaves {fault}"
    _look_at_promised(world, promised)
    if not faults:
        with Process():
            repo = world.open()
            _compare(repo, world, _history(repo, world, promised), every=True)
        _go_on(world, lost_power=True)


def _check_faults(
    repo: txstore.Repository, world: World, found: Found, promised: list[str], *, lost_power: bool, tidy: bool = False
) -> None:
    """A loss of power may leave three kinds of faults, and no others.

    Commits above a hole, which nobody has acknowledged; the guard of a repository in which nothing was to survive; and,
    until the next process that writes has made things `tidy`, half of the record of a transaction without a name.

    Of what was not to survive, all values may be there, but not all that is stored around them: raises
    `CorruptionError`, as reading a value does that is not there.
    """
    if world.unsure:
        return

    def is_legitimate(fault: Fault) -> bool:
        directory, _, name = fault.path.rpartition("/")
        version = names.parse_version(name)
        if directory == names.commits_directory("main"):
            return version is not None and version >= len(found.ids)
        return not tidy and _is_half_a_record(fault, world)

    faults = [fault for fault in repo.verify().faults if not (lost_power and is_legitimate(fault))]
    faults = [fault for fault in faults if not (world.unguarded and fault.path == names.GUARD)]
    if lost_power and faults and all(_is_scratch(fault.path, world, promised) for fault in faults):
        raise txstore.CorruptionError(faults[0].path, reason=faults[0].reason)
    assert faults == [], f"verify reports {[str(fault) for fault in faults]}"


def _is_half_a_record(fault: Fault, world: World) -> bool:
    """Tell whether a fault is of the record of a transaction without a name: its owner's process is gone."""
    directory, _, name = fault.path.rpartition("/")
    transaction = names.parse_record(name) if directory == names.STAGING else None
    return transaction is not None and transaction.hex() not in {part.transaction for part in world.parts}


def _resume(world: World, found: Found) -> None:
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
            tx = open_named(repo, name)
            if part.transaction in found.ids:
                assert tx.id != part.transaction, "it was committed, and goes on"
                tx.rollback()
                continue
            if tx.id != part.transaction:
                assert part.transaction in world.ending, "what was staged under a name is gone"
                tx.rollback()
                continue
            for key, value in staged.items():
                assert tx.get(key) == value, f"{key} is not staged any more"
            tx.lifecycle.leave()
            world.end(tx)
            finish(world, repo, name, staged)


def finish(world: World, repo: txstore.Repository, name: str, staged: dict[str, bytes]) -> None:
    """Commit a transaction with a name. What a process was doing when it died is done again."""
    tx = existing(repo, name)
    try:
        world.commit(tx, {key: bytes(tx[key]) for key in tx.changes()["set"]})
    except txstore.ParticipantLostError as error:
        if set(error.keys) & set(staged):
            raise AssertionError("what was left in good order is lost") from error
        tx = open_named(repo, name)
        world.leave(tx, name, {key: world.value() for key in error.keys})
        tx = existing(repo, name)
        world.commit(tx, {key: bytes(tx[key]) for key in tx.changes()["set"]})


def _go_on(world: World, *, lost_power: bool) -> None:
    """New processes commit on top, see all of it, and clear away what the dead have left."""
    process = Process()
    with process:
        repo = world.open()
        for number in range(2):
            world.put(repo, {"went on": world.value(), f"after/{number}": world.value(50)})
    process.die()
    if world.vacuums:
        with Process():
            world.vacuum(world.open(), keep=2)
    with Process():
        repo = world.open()
        promised = world.promised(durable_only=lost_power)
        found = _history(repo, world, promised)
        _compare(repo, world, found, every=False)
        _check_faults(repo, world, found, promised, lost_power=lost_power, tidy=True)
        _check_staging(repo)
        if world.vacuums:
            assert repo.usage().orphan == 0, "a vacuum has left something behind"
    forget_all()


def _check_staging(repo: txstore.Repository) -> None:
    storage = storage_of(repo)
    left = storage.list(names.STAGING)
    kept = {name.partition(".")[0] for name in left if _is_named_record(storage.read(f"{names.STAGING}/{name}"))}
    # The file of pins may have its first name, too: nobody can delete that while somebody reads.
    staging, of_pins = SYSTEM.find(f"{URL}/{names.STAGING}"), SYSTEM.find(f"{URL}/{names.PINS}")
    kept |= {name.partition(".")[0] for name in left if SYSTEM.disk.directories[staging][name] == of_pins}
    dead = [name for name in left if names.parse_named(name) is None and name.partition(".")[0] not in kept]
    assert dead == [], f"what dead processes have staged is still there: {dead}"


def _is_named_record(content: bytes) -> bool:
    try:
        return records.TransactionRecord.decode(content).name is not None
    except encoding.MalformedError:
        return False
