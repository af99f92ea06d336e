"""Upserts by one process: which rows are changed, which are added, what is refused."""

import sys
from collections.abc import Callable
from typing import Any

import cftime
import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import txstore
from tests.labels.datasets import hours, numbered, stored
from txstore import Upserted


@pytest.mark.parametrize("is_lazy", [False, True])
def test_rows_are_changed_and_appended(repo: txstore.Repository, is_lazy: bool) -> None:
    assert repo.upsert(hours("2024-01-01")) == Upserted(0, 24)
    new = hours("2024-01-01T20:00", 10, add=0.125)
    assert repo.upsert(new.chunk(time=3) if is_lazy else new) == Upserted(4, 6)
    expected = new.combine_first(hours("2024-01-01")).astype({"t": "f4", "w": "i8"})
    assert stored(repo).equals(expected)


def test_a_job_that_runs_twice(repo: txstore.Repository) -> None:
    repo.upsert(hours("2024-01-01"))
    before = repo.head()
    assert repo.upsert(hours("2024-01-01").isel(time=slice(None, None, -1))) == Upserted(0, 0)
    assert not Upserted(0, 0)
    assert repo.head() == before


def test_rows_are_inserted_in_order(repo: txstore.Repository) -> None:
    for day in ("2024-01-05", "2024-01-02", "2024-01-03", "2024-01-01"):
        assert repo.upsert(hours(day, 20), missing="insert") == Upserted(0, 20)
    odd = hours("2024-01-02T19:00", 30).isel(time=slice(None, None, -1))
    assert repo.upsert(odd, missing="insert") == Upserted(0, 9)
    days = [hours(day, 20) for day in ("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-05")]
    assert stored(repo).equals(xr.concat([*days[:2], hours("2024-01-02T20:00", 4), days[2],
                                          hours("2024-01-03T20:00", 5), days[3]], "time",
                                         data_vars="minimal", coords="minimal"))  # fmt: skip


def test_existing_and_missing(repo: txstore.Repository) -> None:
    with pytest.raises(ValueError, match="nothing in ''"):
        repo.upsert(numbered([1, 2]), missing="raise")
    repo.upsert(numbered([1, 2]))
    assert repo.upsert(numbered([2, 3], add=1), existing="keep") == Upserted(0, 1)
    assert stored(repo).v.values.tolist() == [10, 20, 31]
    with pytest.raises(ValueError, match="there already: time 2, 3"):
        repo.upsert(numbered([2, 4, 3]), existing="raise")
    with pytest.raises(ValueError, match="no labels 4, 5"):
        repo.upsert(numbered([4, 2, 5]), missing="raise")
    with pytest.raises(ValueError, match="existing='no'"):
        repo.upsert(numbered([4]), existing="no")  # type: ignore[arg-type]
    assert repo.upsert(numbered([4]), existing="raise") == Upserted(0, 1)


def noleap(first: int, count: int) -> xr.Dataset:
    times = xr.date_range("2001-02-27", periods=first + count, calendar="noleap", use_cftime=True)[first:]
    return numbered(np.arange(first, first + count)).assign_coords(time=times)


