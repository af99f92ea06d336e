"""Synchronized arrays do what zarr's arrays do; each write is one commit, made with the locks of what it changes."""

import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.array
import numpy as np
import pytest
import zarr

import txstore
from tests.tools.commits import commit, create_array
from txstore.errors import LocksUnavailableError, LockTimeoutError, NodeNotFoundError
from txstore.synchronized_arrays import SynchronizedArray, SynchronizedGroup, synchronized
from txstore.transactions.regions import APPEND, METADATA

SHAPE, CHUNKS = (10, 7), (3, 2)
LAYOUTS: dict[str, dict[str, Any]] = {
    "format 3": {"chunks": CHUNKS},
    "sharded": {"chunks": (1, 1), "shards": CHUNKS},
    "format 2": {"chunks": CHUNKS, "zarr_format": 2},
}


@pytest.fixture
def repo(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    return open_repo(durability="none")


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> dict[str, Any]:
    return LAYOUTS[request.param]


def values(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.arange(1, np.prod(shape) + 1, dtype="i4").reshape(shape)


@pytest.fixture
def pair(repo: txstore.Repository, layout: dict[str, Any]) -> tuple[SynchronizedArray, zarr.Array]:
    """A synchronized array and one of zarr's own, equal."""
    commit(repo, lambda store: zarr.create_array(store, name="g/x", data=values(), **layout))
    return synchronized(repo, "g/x"), zarr.create_array({}, data=values(), **layout)


@pytest.fixture
def a(repo: txstore.Repository) -> SynchronizedArray:
    create_array(repo, "x", data=np.arange(10, dtype="i4"), chunks=(4,))
    return synchronized(repo, "x", lock_timeout=0)


def version(repo: txstore.Repository) -> int:
    return repo.head().version


def at_head(repo: txstore.Repository, path: str = "x") -> zarr.Array:
    return zarr.open_array(repo.snapshot(), path=path, mode="r")


# --- the same as zarr's
ROW = values((1, 7))[0] * 100
MASK = np.add.outer(np.arange(10), np.arange(7)) % 4 == 0

WRITES: dict[str, Callable[[Any], object]] = {
    "everything": lambda z: z.__setitem__(..., 5),
    "one element": lambda z: z.__setitem__((3, -1), 5),
    "a row": lambda z: z.__setitem__(4, ROW),
    "a list": lambda z: z.__setitem__((4, slice(0, 3)), [7, 8, 9]),
    "rows": lambda z: z.__setitem__(slice(2, 5), np.full((3, 7), 9)),
    "a step": lambda z: z.__setitem__((slice(None, None, 4), slice(1, 3)), 8),
    "points": lambda z: z.__setitem__(([0, 9, 5], [6, 0, 3]), [1000, 2000, 3000]),
    "a mask": lambda z: z.__setitem__(MASK, 77),
    "rows by a list": lambda z: z.__setitem__(([1, 8], slice(None)), 3),
    "nothing": lambda z: z.__setitem__(slice(4, 4), 3),
    "oindex": lambda z: z.oindex.__setitem__(([1, 8], [0, 6]), np.array([[1, 2], [3, 4]])),
    "vindex": lambda z: z.vindex.__setitem__(([1, 8], [0, 6]), [1, 2]),
    "vindex, mask": lambda z: z.vindex.__setitem__(MASK, np.arange(MASK.sum())),
    "blocks": lambda z: z.blocks.__setitem__((slice(1, 3), 0), 6),
    "basic": lambda z: z.set_basic_selection((0, slice(2)), [5, 6]),
    "orthogonal": lambda z: z.set_orthogonal_selection((slice(2), [0, 3]), 6),
    "coordinate": lambda z: z.set_coordinate_selection(([0, 1], [0, 1]), 6),
    "mask": lambda z: z.set_mask_selection(MASK, 6),
    "block": lambda z: z.set_block_selection((0, 3), 6),
    "append": lambda z: z.append(np.full((4, 7), 6)),
    "append a list": lambda z: z.append([[1, 2, 3, 4, 5, 6, 7]]),
    "append along the other axis": lambda z: z.append(np.full((10, 2), 6), axis=1),
    "grow": lambda z: z.resize((12, 9)),
    "shrink": lambda z: z.resize((4, 3)),
    "shrink and grow": lambda z: z.resize((4, 30)),
    "an attribute": lambda z: z.attrs.__setitem__("a", {"b": [1, None, "c"]}),
    "attributes": lambda z: z.attrs.update({"a": 1}, b=2),
    "attributes of an array": lambda z: z.update_attributes({"a": 1}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_one_commit_and_does_what_zarr_does(repo, pair, name):
    synced, plain = pair
    before = version(repo)
    result = WRITES[name](synced)
    expected = WRITES[name](plain)
    assert version(repo) == before + (name != "nothing")
    if isinstance(expected, tuple):
        assert result == expected
    assert (synced.shape, synced.attrs.asdict()) == (plain.shape, plain.attrs.asdict())
    np.testing.assert_array_equal(synced[...], plain[...])
    np.testing.assert_array_equal(at_head(repo, "g/x")[...], plain[...])


READS: dict[str, Callable[[Any], Any]] = {
    "everything": lambda z: z[...],
    "no index": lambda z: z[()],
    "a row": lambda z: z[4],
    "an element": lambda z: z[4, -1],
    "points": lambda z: z[[0, 9], [6, 0]],
    "a mask": lambda z: z[MASK],
    "oindex": lambda z: z.oindex[[0, 9], [6, 0]],
    "vindex": lambda z: z.vindex[[0, 9], [6, 0]],
    "blocks": lambda z: z.blocks[1:3, 0],
    "basic": lambda z: z.get_basic_selection((0, slice(2))),
    "orthogonal": lambda z: z.get_orthogonal_selection((slice(2), [0, 3])),
    "coordinate": lambda z: z.get_coordinate_selection(([0, 1], [0, 1])),
    "mask": lambda z: z.get_mask_selection(MASK),
    "block": lambda z: z.get_block_selection((0, 3)),
    "array": lambda z: np.asarray(z),
    "array of another type": lambda z: np.asarray(z, dtype="f8"),
    "rows": lambda z: np.array(list(z)),
    "shape": lambda z: (z.shape, z.ndim, z.size, z.nbytes, z.dtype, z.chunks, z.shards, z.fill_value, z.read_only),
    "name": lambda z: z.metadata.shape,
}


@pytest.mark.parametrize("name", READS)
def test_reading_is_reading_with_zarr(repo, pair, name):
    synced, plain = pair
    before = version(repo)
    result, expected = READS[name](synced), READS[name](plain)
    assert type(result) is type(expected)
    if isinstance(result, tuple):
        assert result == expected
    else:
        np.testing.assert_array_equal(result, expected)
    assert version(repo) == before


def test_what_zarr_arrays_have_not(pair):
    synced, _ = pair
    assert len(synced) == 10
    assert (synced.path, synced.name, synced.basename) == ("g/x", "/g/x", "x")
    assert "g/x" in repr(synced)
    assert "(10, 7) int32" in repr(synced)


def test_scalars_and_structured_types(repo):
    a = make_group(repo).create_array("s", shape=(), dtype="i4")
    a[...] = 3
    a[()] = a[()] + 1
    assert a[()] == 4
    for use in (len, list):
        with pytest.raises(TypeError, match="without dimensions"):
            use(a)
    dtype = [("a", "i4"), ("b", "f8")]
    create_array(repo, "x", shape=(6,), chunks=(4,), dtype=dtype, zarr_format=2)
    x = synchronized(repo, "x")
    x[0] = np.array((1, 2.5), dtype)
    x[5:] = np.array([(3, 4.5)], dtype)
    assert x[:].tolist() == [(1, 2.5), *[(0, 0.0)] * 4, (3, 4.5)]


@pytest.mark.parametrize(
    "write",
    [
        lambda a: a.__setitem__(10, 0),
        lambda a: a.__setitem__(slice(0, 3), [1, 2]),
        lambda a: a.__setitem__((0, 0), 1),
        lambda a: a.append(np.ones((2, 2))),
        lambda a: a.append([1], axis=1),
        lambda a: a.resize((1, 2)),
        lambda a: a.resize((-1,)),
        lambda a: a.attrs.__setitem__("a", object()),
        lambda a: a.attrs.__delitem__("missing"),
        lambda a: a.attrs.pop("missing"),
        lambda a: a.vindex.__setitem__(slice(0, 2), 1),
    ],
)
def test_what_fails_commits_nothing_and_holds_nothing(repo, a, write):
    before = version(repo)
    with pytest.raises((ValueError, IndexError, KeyError, TypeError)):
        write(a)
    assert version(repo) == before
    a[...] = 1  # no lock is left behind
    assert version(repo) == before + 1


def test_each_read_is_of_the_newest_commit(repo, a):
    assert a[0] == 0
    with repo.transaction() as store:
        zarr.open_array(store, path="x", mode="r+")[0] = 9
    assert a[0] == 9
    create_array(repo, "x", data=np.zeros(3, "f4"), chunks=(2,), overwrite=True)
    assert (a.shape, a.dtype, a[:].tolist()) == ((3,), np.dtype("f4"), [0, 0, 0])
    a[2] = 1.5
    assert at_head(repo)[:].tolist() == [0, 0, 1.5]
    with repo.transaction() as store:
        del store["x/zarr.json"]
    with pytest.raises(FileNotFoundError):
        a[0]
    with pytest.raises(NodeNotFoundError):
        a[0] = 1
    assert "x" in repr(a)


def test_a_group_in_the_place_of_an_array(repo, a):
    """It was an AttributeError, of whatever a group has not."""
    commit(repo, lambda store: zarr.create_group(store, path="x", overwrite=True))
    for read in (lambda: a.shape, lambda: len(a), lambda: a[:], lambda: list(a)):
        with pytest.raises(NodeNotFoundError, match="no array at 'x': it is a group"):
            read()
    g = synchronized(repo, "x")
    create_array(repo, "x", shape=(4,), chunks=(4,), dtype="i4", overwrite=True)
    with pytest.raises(NodeNotFoundError, match="no group at 'x': it is an array"):
        dict(g.attrs)


def test_iterating_is_over_one_commit(a):
    rows = []
    for row in a:
        rows.append(int(row))
        a[...] = -1
    assert rows == list(range(10))


# --- locks
def test_a_write_waits_for_who_holds_what_it_changes(repo, a):
    with repo.transaction(lock={"x": np.s_[4:8]}):
        for write in (
            lambda: a.__setitem__(5, 1),
            lambda: a.__setitem__(..., 1),
            lambda: a.oindex.__setitem__([0, 7], 1),
            lambda: a.vindex.__setitem__([0, 7], 1),
            lambda: a.blocks.__setitem__(1, 1),
            lambda: a.resize(6),
        ):
            with pytest.raises(LockTimeoutError) as caught:
                write()
            assert caught.value.keys == ("x/c/1",)
        a[0:4] = 1
        a[8:] = 2
        a.append([3])
        a.attrs["b"] = 1
        a.resize(12)
        a.resize(9)
    assert a[:].tolist() == [1, 1, 1, 1, 4, 5, 6, 7, 2]


def test_changes_of_metadata_wait_for_each_other_and_for_what_they_delete(repo, a):
    g = synchronized(repo, lock_timeout=0)
    of_array = [
        lambda: a.append([1]), lambda: a.resize(20), lambda: a.attrs.__setitem__("a", 1), lambda: a.attrs.clear(),
    ]  # fmt: skip
    of_group = [
        lambda: g.create_array("y", shape=(1,), dtype="i4"), lambda: g.create_group("y"), lambda: g.require_group("y"),
        lambda: g.__delitem__("x"), lambda: g.attrs.__setitem__("a", 1),
    ]  # fmt: skip
    of_chunks = [
        lambda: g.create_array("x", shape=(1,), dtype="i4", overwrite=True), lambda: a.append([1]),
        lambda: g.create_group("x", overwrite=True), lambda: g.__delitem__("x"),
    ]  # fmt: skip
    for lock, writes, key in [
        ({"x": APPEND}, of_array, "x/zarr.json"),
        ({"x": METADATA}, of_array, "x/zarr.json"),
        ({"": METADATA}, of_group, "zarr.json"),
        ({"x": 9}, of_chunks, "x/c/2"),
    ]:
        with repo.transaction(lock=lock):
            for write in writes:
                with pytest.raises(LockTimeoutError) as caught:
                    write()
                assert key in caught.value.keys
            a[0:8] = 1
    g.create_array("y", shape=(1,), dtype="i4", overwrite=True)
    a.append([1])
    assert (sorted(g), a.shape) == (["x", "y"], (11,))


# --- beside writers without locks, and without locks
def test_a_conflict_with_somebody_without_locks_is_retried(repo, a, monkeypatch):
    begin = repo.transaction
    begun = []

    def transaction(*arguments, lock=None, **more):
        store = begin(*arguments, lock=lock, **more)
        begun.append(lock)
        if len(begun) < 4:
            with begin() as foreign:
                zarr.open_array(foreign, path="x", mode="r+")[:2] = 100 + len(begun)
        return store

    monkeypatch.setattr(repo, "transaction", transaction)
    a[0] = 7
    assert begun == [{"x": 0}] * 4
    assert a[:3].tolist() == [7, 103, 2]


def test_where_there_are_no_locks(repo, a, monkeypatch):
    begin = repo.transaction
    begun = []

    def transaction(*arguments, lock=None, lock_timeout=None, **more):
        if lock is not None:
            raise LocksUnavailableError(repo.url, "the test takes them away")
        store = begin(*arguments, **more)
        begun.append(store)
        if len(begun) < 40:
            with begin() as foreign:
                zarr.open_array(foreign, path="x", mode="r+").append([len(begun)])
        return store

    monkeypatch.setattr(repo, "transaction", transaction)
    monkeypatch.setattr("time.sleep", lambda _: None)
    assert a.append([-1, -2]) == (51,)
    assert a[:].tolist() == [*range(10), *range(1, 40), -1, -2]
    with pytest.raises(IndexError):
        a.append([1], axis=1)
    a[0] = 5
    a.attrs["a"] = 1
    a.resize(3)
    assert (a[:].tolist(), a.attrs.asdict()) == ([5, 1, 2], {"a": 1})


class Lazy:
    """An array that is not there before it is asked for."""

    shape, dtype, ndim = (4,), np.dtype("i4"), 1

    def __init__(self, compute: Callable[[], object]) -> None:
        self.compute = compute

    def __array__(self, dtype=None, copy=None):
        self.compute()
        return np.full(4, 7, "i4")


def test_what_is_written_is_computed_once_and_before_the_locks_are_taken(repo, a):
    computed = []

    def compute():
        computed.append(None)
        a[...] = 1  # would time out if the write held locks by now

    a[0:4] = Lazy(compute)
    assert len(computed) == 1
    assert a[:].tolist() == [7] * 4 + [1] * 6
    a.append(Lazy(compute))
    a.oindex[0:4] = Lazy(compute)
    a.set_basic_selection(np.s_[4:8], Lazy(compute))
    assert len(computed) == 4


def test_dask_reads_and_writes_it(repo, a):
    lazy = dask.array.from_array(a, chunks=(5,))
    target = make_group(repo).create_array("t", shape=(10,), chunks=(3,), dtype="i4")
    with dask.config.set(scheduler="threads"):
        dask.array.store(lazy * 2, target, lock=False)
    assert target[:].tolist() == [2 * i for i in range(10)]


# --- attributes
@pytest.mark.parametrize("fmt", [2, 3])
@pytest.mark.parametrize("path", ["x", "g"])
def test_attributes(repo, path, fmt):
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(4,), chunks=(2,), dtype="i4", zarr_format=fmt, attributes={"a": 1})
        zarr.create_group(store, path="g", zarr_format=fmt, attributes={"a": 1})
    attrs, plain, before = synchronized(repo, path).attrs, {"a": 1}, version(repo)
    for change in (
        lambda it: it.__setitem__("b", [1, {"c": None}]), lambda it: it.update({"c": 2}, d=3),
        lambda it: it.update(iter([("e", 4)])), lambda it: it.__delitem__("a"), lambda it: it.pop("b"),
        lambda it: it.setdefault("z", 7), lambda it: it.popitem(),
    ):  # fmt: skip
        assert change(attrs) == change(plain)
        assert (dict(attrs), len(attrs), "a" in attrs) == (plain, len(plain), "a" in plain)
    assert version(repo) == before + 7
    assert (attrs.pop("b", None), attrs.get("b", 5), attrs.setdefault("c", 7)) == (None, 5, 2)
    attrs.put({"only": ["this"]})
    attrs["only"].append("copy")
    assert zarr.open(repo.snapshot(), path=path, mode="r").attrs.asdict() == attrs.asdict() == {"only": ["this"]}
    attrs.clear()
    assert attrs == {}
    for use in (attrs.__getitem__, attrs.__delitem__, attrs.pop):
        with pytest.raises(KeyError, match="missing"):
            use("missing")


# --- groups
def make_group(repo: txstore.Repository, path: str = "") -> SynchronizedGroup:
    commit(repo, lambda store: zarr.open_group(store, path=path, mode="a"))
    return synchronized(repo, path)


@pytest.mark.parametrize("fmt", [2, 3])
def test_a_group(repo, fmt):
    commit(repo, lambda store: zarr.create_group(store, zarr_format=fmt))
    g = synchronized(repo, message="made")
    before = version(repo)
    x = g.create_array("x", shape=(4,), chunks=(2,), dtype="i4", attributes={"u": 1})
    h = g.create_group("h", attributes={"v": 2})
    y = h.create_array("y", data=np.arange(3))
    assert version(repo) == before + 3
    assert repo.head().message == "made"
    x[...] = 5
    assert isinstance(x, SynchronizedArray)
    assert isinstance(h, SynchronizedGroup)
    assert sorted(g) == sorted(g.keys()) == ["h", "x"]
    assert len(g) == 2
    assert dict(g.arrays()) == {"x": x}
    assert dict(g.groups()) == {"h": h}
    assert (list(g.array_keys()), list(g.group_keys())) == (["x"], ["h"])
    assert g["h/y"] == g["h"]["y"] == g["/h/y/"] == y != x
    assert ("h/y" in g, "y" in g, 3 in g) == (True, False, False)
    assert (h.path, y.path, y.name, y.basename) == ("h", "h/y", "/h/y", "y")
    assert y[:].tolist() == [0, 1, 2]
    assert (x.attrs["u"], h.attrs["v"]) == (1, 2)
    assert h.metadata.zarr_format == y.metadata.zarr_format == fmt
    with pytest.raises(NodeNotFoundError):
        g["y"]
    assert repr(h).endswith("'h'>")


def test_creating_what_is_there(repo):
    g = make_group(repo)
    g.create_array("x", data=np.arange(3))
    before = version(repo)
    for create in (lambda: g.create_array("x", shape=(1,), dtype="i4"), lambda: g.create_group("x")):
        with pytest.raises(ValueError):  # zarr's ContainsArrayError
            create()
    with pytest.raises((ValueError, TypeError)):
        g.require_group("x")
    assert version(repo) == before
    x = g.create_array("x", shape=(1,), dtype="f4", overwrite=True)
    assert (x.shape, x.dtype) == ((1,), np.dtype("f4"))
    h = g.create_group("x", overwrite=True)
    assert isinstance(h, SynchronizedGroup)
    assert version(repo) == before + 2
    assert g.require_group("x") == h
    assert version(repo) == before + 2
    assert g.require_group("x/y/z") == g["x/y/z"]
    assert version(repo) == before + 3
    del g["x"]
    assert (version(repo), "x" in g) == (before + 4, False)
    assert list(repo.mapping().keys_below("x")) == []
    with pytest.raises(KeyError):
        del g["x"]


# --- where it comes from and goes to
def test_pickling_and_urls(repo, a, open_repo):
    a[0]  # what it has opened is not pickled
    b = pickle.loads(pickle.dumps(a))
    assert a == b == synchronized(repo.url, "/x/") != synchronized(repo)
    assert hash(a) == hash(b)
    b[0] = 7
    assert a[0] == 7
    h = pickle.loads(pickle.dumps(synchronized(repo, lock_timeout=5, message="m")))
    h["x"][1] = 8
    assert repo.head().message == "m"
    assert len(pickle.dumps(a)) < 2000
    with pytest.raises(NodeNotFoundError, match="'y'"):
        synchronized(repo, "y")
    with pytest.raises(txstore.RepositoryNotFoundError):
        synchronized(open_repo("none.tx"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_after_a_fork(repo, a):
    """The child has inherited what the parent has opened, and its locks are not the parent's."""
    a[0] = 1
    with repo.transaction(lock={"x": np.s_[0:4]}):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                a[8] = 100 + int(a[0])
                try:
                    a[1] = 7
                except LockTimeoutError:
                    os.write(writing, b"well")
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
        os.waitpid(child, 0)
        if repo.engine.locks.kind == "table":  # the others can't leave locks to siblings alone, so a fork gives them up
            assert told == b"well"
    a[2] = 5
    assert a[:].tolist() == [1, 1 if told else 7, 5, 3, 4, 5, 6, 7, 101, 9]


def test_threads_that_share_one(repo):
    a = make_group(repo).create_array("x", shape=(8,), chunks=(4,), dtype="i4")
    begin = threading.Barrier(4)

    def increment(place: int) -> None:
        begin.wait(60)
        for _ in range(10):
            a[place] = a[place] + 1
            a.attrs[str(place)] = int(a[place])

    before = version(repo)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(increment, place) for place in (0, 1, 2, 7)]:
            done.result(120)
    assert a[:].tolist() == [10, 10, 10, 0, 0, 0, 0, 10]
    assert a.attrs == {"0": 10, "1": 10, "2": 10, "7": 10}
    assert version(repo) == before + 80


@pytest.mark.usefixtures("pipeline")
def test_with_each_codec_pipeline(repo):
    a = make_group(repo).create_array("x", data=np.zeros((9, 4)), chunks=(2, 3))
    a[1:8, 2] = 7
    a.append(np.ones((1, 4)))
    assert a.shape == (10, 4)
    assert a[:, 2].tolist() == [0] + [7] * 7 + [0, 1]
