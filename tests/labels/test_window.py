"""Rows before the first one, rows that are dropped at the beginning, and elements that move along axes."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import txstore
from tests.labels.datasets import hours, numbered, stored
from tests.tools.commits import commit, create_array
from txstore.format.row_moves import ATTRIBUTE
from txstore.labels import moving

LAYOUTS: dict[str, dict[str, Any]] = {
    "chunks": {"chunks": (4, 3)},
    "shards": {"chunks": (2, 3), "shards": (4, 6)},
    "format 2": {"chunks": (4, 3), "zarr_format": 2},
    "dots": {"chunks": (4, 3), "chunk_key_encoding": {"name": "default", "separator": "."}},
    "not compressed": {"chunks": (4, 3), "compressors": None, "fill_value": 7},
    "one chunk": {"chunks": (30, 30)},
}


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that were written again."""
    found: list[int] = []
    write = moving.write
    monkeypatch.setattr(
        moving, "write", lambda array, place, values: (found.append(values.nbytes), write(array, place, values))
    )
    return found


def shifted(data: np.ndarray[Any, Any], offsets: dict[int, int], fill: int) -> np.ndarray[Any, Any]:
    for axis, offset in offsets.items():
        moved = np.full_like(data, fill)
        length = data.shape[axis]
        for to in range(length):
            if 0 <= to - offset < length:
                moved[(slice(None),) * axis + (to,)] = data[(slice(None),) * axis + (to - offset,)]
        data = moved
    return data


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("offsets", "fill"),
    [({0: 4}, None), ({0: -4}, 5), ({0: 3}, 5), ({1: -5}, None), ({0: -8, 1: 6}, 5), ({0: 1, 1: -1}, None),
     ({0: 0}, 5), ({0: 13}, None), ({0: -40}, 5), ({1: -9}, None)],
)  # fmt: skip
def test_shift(repo: txstore.Repository, layout: str, offsets: dict[int, int], fill: int | None) -> None:
    data = np.arange(13 * 9).reshape(13, 9) + 100
    with repo.transaction() as store:
        array = zarr.create_array(store, name="g/x", data=data, attributes={"a": 1}, **LAYOUTS[layout])
    commit(repo, lambda store: store.shift("g/x", offsets, fill=fill))
    found = zarr.open_array(repo.snapshot(), path="g/x", mode="r")
    expected = shifted(data, offsets, int(array.fill_value) if fill is None else fill)
    np.testing.assert_array_equal(found[:], expected)
    assert found.attrs.asdict().keys() == {"a"} | ({ATTRIBUTE} if any(offsets.values()) else set())
    np.testing.assert_array_equal(zarr.open_array(repo.snapshot(at=0), path="g/x", mode="r")[:], data)
    assert repo.verify().faults == []


def test_prepend(repo: txstore.Repository, rewritten: list[int]) -> None:
    with repo.transaction() as store:
        hours("2024-01-02", 48).to_zarr(store, consolidated=False,
                                        encoding={name: {"chunks": (24, 3)[:n]} for name, n in
                                                  {"t": 2, "w": 1, "time": 1}.items()})  # fmt: skip
    commit(repo, lambda store: txstore.prepend(hours("2024-01-01", 24), store, dim="time"))
    assert rewritten == []
    assert stored(repo).equals(hours("2024-01-01", 72))
    commit(repo, lambda store: txstore.prepend(hours("2023-12-31T20:00", 4), store, dim="time"))
    assert sum(rewritten)
    assert stored(repo).equals(hours("2023-12-31T20:00", 76))


def test_what_can_not_be_prepended(repo: txstore.Repository) -> None:
    with repo.transaction() as store, pytest.raises(txstore.NodeNotFoundError, match="with dimension 'time'"):
        txstore.prepend(numbered([1]), store, dim="time")
    repo.upsert(numbered([5, 6]))
    with repo.transaction() as store:
        with pytest.raises(ValueError, match="there already: 6"):
            txstore.prepend(numbered([1, 6]), store, dim="time")
        with pytest.raises(ValueError, match="has no 'v'"):
            txstore.prepend(numbered([1]).drop_vars("v"), store, dim="time")
        with pytest.raises(ValueError, match="no coordinate of its own"):
            txstore.prepend(numbered([1]).drop_vars("time"), store, dim="time")
        txstore.prepend(numbered([]).astype("i8").assign_coords(time=np.array([], "i8")), store, dim="time")
        zarr.open_array(store, path="v")[0] = 1
        with pytest.raises(txstore.TransactionStateError, match="commit first"):
            txstore.prepend(numbered([1]), store, dim="time")
    assert stored(repo).v.values.tolist() == [1, 60]


