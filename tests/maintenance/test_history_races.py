"""Merges, moves, copies and restores beside those who give up what they take it from: branches, tags, vacuums.

What one does happens before one more storage operation of the other, with and without pins that a vacuum sees. Either
it is refused and nothing has changed, or what was taken is there for good.
"""

import contextlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import txstore
from tests.history.test_branches import commit, on
from tests.maintenance import test_vacuum
from tests.maintenance.test_vacuum import Steps, no_lock, no_pins
from txstore.errors import CommitNotFoundError, CorruptionError, NoCommonAncestorError, SnapshotExpiredError

pytestmark = pytest.mark.long

__all__ = ["no_lock", "no_pins"]

GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()
#: What somebody is told who comes too late.
REFUSED = (SnapshotExpiredError, CommitNotFoundError, NoCommonAncestorError)
#: What lies below a group, at one time or another.
OLD, NEW, THEIRS = ({f"p/c/{number}": value * 400 for number in range(3)} for value in (b"old", b"new", b"dev"))


def merge(repo: txstore.Repository) -> None:
    repo.merge("dev")


def restore(repo: txstore.Repository) -> None:
    with repo.begin() as tx:
        tx.nodes.restore("p", repo.mapping(tag="v1"))


def restore_from_a_branch(repo: txstore.Repository) -> None:
    with repo.begin() as tx:
        tx.nodes.restore("p", repo.mapping(branch="dev"))


def copy(repo: txstore.Repository) -> None:
    with repo.begin() as tx:
        tx.nodes.copy("p", "q", repo.mapping(tag="v1"))


def move(repo: txstore.Repository) -> None:
    with repo.begin() as tx:
        tx.nodes.move("p", "q")


def elsewhere(content: dict[str, bytes]) -> dict[str, bytes]:
    return {"q" + key[1:]: value for key, value in content.items()}


HERE = {**NEW, "p/zarr.json": GROUP, "z": b"main"}
LATER = dict.fromkeys(NEW, b"later")
#: What is done to main, and what that may be then.
TAKEN: dict[str, tuple[Callable[[txstore.Repository], None], list[dict[str, bytes]]]] = {
    "merge": (merge, [{**HERE, **theirs, "d": b"dev"} for theirs in (THEIRS, LATER)]),
    "restore": (restore, [{**HERE, **OLD}]),
    "restore from a branch": (restore_from_a_branch, [{**HERE, **theirs} for theirs in (THEIRS, LATER)]),
    "copy": (copy, [{**HERE, **elsewhere({**OLD, "p/zarr.json": GROUP})}]),
    "move": (move, [{"z": b"main", **elsewhere({**NEW, "p/zarr.json": GROUP})}]),
}


def give_up(repo: txstore.Repository) -> None:
    """Delete all that has a name, and all that nothing else needs."""
    for names, name in ((repo.branches, "dev"), (repo.tags, "v1")):
        with contextlib.suppress(KeyError, CommitNotFoundError):
            del names[name]
    repo.optimize()
    repo.vacuum(keep=1)


def vacuum(repo: txstore.Repository) -> None:
    """Move dev on, and give up what it was."""
    commit(repo, LATER, "dev")
    for branch in ("dev", "main"):
        repo.optimize(branch=branch)
        repo.vacuum(keep=1, branch=branch)
    del repo.tags["v1"]
    repo.vacuum(keep=1)


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    """What is old lies below the oldest kept version, kept by a tag; dev begins above it, and has changed the same."""
    steps = Steps(tmp_path)
    repo = steps.repo
    commit(repo, {**OLD, "p/zarr.json": GROUP})
    repo.tags["v1"] = repo.head()
    commit(repo, NEW)
    repo.optimize()
    repo.vacuum(keep=1)
    repo.branches["dev"] = repo.head()
    commit(repo, {**THEIRS, "d": b"dev"}, "dev")
    commit(repo, {"z": b"main"})
    return steps


