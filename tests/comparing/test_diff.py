"""What differs between two commits, node by node: against comparing everything by hand."""

import json
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import txstore
from tests.tools.commits import create_array, write_array
from txstore.comparing.elements import joined
from txstore.format.documents import ABSENT


def a_slice(*bounds: tuple[int, int]) -> tuple[slice, ...]:
    return tuple(slice(*pair) for pair in bounds)


@given(st.sets(st.tuples(*[st.integers(0, 4)] * 3)))
def test_boxes_cover_each_chunk_once(chunks: set[tuple[int, ...]]) -> None:
    covered = [
        chunk for box in joined(chunks) for chunk in np.ndindex(*[high - low for low, high in box])
        for chunk in [tuple(int(at) + low for at, (low, _) in zip(chunk, box, strict=True))]
    ]  # fmt: skip
    assert sorted(covered) == sorted(chunks)


def test_boxes_are_joined() -> None:
    assert joined({(0, 0), (0, 1), (1, 0), (1, 1), (3, 1)}) == [((0, 2), (0, 2)), ((3, 4), (1, 2))]
    assert joined([()]) == [()]
    assert joined([]) == []


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_that_was_changed(repo: txstore.Repository, zarr_format: Any) -> None:
    with repo.transaction() as store:
        z = zarr.create_array(
            store, name="g/t2m", data=np.ones((4, 6)), chunks=(2, 2), zarr_format=zarr_format,
            attributes={"units": "K", "deep": {"a": 1, "b": [1]}},
        )  # fmt: skip
        zarr.create_array(store, name="g/same", data=np.zeros(3), zarr_format=zarr_format)
    with repo.transaction() as store:
        z = zarr.open_array(store, path="g/t2m")
        z[2:, 1:3] = 7
        z.attrs.update({"deep": {"a": 2, "b": [1]}, "new": None})
        z.resize((6, 6))
        z[5, 5] = 1
    diff = repo.diff(0, 1)
    assert [(node.path, node.change, node.kind) for node in diff] == [("g/t2m", "changed", "array")]
    node = diff["g/t2m"]
    assert [(each.name, each.before, each.after) for each in node.fields] == [("shape", [4, 6], [6, 6])]
    assert [(each.path, each.before, each.after) for each in node.attributes] == [
        (("deep", "a"), 1, 2),
        (("new",), ABSENT, None),
    ]
    assert (node.chunks_added, node.chunks_changed, node.chunks_removed) == (1, 2, 0)
    assert node.regions == [a_slice((2, 4), (0, 4)), a_slice((4, 6), (4, 6))]
    parts = list(diff.values("g/t2m"))
    assert [part.region for part in parts] == [
        a_slice((2, 4), (0, 2)), a_slice((2, 4), (2, 4)), a_slice((4, 6), (4, 6)),
    ]  # fmt: skip
    assert parts[0].differs.tolist() == [[False, True], [False, True]]
    assert parts[2].differs.all()
    assert parts[2].after.tolist() == [[0, 0], [0, 1]]
    assert json.loads(json.dumps(diff.as_dict()))["nodes"][0]["regions"] == [[[2, 4], [0, 4]], [[4, 6], [4, 6]]]
    assert "~ g/t2m: chunks 1 added, 2 changed" in str(diff)
    assert "attribute deep.a: 1 -> 2" in str(diff)
    assert "<table>" in diff._repr_html_()
    assert max(map(len, str(diff).splitlines())) <= 80
    assert repr(diff) == "<Diff main@0 to main@1: 1 changed>"


def test_against_the_parent_and_backwards(repo: txstore.Repository) -> None:
    create_array(repo, "x", data=np.arange(4), chunks=(2,))
    first = repo.head()
    assert first is not None
    write_array(repo, "x", 0, 9)
    repo.tags["second"] = 1
    assert {node.path: node.change for node in repo.diff(first)} == {"": "added", "x": "added"}
    assert repo.diff("second").nodes == repo.diff(0, 1).nodes
    [part] = repo.diff(1, 0).values("x")
    assert (part.before.tolist(), part.after.tolist()) == ([9, 1], [0, 1])
    assert len(repo.diff(1, 1)) == 0
    assert str(repo.diff(1, 1)) == "main@1 to main@1: nothing differs"
    assert len(repo.diff(1, 0, three_dot=True)) == 0  # the older one has changed nothing since
    with pytest.raises(txstore.NodeNotFoundError):
        repo.diff(1)["y"]
    with pytest.raises(txstore.CommitNotFoundError):
        repo.diff(0, 7)


