"""The three-way merge, rule by rule."""

from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.merging.sides import Step, merged


def create(n: int = 8, path: str = "x", **options: Any) -> Step:
    def step(store: txstore.TxStore) -> None:
        data = np.arange(n, dtype="i4")
        zarr.create_array(store, name=path, data=data, chunks=(4,), **{"fill_value": 0, **options})

    return step


def put(where: Any, value: Any, path: str = "x") -> Step:
    return lambda store: zarr.open_array(store, path=path).__setitem__(where, value)


def attributes(path: str = "x", **values: Any) -> Step:
    return lambda store: zarr.open(store, path=path).attrs.update(values)


def resize(n: int, path: str = "x") -> Step:
    return lambda store: zarr.open_array(store, path=path).resize((n,))


def append(values: Any, path: str = "x") -> Step:
    return lambda store: zarr.open_array(store, path=path).append(np.array(values, "i4"))


def delete(path: str = "x") -> Step:
    def step(store: txstore.TxStore) -> None:
        del zarr.open_group(store)[path]

    return step


def all_of(*steps: Step) -> Step:
    def step(store: txstore.TxStore) -> None:
        for each in steps:
            each(store)

    return step


def empty(store: txstore.TxStore) -> None:
    zarr.create_array(store, name="x", shape=(8,), chunks=(4,), dtype="i4", fill_value=0)


def root(store: txstore.TxStore) -> None:
    zarr.create_group(store)


BASE = all_of(root, create())


def test_elements_of_one_chunk(tmp_path):
    found = merged(tmp_path, BASE, put(0, 10), put(1, 11))
    assert found.values() == [10, 11, 2, 3, 4, 5, 6, 7]
    assert list(found.plan.values) == ["x/c/0"]


def test_strictly_equal_changes_conflict(tmp_path):
    found = merged(tmp_path, BASE, put(0, 10), put(0, 10), is_strict=True)
    assert [(each.kind, each.region) for each in found.plan.conflicts] == [("elements", (slice(0, 1),))]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("ours", [4, 10, 10, 20]),
        ("theirs", [4, 20, 20, 20]),
        (lambda conflict: conflict.ours() + conflict.theirs(), [4, 30, 30, 20]),
    ],
)
@pytest.mark.parametrize("path", ["x", ""])
def test_answers_for_elements(tmp_path, answer, expected, path):
    found = merged(tmp_path, BASE, put(slice(5, 7), 10), put(slice(5, 8), 20), {path: answer})
    assert found.values()[4:] == expected
    assert not found.plan.conflicts


@pytest.mark.parametrize("wrong", [np.zeros(3, "i4"), np.zeros(2, "f8"), "nonsense"])
def test_an_answer_of_a_wrong_shape_or_dtype(tmp_path, wrong):
    with pytest.raises(ValueError, match=r"shape \(2,\) and dtype int32"):
        merged(tmp_path, BASE, put(slice(5, 7), 10), put(slice(5, 8), 20), {"x": lambda _: wrong})


def test_an_unknown_answer(tmp_path):
    with pytest.raises(ValueError, match="'mine'"):
        merged(tmp_path, BASE, put(0, 1), put(1, 1), {"x": "mine"})


def test_answers_for_documents(tmp_path):
    def both(conflict: Any) -> Any:
        document = conflict.ours()
        document["attributes"]["units"] += conflict.theirs()["attributes"]["units"]
        return document

    found = merged(tmp_path, BASE, attributes(units="K", mine=1), attributes(units="C"), {"x": "theirs"})
    assert dict(found.array().attrs) == {"units": "C", "mine": 1}
    found = merged(
        tmp_path, root, all_of(create(), attributes(units="K")), all_of(create(), attributes(units="C")), {"x": both}
    )
    assert found.array().attrs["units"] == "KC"


def test_growth_attributes_and_chunks(tmp_path):
    """Where Icechunk reports ZarrMetadataDoubleUpdate."""
    found = merged(tmp_path, BASE, all_of(append([8, 9]), put(0, 10)), all_of(attributes(units="K"), put(5, 15)))
    assert found.values() == [10, 1, 2, 3, 4, 15, 6, 7, 8, 9]
    assert found.array().attrs["units"] == "K"


def test_both_have_appended(tmp_path):
    (conflict,) = merged(tmp_path, BASE, append([8]), append([8, 9])).plan.conflicts
    assert (conflict.path, conflict.kind) == ("x", "append")
    assert conflict.theirs()["shape"] == [10]


@pytest.mark.parametrize(("answer", "expected"), [("ours", [8]), ("theirs", [18, 19])])
def test_one_side_has_the_whole_node(tmp_path, answer, expected):
    found = merged(tmp_path, BASE, all_of(append([8]), put(0, 10)), append([18, 19]), {"x": answer})
    assert found.values()[8:] == expected
    assert found.values()[0] == (10 if answer == "ours" else 0)
    with pytest.raises(ValueError, match="Only a side"):
        merged(tmp_path, root, all_of(create(), append([8])), all_of(create(), append([8, 9])), {"x": lambda _: None})