@pytest.fixture(params=["pins", "no pins"])
def pins(request: pytest.FixtureRequest) -> None:
    if request.param == "no pins":
        request.getfixturevalue("no_pins")


def check(repo: txstore.Repository, expected: list[dict[str, bytes]]) -> bool:
    """Tell whether something was made; it is what was expected, and stays."""
    held = on(repo)
    assert held in [HERE, *expected]
    for _ in range(2):
        assert repo.verify().faults == []
        repo.vacuum(keep=1)
    assert on(txstore.Repository(repo.url)) == held
    return held != HERE


@pytest.mark.parametrize("what", TAKEN)
@pytest.mark.parametrize("act", [give_up, vacuum])
def test_given_up_at_every_step(steps, no_lock, pins, what, act):
    take, expected = TAKEN[what]
    for repo, other in steps:
        refused, came_late = False, list[bool]()

        def act_now(other: txstore.Repository = other, came_late: list[bool] = came_late) -> None:
            came_late.append(on(other) != HERE)
            act(other)

        steps.act = act_now
        try:
            take(repo)
        except REFUSED:
            refused = True
        steps.end()
        made = check(other, expected)
        # Without a lock, a vacuum may pass a commit right after its rename: then that is taken for one outside history.
        assert made if came_late == [True] else made != refused
    assert steps.count > 15


@pytest.mark.parametrize("what", TAKEN)
def test_taken_at_every_step_of_giving_up(steps: Steps, no_lock: None, pins: None, what: str) -> None:
    take, expected = TAKEN[what]
    for repo, other in steps:
        refused: list[bool] = []

        def act(other: txstore.Repository = other, refused: list[bool] = refused) -> None:
            try:
                take(other)
            except REFUSED:
                refused.append(True)

        steps.act = act
        give_up(repo)
        steps.end()
        if refused or steps.step < steps.count:
            assert check(other, expected) != bool(refused)
    assert steps.count > 30


def rename_branch(repo: txstore.Repository) -> None:
    repo.branches.rename("dev", "theirs")


def rename_tag(repo: txstore.Repository) -> None:
    repo.tags["v2"] = repo.tags["v1"]
    del repo.tags["v1"]


def tag_and_delete_branch(repo: txstore.Repository) -> None:
    repo.tags["theirs"] = repo.head("dev")
    del repo.branches["dev"]


THEIRS_NOW = {**NEW, **THEIRS, "p/zarr.json": GROUP, "d": b"dev"}


@pytest.mark.parametrize(
    ("give", "at", "expected"),
    [
        (rename_branch, {"branch": "theirs"}, THEIRS_NOW),
        (rename_tag, {"tag": "v2"}, {**OLD, "p/zarr.json": GROUP}),
        (tag_and_delete_branch, {"tag": "theirs"}, THEIRS_NOW),
    ],
)
def test_what_gets_another_name_at_any_step_of_a_vacuum_stays(steps, no_lock, monkeypatch, give, at, expected):
    monkeypatch.setattr(test_vacuum, "STRIDE", 1)  # it takes one read
    steps.step = -1
    steps.repo.optimize(branch="dev")
    for repo, other in steps:
        steps.act = partial(give, other)
        with contextlib.suppress(CommitNotFoundError):  # then nothing was deleted
            repo.vacuum(keep=1)
        steps.end()
        if steps.step < steps.count:
            assert dict(txstore.Repository(other.url).mapping(**at)) == expected
    assert steps.count > 30


def test_given_up_between_staging_and_commit(steps: Steps, pins: None) -> None:
    """What is staged is as it was where pins are seen; and refused where they are not."""
    repo, other = steps.repo, steps.open("data.tx")
    tx = repo.begin()
    tx.nodes.restore("p", repo.mapping(tag="v1"))
    give_up(other)
    try:
        tx.commit()
    except (SnapshotExpiredError, CorruptionError):
        tx.rollback()
        assert on(other) == HERE
    else:
        assert on(other) == {**HERE, **OLD}
    assert other.verify().faults == []
    other.vacuum(keep=1)
    assert other.verify().faults == []