def test_nodes_come_and_go(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name="old/x", data=np.arange(4), chunks=(2,))
        zarr.create_array(store, name="other", data=np.arange(4), chunks=(2,))
    with repo.transaction() as store:
        store.mapping.delete_dir("old")
        zarr.create_array(store, name="new", data=np.arange(3), chunks=(2,))
        zarr.create_array(store, name="other", data=np.arange(4.0), chunks=(4,), overwrite=True)
    diff = repo.diff(1)
    assert [node.path for node in diff.added] == ["new"]
    assert [node.path for node in diff.removed] == ["old", "old/x"]
    assert [node.path for node in diff.changed] == ["other"]
    assert {each.name for each in diff["other"].fields} >= {"dtype", "chunks"}
    assert diff["other"].regions == [a_slice((0, 4))]
    assert diff["old/x"].bytes_added == diff["new"].bytes_dropped == 0
    assert all(part.differs.all() for name in ("new", "old/x") for part in diff.values(name))
    with pytest.raises(ValueError, match="is not an array"):
        diff.values("old")


def _members(store: txstore.TxStore, path: str, *names: str) -> None:
    store.mapping.delete_dir(path)
    zarr.create_group(store, path=path)
    for name in names:
        zarr.create_array(store, name=f"{path}/{name}", data=np.ones(4), chunks=(2,))


def _array(store: txstore.TxStore, path: str, zarr_format: Any, shape: tuple[int, ...] = (4,)) -> None:
    store.mapping.delete_dir(path)
    separator = {"name": "v2", "separator": "/"}
    zarr.create_array(
        store, name=path, data=np.ones(shape), chunks=(2,) * len(shape), zarr_format=zarr_format,
        chunk_key_encoding=separator,
    )  # fmt: skip


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("names", [("0", "c", "x", "z"), ("0",), ()])
def test_an_array_that_becomes_a_group_and_the_reverse(repo, zarr_format, names):
    """Some members have names of chunks, and sort before and behind them."""
    with repo.transaction() as store:
        _members(store, "g/m", *names)
    with repo.transaction() as store:
        _array(store, "g/m", zarr_format, (4, 4))
    below = [f"g/m/{name}" for name in names]
    diff = repo.diff(1)
    assert [(node.path, node.change, node.kind) for node in diff if node.path.startswith("g/m")] == [
        ("g/m", "removed", "group"), *((path, "removed", "array") for path in below), ("g/m", "added", "array"),
    ]  # fmt: skip
    assert (diff["g/m"].chunks_added, diff["g/m"].chunks_removed, diff["g/m"].keys) == (4, 0, [])
    assert all(diff[path].chunks_removed == 2 for path in below)
    assert [part.after.tolist() for part in diff.values("g/m")] == [[[1, 1], [1, 1]]] * 4
    back = repo.diff(1, 0)
    assert [(node.path, node.change, node.kind) for node in back if node.path.startswith("g/m")] == [
        ("g/m", "removed", "array"), ("g/m", "added", "group"), *((path, "added", "array") for path in below),
    ]  # fmt: skip
    assert back.removed[0].chunks_removed == 4


def test_a_chunk_behind_the_end_of_an_array_that_has_shrunk(repo: txstore.Repository) -> None:
    create_array(repo, "x", data=np.arange(1, 7), chunks=(2,))
    with repo.transaction() as store:
        zarr.open_array(store, path="x").resize((2,))
    node = repo.diff(1)["x"]
    assert (node.chunks_removed, node.regions) == (2, [a_slice((2, 6))])
    [one, two] = repo.diff(1).values("x")
    assert one.before.tolist() == [3, 4]
    assert two.differs.all()