LABELS = {
    "cftime": (noleap(0, 3), noleap(2, 3)),
    "floats": (numbered([0.1, 0.2, 0.3]), numbered([0.3, 0.4, 0.5])),
    "text": tuple(numbered([1, 2, 3]).assign_coords(time=list(each)) for each in ("abc", "cde")),
    "long text": tuple(numbered([1, 2, 3]).assign_coords(time=np.array(each, object))
                       for each in (["a", "bb", "c"], ["c", "dddd", "e"])),
    "durations": tuple(numbered([1, 2, 3]).assign_coords(time=pd.to_timedelta([h, h + 1, h + 2], "h")) for h in (0, 2)),
    "dates": (hours("2024-01-01", 3)[["w"]], hours("2024-01-01T02", 3)[["w"]]),
}  # fmt: skip


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning", "ignore::FutureWarning")
def test_kinds_of_labels(repo: txstore.Repository, kind: str) -> None:
    first, second = LABELS[kind]
    with repo.transaction() as store:  # by plain xarray
        first.to_zarr(store, consolidated=False)
    attrs = dict(zarr.open_array(repo.snapshot(), path="time", mode="r").attrs)
    assert repo.upsert(second) == Upserted(0 if kind == "dates" else 1 - (kind in ("cftime", "floats")), 2)
    assert dict(zarr.open_array(repo.snapshot(), path="time", mode="r").attrs) == attrs
    found = stored(repo, decode_timedelta=True)
    assert (found.time.values == np.concatenate([first.time.values, second.time.values[1:]])).all()
    assert repo.upsert(second) == Upserted(0, 0)


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        ([1, 2, 1], "repeats labels in the dataset: 1$"),
        ([1.0, np.nan], r"no label at \[1\]"),
        ([1.5], "1.5 can't be stored exactly"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_labels_that_can_not_be_found_again(repo, labels, error, is_first):
    if not is_first:
        repo.upsert(numbered([1]))
    elif labels == [1.5]:
        return
    with pytest.raises(ValueError, match=error):
        repo.upsert(numbered(labels))
    assert repo.head() is None or repo.head().version == 0


def test_times_that_the_units_are_too_coarse_for(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        hours("2024-01-01", 3).to_zarr(store, consolidated=False)
    with pytest.raises(ValueError, match=r"00:30.* exactly in .* 'hours since 2024-01-01"):
        repo.upsert(hours("2024-01-01T00:30", 2))
    with pytest.raises(ValueError, match="no label at"):
        repo.upsert(hours("2024-01-01", 2).assign_coords(time=np.array(["2024-01-01", "NaT"], "M8[ns]")))
    with pytest.raises(TypeError, match="convert them"):
        repo.upsert(hours("2024-01-01", 2).assign_coords(time=[1, 2]))
    with pytest.raises(TypeError, match="calendar"):
        repo.upsert(hours("2024-01-01", 1).assign_coords(time=[cftime.DatetimeNoLeap(2024, 1, 1)]))
    assert len(stored(repo).time) == 3


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_the_first_row_does_not_choose_units_that_are_too_coarse(repo: txstore.Repository, unit: str) -> None:
    """xarray would store one date at midnight as days."""
    first = np.array(["2024-01-01"], f"M8[{unit}]")
    repo.upsert(numbered([1]).assign_coords(time=first))
    later = first + np.timedelta64(3661, "s")
    assert repo.upsert(numbered([2]).assign_coords(time=later)) == Upserted(0, 1)
    assert (stored(repo).time.values == np.concatenate([first, later])).all()


def test_the_first_rows_keep_the_units_that_they_have(repo: txstore.Repository) -> None:
    first = hours("2024-01-01", 3)
    first.time.encoding = {"units": "hours since 2000-01-01", "dtype": "int32"}
    repo.upsert(first)
    assert stored(repo).time.encoding["units"] == "hours since 2000-01-01"


def test_first_dates_of_cftime(repo: txstore.Repository) -> None:
    repo.upsert(noleap(0, 1))
    repo.upsert(noleap(1, 4))
    assert stored(repo).time.values.tolist() == noleap(0, 5).time.values.tolist()


def test_nanoseconds_are_exact(repo: txstore.Repository) -> None:
    times = np.array(["2024-01-01T00:00:00.000000001", "2024-01-01T00:00:00.000000003"], "M8[ns]")
    first = numbered([1, 2]).assign_coords(time=times)
    first.time.encoding = {"units": "nanoseconds since 1970-01-01", "dtype": "i8"}
    repo.upsert(first)
    assert repo.upsert(numbered([5, 6]).assign_coords(time=times + np.timedelta64(1, "ns"))) == Upserted(0, 2)
    assert (np.sort(np.diff(stored(repo).time.values.astype("i8"))) == [-1, 2, 2]).all()


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("is_lazy", [False, True])
def test_dates_in_coarser_units_than_the_stored_ones(repo: txstore.Repository, unit: str, is_lazy: bool) -> None:
    """As pandas 3 makes them. xarray would encode them as NaT."""
    times = np.array(["2024-01-01T00:00:01", "NaT"], f"M8[{unit}]")
    nanoseconds = {"units": "nanoseconds since 1970-01-01", "dtype": "i8"}
    whole = numbered([1, 2]).assign(seen=("time", times), took=("time", times - times[0]))
    whole = whole.assign_coords(time=times[0] + np.arange(2).astype(f"m8[{unit}]"))
    for name, units in {
        "time": nanoseconds,
        "seen": nanoseconds,
        "took": {**nanoseconds, "units": "nanoseconds"},
    }.items():
        whole[name].encoding = units
    ds = whole.chunk(time=1) if is_lazy else whole
    repo.upsert(ds)
    later = ds.assign_coords(time=whole.time.values + np.timedelta64(1, "D"))
    assert repo.upsert(later) == Upserted(0, 2)
    assert repo.upsert(later) == Upserted(0, 0)
    found = stored(repo, decode_timedelta=True)
    assert (found.time.values == np.concatenate([whole.time, later.time])).all()
    for name in ("seen", "took"):
        np.testing.assert_array_equal(found[name], np.concatenate([whole[name], whole[name]]))


def test_later_durations_may_be_finer_than_the_first_ones(repo: txstore.Repository) -> None:
    for lead in ([24.0, 48.0], [1.5], [1.0]):
        ds = xr.Dataset({"v": ("lead", lead)}, {"lead": pd.to_timedelta(lead, "h")})
        repo.upsert(ds, dim="lead")
    assert (stored(repo).lead.values / np.timedelta64(1, "h")).tolist() == [24, 48, 1.5, 1]
    repo.erase("v", {"lead": pd.Timedelta(90, "min")})
    assert np.isnan(stored(repo).v.values).tolist() == [False, False, True, False]


def test_durations_in_coarser_units_than_the_stored_ones(repo: txstore.Repository) -> None:
    for hours_since in (0, 2):
        labels = np.array([hours_since, hours_since + 1], "m8[h]").astype("m8[s]")
        ds = numbered([1, 2]).assign_coords(time=labels)
        ds.time.encoding = {"units": "nanoseconds", "dtype": "i8"}
        repo.upsert(ds)
    assert stored(repo, decode_timedelta=True).time.values.astype("m8[h]").astype(int).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("year", [1000, 3000])
@pytest.mark.filterwarnings("ignore")  # of xarray, which decodes these as objects
def test_dates_that_nanoseconds_do_not_reach(repo: txstore.Repository, year: int) -> None:
    dates = np.array([f"{year}-01-01", f"{year}-01-02T00:00:00.5"], "M8[us]")
    assert repo.upsert(numbered([1, 2]).assign_coords(time=dates)) == Upserted(0, 2)
    assert repo.upsert(numbered([1, 2]).assign_coords(time=dates)) == Upserted(0, 0)
    assert [each.microsecond for each in stored(repo).time.values] == [0, 500_000]
    fine = numbered([1, 2]).assign_coords(time=dates)
    fine.time.encoding = {"units": "nanoseconds since 1970-01-01", "dtype": "i8"}
    with pytest.raises(ValueError, match="'time'"):
        repo.upsert(fine, group="other")


@pytest.mark.parametrize("units", ["days since 1970-01-01", "days since 0001-01-01"])
def test_times_as_floats(repo: txstore.Repository, units: str) -> None:
    """Floats round the hours of a day, and stay apart; what is finer than they are does not become another label."""
    first = hours("2024-01-01", 24)[["w"]]
    first.time.encoding = {"units": units, "dtype": "f8"}
    repo.upsert(first)
    assert repo.upsert(hours("2024-01-01", 24)[["w"]]) == Upserted(0, 0)
    assert repo.upsert(stored(repo)[["w"]]) == Upserted(0, 0)
    assert repo.upsert(hours("2024-01-02", 24)[["w"]]) == Upserted(0, 24)
    finer = hours("2024-01-01", 1)[["w"]]
    with pytest.raises(ValueError, match=r"'time': 2024-01-01T00:00:00.000000100 can't be stored exactly"):
        repo.upsert(finer.assign_coords(time=finer.time.values + np.timedelta64(100, "ns")))


def test_dates_with_a_time_zone(repo: txstore.Repository) -> None:
    zoned = pd.date_range("2024-01-01", periods=1, tz="Europe/Berlin")
    for ds in (numbered([1]).assign_coords(time=zoned), hours("2024-01-01", 1).assign(seen=("time", zoned))):
        with pytest.raises(TypeError, match=r"time zone.*tz_convert\('UTC'\)"):
            repo.upsert(ds)
    repo.upsert(hours("2024-01-01", 1))
    with pytest.raises(TypeError, match="'time' has dates with a time zone"):
        repo.upsert(hours("2024-01-02", 1).assign_coords(time=zoned))


@pytest.mark.parametrize("value", [cftime.DatetimeNoLeap(2000, 1, 1), "abc"])
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning", "ignore::FutureWarning")
def test_scalars_that_are_objects(repo: txstore.Repository, value: object) -> None:
    scalar = np.array(None, object)
    scalar[()] = value
    repo.upsert(numbered([1]).assign_coords(run=((), scalar)))
    assert repo.upsert(numbered([2]).assign_coords(run=((), scalar))) == Upserted(0, 1)


NUMBERS: dict[str, tuple[object, dict[str, object], object, str]] = {
    "wide": (np.int8(1), {}, 300, "'v': 300 can't be stored as int8"),
    "unsigned": (np.uint8(1), {}, np.uint16(300), "'v': 300 can't be stored as uint8"),
    "very wide": (np.int32(1), {}, 2**40 + 7, "'v': 1099511627783 can't be stored as int32"),
    "more digits": (1.0, {}, 2**53 + 1, "'v': 9007199254740993 can't be stored as float64"),
    "infinite": (np.float32(1), {}, 1e300, r"'v': 1e\+300 can't be stored as float32"),
    "packed": (
        1.0,
        {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32768},
        400.0,
        "'v': 400.0 .* with scale 0.01",
    ),
    "becomes missing": (1.0, {"dtype": "i2", "scale_factor": 0.5, "_FillValue": 8}, 4.1, "'v': 4.1 is stored as 8"),
    "fraction": (1.0, {"dtype": "i2", "_FillValue": -9999}, 1.5, "'v': 1.5 can't be stored as int16"),
    "large": (1.0, {"dtype": "i2", "_FillValue": -9999}, 70000.0, "'v': 70000.0 can't be stored as int16"),
    "NaN": (1.0, {"dtype": "i2", "scale_factor": 0.5}, np.nan, "'v': nan can't be stored .*no _FillValue"),
    "missing": (np.int16(1), {"_FillValue": -9999}, np.int16(-9999), "'v': -9999 is stored as -9999, the _FillValue"),
    "None": ("a", {}, None, "'v': (None|nan) can't be stored .*no _FillValue"),
}


@pytest.mark.parametrize("case", NUMBERS)
@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning", "ignore::FutureWarning")
def test_values_that_would_be_others(repo: txstore.Repository, case: str, is_lazy: bool) -> None:
    first, encoding, wrong, error = NUMBERS[case]
    kind = object if isinstance(first, str) else None
    with repo.transaction() as store:
        ds = xr.Dataset({"v": ("time", np.array([first], kind))}, {"time": [1]})
        ds.to_zarr(store, encoding={"v": encoding}, consolidated=False)
    for values in ([wrong], [first, wrong]):
        data = np.array(values, kind or np.asarray(wrong).dtype)
        more = xr.Dataset({"v": ("time", data)}, {"time": np.arange(len(values)) + 2})
        with pytest.raises(ValueError, match=error):
            repo.upsert(more.chunk(time=1) if is_lazy else more)
    assert repo.head().version == 0


def test_values_that_fit(repo: txstore.Repository) -> None:
    first = xr.Dataset(
        {"packed": ("time", [0.5, np.nan]), "whole": ("time", [1.0, np.nan]), "byte": ("time", [0.0, 200.0])},
        {"time": [1, 2]},
    )
    encoding = {
        "packed": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1},
        "whole": {"dtype": "i8", "_FillValue": -9999},
        "byte": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1},
    }
    with repo.transaction() as store:
        first.to_zarr(store, encoding=encoding, consolidated=False)
    assert repo.upsert(first) == Upserted(0, 0)
    more = xr.Dataset(
        {"packed": ("time", [3]), "whole": ("time", [-(2.0**62)]), "byte": ("time", [254])}, {"time": [3]}
    )
    assert repo.upsert(more) == Upserted(0, 1)
    found = stored(repo).isel(time=-1)
    assert [float(found[name]) for name in more] == [3, -(2.0**62), 254]


