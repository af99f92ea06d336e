"""Arrays and groups of zarr through a TxStore: made and changed in transactions, read back from snapshots."""

from threading import current_thread
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
import zarr.api.asynchronous

import txstore
from txstore.store import TxStore
from txstore.zarr_interface import SessionCalls


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
def test_the_fused_pipeline_alone_leaves_the_callers_thread(repo, pipeline, monkeypatch):
    create(repo, range(6), chunks=(2,))
    store, z = writable(repo)
    z[:2] = 7
    threads = set()
    original = SessionCalls.set
    monkeypatch.setattr(SessionCalls, "set", lambda *args: threads.add(current_thread()) or original(*args))
    z[2:] = 8
    store.commit()
    assert (current_thread() in threads) == (pipeline == "Batched")


@pytest.mark.parametrize("value", [7, 2.5, True, "word"])
def test_a_scalar_array_is_one_chunk(repo: txstore.Repository, pipeline: str, zarr_format: int, value: Any) -> None:
    create(repo, value, zarr_format=zarr_format)
    assert np.asarray(read(repo)).item() == value
    assert set(repo.snapshot()) > ({"x/c"} if zarr_format == 3 else {"x/0"})


def test_chunks_of_fill_values_are_not_stored(repo: txstore.Repository, pipeline: str, zarr_format: int) -> None:
    create(repo, [0, 0, 1, 1, 0, 0], chunks=(2,), zarr_format=zarr_format)
    assert [key for key in repo.snapshot() if key[-1].isdigit()] == ["x/c/1" if zarr_format == 3 else "x/1"]
    store, z = writable(repo)
    z[:2] = 0
    assert store.commit() is None  # there were none
    z[:] = [0, 0, 1, 1, 0, 0]
    store.commit()
    assert len(list(repo.log())) == 1  # equal ones were written again
    create(repo, [0, 0, 1, 1], chunks=(2,), config={"write_empty_chunks": True}, overwrite=True)
    assert "x/c/0" in repo.snapshot()


def test_overwriting_with_fill_values_deletes_the_chunk(repo: txstore.Repository, pipeline: str) -> None:
    create(repo, [1, 1, 1, 1], chunks=(2,))
    store, z = writable(repo)
    z[:2] = 0
    commit = store.commit()
    assert "x/c/0" not in repo.snapshot()
    assert "x/c/0" in repo.snapshot(0)
    assert commit.statistics["keys_deleted"] == 1


def test_a_smaller_array_loses_its_chunks_for_good(repo: txstore.Repository, pipeline: str, zarr_format: int) -> None:
    create(repo, [1, 2, 3, 4, 5, 6], chunks=(2,), fill_value=9, zarr_format=zarr_format)
    store, z = writable(repo)
    for length in (2, 6):
        z.resize((length,))
        store.commit()
    assert read(repo).tolist() == [1, 2, 9, 9, 9, 9]
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


def test_inner_chunks_of_a_shard_are_read_by_byte_ranges(repo, pipeline, monkeypatch):
    create(repo, np.arange(64, dtype="i4"), chunks=(4,), shards=(64,), compressors=None)
    asked = []
    original = TxStore.get_sync

    def get_sync(self: TxStore, key: str, **options: Any) -> Any:
        asked.append(options.get("byte_range"))
        return original(self, key, **options)

    z = zarr.open_array(repo.snapshot(), path="x", mode="r")
    monkeypatch.setattr(TxStore, "get_sync", get_sync)
    assert z[9:11].tolist() == [9, 10]
    assert asked
    assert None not in asked


def test_selections_of_every_kind_are_written(repo: txstore.Repository, pipeline: str) -> None:
    expected = np.zeros((7, 5), "i4")
    create(repo, expected, chunks=(3, 2))
    with repo.transaction() as store:
        z = zarr.open_array(store, path="x")
        z[::2, 1:3] = expected[::2, 1:3] = 1
        z.oindex[[0, 3, 6], [4, 0]] = 2
        expected[np.ix_([0, 3, 6], [4, 0])] = 2
        z.vindex[[1, 5], [2, 3]] = expected[[1, 5], [2, 3]] = [3, 4]
        z.blocks[1, 1] = expected[3:6, 2:4] = 5
    np.testing.assert_array_equal(read(repo), expected)


