"""Which keys a selection covers, compared with the keys that zarr writes for it."""

import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings

import txstore
from tests.tools.arrays import HAS_RECTILINEAR
from txstore.format.keys import is_document
from txstore.transactions.regions import APPEND, METADATA, Append, Blocks, Points, Resize, Whole, keys_to_lock

SHAPE, CHUNKS = (10, 7), (3, 2)

#: How arrays can be laid out; each has the shape and grid of above.
LAYOUTS = {
    "format 3": {},
    "format 3, separator .": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "format 3, keys of format 2": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "format 3, keys of format 2, separator /": {"chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "sharded": {"chunks": (1, 1), "shards": CHUNKS},
    "format 2": {"zarr_format": 2},
    "format 2, separator /": {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
}


@pytest.fixture
def repo(open_repo):
    return open_repo(durability="none")


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return LAYOUTS[request.param]


@pytest.fixture
def store(repo):
    store = txstore.TxStore(repo, durability="none")
    yield store
    store.rollback()


def create(store, path="x", shape=SHAPE, **layout):
    return zarr.create_array(store, name=path, shape=shape, dtype="i4", **({"chunks": CHUNKS} | layout))


def written(store, write) -> set[str]:
    """The chunks that `write` stages, in a transaction of its own that is rolled back."""
    store.commit()
    write()
    keys = {key for name in ("set", "deleted") for key in store.changes()[name] if not is_document(key)}
    store.rollback()
    return keys


def locked(store, region, path="x") -> set[str]:
    keys = keys_to_lock(store.mapping, {path: region})
    assert len(keys) == len(set(keys))
    return set(keys)


# --- selections
@pytest.mark.parametrize("selection", [np.s_[10:], np.s_[5:5], np.s_[5:2], np.s_[..., 99:], np.s_[-20:-15], []])
def test_what_is_empty_covers_nothing(store, selection):
    create(store)
    assert locked(store, selection) == set()


def test_a_negative_step(store):
    create(store)
    assert locked(store, np.s_[8:1:-4, 0]) == locked(store, np.s_[[8, 4], 0]) == {"x/c/2/0", "x/c/1/0"}


ORTHOGONAL = {
    "integers": [0, 9],
    "tuple of lists": ([0, 9], [0, 6]),
    "list and slice": ([0, -1], slice(2, 4)),
    "array and integer": (np.array([9, 0, 9]), 5),
    "unsigned": (np.array([9, 0], "u1"), slice(None)),
    "mask of an axis": (np.arange(10) % 5 == 0, slice(None)),
    "list mask of an axis": ([True] + [False] * 9, slice(0, 1)),
    "mask of nothing": (np.zeros(10, bool), slice(None)),
}


@pytest.mark.parametrize("name", ORTHOGONAL)
def test_arrays_of_indices_count_as_orthogonal(store, layout, name):
    z = create(store, **layout)
    selection = ORTHOGONAL[name]
    if name == "unsigned":  # which not every zarr takes
        assert locked(store, selection) == locked(store, ([0, 9], slice(None)))
        return
    assert locked(store, selection) == written(store, lambda: z.oindex.__setitem__(selection, 1))


POINTS = {
    "coordinates": ([0, 9, -1], [0, 6, 0]),
    "one for many": ([0, 4, 9], 6),
    "two dimensions": (np.array([[0, 9]]), np.array([[0], [6]])),
    "mask": np.eye(10, 7, dtype=bool),
    "mask in a tuple": (np.eye(10, 7, dtype=bool),),
    "mask of nothing": np.zeros((10, 7), bool),
}


@pytest.mark.parametrize("name", POINTS)
def test_points(store, layout, name):
    z = create(store, **layout)
    selection = POINTS[name]
    chunks = written(store, lambda: z.vindex.__setitem__(selection, 1))
    assert locked(store, Points(selection)) == chunks
    assert locked(store, selection) >= chunks  # as indices of each axis, which is more


@pytest.mark.parametrize("selection", [np.s_[1, 2], np.s_[1:3], np.s_[:, 1:], np.s_[..., 3], np.s_[3, -1]])
def test_blocks(store, layout, selection):
    z = create(store, **layout)
    assert locked(store, Blocks(selection)) == written(store, lambda: z.blocks.__setitem__(selection, 1)) != set()


def test_a_list_of_selections_covers_each(store):
    create(store)
    assert locked(store, [np.s_[0, 0], np.s_[9, 6]]) == {"x/c/0/0", "x/c/3/3"}
    assert locked(store, [np.s_[0, 0], APPEND]) == locked(store, APPEND) | {"x/c/0/0"}
    assert locked(store, [METADATA, ...]) == locked(store, Whole())
    assert locked(store, [0, 1, 9]) == locked(store, [np.s_[0:1], np.s_[9]])
    assert locked(store, [[0, 1], [9]]) == locked(store, [[0], [1], [9]]) == locked(store, [0, 1, 9])


@pytest.mark.parametrize("fmt", [2, 3])
def test_scalars(store, fmt):
    z = create(store, shape=(), chunks=(), zarr_format=fmt)
    for selection in ((), ..., np.s_[...]):
        assert locked(store, selection) == written(store, lambda s=selection: z.__setitem__(s, 1)) != set()
    assert locked(store, Points(())) == locked(store, Blocks(())) == locked(store, ...)
    assert locked(store, Whole()) == locked(store, [METADATA, ...])
    for region in (0, np.s_[:], APPEND):
        with pytest.raises(IndexError):
            locked(store, region)


def test_fields_say_nothing_about_chunks(store):
    z = zarr.create_array(store, name="x", shape=(10,), chunks=(3,), dtype=[("a", "i4"), ("b", "i4")], zarr_format=2)
    assert locked(store, ("a", slice(4, 5))) == written(store, lambda: z.set_basic_selection(np.s_[4:5], 1, fields="a"))
    assert locked(store, "a") == locked(store, ["a", "b"]) == locked(store, ...)


def test_the_root_may_be_an_array(store):
    z = zarr.create_array(store, shape=(4,), chunks=(2,), dtype="i4")
    assert locked(store, 3, path="") == written(store, lambda: z.__setitem__(3, 1)) == {"c/1"}
    assert set(keys_to_lock(store.mapping, "")) == {"zarr.json", "c/0", "c/1"}


indices = st.integers(-12, 12)
slices = st.builds(slice, st.none() | indices, st.none() | indices, st.none() | st.integers(1, 8))
small = st.integers(1, 12)


@st.composite
def arrays_and_selections(draw):
    shape = draw(st.lists(small, min_size=1, max_size=3))
    chunks = [draw(st.integers(1, 6)) for _ in shape]
    each = [slices | st.integers(-extent, extent - 1) for extent in shape]
    selection = [draw(item) for item in each[: draw(st.integers(0, len(shape)))]]
    if draw(st.booleans()):
        selection.append(Ellipsis)
    return tuple(shape), tuple(chunks), tuple(selection)


@pytest.mark.long
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrays_and_selections())
def test_any_basic_selection(store, layout, case):
    shape, chunks, selection = case
    grid = {"chunks": (1,) * len(shape), "shards": chunks} if "shards" in layout else {"chunks": chunks}
    z = create(store, shape=shape, overwrite=True, **layout | grid)
    assert locked(store, selection) == written(store, lambda: z.set_basic_selection(selection, 1))


# --- changes of the shape
@pytest.mark.long
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("shape", [(10, 7), (9, 6), (9, 7), (1, 1), (0, 7)])
def test_append_covers_the_documents_and_what_is_partly_filled(store, layout, shape, axis):
    create(store, shape=shape, **layout)
    store.commit()
    z = zarr.open_array(store, path="x", mode="r+")
    before = locked(store, ...)
    added = list(shape)
    added[axis] = 5
    z.append(np.ones(added), axis=axis % 2)
    changes = set(store.changes()["set"])
    store.rollback()
    covered = locked(store, Append(axis))
    documents = {"x/.zarray", "x/.zattrs"} if layout.get("zarr_format") == 2 else {"x/zarr.json"}
    assert covered == (changes & before) | documents
    assert changes - covered - before == {key for key in changes if not is_document(key)} - before


@pytest.mark.parametrize("shape", [(10, 7), (11, 8), (10, 6), (9, 7), (4, 3), (3, 9), (0, 0), (10, 5)])
def test_resize_covers_the_documents_and_what_is_cut_off(store, layout, shape):
    z = create(store, **layout)
    z[...] = 1
    documents = set(keys_to_lock(store.mapping, {"x": METADATA}))
    cut = [np.s_[shape[0] :], np.s_[:, shape[1] :]]
    dropped = written(store, lambda: z.resize(shape))
    assert dropped <= locked(store, Resize(shape)) == documents | locked(store, cut)


def test_resize_to_another_number_of_axes(store):
    create(store)
    with pytest.raises(IndexError, match=r"\(10, 7\).*\(3,\)"):
        locked(store, Resize((3,)))


# --- chunks of different sizes
@pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear grids")
@pytest.mark.parametrize("selection", [..., 0, 5, np.s_[1:6, 3:4], np.s_[::5], np.s_[1::4], [9, 0], np.s_[-1, -1]])
def test_chunks_of_different_sizes(store, selection):
    with zarr.config.set({"array.rectilinear_chunks": True}):
        z = create(store, chunks=((1, 4, 5), (3, 3, 1)))
        assert locked(store, selection) == written(store, lambda: z.oindex.__setitem__(selection, 1)) != set()
        assert locked(store, Append(0)) == {"x/zarr.json"}
        z.resize((7, 7))
        assert locked(store, Append(0)) == {"x/zarr.json", "x/c/2/0", "x/c/2/1", "x/c/2/2"}
        assert locked(store, Resize((4, 7))) == locked(store, [METADATA, np.s_[4:]])


# --- paths
@pytest.fixture
def tree(store):
    zarr.create_group(store, path="g")
    create(store, "g/x")
    create(store, "g/h/y", zarr_format=3, shape=(3,), chunks=(3,))
    create(store, "gg", shape=(3,), chunks=(3,))
    return store


def test_a_path_covers_all_that_is_below_it(tree):
    below = {"g/zarr.json", "g/h/zarr.json", "g/h/y/zarr.json", "g/h/y/c/0"} | locked(tree, Whole(), "g/x")
    for lock in ("g", ["g"], {"g"}, ("g", "g/h"), {"g": Whole()}, "/g/"):
        assert set(keys_to_lock(tree.mapping, lock)) == below
    every = below | {"zarr.json", "gg/zarr.json", "gg/c/0"}
    assert set(keys_to_lock(tree.mapping, "")) == every
    assert set(keys_to_lock(tree.mapping, {"g": METADATA})) == {"g/zarr.json"}
    assert len(keys_to_lock(tree.mapping, ["g", "g/x"])) == len(below)


# --- errors
@pytest.mark.parametrize("region", [0, ..., APPEND, METADATA, Whole(), Resize((1,)), Points(([0],)), Blocks(0)])
def test_a_path_without_a_node(tree, region):
    with pytest.raises(txstore.errors.NodeNotFoundError, match=r"no array.*'nope'.*nothing") as caught:
        keys_to_lock(tree.mapping, {"nope": region})
    assert isinstance(caught.value, KeyError)
    assert caught.value.path == "nope"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.path) == (str(caught.value), "nope")