def test_growth_along_different_axes(tmp_path):
    def flat(store: txstore.TxStore) -> None:
        zarr.create_array(store, name="x", data=np.ones((2, 2), "i4"), chunks=(2, 2), fill_value=0)

    def grow(shape: tuple[int, int]) -> Step:
        return lambda store: zarr.open_array(store, path="x").resize(shape)

    found = merged(tmp_path, flat, all_of(grow((3, 2)), put((2, 0), 5)), all_of(grow((2, 3)), put((0, 2), 6)))
    assert found.values() == [[1, 1, 6], [1, 1, 0], [5, 0, 0]]


def test_codecs_beside_chunks(tmp_path):
    again = all_of(delete(), create(compressors=None))
    assert [each.kind for each in merged(tmp_path, BASE, again, put(0, 1)).plan.conflicts] == ["structure"]
    assert [each.kind for each in merged(tmp_path, BASE, create(9, "y"), again).plan.conflicts] == []


def test_shrinking_beside_chunks(tmp_path):
    assert [each.kind for each in merged(tmp_path, BASE, resize(4), put(0, 1)).plan.conflicts] == []
    found = merged(tmp_path, BASE, resize(4), put(5, 1))
    assert [each.kind for each in found.plan.conflicts] == ["structure"]
    # Chunks of fill values are deleted: by a write, and where both shrank.
    for sides in ((resize(4), put(slice(4, 8), 0)), (put(slice(4, 8), 0), resize(4))):
        assert [each.kind for each in merged(tmp_path, BASE, *sides).plan.conflicts] == ["structure"]
    assert [each.kind for each in merged(tmp_path, BASE, resize(4), resize(4)).plan.conflicts] == []


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("change", [put(0, 10), attributes(units="K")])
def test_deleted_here_and_changed_there(tmp_path, swap, change):
    sides = (delete(), change)
    found = merged(tmp_path, BASE, *(reversed(sides) if swap else sides))
    assert [(each.path, each.kind) for each in found.plan.conflicts] == [("x", "deleted")]
    assert found.plan.is_empty


def test_a_group_that_was_deleted_with_something_new_below(tmp_path):
    base = all_of(root, lambda store: zarr.create_group(store, path="g"), create(path="g/x"))
    found = merged(tmp_path, base, delete("g"), create(path="g/y"), {"g": "theirs"})
    assert found.values("g/x") == found.values("g/y") == list(range(8))


def test_deleted_by_theirs(tmp_path):
    found = merged(tmp_path, BASE, create(path="y"), delete())
    assert (found.plan.deleted_below, found.plan.deleted) == (["x"], [])
    assert not [key for key in found.content if key.startswith("x/")]


def test_created_by_both(tmp_path):
    found = merged(tmp_path, root, all_of(empty, put(0, 10)), all_of(empty, put(1, 11), put(7, 17)))
    assert found.values() == [10, 11, 0, 0, 0, 0, 0, 17]
    found = merged(tmp_path, root, create(), create(compressors=None))
    assert [each.kind for each in found.plan.conflicts] == ["structure"]


def test_a_value_that_is_none_of_zarrs(tmp_path):
    def set_to(value: bytes) -> Step:
        return lambda store: store.__setitem__("notes/today", value)

    found = merged(tmp_path, set_to(b"0"), set_to(b"1"), set_to(b"2"))
    assert [(each.kind, each.path, each.theirs()) for each in found.plan.conflicts] == [("value", "notes/today", b"2")]
    assert (
        merged(tmp_path, set_to(b"0"), set_to(b"1"), set_to(b"2"), {"notes": "theirs"}).content["notes/today"] == b"2"
    )
    both = {"notes": lambda conflict: conflict.ours() + conflict.theirs()}
    assert merged(tmp_path, set_to(b"0"), set_to(b"1"), set_to(b"2"), both).content["notes/today"] == b"12"


def test_format_2(tmp_path):
    base = all_of(lambda store: zarr.create_group(store, zarr_format=2), create(zarr_format=2))
    found = merged(
        tmp_path, base, all_of(attributes(a=1), put(0, 10)), all_of(attributes(b=2), put(1, 11), append([8]))
    )
    assert found.values() == [10, 11, *range(2, 9)]
    assert dict(found.array().attrs) == {"a": 1, "b": 2}


# --- both have appended
def rows(path: str, n: int, start: int, *, dimension: str | None = "time") -> Step:
    """Append rows of two elements."""
    return lambda store: zarr.open_array(store, path=path).append(np.arange(start, start + 2 * n).reshape(n, 2))


