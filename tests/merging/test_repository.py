"""repo.merge, cherry_pick and revert: what is merged, and what becomes of history."""

from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.merging.test_three_way import BASE, Step, all_of, append, attributes, create, delete, put
from tests.tools.inside import staged


@pytest.fixture
def repo(tmp_path: Any) -> txstore.Repository:
    repo = txstore.Repository(tmp_path / "data.tx", durability="none")
    commit(repo, BASE)
    repo.branches["dev"] = repo.head()
    return repo


def commit(repo: txstore.Repository, *steps: Step, branch: str = "main", message: str | None = None) -> txstore.Commit:
    with repo.transaction(message, branch=branch) as store:
        all_of(*steps)(store)
    head = repo.head(branch)
    assert head is not None
    return head


def values(repo: txstore.Repository, path: str = "x", branch: str = "main") -> list[Any]:
    found: list[Any] = zarr.open_array(repo.snapshot(branch=branch), path=path, mode="r")[...].tolist()
    return found


def test_a_merge_has_two_parents(repo: txstore.Repository) -> None:
    theirs = commit(repo, put(0, 10), branch="dev")
    ours = commit(repo, put(1, 11))
    merged = repo.merge("dev", message="both", properties={"by": "us"})
    assert merged == repo.head()
    assert (merged.parent, merged.merged, merged.message) == (ours.id, theirs.id, "both")
    assert merged.properties == {"by": "us"}
    assert merged.time > max(theirs.time, ours.time)
    assert values(repo) == [10, 11, *range(2, 8)]
    assert values(repo, branch="dev")[:2] == [10, 1]
    assert repo.verify().faults == []


def test_what_was_merged_is_not_merged_again(repo: txstore.Repository) -> None:
    commit(repo, put(0, 10), branch="dev")
    commit(repo, put(1, 11))
    repo.merge("dev")
    head = commit(repo, put(0, 20))  # which would conflict with what dev has made of it
    assert repo.merge("dev") == head
    commit(repo, put(2, 12), branch="dev")
    repo.merge("dev")
    assert values(repo)[:3] == [20, 11, 12]
    repo.merge("main", branch="dev")
    assert values(repo, branch="dev") == values(repo)
    assert repo.merge("main", branch="dev") == repo.head("dev")
    commit(repo, put(3, 13), branch="dev")
    repo.merge("dev")
    assert values(repo)[:4] == [20, 11, 12, 13]


def test_a_target_that_has_not_moved(repo: txstore.Repository) -> None:
    commit(repo, put(0, 10), create(path="y"), branch="dev")
    commit(repo, delete("y"), attributes(units="K"), branch="dev")
    repo.merge("dev")
    assert dict(repo.mapping()) == dict(repo.mapping(branch="dev"))


def test_a_conflict_changes_nothing(repo: txstore.Repository) -> None:
    commit(repo, put(0, 10), branch="dev")
    head = commit(repo, put(0, 11))
    with pytest.raises(txstore.MergeConflictError, match=r"'x'\[0:1\]: both have changed") as error:
        repo.merge("dev")
    (conflict,) = error.value.conflicts
    assert (conflict.base(), conflict.ours(), conflict.theirs()) == ([0], [11], [10])
    assert repo.head() == head
    assert list(staged(repo)) == []
    plan = repo.merge("dev", dry_run=True)
    assert [each.path for each in plan.conflicts] == ["x"]
    repo.merge("dev", resolve={"x": lambda each: np.maximum(each.ours(), each.theirs())})
    assert values(repo)[0] == 11


@pytest.mark.parametrize("both", [True, False], ids=["both to the same", "answered"])
def test_that_a_merge_changes_nothing_is_recorded(repo: txstore.Repository, both: bool) -> None:
    theirs = commit(repo, put(0, 10), branch="dev")
    commit(repo, put(0, 10 if both else 11))
    merged = repo.merge("dev", resolve=None if both else {"x": "ours"})
    assert merged == repo.head()
    assert merged.merged == theirs.id
    commit(repo, put(1, 12), branch="dev")
    repo.merge("dev")  # what was answered is not asked again
    assert values(repo)[:2] == [10 if both else 11, 12]
    assert repo.verify().faults == []


def test_a_constraint_is_kept(repo: txstore.Repository) -> None:
    commit(repo, create(path="y"))
    repo.constraints["same"] = txstore.constraints.EqualLength(["x", "y"])
    commit(repo, append([8]), branch="dev")
    head = repo.head()
    with pytest.raises(txstore.ConstraintError):
        repo.merge("dev")
    assert repo.head() == head


def test_bad_branches(repo: txstore.Repository, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="into itself"):
        repo.merge("main")
    with pytest.raises(txstore.CommitNotFoundError):
        repo.merge("nowhere")
    with pytest.raises(txstore.CommitNotFoundError):
        repo.merge("dev", branch="nowhere")
    with pytest.raises(ValueError, match="append='both'"):
        repo.merge("dev", append="both")
    with pytest.raises(txstore.RepositoryNotFoundError):
        txstore.Repository(tmp_path / "other.tx").merge("dev")


# --- one commit
def test_cherry_pick(repo: txstore.Repository) -> None:
    commit(repo, put(0, 10), branch="dev")
    picked = commit(repo, put(1, 11), branch="dev", message="the second")
    made = repo.cherry_pick(picked)
    assert (made.message, made.merged) == ("pick of dev@2: the second", None)
    assert values(repo)[:3] == [0, 11, 2]
    repo.merge("dev")
    assert values(repo)[:3] == [10, 11, 2]


def test_revert(repo: txstore.Repository) -> None:
    wrong = commit(repo, put(slice(0, 6), 7), attributes(units="K"), create(path="y"), message="a mistake")
    commit(repo, put(7, 17), attributes(title="t"))
    made = repo.revert(wrong)
    assert made.message == "revert of main@1: a mistake"
    assert values(repo) == [*range(7), 17]
    assert dict(zarr.open_array(repo.snapshot(), path="x", mode="r").attrs) == {"title": "t"}
    assert "y/zarr.json" not in repo.mapping()
    before = dict(repo.mapping(at=2))
    repo.revert(made)
    assert dict(repo.mapping()) == before


def test_revert_of_what_was_changed_since(repo: txstore.Repository) -> None:
    wrong = commit(repo, put(slice(0, 2), 7))
    commit(repo, put(0, 8))
    with pytest.raises(txstore.MergeConflictError):
        repo.revert(wrong)
    repo.revert(wrong, resolve={"x": "ours"})
    assert values(repo)[:2] == [8, 1]


def test_revert_of_the_first_commit(repo: txstore.Repository) -> None:
    commit(repo, create(path="y"))
    with pytest.raises(txstore.MergeConflictError, match="'/': one has deleted the node"):
        repo.revert(0)