@pytest.mark.parametrize("region", [0, ..., APPEND, Resize((1,)), Points(([0],)), Blocks(0)])
def test_a_group_where_an_array_is_needed(tree, region):
    with pytest.raises(txstore.errors.NodeNotFoundError, match="'g': it is a group"):
        keys_to_lock(tree.mapping, {"g": region})


@pytest.mark.parametrize(
    "region",
    [
        10,
        -11,
        np.s_[0, 7],
        np.s_[0, 0, 0],
        np.s_[..., ...],
        np.s_[..., 0, 0, 0],
        [0, 10],
        ([0, 10], [0, 0]),
        ([-11], 0),
        True,
        np.ones(9, bool),
        (np.ones(9, bool), 0),
        np.ones((10, 8), bool),
        Append(2),
        Append(-3),
        Points(([0, 10], [0, 0])),
        Points([0, 1]),
        Blocks(4),
        Blocks(np.s_[0, 4]),
    ],
    ids=str,
)
def test_outside_of_the_array(store, region):
    create(store)
    with pytest.raises(IndexError, match=r"'x' has shape \(10, 7\)"):
        locked(store, region)


@pytest.mark.parametrize("region", [None, 1.0, np.s_[0, None], {"a": 1}, np.array([0.5]), (b"x",), slice], ids=str)
def test_what_is_no_selection(store, region):
    create(store)
    with pytest.raises((TypeError, IndexError)):
        locked(store, region)


