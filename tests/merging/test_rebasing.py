"""Commits with `on_conflict="merge"`: what others have committed since is put together with what is staged."""

from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from txstore.constraints import RequiredAttributes
from txstore.transactions.draft import Draft


@pytest.fixture
def repo(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(8), chunks=(4,), attributes={"version": 1})
        zarr.create_group(store, path="g", attributes={"a": 1})
    return repo


def opened(store: Any, path: str = "x") -> Any:
    return zarr.open_array(store, path=path, mode="r" if store.read_only else "r+")


def head(repo: txstore.Repository, path: str = "x") -> Any:
    return opened(repo.snapshot(), path)


def rewrite(store: Any, at: int, value: int) -> None:
    """Write a whole chunk in which one element is another."""
    array = opened(store)
    values = array[:]
    values[at] = value
    array[:] = values


def test_elements_of_one_chunk(repo: txstore.Repository) -> None:
    mine = repo.transaction("mine", on_conflict="merge")
    rewrite(mine, 0, 10)
    with repo.transaction() as store:
        rewrite(store, 1, 11)
    made = mine.commit()
    assert head(repo)[:].tolist() == [10, 11, *range(2, 8)]
    assert made == repo.head()
    assert (made.message, made.merged) == ("mine", None)
    assert opened(mine)[:].tolist() == [10, 11, *range(2, 8)]


def test_without_it_that_is_a_conflict(repo: txstore.Repository) -> None:
    mine = repo.transaction()
    rewrite(mine, 0, 10)
    with repo.transaction() as store:
        rewrite(store, 1, 11)
    with pytest.raises(txstore.ConflictError) as error:
        mine.commit()
    assert error.value.conflicts == ()
    mine.rollback()


def test_attributes_and_growth(repo: txstore.Repository) -> None:
    mine = repo.transaction(on_conflict="merge")
    array = opened(mine)
    array.attrs["units"] = "K"
    array[0] = 10
    with repo.transaction() as store:
        other = opened(store)
        other.attrs["title"] = "t"
        other.append(np.array([8, 9]))
        zarr.open_group(store, path="g").attrs["b"] = 2
    mine.commit()
    assert dict(head(repo).attrs) == {"version": 1, "units": "K", "title": "t"}
    assert head(repo)[:].tolist() == [10, *range(1, 10)]
    with pytest.raises(txstore.StaleArrayError):
        array.attrs["late"] = 1  # it does not know of the title
    mine.rollback()
    mine = mine.latest()
    opened(mine).attrs["late"] = 1
    mine.commit()
    assert dict(head(repo).attrs) == {"version": 1, "units": "K", "title": "t", "late": 1}


@pytest.mark.parametrize("value", [11, 10])
def test_what_both_have_changed_is_a_conflict_be_it_equal(repo: txstore.Repository, value: int) -> None:
    mine = repo.transaction(on_conflict="merge")
    rewrite(mine, 0, 10)
    opened(mine).attrs["version"] = 2
    with repo.transaction() as store:
        rewrite(store, 0, value)
        opened(store).attrs["version"] = 2
    before = repo.head()
    with pytest.raises(txstore.ConflictError) as error:
        mine.commit()
    document, elements = sorted(error.value.conflicts, key=lambda each: each.kind)
    assert (document.kind, document.fields) == ("document", ("attributes.version",))
    assert (elements.path, elements.region) == ("x", (slice(0, 1),))
    assert [side().tolist() for side in (elements.base, elements.ours, elements.theirs)] == [[0], [10], [value]]
    assert repo.head() == before
    assert opened(mine)[0] == 10  # what is staged is there still
    rewrite(mine, 0, 0)  # and may be mended: then nothing of it is changed here
    opened(mine).attrs["version"] = 1
    mine.commit()
    assert head(repo)[0] == value


def test_what_was_deleted_or_made_anew_is_a_conflict(repo: txstore.Repository) -> None:
    for change in (
        lambda store: store.mapping.delete_dir("x"),
        lambda store: zarr.create_array(store, name="x", shape=(8,), chunks=(4,), dtype="i8", overwrite=True),
        lambda store: opened(store).resize((2,)),
    ):
        for mine_changes in (True, False):
            mine = repo.transaction(on_conflict="merge")
            (change if mine_changes else lambda store: rewrite(store, 7, 70))(mine)
            with repo.transaction() as store:
                ((lambda store: rewrite(store, 7, 70)) if mine_changes else change)(store)
            with pytest.raises(txstore.ConflictError):
                mine.commit()
            mine.rollback()
            repo.revert(-1)


