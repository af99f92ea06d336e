"""Merges of random histories: what comes of them is what applying the changes by hand gives."""

from __future__ import annotations

import tempfile
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import txstore
from txstore import MergeConflictError

pytestmark = pytest.mark.long

LENGTH, CHUNK = 10, 4
NAMES, FIELDS = ("x", "y"), ("a", "b")


class Put(NamedTuple):
    name: str
    start: int
    count: int
    value: int  # 0 is the fill value: chunks of it are not stored


class Attribute(NamedTuple):
    name: str
    field: str
    value: int | None  # None: it is deleted


puts = st.builds(Put, st.sampled_from(NAMES), st.integers(0, LENGTH - 1), st.integers(1, LENGTH), st.integers(0, 3))
edits = st.builds(Attribute, st.sampled_from(NAMES), st.sampled_from(FIELDS), st.none() | st.integers(0, 2))
changes = st.lists(puts | edits, max_size=4)
#: A side has a few commits.
sides = st.lists(changes, max_size=3)


class Model:
    """What an array and its attributes are."""

    def __init__(self) -> None:
        self.arrays = {name: np.zeros(LENGTH, "i4") for name in NAMES}
        self.attributes: dict[tuple[str, str], int] = {}

    def copy(self) -> Model:
        other = Model()
        other.arrays = {name: array.copy() for name, array in self.arrays.items()}
        other.attributes = dict(self.attributes)
        return other

    def do(self, change: Put | Attribute) -> None:
        if isinstance(change, Put):
            self.arrays[change.name][change.start : change.start + change.count] = change.value
        elif change.value is None:
            self.attributes.pop((change.name, change.field), None)
        else:
            self.attributes[change.name, change.field] = change.value

    def cells(self) -> dict[Any, int | None]:
        found: dict[Any, int | None] = {
            (name, at): int(value) for name, array in self.arrays.items() for at, value in enumerate(array)
        }
        return found | {place: self.attributes.get(place) for place in ((n, f) for n in NAMES for f in FIELDS)}


def merged(base: Model, ours: Model, theirs: Model) -> tuple[dict[Any, int | None], set[Any]]:
    """Return cell by cell what is there in the end, if theirs wins all conflicts; and which there are."""
    b, o, t = base.cells(), ours.cells(), theirs.cells()
    conflicts = {place for place in b if b[place] not in (o[place], t[place]) and o[place] != t[place]}
    return {place: o[place] if t[place] == b[place] else t[place] for place in b}, conflicts


def write(repo: txstore.Repository, branch: str, model: Model, commits: list[list[Put | Attribute]]) -> None:
    for commit in commits:
        with repo.transaction(branch=branch) as store:
            for change in commit:
                array = zarr.open_array(store, path=change.name)
                model.do(change)
                if isinstance(change, Put):
                    array[change.start : change.start + change.count] = change.value
                else:
                    attributes = {field: model.attributes.get((change.name, field)) for field in FIELDS}
                    array.attrs.put({field: value for field, value in attributes.items() if value is not None})


def read(repo: txstore.Repository, branch: str = "main") -> dict[Any, int | None]:
    found = Model()
    for name in NAMES:
        array = zarr.open_array(repo.snapshot(branch=branch), path=name, mode="r")
        found.arrays[name] = np.asarray(array[:])
        found.attributes |= {(name, field): value for field, value in array.attrs.items()}  # type: ignore[misc]
    return found.cells()


def begun(before: list[list[Put | Attribute]]) -> tuple[txstore.Repository, Model]:
    repo, base = txstore.Repository(tempfile.mkdtemp() + "/data.tx", durability="none"), Model()
    with repo.transaction() as store:
        for name in NAMES:
            zarr.create_array(store, name=name, shape=(LENGTH,), chunks=(CHUNK,), dtype="i4", fill_value=0)
    write(repo, "main", base, before)
    repo.branches["dev"] = repo.head()
    return repo, base


@settings(max_examples=25)
@given(before=sides, here=sides, there=sides)
def test_a_merge_is_what_applying_the_changes_by_hand_gives(before: Any, here: Any, there: Any) -> None:
    repo, base = begun(before)
    ours, theirs = base.copy(), base.copy()
    write(repo, "main", ours, here)
    write(repo, "dev", theirs, there)
    expected, conflicts = merged(base, ours, theirs)
    head = repo.head()
    if conflicts:
        with pytest.raises(MergeConflictError) as error:
            repo.merge("dev")
        assert {each.path for each in error.value.conflicts} == {place[0] for place in conflicts}
        assert repo.head() == head
    repo.merge("dev", resolve={"": "theirs"} if conflicts else None)
    assert read(repo) == expected
    assert repo.verify().faults == []
    # What is merged is not merged again, and into the other it is what is there.
    assert repo.merge("dev") == repo.head()
    repo.merge("main", branch="dev")
    assert read(repo, "dev") == expected


@settings(max_examples=12)
@given(before=sides, here=sides, there=sides)
def test_changes_that_are_apart_commute(before: Any, here: Any, there: Any) -> None:
    found = []
    for one, other in ((here, there), (there, here)):
        repo, base = begun(before)
        ours, theirs = base.copy(), base.copy()
        write(repo, "main", ours, one)
        write(repo, "dev", theirs, other)
        if merged(base, ours, theirs)[1]:
            return
        repo.merge("dev")
        found.append(read(repo))
    assert found[0] == found[1]


@settings(max_examples=12)
@given(before=sides, wrong=changes, later=sides)
def test_what_is_reverted_twice_is_as_it_was(before: Any, wrong: Any, later: Any) -> None:
    repo, model = begun(before)
    write(repo, "main", model, [wrong])
    commit = repo.head()
    assert commit is not None
    write(repo, "main", model, later)
    there = read(repo)
    try:
        undone = repo.revert(commit)
    except MergeConflictError:
        return
    if undone.message.startswith("revert"):
        repo.revert(undone)
    assert read(repo) == there
