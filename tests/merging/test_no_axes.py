"""Arrays without axes: one element, in one chunk. They are merged, picked, reverted and shown as any other."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.merging.test_repository import commit
from tests.merging.test_three_way import Step, root


def create(zarr_format: int) -> Step:
    def step(store: txstore.TxStore) -> None:
        root(store)
        zarr.create_array(store, name="n", shape=(), dtype="i8", fill_value=0, zarr_format=zarr_format)[...] = 1

    return step


def put(value: int) -> Step:
    return lambda store: zarr.open_array(store, path="n").__setitem__((), value)


def value(repo: txstore.Repository, branch: str = "main") -> int:
    return int(np.asarray(zarr.open_array(repo.snapshot(branch=branch), path="n", mode="r")[...]))


@pytest.fixture(params=[2, 3])
def repo(tmp_path: Any, request: pytest.FixtureRequest) -> txstore.Repository:
    repo = txstore.Repository(tmp_path / "data.tx", durability="none")
    commit(repo, create(request.param))
    repo.branches["dev"] = repo.head()
    return repo


def test_a_conflict_says_what_the_sides_have(repo: txstore.Repository) -> None:
    commit(repo, put(2), branch="dev")
    commit(repo, put(3))
    with pytest.raises(txstore.MergeConflictError, match="'n'") as error:
        repo.merge("dev")
    (conflict,) = error.value.conflicts
    assert (conflict.kind, conflict.region) == ("elements", ())
    sides = [conflict.base(), conflict.ours(), conflict.theirs(), conflict.mask()]
    assert [(type(side), side.shape, side.item()) for side in sides] == [
        (np.ndarray, (), 1), (np.ndarray, (), 3), (np.ndarray, (), 2), (np.ndarray, (), True),
    ]  # fmt: skip
    assert repr(conflict) == "<Conflict elements: 'n' [()]>"
    assert str(conflict).startswith("'n'[()]: ")
    assert "[()]" in conflict._repr_html_()
    assert conflict.as_dict()["region"] == []
    assert value(repo) == 3


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("ours", 3),
        ("theirs", 2),
        (lambda each: each.ours() + each.theirs(), 5),
        (lambda each: np.maximum(each.ours(), each.theirs()), 3),
        (lambda _: 7, 7),
        (lambda _: np.array(7), 7),
    ],
)
def test_answers(repo: txstore.Repository, answer: str | Callable[[Any], Any], expected: int) -> None:
    commit(repo, put(2), branch="dev")
    commit(repo, put(3))
    repo.merge("dev", resolve={"n": answer})
    assert value(repo) == expected


def test_an_answer_of_a_wrong_shape(repo: txstore.Repository) -> None:
    commit(repo, put(2), branch="dev")
    commit(repo, put(3))
    with pytest.raises(ValueError, match=r"an array of shape \(\) and dtype int64"):
        repo.merge("dev", resolve={"n": lambda _: np.zeros(1, "i8")})


def test_between_transactions(repo: txstore.Repository) -> None:
    with repo.transaction(on_conflict="merge") as store:
        put(2)(store)
        commit(repo, lambda there: zarr.open_array(there, path="n").attrs.update(units="K"))
    assert value(repo) == 2
    with pytest.raises(txstore.ConflictError) as error, repo.transaction(on_conflict="merge") as store:
        put(3)(store)
        commit(repo, put(4))
    assert [each.kind for each in error.value.conflicts] == ["elements"]
    assert value(repo) == 4