def test_two_branches(repo: txstore.Repository) -> None:
    create_array(repo, "x", data=np.arange(6), chunks=(2,))
    base = repo.head()
    assert base is not None
    repo.branches["dev"] = base
    write_array(repo, "x", 0, 10, branch="dev")
    write_array(repo, "x", 2, 20)
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[0] = 10  # as on the other
    assert repo.diff("dev", "main")["x"].regions == [a_slice((2, 4))]
    assert repo.diff("dev", "main", three_dot=True)["x"].regions == [a_slice((0, 4))]
    assert repo.diff(base, "dev")["x"].regions == repo.diff("dev")["x"].regions == [a_slice((0, 2))]
    blame = repo.blame("x", branch="dev")
    assert [str(blame[at]) for at in range(3)] == ["dev@1", "main@0", "main@0"]
    assert [str(commit) for commit in repo.log("dev", path="x")] == ["dev@1", "main@0"]
    write_array(repo, "x", 4, 30, branch="dev")
    repo.merge("dev")
    assert repo.diff("main", "dev", three_dot=True).nodes == []  # all of it was merged
    assert repo.diff("dev", "main", three_dot=True)["x"].regions == [a_slice((2, 4))]


def test_what_is_staged(repo: txstore.Repository) -> None:
    create_array(repo, "x", data=np.arange(4), chunks=(2,))
    with repo.transaction() as store:
        z = zarr.open_array(store, path="x")
        z[:2] = z[:2]  # as it was
        z[3] = 9
        zarr.create_group(store, path="g")
        diff = store.diff()
        assert [(node.path, node.change) for node in diff] == [("g", "added"), ("x", "changed")]
        [part] = diff.values("x")
        assert (part.region, part.after.tolist()) == (a_slice((2, 4)), [2, 9])
        assert "what is staged" in str(diff)
    assert [node.path for node in repo.diff(1)] == [node.path for node in diff]


def test_nan_and_text(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.array([np.nan, 1.0]))
        zarr.create_array(store, name="s", data=np.array(["a", "b"]), attributes={"f": [float("nan")]})
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[1] = 2
        zarr.open_array(store, path="s")[1] = "c"
        zarr.open_array(store, path="s").attrs["g"] = 1
    diff = repo.diff(1)
    assert [part.differs.tolist() for part in diff.values("x")] == [[False, True]]
    assert [part.differs.tolist() for part in diff.values("s")] == [[False, True]]
    assert [each.name for each in diff["s"].attributes] == ["g"]


@settings(max_examples=25)
@given(data=st.data())
def test_as_all_values_compared(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """The mask of all parts together is that of the two arrays, whole."""
    repo = txstore.Repository(tmp_path_factory.mktemp("diff") / "data.tx", durability="none")
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    chunks = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    create_array(repo, "x", shape=shape, chunks=chunks, dtype="i1", fill_value=3)
    for _ in range(data.draw(st.integers(1, 4))):
        with repo.transaction() as store:
            z = zarr.open_array(store, path="x")
            if data.draw(st.booleans()):
                z.resize(data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9))))
            rows = slice(*sorted(data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))))
            columns = slice(*sorted(data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))))
            z[rows, columns] = data.draw(st.integers(2, 4))
        if data.draw(st.booleans()):
            repo.optimize()
    head = repo.head()
    one, other = (data.draw(st.integers(0, head.version)) for _ in range(2))
    sides = [np.asarray(zarr.open_array(repo.snapshot(version), path="x", mode="r")[:]) for version in (one, other)]
    whole = np.maximum(*(side.shape for side in sides))
    padded = [np.full(whole, 3, "i1") for _ in sides]
    for side, room in zip(sides, padded, strict=True):
        room[: side.shape[0], : side.shape[1]] = side
    there = [np.zeros(whole, bool) for _ in sides]
    for side, mask in zip(sides, there, strict=True):
        mask[: side.shape[0], : side.shape[1]] = True
    wanted = (padded[0] != padded[1]) & there[0] & there[1]
    found = np.zeros(whole, bool)
    diff = repo.diff(one, other)
    for part in diff.values("x") if "x" in {node.path for node in diff} else ():
        found[part.region] = part.differs
        assert (part.before == padded[0][part.region]).all()
        assert (part.after == padded[1][part.region]).all()
    assert ((found & there[0] & there[1]) == wanted).all()