@pytest.mark.parametrize("lock", [1, None, [("x", 0)], {1: 0}, [b"x"], iter(["x"])])
def test_what_is_no_path(store, lock):
    create(store)
    with pytest.raises(TypeError):
        keys_to_lock(store.mapping, lock)


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"{}", b'{"node_type": "array", "shape": [4]}', b"[" * 100_000])
def test_a_document_that_can_not_be_understood(store, document):
    store["x/zarr.json"] = document
    with pytest.raises(ValueError, match=r"'x/zarr\.json'"):
        locked(store, 0)


# --- more than there is reason to count
HUGE = 10**15


@pytest.fixture
def huge(store):
    """An array of 10^30 chunks, of which none is stored: its document says so, in 500 bytes."""
    create(store, shape=(HUGE, HUGE), chunks=(1, 1))
    return store


@pytest.mark.long
@pytest.mark.parametrize(
    "region",
    [..., Whole(), np.s_[:, 0], np.s_[0], np.s_[: 1 << 19, 0], np.s_[::2, 3], np.s_[:: 1 << 20, 3], Resize((0, 0)),
     Resize((HUGE, 1)), Blocks(np.s_[:]), [0, np.s_[:, 5]]],
)  # fmt: skip
def test_more_chunks_than_can_be_locked(huge, region):
    """They were counted one by one, or all of an axis in memory."""
    with pytest.raises(txstore.LockRegionError, match=r"more than the 262,144 keys .*METADATA.*repo\.run") as caught:
        locked(huge, region)
    assert caught.value.path == "x"
    assert isinstance(caught.value, ValueError)