def test_two_create_one_group(repo: txstore.Repository) -> None:
    mine = repo.transaction(on_conflict="merge")
    zarr.create_group(mine, path="new")
    zarr.create_array(mine, name="new/a", shape=(2,), dtype="i4")
    rewrite(mine, 0, 10)
    with repo.transaction() as store:
        zarr.create_group(store, path="new")
        zarr.create_array(store, name="new/b", shape=(2,), dtype="i4")
        rewrite(store, 1, 11)
    mine.commit()
    assert sorted(zarr.open_group(repo.snapshot(), path="new", mode="r")) == ["a", "b"]
    assert head(repo)[:2].tolist() == [10, 11]


def test_a_chunk_that_becomes_fill_value(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        opened(store)[:4] = [1, 1, 0, 0]
    mine = repo.transaction(on_conflict="merge")
    opened(mine)[:4] = [0, 1, 0, 0]
    with repo.transaction() as store:
        opened(store)[:4] = [1, 0, 0, 0]
    mine.commit()
    assert head(repo)[:4].tolist() == [0, 0, 0, 0]
    assert "x/c/0" not in repo.mapping()


def test_on_each_new_head(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others commit while the commit is under way: after each look at the head."""
    mine = repo.transaction(on_conflict="merge")
    rewrite(mine, 0, 10)
    others, real = [(3, 13), (1, 11), (2, 12), (1, 21)], Draft.catch_up

    def catch_up(self: Draft) -> Any:
        if self.staging.settle_conflicts is None:
            return real(self)
        while others:
            at, value = others.pop(0)
            with txstore.Repository(repo.url).transaction() as store:
                rewrite(store, at, value)
            real(self)
        return real(self)

    monkeypatch.setattr(Draft, "catch_up", catch_up)
    mine.commit()
    assert head(repo)[:4].tolist() == [10, 21, 12, 13]


def test_a_constraint_is_checked_on_what_comes_of_it(repo: txstore.Repository) -> None:
    repo.constraints["version"] = RequiredAttributes("x", ["version"])
    mine = repo.transaction(on_conflict="merge")
    opened(mine).attrs["units"] = "K"
    opened(mine).attrs["more"] = 1
    with repo.transaction() as store:
        opened(store).attrs["title"] = "t"
    repo.constraints["more"] = RequiredAttributes("g", ["a"])
    mine.commit()
    assert dict(head(repo).attrs) == {"version": 1, "units": "K", "more": 1, "title": "t"}
    mine = repo.transaction(on_conflict="merge")
    opened(mine).attrs["late"] = 1
    mine.mapping.pop("x/c/0")
    with repo.transaction() as store:
        opened(store).attrs["title"] = "u"
    del repo.constraints["version"]
    repo.constraints["title"] = RequiredAttributes("x", ["title"])
    mine.commit()
    assert head(repo).attrs["title"] == "u"


def test_mappings_and_run(repo: txstore.Repository) -> None:
    mine = repo.begin(on_conflict="merge")
    mine["notes/a"] = b"1"
    with repo.begin() as other:
        other["notes/a"] = b"2"
    with pytest.raises(txstore.ConflictError, match="changed a value differently") as error:
        mine.commit()
    assert [each.kind for each in error.value.conflicts] == ["value"]
    mine.rollback()
    tries = []

    def work(store: Any) -> None:
        tries.append(1)
        rewrite(store, 0, 10)
        with repo.transaction() as other:
            rewrite(other, 0 if len(tries) == 1 else 1, 11)

    repo.run(work, on_conflict="merge")  # the first try is a conflict, the second is put together
    assert (len(tries), head(repo)[:2].tolist()) == (2, [10, 11])


def test_what_it_is_not_for(repo: txstore.Repository) -> None:
    for options in ({"name": "job"}, {"isolation": "serializable"}):
        with pytest.raises(ValueError, match="without a name"):
            repo.transaction(on_conflict="merge", **options)
    with pytest.raises(ValueError, match="on_conflict='theirs'"):
        repo.begin(on_conflict="theirs")
