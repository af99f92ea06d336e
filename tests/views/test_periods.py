"""Means of months, and other periods: what xarray makes of the same data, whoever appends to them and changes them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import txstore
from tests.tools.commits import commit, write_array
from txstore.views import Reduce


def hours(begin: str, count: int, step: int = 6) -> xr.Dataset:
    times = pd.date_range(begin, periods=count, freq=f"{step}h")
    values = np.random.default_rng(count).integers(0, 100, (count, 3)).astype("f8")
    return xr.Dataset({"t2m": (("time", "x"), values)}, {"time": times})


def check(repo: txstore.Repository, by: str, method: str) -> None:
    found = xr.open_dataset(repo, engine="txstore", group="means")
    there = xr.open_dataset(repo, engine="txstore")
    keys = there.time.dt.strftime({"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d %H"}[by])
    wanted = getattr(there.t2m.groupby(keys), method)()
    np.testing.assert_allclose(found.t2m.values, wanted.values)
    first = [there.time.values[(keys == key).values][0] for key in dict.fromkeys(keys.values)]
    np.testing.assert_array_equal(found.time.values, np.array(first))


@pytest.mark.parametrize(("by", "method"), [("month", "mean"), ("day", "max"), ("year", "count"), ("hour", "min")])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_appended_and_changed(tmp_path: Path, by: str, method: str, zarr_format: int) -> None:
    repo = txstore.Repository(tmp_path / "data.tx")
    with repo.transaction() as store:
        hours("2000-01-20", 50).to_zarr(
            store, encoding={"t2m": {"chunks": (7, 2)}, "time": {"units": "hours since 2000-01-01"}},
            consolidated=False, zarr_format=zarr_format,  # type: ignore[call-overload]
        )  # fmt: skip
        store.views["means"] = Reduce("t2m", "time", method, "means/t2m", by=by)  # type: ignore[arg-type]
    check(repo, by, method)
    for begin in ("2000-02-01 12:00", "2000-02-14", "2001-01-01"):
        with repo.transaction() as store:
            hours(begin, 30).to_zarr(store, append_dim="time", consolidated=False)
        check(repo, by, method)
    write_array(repo, "t2m", slice(40, 70), np.nan if method != "count" else 5)
    check(repo, by, method)
    repo.upsert(hours("1999-12-30", 8), dim="time", missing="insert")
    check(repo, by, method)
    commit(repo, lambda store: txstore.roll(store, "time", keep=60))
    check(repo, by, method)
    assert not repo.verify().faults


def test_several_variables_in_one_group(repo: txstore.Repository) -> None:
    """The labels of their periods are the same, so that all of them may make these."""
    both = hours("2000-01-20", 50).assign(rain=lambda ds: ds.t2m.sum("x") + 1)
    commit(repo, lambda store: both.to_zarr(store, encoding={"time": {"chunks": (64,)}}, consolidated=False))
    repo.views["a"] = Reduce("t2m", "time", "mean", "means/t2m", by="month")
    repo.views["b"] = Reduce("rain", "time", "max", "means/rain", by="month")

    def check_both(*, is_there: bool = True) -> None:
        if is_there:
            check(repo, "month", "mean")
        there = xr.open_dataset(repo, engine="txstore").rain
        found = xr.open_dataset(repo, engine="txstore", group="means").rain
        np.testing.assert_allclose(found.values, there.groupby(there.time.dt.strftime("%Y-%m")).max().values)

    check_both()
    repo.upsert(hours("2000-02-14", 30).assign(rain=lambda ds: ds.t2m.sum("x") + 2))
    check_both()
    repo.upsert(hours("1999-12-30", 8).assign(rain=lambda ds: ds.t2m.sum("x") + 3), missing="insert")
    check_both()
    write_array(repo, "rain", ..., np.arange(88))
    check_both()
    for other in (
        Reduce("rain", "time", "min", "means/least", by="year"),
        Reduce("rain", "time", "min", "means/least", by="month", when="follow"),
        Reduce("rain", "time", "min", "means/rain", by="month"),
    ):
        with pytest.raises(ValueError, match="both make"):
            repo.views["c"] = other
    with repo.transaction() as store:
        del store.views["a"]
        del zarr.open_group(store, path="means", mode="r+")["t2m"]
    commit(repo, lambda store: txstore.roll(store, "time", keep=60))
    check_both(is_there=False)
    with pytest.raises(txstore.ErasureError):
        repo.erase("rain", {"time": pd.Timestamp("2000-02-14")})
    assert not repo.verify().faults


def test_beside_the_source(tmp_path: Path) -> None:
    repo = txstore.Repository(tmp_path / "data.tx")
    commit(repo, lambda store: hours("2000-01-20", 50).to_zarr(store, consolidated=False))
    repo.views["monthly"] = Reduce("t2m", "time", "mean", "t2m_monthly", by="month")
    found = xr.open_dataset(repo, engine="txstore")
    assert found.t2m_monthly.dims == ("time_month", "x")
    assert found.time_month.values.astype("datetime64[D]").astype(str).tolist() == ["2000-01-20", "2000-02-01"]


def test_refused(tmp_path: Path) -> None:
    repo = txstore.Repository(tmp_path / "data.tx")
    with repo.transaction() as store:
        zarr.create_array(store, name="v", data=np.arange(4.0), dimension_names=["time"])
        zarr.create_array(store, name="time", data=np.array([3, 1, 2, 4]), dimension_names=["time"])
    view = Reduce("v", "time", "mean", "m/v", by="month")
    with pytest.raises(ValueError, match="no units such as"):
        repo.views["m"] = view
    with repo.transaction() as store:
        zarr.open_array(store, path="time").attrs["units"] = "days since 2000-01-30"
    with pytest.raises(ValueError, match="does not ascend"):
        repo.views["m"] = view
    with repo.transaction() as store:
        zarr.open_array(store, path="time")[:] = [1, 2, 3, 4]
    repo.views["m"] = view
    assert zarr.open_array(repo.snapshot(), path="m/v", mode="r")[:].tolist() == [0.0, 2.0]
    store = repo.transaction()
    zarr.open_array(store, path="time")[:] = [4, 3, 2, 1]
    with pytest.raises(txstore.ViewError, match="does not ascend"):
        store.commit()
    store.rollback()
