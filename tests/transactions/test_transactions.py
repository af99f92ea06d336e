"""What conflicts mean to those who meet one, and what never meets one."""

import threading

import numpy as np
import pytest
import xarray as xr
import zarr

import txstore
from tests.tools.arrays import add, append, array, attributes, commit, create, put, values
from tests.tools.inside import staged
from txstore import ConflictError


def test_a_conflict_names_the_keys_and_both_commits(repo: txstore.Repository) -> None:
    commit(repo, create())
    base = repo.head()
    store = repo.transaction()
    append(7)(store)
    commit(repo, append(8))
    with pytest.raises(
        ConflictError, match=r"also written by another commit \(main@1 by .*\): 'x/c/2', 'x/zarr\.json'\. .*repo\.run"
    ) as caught:
        store.commit()
    assert caught.value.keys == ("x/c/2", "x/zarr.json")
    assert (caught.value.base, caught.value.head) == (base, repo.head())
    store.rollback()


def test_a_conflict_names_at_most_a_hundred_keys(repo: txstore.Repository) -> None:
    commit(repo, create(n=300, chunks=2, value=0))
    store = repo.transaction()
    put(slice(None), 5)(store)
    commit(repo, put(slice(None), 6))
    with pytest.raises(ConflictError) as caught:
        store.commit()
    assert len(caught.value.keys) == 100
    store.rollback()


def test_what_is_staged_survives_a_conflict_and_conflicts_again(repo: txstore.Repository) -> None:
    commit(repo, create())
    store = repo.transaction()
    put(0, 5)(store)
    commit(repo, put(slice(0, 2), 6))
    for _ in range(2):
        with pytest.raises(ConflictError):
            store.commit()
        assert array(store)[0] == 5
        assert array(store)[1] == 1
    store.rollback()
    assert values(repo)[:2] == [6, 6]


def test_after_a_rollback_a_new_object_writes_on_the_head(repo: txstore.Repository) -> None:
    commit(repo, create())
    store = repo.transaction()
    put(0, 5)(store)
    commit(repo, put(slice(0, 2), 6))
    with pytest.raises(ConflictError):
        store.commit()
    store.rollback()
    put(0, 5)(store)
    store.commit()
    assert values(repo)[:2] == [5, 6]


def test_a_with_block_drops_what_conflicts(repo: txstore.Repository) -> None:
    commit(repo, create())
    with pytest.raises(ConflictError), repo.transaction() as store:
        put(0, 5)(store)
        commit(repo, put(slice(0, 2), 6))
    assert store.staged_count == 0
    assert values(repo)[:2] == [6, 6]


@pytest.mark.parametrize("step", [add(0, 1), append(7)], ids=["increments", "appends"])
def test_run_loses_nothing(repo: txstore.Repository, step) -> None:
    commit(repo, create(value=0))
    threads = [threading.Thread(target=lambda: [repo.run(step, retries=200) for _ in range(8)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(values(repo)) in (24, 24 * 7)


def test_run_gives_up_after_so_many_retries(repo: txstore.Repository) -> None:
    commit(repo, create())
    runs = []

    def always_late(store: txstore.TxStore) -> None:
        runs.append(store)
        put(0, 5)(store)
        commit(repo, add(0, 1))

    with pytest.raises(ConflictError):
        repo.run(always_late, retries=2)
    assert len(runs) == 3


def test_one_object_appends_over_three_commits(repo: txstore.Repository) -> None:
    commit(repo, create())
    store = txstore.TxStore(repo)
    z = array(store)
    for row in (5, 6, 7):
        z.append(np.array([row], "i4"))
        store.commit()
    assert values(repo) == [1] * 8 + [5, 6, 7]


# --- bytes that are equal
def test_what_equals_the_base_takes_no_version(repo: txstore.Repository) -> None:
    commit(repo, create(), attributes(a=1))
    head = repo.head()
    store = repo.transaction()
    attributes(a=1)(store)
    put(slice(0, 4), 1)(store)
    commit(repo, attributes(a=2), put(slice(0, 4), 2))
    assert store.commit() is None
    assert repo.head().version == head.version + 1
    assert values(repo)[0] == 2


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_what_equals_the_base_leaves_no_file(repo: txstore.Repository, size: int) -> None:
    kept = []  # a mapping that was committed may still be read
    for _ in range(3):
        with repo.begin() as mapping:
            mapping["key"] = bytes(size)
        kept.append(mapping)
    assert len(list(repo.log())) == 1
    assert staged(repo) == []
    assert [len(mapping["key"]) for mapping in kept] == [size] * 3


# --- xarray
def dataset(*times: int, **variables: object) -> xr.Dataset:
    rows = len(times)
    return xr.Dataset(
        {"v": (("time", "x"), np.full((rows, 4), 1.0)), "w": (("time",), np.arange(rows) * 1.0)} | variables,
        coords={"time": list(times)},
        attrs={"title": "t"},
    )


def write(store: txstore.TxStore, data: xr.Dataset, **options: object) -> None:
    data.to_zarr(store, consolidated=False, **options)


def read(repo: txstore.Repository) -> xr.Dataset:
    return xr.open_zarr(repo.snapshot(), consolidated=False).load()


@pytest.fixture
def weather(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction() as store:
        write(
            store,
            dataset(0, 1, 2, 3),
            encoding={"v": {"chunks": (2, 4)}, "w": {"chunks": (2,)}, "time": {"chunks": (2,)}},
        )
    return repo


def test_an_appender_region_writers_and_a_back_filler_lose_nothing(weather: txstore.Repository) -> None:
    appender, early, late, filler = (weather.transaction() for _ in range(4))
    write(appender, dataset(4, 5), append_dim="time")
    for store, rows, value in ((early, slice(0, 2), 20.0), (late, slice(2, 4), 30.0)):
        write(store, xr.Dataset({"v": (("time", "x"), np.full((2, 4), value))}), region={"time": rows})
    filler_w = array(filler, "w")
    filler_w[0:2] = [40.0, 41.0]
    for store in (early, appender, filler, late):
        store.commit()
    found = read(weather)
    assert found.v[:, 0].values.tolist() == [20, 20, 30, 30, 1, 1]
    assert found.w.values.tolist() == [40, 41, 2, 3, 0, 1]
    assert found.time.values.tolist() == [0, 1, 2, 3, 4, 5]


def test_equal_attributes_that_xarray_rewrites_conflict_with_nothing(weather: txstore.Repository) -> None:
    region = weather.transaction()
    write(
        region,
        xr.Dataset({"v": (("time", "x"), np.full((2, 4), 9.0))}, attrs={"title": "t"}),
        region={"time": slice(0, 2)},
    )
    commit(weather, lambda store: zarr.open_group(store).attrs.update({"title": "new"}))
    region.commit()
    found = read(weather)
    assert found.attrs == {"title": "new"}
    assert found.v[0, 0] == 9


def test_two_appenders_conflict(weather: txstore.Repository) -> None:
    one, other = weather.transaction(), weather.transaction()
    write(one, dataset(4, 5), append_dim="time")
    write(other, dataset(4, 5), append_dim="time")
    one.commit()
    with pytest.raises(ConflictError):
        other.commit()
    other.rollback()
    assert read(weather).sizes["time"] == 6


def test_appends_of_xarray_in_one_session_are_all_there(weather: txstore.Repository) -> None:
    store = txstore.TxStore(weather)
    for time in (4, 5, 6):
        write(store, dataset(time), append_dim="time")
        if time != 5:
            store.commit()
    assert read(weather).time.values.tolist() == list(range(7))