def test_deleting_an_array_deletes_its_chunks(repo: txstore.Repository, zarr_format: int) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name="xy", data=np.arange(3), zarr_format=zarr_format)
    create(repo, range(1, 100), chunks=(2,), zarr_format=zarr_format)
    assert zarr.open_array(repo.snapshot(), path="x", mode="r").nchunks_initialized == 50  # none of its sibling's
    with repo.transaction() as store:
        del zarr.open_group(store)["x"]
    assert [key for key in repo.snapshot() if key.startswith("x/")] == []
    assert read(repo, "xy").tolist() == [0, 1, 2]
    assert read(repo, at=1).tolist() == list(range(1, 100))


# --- groups
def test_a_group_lists_its_members(repo: txstore.Repository, zarr_format: int) -> None:
    with repo.transaction() as store:
        group = zarr.create_group(store, zarr_format=zarr_format)
        group.create_group("a").create_array("x", data=np.arange(300), chunks=(1,))
        group.create_array("a-b", data=np.arange(3))
    group = zarr.open_group(repo.snapshot(), mode="r")
    assert sorted(name for name, _ in group.members()) == ["a", "a-b"]
    assert sorted(name for name, _ in group.members(max_depth=None)) == ["a", "a-b", "a/x"]
    assert str(group.tree()).splitlines()[1:] == ["├── a", "│   └── x (300,) int64", "└── a-b (3,) int64"]


@pytest.mark.long
def test_listing_a_group_does_not_walk_the_chunks(repo, zarr_format, monkeypatch):
    create(repo, range(1, 3000), chunks=(1,), zarr_format=zarr_format)
    listed = []
    snapshot = repo.snapshot()
    scan = type(snapshot.mapping.runs).scan
    monkeypatch.setattr(type(snapshot.mapping.runs), "scan", lambda *args: listed.append(found := scan(*args)) or found)
    assert list(zarr.open_group(snapshot, mode="r")) == ["x"]
    assert sum(map(len, listed)) < 100


# --- modes
def test_modes(repo: txstore.Repository, zarr_format: int) -> None:
    for mode, name, names in (
        ("w-", "x", ["x"]),
        ("a", "y", ["x", "y"]),
        ("r+", "z", ["x", "y", "z"]),
        ("w", "v", ["v"]),
    ):
        with repo.transaction() as store:
            if mode in ("w-", "r+"):
                with pytest.raises(FileNotFoundError if mode == "w-" else FileExistsError):
                    zarr.open_group(store, mode="r" if mode == "w-" else "w-")
            zarr.open_group(store, mode=mode, zarr_format=zarr_format).create_group(name)
        assert sorted(zarr.open_group(repo.snapshot(), mode="r")) == names
    for mode in ("w", "a", "r+", "w-"):
        with pytest.raises(ValueError, match="read-only"):
            zarr.open_group(repo.snapshot(), mode=mode)  # type: ignore[arg-type]
    with repo.transaction() as store, pytest.raises(ValueError, match="read-only"):
        zarr.open_group(store, mode="r").create_group("other")


# --- sizes, the asynchronous interface, xarray
def test_nbytes_stored_counts_the_array_alone(repo: txstore.Repository, zarr_format: int) -> None:
    create(repo, np.arange(100, dtype="i4"), chunks=(10,), compressors=None, zarr_format=zarr_format, fill_value=None)
    with repo.transaction() as store:
        zarr.create_array(store, name="y", data=np.arange(100))
    snapshot = repo.snapshot()
    z = zarr.open_array(snapshot, path="x", mode="r")
    documents = sum(len(snapshot[key]) for key in snapshot if key.startswith("x/") and not key[-1].isdigit())
    assert z.nbytes_stored() == 400 + documents
    assert z.nchunks_initialized == 10


async def test_the_asynchronous_interface_reads_and_writes(repo: txstore.Repository, pipeline: str) -> None:
    with repo.transaction() as store:
        group = await zarr.api.asynchronous.open_group(store, mode="a")
        array = await group.create_array("x", shape=(6,), chunks=(2,), dtype="i4")
        await array.setitem(slice(0, 5), np.arange(5, dtype="i4"))
    array = await zarr.api.asynchronous.open_array(store=repo.snapshot(), path="x", mode="r")
    assert np.asarray(await array.getitem(slice(1, 6))).tolist() == [1, 2, 3, 4, 0]


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
