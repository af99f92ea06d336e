"""Arrays and groups of zarr through a TxStore: made and changed in transactions, read back from snapshots."""

from typing import Any

import numpy as np
import pytest
import xarray
import zarr
import zarr.api.asynchronous

import txstore
from txstore.store import TxStore


def create(repo: txstore.Repository, data: Any, **arguments: Any) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.asarray(data), **arguments)


def read(repo: txstore.Repository, path: str = "x", at: int | None = None) -> np.ndarray[Any, Any]:
    return zarr.open_array(repo.snapshot(at), path=path, mode="r")[...]


def writable(repo: txstore.Repository, path: str = "x") -> tuple[TxStore, zarr.Array[Any]]:
    store = repo.transaction()
    return store, zarr.open_array(store, path=path)


@pytest.fixture(params=[2, 3])
def zarr_format(request: pytest.FixtureRequest) -> int:
    return request.param


# --- arrays


@pytest.mark.parametrize("value", [7, 2.5, True, "word"])
def test_a_scalar_array_is_one_chunk(repo: txstore.Repository, pipeline: str, zarr_format: int, value: Any) -> None:
    create(repo, value, zarr_format=zarr_format)
    assert np.asarray(read(repo)).item() == value
    assert set(repo.snapshot()) > ({"x/c"} if zarr_format == 3 else {"x/0"})


def test_an_array_without_elements_has_no_chunks(repo: txstore.Repository, pipeline: str, zarr_format: int) -> None:
    create(repo, np.zeros((0, 3)), zarr_format=zarr_format, chunks=(2, 2))
    assert read(repo).shape == (0, 3)


def test_chunks_of_fill_values_are_not_stored(repo: txstore.Repository, pipeline: str, zarr_format: int) -> None:
    create(repo, [0, 0, 1, 1, 0, 0], chunks=(2,), zarr_format=zarr_format)
    assert [key for key in repo.snapshot() if key[-1].isdigit()] == ["x/c/1" if zarr_format == 3 else "x/1"]
    assert read(repo).tolist() == [0, 0, 1, 1, 0, 0]


def test_write_empty_chunks_stores_chunks_of_fill_values(repo: txstore.Repository, pipeline: str) -> None:
    create(repo, [0, 0, 1, 1], chunks=(2,), config={"write_empty_chunks": True})
    assert "x/c/0" in repo.snapshot()


def test_overwriting_with_fill_values_deletes_the_chunk(repo: txstore.Repository, pipeline: str) -> None:
    create(repo, [1, 1, 1, 1], chunks=(2,))
    store, z = writable(repo)
    z[:2] = 0
    commit = store.commit()
    assert "x/c/0" not in repo.snapshot()
    assert "x/c/0" in repo.snapshot(0)
    assert commit.statistics["keys_deleted"] == 1


def test_fill_values_where_there_were_none_make_no_commit(repo: txstore.Repository, pipeline: str) -> None:
    create(repo, [0, 0, 0, 0], chunks=(2,))
    store, z = writable(repo)
    z[:] = 0
    assert store.commit() is None
    assert len(list(repo.log())) == 1


def test_equal_chunks_written_again_make_no_commit(repo: txstore.Repository, pipeline: str) -> None:
    create(repo, [1, 2, 3, 4], chunks=(2,))
    store, z = writable(repo)
    z[:] = [1, 2, 3, 4]
    store.commit()
    assert len(list(repo.log())) == 1


def test_a_smaller_array_loses_its_chunks_for_good(repo: txstore.Repository, pipeline: str, zarr_format: int) -> None:
    create(repo, [1, 2, 3, 4, 5, 6], chunks=(2,), zarr_format=zarr_format)
    store, z = writable(repo)
    z.resize((2,))
    store.commit()
    z.resize((6,))
    store.commit()
    assert read(repo).tolist() == [1, 2, 0, 0, 0, 0]
    assert read(repo, at=0).tolist() == [1, 2, 3, 4, 5, 6]