def test_lazy_values_are_computed_once(repo: txstore.Repository) -> None:
    seen: list[int] = []
    with repo.transaction() as store:
        ds = numbered([1])
        ds.to_zarr(store, encoding={"v": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}, consolidated=False)
    more = numbered([2, 3]).chunk(time=1)
    counted = more.v.data.map_blocks(lambda block: (seen.append(len(block)), block)[1], meta=np.empty(0))
    repo.upsert(more.assign(v=("time", counted)))
    assert seen == [1, 1]


def test_labels_that_would_be_missing(repo: txstore.Repository) -> None:
    first = numbered([1])
    first.time.encoding = {"dtype": "i2", "_FillValue": -1}
    repo.upsert(first)
    with pytest.raises(ValueError, match="'time': -1 is stored as -1, the _FillValue"):
        repo.upsert(numbered([2, -1]))
    first.time.encoding = {"dtype": "i2", "_FillValue": 1}
    with pytest.raises(ValueError, match="'time': 1 is stored as 1, the _FillValue"):
        repo.upsert(first, group="other")


def test_the_first_rows_change_nothing_that_is_there(repo: txstore.Repository) -> None:
    repo.upsert(xr.Dataset({"height": ("station", [10.0, 20.0])}, {"station": [1, 2]}), dim="station")
    ds = xr.Dataset({"v": (("time", "station"), [[7.0, 8.0]])}, {"time": [0], "station": [2, 1]})
    with pytest.raises(ValueError, match=r"'station' .*differs from what is stored"):
        repo.upsert(ds)
    with pytest.raises(ValueError, match="'height' has dimensions"):
        repo.upsert(ds.assign_coords(station=[1, 2], height=("time", [1.0])))
    assert repo.upsert(ds.assign_coords(station=[1, 2])) == Upserted(0, 1)
    assert stored(repo).height.sel(station=2) == 20