def test_what_can_be_locked_of_a_huge_array(huge):
    last = HUGE - 1
    assert locked(huge, np.s_[-1, 1:4]) == {f"x/c/{last}/{n}" for n in (1, 2, 3)}
    assert locked(huge, np.s_[:: 10**14, -1]) == {f"x/c/{n}/{last}" for n in range(0, HUGE, 10**14)}
    assert locked(huge, np.s_[5 :: 10**14, [0, -1]]) == {
        f"x/c/{5 + n}/{m}" for n in range(0, HUGE, 10**14) for m in (0, last)
    }
    assert locked(huge, Points(([0, last, last], [3, -1, -1]))) == {"x/c/0/3", f"x/c/{last}/{last}"}
    assert locked(huge, Blocks(np.s_[last, -2:])) == {f"x/c/{last}/{n}" for n in (HUGE - 2, last)}
    assert locked(huge, [METADATA, APPEND]) == {"x/zarr.json"}
    assert len(locked(huge, np.s_[: 1 << 18, 0])) == 1 << 18
    with pytest.raises(IndexError):
        locked(huge, HUGE)


@pytest.mark.parametrize("shape", [(HUGE, 0), (0, HUGE), (HUGE, HUGE, 0)])
def test_a_huge_axis_beside_an_empty_one(store, shape):
    """There is no chunk, and for each of 10^15 rows it was found out anew."""
    create(store, shape=shape, chunks=(1,) * len(shape))
    for region in (..., Whole(), Resize((0,) * len(shape))):
        assert {key for key in locked(store, region) if not is_document(key)} == set()


def test_many_arrays_together_are_too_many(store):
    for name in ("x", "y"):
        create(store, name, shape=(150_000,), chunks=(1,))
    assert len(keys_to_lock(store.mapping, ["x"])) == 150_001
    with pytest.raises(txstore.LockRegionError, match="262,144"):
        keys_to_lock(store.mapping, ["x", "y"])


DOCUMENT = (
    '{{"zarr_format": 3, "node_type": "array", "shape": {shape}, "chunk_grid": {grid}, "chunk_key_encoding": '
    '{{"name": "default"}}}}'
)
REGULAR = '{{"name": "regular", "configuration": {{"chunk_shape": {}}}}}'
RECTILINEAR = '{{"name": "rectilinear", "configuration": {{"kind": "inline", "chunk_shapes": {}}}}}'


@pytest.mark.parametrize(
    ("shape", "grid"),
    [
        ([1 << 62], REGULAR.format([1])),
        ([4], REGULAR.format([1 << 64])),
        ([10**400], REGULAR.format([1])),
        ([-1], REGULAR.format([1])),
        ([1] * 65, REGULAR.format([1] * 65)),
        ([4], REGULAR.format([1, 1])),
        ([4], REGULAR.format([-1])),
        ('["a"]', REGULAR.format([1])),
        ([4], RECTILINEAR.format([[[2, 10**12]]])),
        ([4], RECTILINEAR.format([[[2, 10**12], [2, -(10**12)]]])),
        ([4], RECTILINEAR.format([[[1 << 61, 4]]])),
        ([4], RECTILINEAR.format([[["a", "b"]]])),
        ([4], RECTILINEAR.format([[[1, 1 << 19], [1, -(1 << 19)]]])),
        ([4], RECTILINEAR.format([[4, 0]])),
        ([4], RECTILINEAR.format([[]])),
        ([4], RECTILINEAR.format([[4]]).replace("inline", "elsewhere")),
        ([4], '{"name": "hexagonal", "configuration": {}}'),
    ],
)
def test_documents_that_are_absurd(store, shape, grid):
    """Numbers beyond what numpy holds, a pair that zarr would write out as 10^12 numbers."""
    store["x/zarr.json"] = DOCUMENT.format(shape=shape, grid=grid).encode()
    for region in (0, ..., np.s_[::3], APPEND, Whole(), Resize((1,)), Points(([0],)), Blocks(0)):
        with pytest.raises(txstore.LockRegionError, match=r"'x/zarr\.json'"):
            locked(store, region)


def test_groups_in_one_another_by_the_thousand(store):
    """Each was one call deeper."""
    path = "/".join("a" * 1500)
    for depth in range(1501):
        store["/".join(["a"] * depth + ["zarr.json"])] = b'{"zarr_format": 3, "node_type": "group"}'
    assert path.count("/") == 1499
    assert len(keys_to_lock(store.mapping, "")) == 1501
