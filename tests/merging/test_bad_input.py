"""What is wrong with what merges are given, and what comes between: a clear error, and nothing lost."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.merging.test_repository import commit, values
from tests.merging.test_three_way import attributes, delete, put
from tests.tools.inside import staged
from tests.tools.killed import killed_after
from tests.tools.waiting import TIMEOUT


@pytest.fixture
def repo(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(8, dtype="i4"), chunks=(4,), attributes={"units": "m"})
    repo.branches["dev"] = repo.head()
    return repo


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (lambda conflict: np.zeros(2, "i4"), ValueError, r"shape \(1,\) and dtype int32 .* \(2,\)"),
        (lambda conflict: np.zeros((1, 1), "i4"), ValueError, r"shape \(1,\)"),
        (lambda conflict: np.array([1.5]), ValueError, "float64"),
        (lambda conflict: np.array(["a"]), ValueError, "dtype int32"),
        (lambda conflict: None, ValueError, "dtype int32"),
        (lambda conflict: 1 / 0, ZeroDivisionError, "division"),
        ("mine", ValueError, "'ours', 'theirs' or a function"),
        (7, ValueError, "'ours', 'theirs' or a function"),
    ],
)
def test_answers_that_are_none(repo: txstore.Repository, answer: Any, error: type[Exception], match: str) -> None:
    commit(repo, put(0, 10), branch="dev")
    head = commit(repo, put(0, 11))
    with pytest.raises(error, match=match):
        repo.merge("dev", resolve={"x": answer})
    assert repo.head() == head
    assert list(staged(repo)) == []
    repo.merge("dev", resolve={"x": lambda conflict: conflict.ours() + conflict.theirs()})
    assert values(repo)[:2] == [21, 1]


def test_answers_about_documents_and_nodes(repo: txstore.Repository) -> None:
    commit(repo, attributes(units="K"), branch="dev")
    head = commit(repo, attributes(units="F"))
    with pytest.raises(TypeError, match="a dict was to be returned, not list"):
        repo.merge("dev", resolve={"x": lambda conflict: []})
    commit(repo, delete("x"), branch="dev")
    with pytest.raises(ValueError, match="Only a side can be the answer"):
        repo.merge("dev", resolve={"x": lambda conflict: {}})
    assert repo.head() == head


def test_with_nothing_to_do(repo: txstore.Repository) -> None:
    head = repo.head()
    assert repo.merge("dev") == head
    assert repo.merge("main", branch="dev") == head
    assert repo.merge("dev", dry_run=True).is_empty
    with pytest.raises(ValueError, match="into itself"):
        repo.merge("dev", branch="dev")
    assert repo.head() == head


_MERGING = """
import sys, txstore
repo = txstore.Repository(sys.argv[1])
for branch in sys.argv[2:]:
    repo.merge(branch)
"""


@pytest.mark.long
def test_beside_other_merges_and_commits(repo: txstore.Repository) -> None:
    """Each branch has changed another element of one chunk; all merges come at once, and a writer besides."""
    names = [f"b{number}" for number in range(4)]
    for number, name in enumerate(names):
        repo.branches[name] = repo.commit(0)
        commit(repo, put(number, 10 + number), branch=name)
    merging = [
        subprocess.Popen([sys.executable, "-c", _MERGING, repo.url, *names[turn:], *names[:turn]]) for turn in range(3)
    ]
    for number in range(5):
        commit(repo, put(7, number))
    assert [process.wait(TIMEOUT) for process in merging] == [0, 0, 0]
    assert values(repo) == [10, 11, 12, 13, 4, 5, 6, 4]
    for name in names:
        assert repo.merge(name) == repo.head()


_AGAIN_AND_AGAIN = """
import sys, txstore, zarr
repo = txstore.Repository(sys.argv[1])
number = 0
while True:
    number += 1
    with repo.transaction(branch="dev") as store:
        array = zarr.open_array(store, path="x")
        array[0] = array[7] = number
        array.attrs["number"] = number
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[1] = number
    repo.merge("dev")
    repo.merge("main", branch="dev")
"""


@pytest.mark.parametrize("commits", [2, *(pytest.param(commits, marks=pytest.mark.long) for commits in (5, 9))])
def test_killed_while_it_merges(repo: txstore.Repository, commits: int) -> None:
    """What was merged was merged whole, and the next one goes on."""
    killed_after(commits, repo, _AGAIN_AND_AGAIN)
    repo.merge("dev", resolve={"": "theirs"})
    for branch in ("main", "dev"):
        array = zarr.open_array(repo.snapshot(branch=branch), path="x", mode="r")
        assert array[0] == array[7] or array[0] == 0
        assert array[0] == array.attrs.get("number", 0)
    repo.merge("main", branch="dev")
    assert values(repo) == values(repo, branch="dev")


_MOVED_AGAIN_AND_AGAIN = """
import sys, txstore, zarr
repo = txstore.Repository(sys.argv[1])
number = 0
while True:
    number += 1
    with repo.transaction() as store:
        store.move(f"g/x{number - 1}", f"g/x{number}")
    with repo.transaction(branch="dev") as store:
        array = zarr.open_array(store, path=f"g/x{number - 1}")
        array[0] = array[7] = number
        array.attrs["number"] = number
    repo.merge("dev")
    repo.merge("main", branch="dev")
"""


@pytest.mark.parametrize("commits", [3, 6])
def test_killed_while_it_follows_moves(repo: txstore.Repository, commits: int) -> None:
    """The array is in one place, with all that was changed at once, or nothing of it."""
    with repo.transaction() as store:
        zarr.create_group(store, path="g")
        store.move("x", "g/x0")
    repo.merge("main", branch="dev")
    killed_after(commits, repo, _MOVED_AGAIN_AND_AGAIN)
    repo.merge("dev")
    repo.merge("main", branch="dev")
    for branch in ("main", "dev"):
        ((_, array),) = zarr.open_group(repo.snapshot(branch=branch), path="g", mode="r").arrays()
        assert array[0] == array[7] == array.attrs["number"] or array.attrs.get("number", 0) == 0
    assert dict(repo.mapping()) == dict(repo.mapping(branch="dev"))
    assert repo.verify().ok


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("resolve", "error"),
    [
        ({"x": "our"}, ValueError),
        ("ours", TypeError),
        ("", TypeError),
        ([("x", "ours")], TypeError),
        ({1: "ours"}, TypeError),
    ],
)
def test_answers_are_looked_at_where_nothing_is_to_be_merged(repo, resolve, error, dry_run):
    head = commit(repo, put(0, 10))
    for change in (
        lambda: repo.merge("dev", resolve=resolve, dry_run=dry_run),
        lambda: repo.cherry_pick(head, resolve=resolve, dry_run=dry_run),
        lambda: repo.revert(head, resolve=resolve, dry_run=dry_run),
    ):
        with pytest.raises(error, match="resolve"):
            change()
    assert repo.head() == head
