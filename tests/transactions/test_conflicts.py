"""I5 as a table: two transactions begin at one commit, both write, one commits before the other."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import zarr

import txstore
from tests.tools.arrays import (
    Step,
    add,
    add_part,
    append,
    array,
    attributes,
    both,
    commit,
    commit_often,
    create,
    create_flat,
    delete,
    edit_document,
    group,
    part,
    put,
    resize,
)
from txstore import ConflictError

FIRST, SECOND = slice(0, 4), slice(4, 8)  # the two chunks of x
CORNER, OPPOSITE = (slice(0, 4), slice(0, 4)), (slice(4, 8), slice(4, 8))


class Case(NamedTuple):
    name: str
    before: Step
    one: Step
    other: Step
    conflict: bool
    after: Callable[[zarr.Group], Any] = lambda root: None  # what must be true when both were committed
    orders: tuple[str, ...] = ("one first", "other first")


def nothing(store: txstore.TxStore) -> None:
    """The repository does not exist yet."""


def x_is(*values: int) -> Callable[[zarr.Group], Any]:
    return lambda root: root["x"][...].tolist() == list(values)


def names(*expected: str) -> Callable[[zarr.Group], Any]:
    return lambda root: sorted(root) == list(expected)


def overwrite(path: str = "x", **options: Any) -> Step:
    return create(path, overwrite=True, **options)


def clear_all(store: txstore.TxStore) -> None:
    zarr.open_group(store, mode="w")


KEPT = Case("a chunk, and growth", create(), put(FIRST, 5), append(7, 7), False, x_is(5, 5, 5, 5, 1, 1, 1, 1, 7, 7))

ONE_ARRAY = [
    Case("equal appends", create(), append(7), append(7), True),
    Case("equal appends inside the last chunk", create(n=6), append(7), append(7), True),
    Case("equal appends of what the fill value is", create(), append(0), append(0), True),
    Case("equal increments", create(), add(FIRST, 1), add(FIRST, 1), True),
    Case("equal increments of one element", create(), add(0, 1), add(0, 1), True),
    Case("equal blind writes", create(), put(FIRST, 5), put(FIRST, 5), True),
    Case("halves of one chunk", create(), put(0, 5), put(3, 5), False, x_is(5, 1, 1, 5, 1, 1, 1, 1)),
    Case("halves of one chunk that overlap", create(), put(slice(0, 3), 5), put(slice(2, 4), 5), True),
    Case("different chunks", create(), put(FIRST, 5), put(SECOND, 6), False, x_is(5, 5, 5, 5, 6, 6, 6, 6)),
    Case("two attributes", create(), attributes(a=1), attributes(b=1), True),
    Case("equal attributes", create(), attributes(a=1), attributes(a=1), True),
    Case("attributes, and a chunk", create(), attributes(a=1), put(FIRST, 5), False, lambda root: root["x"].attrs["a"]),
    KEPT,
    Case("a chunk at the edge, and a resize that writes nothing", create(n=6), put(5, 5), resize(8), False,
         x_is(1, 1, 1, 1, 1, 5, 0, 0)),
    Case("a chunk at the edge, and an append into it", create(n=6), put(5, 5), append(7), False,
         x_is(1, 1, 1, 1, 1, 5, 7)),
    Case("growth, and attributes", create(), append(7), attributes(a=1), True),
    Case("growth in two dimensions", create_flat(), resize(12, 8), resize(8, 12), True),
    Case("shrinking, and a chunk that is dropped", create(), resize(4), put(SECOND, 5), True),
    Case("shrinking, and a chunk that is dropped and was absent", create(value=0), resize(4), put(SECOND, 5), True),
    Case("shrinking, and a chunk that is kept", create(), resize(4), put(FIRST, 5), False, x_is(5, 5, 5, 5)),
    Case("shrinking into a chunk that is written", create(), resize(6), put(SECOND, 5), True),
    Case("a smaller shape in the document alone, and a chunk that is dropped", create(),
         edit_document("x/zarr.json", shape=[4]), put(SECOND, 5), True),
    Case("shrinking, and attributes", create(), resize(4), attributes(a=1), True),
    Case("shrinking, and growing", create(), resize(4), append(7), True),
    Case("deletion, and a chunk", create(), delete(), put(FIRST, 5), True),
    Case("deletion, and a chunk that was absent", create(value=0), delete(), put(FIRST, 5), True),
    Case("deletion, and attributes", create(), delete(), attributes(a=1), True),
    Case("deletion, and a name that begins alike", both(create(), create("x2")), delete(), put(FIRST, 5, "x2"), False,
         names("x2")),
    Case("deletion of the document alone, and a chunk", create(), lambda s: s.__delitem__("x/zarr.json"),
         put(FIRST, 5), True),
    Case("two deletions of the document alone", create(), lambda s: s.__delitem__("x/zarr.json"),
         lambda s: s.__delitem__("x/zarr.json"), True),
    Case("two deletions", create(), delete(), delete(), False, names()),
    Case("an equal array in its place, and a chunk", create(), overwrite(), put(FIRST, 5), True),
    Case("an equal array in its place, and a chunk that was absent", create(value=0), overwrite(value=0),
         put(FIRST, 5), True),
    Case("an array in its place, and attributes", create(), overwrite(), attributes(a=1), True),
    Case("mode w, and a chunk", create(), lambda s: array(s, mode="w", shape=(2,), dtype="f4"), put(FIRST, 5), True),
    Case("all cleared, and a chunk", create(), clear_all, put(FIRST, 5), True),
    Case("all cleared, and a new array", create(), clear_all, create("y"), True),
    Case("another data type, and a chunk", create(), edit_document("x/zarr.json", data_type="uint32"),
         put(FIRST, 5), True),
    Case("another data type, and a chunk that was absent", create(value=0),
         edit_document("x/zarr.json", data_type="uint32"), put(FIRST, 5), True),
    Case("another fill value, and a chunk that becomes it", create(), edit_document("x/zarr.json", fill_value=9),
         put(FIRST, 0), True),
    Case("another rank, and a chunk", create(), edit_document("x/zarr.json", shape=[8, 1]), put(FIRST, 5), True),
    Case("a document that is none, and a chunk", create(), lambda s: s.__setitem__("x/zarr.json", b"{"),
         put(FIRST, 5), True),
    Case("two creations", nothing, create(), create(), True),
    Case("two creations of an array without chunks", nothing, create(value=0), create(value=0), True),
]  # fmt: skip

# A chunk that becomes all fill value is deleted, also where there was none.
FILL = [
    Case("data, and fill over data", create(), put(FIRST, 5), put(FIRST, 0), True),
    Case("fill twice over data", create(), put(FIRST, 0), put(FIRST, 0), True),
    Case("data, and fill over nothing", both(create(value=0), create("y")), put(FIRST, 5),
         both(put(FIRST, 0), put(FIRST, 6, "y")), True, orders=("one first",)),
    Case("fill over nothing, and data", both(create(value=0), create("y")), put(FIRST, 5),
         both(put(FIRST, 0), put(FIRST, 6, "y")), False, x_is(5, 5, 5, 5, 0, 0, 0, 0), orders=("other first",)),
    Case("fill over nothing alone", create(value=0), put(FIRST, 5), put(FIRST, 0), False,
         x_is(5, 5, 5, 5, 0, 0, 0, 0)),
    Case("fill over nothing twice", both(create(value=0), create("y")), both(put(FIRST, 0), put(FIRST, 5, "y")),
         both(put(FIRST, 0), put(SECOND, 5, "y")), False, x_is(*[0] * 8)),
]  # fmt: skip

EQUAL_BYTES = [
    Case("an equal blind write is none", create(), both(put(FIRST, 1), put(SECOND, 6)), put(FIRST, 5), False,
         x_is(5, 5, 5, 5, 6, 6, 6, 6)),
    Case("a chunk that was read and written back", create(), add(FIRST, 0), put(FIRST, 5), True),
    Case("a part of a chunk written as it was is no write", create(), put(slice(0, 2), 1), put(FIRST, 5), False,
         x_is(5, 5, 5, 5, 1, 1, 1, 1)),
    Case("a part of a chunk that was read and written back", create(), add(0, 0), put(FIRST, 5), True),
    Case("equal attributes are no write", both(create(), attributes(a=1)), both(attributes(a=1), put(FIRST, 5)),
         attributes(b=2), False, lambda root: root["x"].attrs.asdict() == {"a": 1, "b": 2}),
]  # fmt: skip

LEFT, RIGHT, MIDDLE = slice(0, 2), slice(2, 4), slice(1, 3)

PARTS = [
    Case("halves of one chunk", create(), part(LEFT, 5), part(RIGHT, 6), False, x_is(5, 5, 6, 6, 1, 1, 1, 1)),
    Case("halves of one chunk that were read", create(), add_part(LEFT, 5), add_part(RIGHT, 6), False,
         x_is(6, 6, 7, 7, 1, 1, 1, 1)),
    Case("halves of a missing chunk", create(value=0), part(LEFT, 5), part(RIGHT, 6), False,
         x_is(5, 5, 6, 6, 0, 0, 0, 0)),
    Case("parts that overlap", create(), part(LEFT, 5), part(MIDDLE, 6), True),
    Case("parts that overlap, with equal values", create(), part(LEFT, 5), part(MIDDLE, 5), True),
    Case("equal increments of one element", create(), add_part(LEFT, 1), add_part(LEFT, 1), True),
    Case("parts that overlap where one leaves it as it is", create(), part(LEFT, 5),
         both(part(slice(1, 2), 1), part(RIGHT, 6)), False, x_is(5, 5, 6, 6, 1, 1, 1, 1), orders=("other first",)),
    Case("both halves, and one", create(), both(part(LEFT, 5), part(RIGHT, 5)), part(slice(3, 4), 6), True),
    Case("a part written as it was, and read before", create(), add_part(LEFT, 0), part(RIGHT, 6), False,
         x_is(1, 1, 6, 6, 1, 1, 1, 1)),
    Case("a part, and the whole", create(), part(LEFT, 5), put(FIRST, 6), True),
    Case("a part, and the whole that changes the rest alone", create(), part(LEFT, 5), add(FIRST, [0, 0, 5, 5]), False,
         x_is(5, 5, 6, 6, 1, 1, 1, 1), orders=("other first",)),
    Case("a part behind a write of the whole, and a part", create(), both(put(FIRST, 6), part(LEFT, 5)),
         part(RIGHT, 7), True),
    Case("halves that become all fill value", create(), part(LEFT, 0), part(RIGHT, 0), False,
         x_is(0, 0, 0, 0, 1, 1, 1, 1)),
    Case("a part, and a deletion of the chunk", create(), part(LEFT, 5), lambda s: s.__delitem__("x/c/0"), True),
    Case("a part, and a deletion of a chunk that was all fill value there", both(create(), part(LEFT, 0)),
         part(LEFT, 5), put(FIRST, 0), False, x_is(5, 5, 0, 0, 1, 1, 1, 1), orders=("other first",)),
    Case("a part, and the array made anew", create(), part(LEFT, 5), overwrite(), True),
    Case("a part, and an equal array in its place", create(value=0), part(LEFT, 5), overwrite(value=0), True),
    Case("a part, and its chunks cleared", create(value=0), part(LEFT, 5),
         both(lambda s: s.mapping.delete_dir("x/c"), put(SECOND, 6)), True, orders=("one first",)),
    Case("a part, and another data type", create(), part(LEFT, 5), edit_document("x/zarr.json", data_type="uint32"),
         True),
    Case("a part, and a codec", create(), part(LEFT, 5),
         edit_document("x/zarr.json", codecs=[{"name": "bytes", "configuration": {"endian": "big"}}]), True),
    Case("a part of the chunk at the edge, and growth", create(n=6), part(slice(0, 1), 5, chunk="c/1"), resize(8),
         False, x_is(1, 1, 1, 1, 5, 1, 0, 0)),
    Case("a part of a chunk that is dropped", create(), part(LEFT, 5, chunk="c/1"), resize(4), True),
    Case("format 2, order F", create(zarr_format=2, order="F"), part(LEFT, 5, chunk="0"), part(RIGHT, 6, chunk="0"),
         False, x_is(5, 5, 6, 6, 1, 1, 1, 1)),
    Case("shards", create(chunks=2, shards=(4,)), part(LEFT, 5), part(slice(3, 4), 6), False,
         x_is(5, 5, 1, 6, 1, 1, 1, 1)),
]  # fmt: skip

NODES = [
    Case("two equal groups", nothing, group(), group(), False, names("g")),
    Case("two equal groups where there is a root", group(""), group(a=[1]), group(a=[1]), False, names("g")),
    Case("two groups with different attributes", nothing, group(a=1), group(a=2), True),
    Case("two arrays in a new group", nothing, create("g/x"), create("g/y"), False,
         lambda root: sorted(root["g"]) == ["x", "y"]),
    Case("unrelated arrays", both(create(), create("y")), both(append(7), attributes(a=1)),
         both(append(8, path="y"), attributes("y", a=1)), False,
         lambda root: root["x"].shape == root["y"].shape == (9,)),
    Case("equal attributes of a group that was there", group(), attributes("g", a=1), attributes("g", a=1), True),
    Case("attributes of a group, and an array in it", group(), attributes("g", a=1), create("g/x"), False,
         lambda root: "x" in root["g"] and root["g"].attrs["a"]),
    Case("two deletions of a group", both(group(), create("g/x")), delete("g"), delete("g"), False, names()),
    Case("deletion of a group, and an array in it", group(), delete("g"), create("g/x"), True),
    Case("deletion of a group, and a chunk far below", create("g/h/x"), delete("g"), put(FIRST, 5, "g/h/x"), True),
    Case("deletion of an outer and of an inner group", both(create("g/h/x"), create("g/y")), delete("g"),
         delete("g/h"), False, names()),
    Case("deletion of a group's document, and an array in it", group(), lambda s: s.__delitem__("g/zarr.json"),
         create("g/x"), True),
    Case("an array in place of a group, and an array in it", group(), overwrite("g"), create("g/x"), True),
    Case("an array's document in place of a group's, and an array in it", both(group(), create("a")),
         lambda s: s.__setitem__("g/zarr.json", s["a/zarr.json"]), create("g/x"), True),
    Case("a group and an array of one name", nothing, group("x"), create(), True),
    Case("a group's and an array's children", nothing, create("g"), create("g/x"), True),
    Case("a group in place of an array, and a chunk", create(),
         lambda s: zarr.create_group(s, path="x", overwrite=True), put(FIRST, 5), True),
]  # fmt: skip

FORMAT_2 = [
    Case("two equal groups", nothing, group(fmt=2), group(fmt=2), False, names("g")),
    Case("two groups with different attributes", nothing, group(fmt=2, a=1), group(fmt=2, a=2), True),
    Case("a group and an array of one name", group("", fmt=2), group("x", fmt=2), create(zarr_format=2), True),
    Case("arrays in a new group", nothing, create("g/x", zarr_format=2), create("g/y", zarr_format=2), False,
         lambda root: sorted(root["g"]) == ["x", "y"]),
    Case("two creations", nothing, create(zarr_format=2), create(zarr_format=2), True),
    Case("nodes of both formats in one place", nothing, create(), group("x", fmt=2), True),
    Case("an array in its place, and a chunk", create(zarr_format=2), overwrite(zarr_format=2), put(FIRST, 5), True),
    Case("equal appends", create(zarr_format=2), append(7), append(7), True),
    Case("growth, and a chunk", create(zarr_format=2), append(7, 7), put(FIRST, 5), False,
         x_is(5, 5, 5, 5, 1, 1, 1, 1, 7, 7)),
    Case("growth, and attributes: two documents", create(zarr_format=2), append(7), attributes(a=1), False,
         lambda root: root["x"].shape == (9,) and root["x"].attrs["a"]),
    Case("shrinking, and attributes: two documents", create(zarr_format=2), resize(4), attributes(a=1), False,
         lambda root: root["x"].shape == (4,) and root["x"].attrs["a"]),
    Case("two attributes", create(zarr_format=2), attributes(a=1), attributes(b=1), True),
    Case("two equal attributes where there were none",
         both(create(zarr_format=2), lambda s: s.__delitem__("x/.zattrs")), attributes(a=1), attributes(a=1), True),
    Case("deletion, and attributes", create(zarr_format=2), delete(), attributes(a=1), True),
    Case("deletion of .zarray, and a chunk", create(zarr_format=2), lambda s: s.__delitem__("x/.zarray"),
         put(FIRST, 5), True),
]  # fmt: skip

SCALARS = [
    case
    for fmt in (2, 3)
    for scalar in [lambda s, f=fmt: zarr.create_array(s, name="x", shape=(), dtype="i4", zarr_format=f)]
    for case in [
        Case(f"scalar, format {fmt}: two writes", scalar, put((), 5), put((), 6), True),
        Case(f"scalar, format {fmt}: a write, and attributes", scalar, put((), 5), attributes(a=1), False,
             lambda root: root["x"][()] == 5 and root["x"].attrs["a"]),
    ]
]  # fmt: skip

SEPARATORS = {
    "c/0/1": {},
    "c.0.1": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "0.1": {"zarr_format": 2},
    "0/1": {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "0.1 in format 3": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "shards": {"shards": (4, 4), "filters": None},
}


def by_separator() -> Iterator[Case]:
    for name, options in SEPARATORS.items():
        before = create_flat(**options)
        if name == "shards":
            before = lambda s: zarr.create_array(  # noqa: E731
                s, name="x", data=zarr.ones((8, 8), dtype="i4")[...], chunks=(2, 2), shards=(4, 4)
            )
        yield Case(f"{name}: one chunk", before, put(CORNER, 5), put((0, 0), 6), True)
        yield Case(f"{name}: neighbours in one chunk", before, put((0, 0), 5), put((3, 3), 6), False,
                   lambda root: (root["x"][0, 0], root["x"][3, 3], root["x"][0, 3]) == (5, 6, 1))  # fmt: skip
        yield Case(f"{name}: two chunks", before, put(CORNER, 5), put(OPPOSITE, 6), False,
                   lambda root: (root["x"][0, 0], root["x"][7, 7]) == (5, 6))  # fmt: skip
        yield Case(f"{name}: shrinking, and a dropped chunk", before, resize(8, 4), put(OPPOSITE, 5), True)
        yield Case(f"{name}: shrinking, and a kept chunk", before, resize(8, 4), put(CORNER, 5), False,
                   lambda root: root["x"][3, 3] == 5)  # fmt: skip
        yield Case(f"{name}: growing here, shrinking there, and a dropped chunk", before, resize(12, 4),
                   put(OPPOSITE, 5), True)  # fmt: skip


GROUPS = {
    "array": ONE_ARRAY,
    "fill": FILL,
    "equal bytes": EQUAL_BYTES,
    "parts": PARTS,
    "nodes": NODES,
    "format 2": FORMAT_2,
    "scalars": SCALARS,
    "keys": list(by_separator()),
}
CASES = [
    pytest.param(case, order == "one first", id=f"{group}: {case.name}, {order}")
    for group, cases in GROUPS.items()
    for case in cases
    for order in (case.orders if case.one is not case.other else case.orders[:1])
]


def start(repo: txstore.Repository, case: Case, one_first: bool) -> tuple[txstore.TxStore, txstore.TxStore]:
    """Return two stores that have both staged their part, the one that commits first before the other."""
    if case.before is not nothing:
        commit(repo, case.before)
    stores = repo.transaction(), repo.transaction()
    steps = (case.one, case.other) if one_first else (case.other, case.one)
    for store, step in zip(stores, steps, strict=True):
        step(store)
    return stores


def finish(repo: txstore.Repository, case: Case, second: txstore.TxStore) -> None:
    if not case.conflict:
        second.commit()
        assert case.after(zarr.open_group(repo.snapshot(), mode="r")) in (None, True, 1)
        return
    before, staged = dict(repo.mapping()), second.changes()
    with pytest.raises(ConflictError) as caught:
        second.commit()
    assert caught.value.keys
    assert second.changes() == staged
    assert dict(repo.mapping()) == before
    second.rollback()


@pytest.fixture
def quick(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    """A repository without syncs: what conflicts does not depend on them."""
    return open_repo(durability="none")


@pytest.mark.parametrize(("case", "one_first"), CASES)
def test_table(quick: txstore.Repository, case: Case, one_first: bool) -> None:
    first, second = start(quick, case, one_first)
    first.commit()
    finish(quick, case, second)


@pytest.mark.long
@pytest.mark.parametrize(("case", "one_first"), CASES)
def test_merged_runs_give_the_same_answers(quick: txstore.Repository, case: Case, one_first: bool) -> None:
    first, second = start(quick, case, one_first)
    if "all cleared" not in case.name:  # it conflicts with anything new
        commit_often(quick, 5)
    first.commit()
    commit_often(quick, 14)
    assert len(quick.mapping().runs) < 8
    finish(quick, case, second)