def test_a_rolling_window(repo: txstore.Repository) -> None:
    repo.upsert(hours("2024-01-01", 30))
    for day in range(2, 8):
        repo.upsert(hours(f"2024-01-0{day}", 30))
        with repo.transaction() as store:
            txstore.roll(store, "time", keep=72)
    assert stored(repo).equals(hours("2024-01-05T06:00", 72))
    with repo.transaction() as store:
        assert txstore.roll(store, "time", keep=72) == 0
        assert txstore.roll(store, "time", keep=100) == 0
        with pytest.raises(ValueError, match="keep=-1"):
            txstore.roll(store, "time", keep=-1)
        assert txstore.roll(store, "time", keep=0) == 72
    assert stored(repo).sizes["time"] == 0
    assert repo.upsert(hours("2024-01-01", 3)) == txstore.Upserted(0, 3)
    assert stored(repo).equals(hours("2024-01-01", 3))


def test_who_began_before_is_told(repo: txstore.Repository) -> None:
    repo.upsert(numbered(range(8)))
    with pytest.raises(txstore.ConflictError), repo.transaction() as other:
        zarr.open_array(other, path="v")[3] = 1
        commit(repo, lambda store: txstore.prepend(numbered([-1]), store, dim="time"))
    assert stored(repo).v.values.tolist() == [10.0 * label for label in range(-1, 8)]


def test_what_is_moved_has_to_be_stored(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        txstore.upsert(numbered([1, 3]), store, dim="time")
        with pytest.raises(txstore.TransactionStateError, match=r"'(v|time)'.*commit first"):
            txstore.upsert(numbered([2]), store, dim="time", missing="insert")
    with repo.transaction() as store:
        zarr.create_array(store, name="new", data=np.arange(2), dimension_names=["time"])
        with pytest.raises(txstore.TransactionStateError, match=r"'new'.*commit first"):
            txstore.roll(store, "time", keep=1)


def test_arrays_without_names_of_dimensions_are_left_alone(repo: txstore.Repository) -> None:
    repo.upsert(numbered([1, 2]))
    with repo.transaction() as store:
        zarr.create_array(store, name="other", data=np.arange(3))
    repo.upsert(numbered([3]))
    repo.run(lambda store: txstore.roll(store, "time", keep=1))
    assert zarr.open_array(repo.snapshot(), path="v", mode="r")[:].tolist() == [30]
    assert zarr.open_array(repo.snapshot(), path="other", mode="r")[:].tolist() == [0, 1, 2]


def test_arguments_of_other_types(repo: txstore.Repository) -> None:
    ds = numbered([1, 2])
    repo.upsert(ds)
    with pytest.raises(TypeError, match=r"DataArray.*to_dataset"):
        repo.upsert(ds.v)
    with pytest.raises(TypeError, match=r"xarray.Dataset is wanted.* dict"):
        repo.upsert({})
    with repo.transaction() as store:
        with pytest.raises(TypeError, match=r"keep=1.5.* integer"):
            txstore.roll(store, "time", keep=1.5)
        with pytest.raises(TypeError, match=r"offset 1.0 of axis 0 is an integer"):
            store.shift("v", {0: 1.0})
    for call in (txstore.upsert, txstore.prepend):
        with pytest.raises(TypeError, match="a Transaction, and a store is wanted"):
            call(ds, repo.begin("job"), dim="time")
    with pytest.raises(TypeError, match="a Transaction, and a store is wanted"):
        txstore.roll(repo.begin("job"), "time", keep=1)


def test_prepend_with_dask(repo: txstore.Repository) -> None:
    repo.upsert(hours("2024-01-02", 48).chunk(time=5))
    repo.run(lambda store: txstore.prepend(hours("2024-01-01", 24).chunk(time=7), store, dim="time"))
    assert stored(repo).equals(
        xr.concat([hours("2024-01-01", 24), hours("2024-01-02", 48)], "time", data_vars="minimal")
    )


@pytest.mark.parametrize("is_own", [False, True])
def test_groups_that_inherit_the_labels(repo: txstore.Repository, is_own: bool) -> None:
    below = xr.Dataset({"q": ("t", np.arange(4.0))}, {"t": np.arange(4)} if is_own else None)
    with repo.transaction() as store:
        xr.Dataset({"v": ("t", np.arange(4.0))}, {"t": np.arange(4)}).to_zarr(store, consolidated=False)
        below.to_zarr(store, group="deep/fine", consolidated=False)
    if is_own:
        repo.run(lambda store: txstore.roll(store, "t", keep=3))
        return
    for move in (
        lambda store: txstore.roll(store, "t", keep=3),
        lambda store: txstore.prepend(xr.Dataset({"v": ("t", [0.0])}, {"t": [-1]}), store, dim="t"),
    ):
        with pytest.raises(ValueError, match="'deep/fine/q' lies along the labels 't'"):
            repo.run(move)


def test_a_shift_along_no_axis(repo: txstore.Repository) -> None:
    create_array(repo, "number", data=np.array(5))
    commit(repo, lambda store: store.shift("number", {}))
    assert zarr.open_array(repo.snapshot(), path="number", mode="r")[()] == 5
