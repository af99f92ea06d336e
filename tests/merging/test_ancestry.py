"""What two branches have in common, when vacuums have given up the commits between, and branches were deleted."""

from typing import Any

import pytest

import txstore
from tests.merging.test_repository import commit, values
from tests.merging.test_three_way import BASE, put


@pytest.fixture
def repo(tmp_path: Any) -> txstore.Repository:
    repo = txstore.Repository(tmp_path / "data.tx", durability="none")
    commit(repo, BASE)
    repo.branches["dev"] = repo.head()
    return repo


def undone(repo: txstore.Repository, branch: str = "main") -> None:
    """Write what was there before dev has changed it: that dev has changed it would be news to an older base."""
    commit(repo, put(0, 0), branch=branch)


@pytest.mark.parametrize("vacuumed", ["main", "dev", "both"])
@pytest.mark.parametrize("into", ["main", "dev"])
def test_what_was_merged_is_known_when_the_merge_was_given_up(repo, into, vacuumed):
    other = "dev" if into == "main" else "main"
    commit(repo, put(0, 10), branch=other)
    repo.merge(other, into)
    undone(repo, into)
    for branch in ("main", "dev"):
        commit(repo, put(5, 5), branch=branch)
        if vacuumed in (branch, "both"):
            repo.vacuum(keep=1, branch=branch)
            repo.vacuum(keep=1, branch=branch)
    commit(repo, put(1, 11), branch=other)
    repo.merge(other, into)
    assert values(repo, branch=into)[:2] == [0, 11]
    repo.merge(into, other)
    assert values(repo, branch=other) == values(repo, branch=into)
    assert repo.verify().faults == []


def test_what_was_merged_by_way_of_a_branch_that_was_deleted(repo: txstore.Repository) -> None:
    repo.branches["between"] = repo.commit(0)
    commit(repo, put(0, 10), branch="dev")
    repo.merge("dev", "between")
    repo.merge("between")
    undone(repo)
    del repo.branches["between"]
    repo.vacuum(keep=1)
    commit(repo, put(1, 11), branch="dev")
    repo.merge("dev")
    assert values(repo)[:2] == [0, 11]


def test_what_changed_nothing_was_merged_all_the_same(repo: txstore.Repository) -> None:
    theirs = commit(repo, put(0, 10), branch="dev")
    commit(repo, put(0, 10))
    merged = repo.merge("dev")
    assert merged.merged == theirs.id
    assert repo.merge("dev") == merged
    undone(repo)
    commit(repo, put(1, 11), branch="dev")
    repo.merge("dev")
    assert values(repo)[:2] == [0, 11]


def test_a_branch_that_was_vacuumed_is_merged_from_where_it_began(repo: txstore.Repository) -> None:
    for number in range(3):
        commit(repo, put(0, 10 + number), branch="dev")
        commit(repo, put(1, 10 + number))
    repo.vacuum(keep=1, branch="dev")
    repo.vacuum(keep=1)
    repo.merge("dev")
    assert values(repo)[:2] == [12, 12]


def test_a_branch_of_a_branch_that_was_merged_and_deleted(repo: txstore.Repository) -> None:
    commit(repo, put(0, 10), branch="dev")
    repo.branches["more"] = repo.head("dev")
    commit(repo, put(1, 11), branch="more")
    commit(repo, put(2, 12), branch="dev")
    repo.merge("dev")
    del repo.branches["dev"]
    undone(repo)
    repo.vacuum(keep=1)
    repo.merge("more")
    assert values(repo)[:3] == [0, 11, 12]
    repo.merge("main", "more")
    assert values(repo, branch="more") == values(repo)


@pytest.mark.parametrize("has_own", [False, True])
def test_a_branch_of_a_branch_that_was_deleted(repo: txstore.Repository, has_own: bool) -> None:
    """What that had merged is not known any more, so it can't be told what the two have in common."""
    commit(repo, put(0, 10), branch="dev")
    commit(repo, put(0, 20), branch="dev")
    repo.optimize(branch="dev")  # of the commits before, no file is needed
    repo.branches["more"] = repo.head("dev")
    repo.branches["most"] = repo.head("dev")
    if has_own:
        commit(repo, put(1, 11), branch="more")
        commit(repo, put(2, 12), branch="most")
    del repo.branches["dev"]
    repo.vacuum()
    with pytest.raises(txstore.NoCommonAncestorError):
        repo.merge("more")
    assert len(repo.log("more")) == (2 if has_own else 1)
    repo.merge("more", "most")
    assert values(repo, branch="most")[:3] == ([20, 11, 12] if has_own else [20, 1, 2])


def test_a_backup_knows_what_was_merged(repo: txstore.Repository, tmp_path: Any) -> None:
    commit(repo, put(0, 10), branch="dev")
    repo.merge("dev")
    undone(repo)
    commit(repo, put(1, 11), branch="dev")
    repo.vacuum(keep=1)
    repo.vacuum(keep=1, branch="dev")
    repo.backup(tmp_path / "copy.tx")
    copy = txstore.Repository(tmp_path / "copy.tx")
    copy.merge("dev")
    assert values(copy)[:2] == [0, 11]
    assert copy.verify().faults == []