def table(n: int, path: str = "x", dimension: str | None = "time", **options: Any) -> Step:
    def step(store: txstore.TxStore) -> None:
        names = None if dimension is None else [dimension, "column"]
        data = np.arange(2 * n).reshape(n, 2)
        zarr.create_array(store, name=path, data=data, chunks=(4, 2), fill_value=0, dimension_names=names, **options)

    return step


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "taken"),
    [
        (8, 4, 4, 1),
        (8, 4, 6, 2),
        (8, 8, 3, 1),
        (8, 3, 4, 0),
        (8, 3, 9, 0),
        (6, 4, 5, 1),
        (6, 1, 1, 0),
        (5, 9, 2, 0),
        (0, 4, 4, 1),
    ],
)
def test_one_behind_the_other(tmp_path, base, ours, theirs, taken):
    found = merged(
        tmp_path, all_of(root, table(base)), rows("x", ours, 100), rows("x", theirs, 200), concatenates=True
    )  # fmt: skip
    expected = [*range(2 * base), *range(100, 100 + 2 * ours), *range(200, 200 + 2 * theirs)]
    assert np.ravel(found.values()).tolist() == expected
    assert len(found.plan.taken) == taken


def test_arrays_of_one_dimension_are_appended_to_together(tmp_path):
    base = all_of(root, table(4), table(4, "y"))
    both = all_of(rows("x", 2, 100), rows("y", 2, 100)), all_of(rows("x", 4, 200), rows("y", 4, 200))
    found = merged(tmp_path, base, *both, concatenates=True)
    assert found.values() == found.values("y")
    assert len(found.values()) == 10
    torn = merged(tmp_path, base, all_of(rows("x", 2, 1), rows("y", 2, 1)), rows("x", 4, 2), concatenates=True)
    assert [(each.path, each.kind) for each in torn.plan.conflicts] == [("x", "append"), ("y", "append")]
    assert [
        each.path
        for each in merged(
            tmp_path, base, both[0], all_of(rows("x", 4, 2), rows("y", 3, 2)), concatenates=True
        ).plan.conflicts
    ] == ["x", "y"]


@pytest.mark.parametrize("dry", ["ours", "theirs", "both"])
def test_rows_of_the_fill_value_are_appended_too(tmp_path, dry):
    """They change no chunk: the last one had room for them."""
    days = {side: [0, 0] if dry in (side, "both") else [1, 2] for side in ("ours", "theirs")}
    base = all_of(root, create(5), create(5, path="y"))
    sides = [all_of(append(rows), append([10, 11], "y")) for rows in days.values()]
    found = merged(tmp_path, base, *sides, concatenates=True)
    assert not found.plan.conflicts
    assert found.values() == [*range(5), *days["ours"], *days["theirs"]]
    assert len(found.values("y")) == 9


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_an_answer_takes_no_array_from_among_those_that_are_lengthened(tmp_path, side):
    """One has changed a row of `y` that the other has changed, too, in the chunk that both append to."""
    base = all_of(root, table(5), table(5, "y"))
    sides = [all_of(rows("x", 2, n), put((4, 0), n, path="y"), rows("y", 2, n)) for n in (100, 200)]
    found = merged(tmp_path, base, *sides, {"y": side}, concatenates=True)
    assert [(each.path, each.kind) for each in found.plan.conflicts] == [("x", "append")]
    found = merged(tmp_path, base, *sides, {"": side}, concatenates=True)
    assert len(found.values()) == len(found.values("y")) == 7


def test_dimensions_as_xarray_names_them_in_format_2(tmp_path):
    def named(path: str) -> Step:
        return all_of(
            create(path=path, zarr_format=2), attributes(path, _ARRAY_DIMENSIONS=["time"])
        )  # fmt: skip

    base = all_of(lambda store: zarr.create_group(store, zarr_format=2), named("x"), named("y"))
    both = all_of(append([1, 2]), append([1, 2], "y")), append([3])
    found = merged(tmp_path, base, *both, concatenates=True)
    assert [(each.path, each.kind) for each in found.plan.conflicts] == [("x", "append"), ("y", "append")]


def test_shards_one_behind_the_other(tmp_path):
    base = all_of(root, create(8, shards=(8,)))
    found = merged(tmp_path, base, append(range(10, 13)), append(range(20, 25)), concatenates=True)
    assert found.values() == [*range(8), *range(10, 13), *range(20, 25)]


def test_a_group_becomes_an_array_where_the_other_makes_a_node_below(tmp_path):
    base = all_of(root, lambda store: zarr.create_group(store, path="g"))
    for sides in ((0, 1), (1, 0)):
        steps = all_of(delete("g"), create(path="g")), create(path="g/new")
        found = merged(tmp_path, base, *(steps[side] for side in sides))
        assert [(each.path, each.kind) for each in found.plan.conflicts] == [("g", "structure")]