def test_text_is_not_cut_off(repo: txstore.Repository) -> None:
    repo.upsert(numbered([1]).assign_coords(time=["ab"]).assign(s=("time", ["x"])))
    with pytest.raises(ValueError, match=r"abc can't be stored exactly: .* 2 characters .* longer dtype"):
        repo.upsert(numbered([2]).assign_coords(time=["abc"]).assign(s=("time", ["x"])))
    with pytest.raises(ValueError, match="'s': xy can't be stored exactly"):
        repo.upsert(numbered([2]).assign_coords(time=["ac"]).assign(s=("time", ["xy"])))


@pytest.mark.parametrize(
    ("index", "told"),
    [
        (pd.period_range("2000-01", periods=2, freq="M"), r"PeriodIndex: .*\.to_timestamp\(\)"),
        (pd.CategoricalIndex(["a", "b"]), r"Categorical: .*\.astype\(object\)"),
        (pd.interval_range(0, 2), r"IntervalIndex: .*\.left"),
        (pd.MultiIndex.from_product([[1], ["a", "b"]], names=["n", "l"]), r"MultiIndex: .*\.reset_index\(\)"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_labels_of_pandas_alone(repo: txstore.Repository, index: pd.Index, told: str, is_first: bool) -> None:
    coordinates: Any = {"time": index}
    if isinstance(index, pd.MultiIndex):
        coordinates = xr.Coordinates.from_pandas_multiindex(index, "time")
    if not is_first:
        repo.upsert(numbered([1]))
    with pytest.raises(TypeError, match=told):
        repo.upsert(xr.Dataset({"v": ("time", [1.0, 2.0])}).assign_coords(coordinates), dim="time")


def test_variables_that_do_not_fit(repo: txstore.Repository) -> None:
    repo.upsert(hours("2024-01-01", 3))
    more = hours("2024-01-02", 2)
    for wrong, error, told in (
        (more.drop_vars("w"), ValueError, "has no 'w'"),
        (more.assign(q=more.w), ValueError, "no 'q' in"),
        (more.assign_coords(x=[1, 2, 4]), ValueError, "'x' has none of the dimensions"),
        (more.assign(w=more.w * 1.5), TypeError, "'w' is stored as int64"),
        (more.drop_vars("x").isel(x=slice(2)), ValueError, "x has 2, and 3 are stored"),
        (more.assign(w=more.t), ValueError, "'w' has dimensions"),
        (more.drop_vars("time"), ValueError, "no coordinate of its own along 'time'"),
    ):
        with pytest.raises(error, match=told):
            repo.upsert(wrong)
    assert repo.upsert(hours("2024-01-01", 2, add=1).drop_vars("w")) == Upserted(2, 0)
    assert repo.head().version == 1


def test_packed_values(repo: txstore.Repository) -> None:
    first = hours("2024-01-01", 4)
    first.t.encoding = {"dtype": "i2", "scale_factor": 0.25, "add_offset": 10.0, "_FillValue": -1}
    repo.upsert(first)
    more = hours("2024-01-01T03:00", 3)
    more["t"][1, 1] = np.nan
    assert repo.upsert(more) == Upserted(0, 2)
    assert stored(repo).t[3:].equals(more.t.astype(stored(repo).t.dtype))


@pytest.mark.parametrize("layout", [{}, {"chunks": (2, 2), "shards": (4, 4)}, {"zarr_format": 2, "fill_value": None}])
def test_rows_that_were_cut_off_do_not_come_back(repo: txstore.Repository, layout: dict[str, Any]) -> None:
    """zarr leaves them in the chunk at the end."""
    is_old = "zarr_format" in layout
    with repo.transaction() as store:
        if is_old:
            zarr.create_group(store, zarr_format=2)
        for name, data in {"v": np.arange(1.0, 13).reshape(3, 4), "time": np.arange(3), "st": np.arange(4)}.items():
            dims = ["time", "st"] if name == "v" else [name]
            names = {"attributes": {"_ARRAY_DIMENSIONS": dims}} if is_old else {"dimension_names": dims}
            options = layout if name == "v" else {key: layout[key] for key in ("zarr_format",) if is_old}
            zarr.create_array(store, name=name, data=data, **names, **options)
        for name, shape in {"v": (2, 3), "time": (2,), "st": (3,)}.items():
            zarr.open_array(store, path=name).resize(shape)
    ds = xr.Dataset({"v": (("time", "st"), [[-1.0]])}, {"time": [100], "st": [50]})
    repo.upsert(ds, dim=["time", "st"])
    found = zarr.open_array(repo.snapshot(), path="v", mode="r")[:]
    np.testing.assert_array_equal(found, [[1, 2, 3, 0], [5, 6, 7, 0], [0, 0, 0, -1]])


def test_inserting_twice_in_one_transaction_is_refused_in_words(repo: txstore.Repository) -> None:
    repo.upsert(hours("2024-01-01", 5))
    with repo.transaction() as store:
        txstore.upsert(hours("2023-12-01", 2), store, dim="time", missing="insert")
        with pytest.raises(txstore.TransactionStateError, match="commit first"):
            txstore.upsert(hours("2023-11-01", 2), store, dim="time", missing="insert")
        txstore.upsert(hours("2024-02-01", 2), store, dim="time")
    assert len(stored(repo).time) == 9


def test_a_stored_label_that_is_there_twice(repo: txstore.Repository) -> None:
    repo.upsert(numbered([1, 2]))
    with repo.transaction() as store:
        numbered([2]).to_zarr(store, append_dim="time", consolidated=False)
    with pytest.raises(ValueError, match="labels 2 more than once in the store"):
        repo.upsert(numbered([2, 7]))
    assert repo.upsert(numbered([1], add=3)) == Upserted(1, 0)


def test_memory_is_bounded_by_pieces(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """No piece is larger than asked for, whatever the size of the lazy array."""
    from txstore.labels import grids

    rows = sys.modules["txstore.labels.upsert"]  # the wing exports a function of this name

    seen: list[int] = []
    write: Callable[..., None] = rows.write
    monkeypatch.setattr(
        rows, "write", lambda array, place, values: (seen.append(values.nbytes), write(array, place, values))
    )
    monkeypatch.setattr(rows, "pieces", lambda *given: grids.pieces(*given, 4096))
    with repo.transaction() as store:
        zarr.create_array(store, name="v", shape=(0, 64), chunks=(8, 16), dtype="f8", dimension_names=("time", "x"))
        zarr.create_array(store, name="time", shape=(0,), chunks=(64,), dtype="i8", dimension_names=("time",))
    ds = xr.Dataset({"v": (("time", "x"), np.random.default_rng(0).random((100, 64)))}, {"time": np.arange(100)})
    repo.upsert(ds.chunk(time=11, x=17))
    assert max(seen) <= 4096
    assert len(seen) > 10
    assert stored(repo).v.equals(ds.v)


@pytest.mark.parametrize("way", ["xarray", "computed", "optimized", "from_zarr", "inline"])
@pytest.mark.parametrize("missing", ["insert", "append"])
def test_lazy_data_of_the_same_arrays(repo: txstore.Repository, way: str, missing: Any) -> None:
    """They would be read when rows have moved, or have changed already."""
    with repo.transaction() as store:
        xr.Dataset({"v": ("x", np.arange(10) * 10)}, {"x": np.arange(10) * 2}).to_zarr(
            store, group="g", consolidated=False, encoding={"v": {"chunks": (3,)}, "x": {"chunks": (3,)}}
        )

    def opened(store: txstore.TxStore) -> xr.Dataset:
        if way in ("from_zarr", "inline"):
            array = zarr.open_array(store, path="g/v", mode="r")
            lazy = da.from_zarr(array, inline_array=way == "inline")  # type: ignore[no-untyped-call]
            ds = xr.Dataset({"v": ("x", lazy)})
        else:
            ds = xr.open_zarr(store, group="g", consolidated=False, chunks={})
        if way == "computed":
            ds = (ds.rolling(x=2, min_periods=1).sum() / 2 * 2).astype("i8").chunk(x=2)
        (optimized,) = dask.optimize(ds) if way == "optimized" else (ds,)
        return optimized.isel(x=slice(3, 6)).assign_coords(x=[7, 9, 100])  # type: ignore[no-any-return]

    with repo.transaction() as store:
        with pytest.raises(ValueError, match="at_base"):
            txstore.upsert(opened(store), store, dim="x", group="g", missing=missing)
        with pytest.raises(ValueError, match="at_base"):
            txstore.prepend(opened(store).assign_coords(x=[-3, -2, -1]), store, dim="x", group="g")
    with repo.transaction() as store:
        txstore.upsert(opened(store.at_base()), store, dim="x", group="g", missing=missing)
    wanted = opened(repo.snapshot(at=0)).v.values
    found = xr.open_dataset(repo, engine="txstore", group="g").v.sel(x=[7, 9, 100]).values  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, wanted)
    with repo.transaction() as store:
        assert not txstore.upsert(opened(repo.snapshot(at=0)), store, dim="x", group="g", missing=missing)
        assert txstore.upsert(opened(store).load() + 5, store, dim="x", group="g", missing=missing).updated == 3


@pytest.mark.parametrize("calendar", ["standard", "360_day", "noleap"])
def test_nothing_to_do_and_nothing_there(repo: txstore.Repository, calendar: str) -> None:
    """A dataset without rows changes nothing; an archive that has dropped all of its rows takes new ones."""
    dates = xr.date_range("2000-01-01", periods=4, calendar=calendar, use_cftime=calendar != "standard")
    ds = xr.Dataset({"v": ("time", np.arange(4.0)), "seen": ("time", dates)}, {"time": dates})
    repo.upsert(ds[{"time": [0, 1]}], missing="insert")
    for missing in ("insert", "raise"):
        assert repo.upsert(ds[{"time": []}], missing=missing) == Upserted(0, 0)
    with repo.transaction("all are dropped") as store:
        txstore.prepend(ds[{"time": []}], store, dim="time")
        assert txstore.roll(store, "time", keep=0) == 2
    assert repo.upsert(ds[{"time": []}], missing="insert") == Upserted(0, 0)
    assert repo.upsert(ds[{"time": [2, 3]}], missing="insert") == Upserted(0, 2)
    assert stored(repo).equals(ds[{"time": [2, 3]}])