def test_appends_in_one_session_follow_one_another(repo: txstore.Repository, pipeline: str, zarr_format: int) -> None:
    create(repo, [0], chunks=(3,), zarr_format=zarr_format)
    store, z = writable(repo)
    for n in range(1, 9):
        z.append(np.array([n]))
        store.commit()
    assert [len(read(repo, at=version)) for version in range(9)] == list(range(1, 10))
    assert read(repo).tolist() == list(range(9))


def test_a_shard_is_read_and_written_in_parts(repo: txstore.Repository, pipeline: str) -> None:
    expected = np.arange(64, dtype="i4")
    create(repo, expected, chunks=(4,), shards=(32,))
    store, z = writable(repo)
    for start in (1, 30, 61):
        z[start : start + 3] = expected[start : start + 3] = -1
        store.commit()
    z = zarr.open_array(repo.snapshot(), path="x", mode="r")
    assert all(z[i : i + 5].tolist() == expected[i : i + 5].tolist() for i in range(60))


def test_an_error_in_the_block_leaves_nothing(repo: txstore.Repository) -> None:
    create(repo, [1, 2], chunks=(1,))
    with pytest.raises(ZeroDivisionError), repo.transaction() as store:
        zarr.open_array(store, path="x")[:] = 5
        1 / 0  # noqa: B018
    assert read(repo).tolist() == [1, 2]
    assert len(list(repo.log())) == 1


# --- groups


# --- modes
def test_mode_w_replaces_everything(repo: txstore.Repository, zarr_format: int) -> None:
    with repo.transaction() as store:
        zarr.create_group(store, zarr_format=zarr_format).create_array("x", data=np.arange(4))
    with repo.transaction() as store:
        zarr.open_group(store, mode="w", zarr_format=zarr_format).create_group("y")
    assert list(zarr.open_group(repo.snapshot(), mode="r")) == ["y"]
    assert list(zarr.open_group(repo.snapshot(0), mode="r")) == ["x"]


def test_a_snapshot_refuses_every_other_mode(repo: txstore.Repository) -> None:
    create(repo, [1, 2])
    for mode in ("w", "a", "r+", "w-"):
        with pytest.raises(ValueError, match="read-only"):
            zarr.open_group(repo.snapshot(), mode=mode)  # type: ignore[arg-type]


# --- sizes, the asynchronous interface, xarray


def test_xarray_writes_appends_and_reads(repo: txstore.Repository, pipeline: str, zarr_format: int) -> None:
    data = xarray.Dataset({"t": ("time", np.arange(4.0))}, {"time": np.arange(4)}, {"title": "a"})
    with repo.transaction() as store:
        data.to_zarr(store, zarr_format=zarr_format, mode="w")
    for _ in range(2):
        with repo.transaction() as store:
            data.to_zarr(store, append_dim="time")
    for version in range(3):
        with xarray.open_zarr(repo.snapshot(version), chunks=None) as found:
            expected = xarray.concat([data] * (version + 1), "time")
            xarray.testing.assert_identical(found.load(), expected)


def test_a_store_that_xarray_closed_goes_on(repo: txstore.Repository) -> None:
    store = repo.transaction()
    data = xarray.Dataset({"t": ("time", np.arange(4.0))})
    data.to_zarr(store)
    with xarray.open_zarr(store, chunks=None) as found:
        assert found["t"].values.tolist() == [0, 1, 2, 3]
    data.to_zarr(store, append_dim="time")
    store.commit()
    assert read(repo, "t").tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_chunks_of_a_sibling_with_a_longer_name_are_not_counted(repo):
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.ones(4), chunks=(2,))
        zarr.create_array(store, name="xy", data=np.ones(6), chunks=(2,))
    assert zarr.open_array(repo.snapshot(), path="x", mode="r").nchunks_initialized == 2
