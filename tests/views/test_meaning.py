"""What the numbers of a source mean is said by attributes: outputs follow these, too, and count no missing values."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import txstore
from tests.views.images import VALUES, commit, image
from txstore.views import Coarsen, Reduce, ViewDefinition, following

_DAYS = 60


def _stored(repo: txstore.Repository, path: str) -> np.ndarray:
    return np.asarray(zarr.open_array(repo.snapshot(), path=path, mode="r")[...])


def _opened(repo: txstore.Repository, group: str) -> xr.Dataset:
    return xr.open_dataset(repo, engine="txstore", group=group).load()


def _updated(repo: txstore.Repository) -> None:
    for view in repo.views.values():
        if view.definition.when == "follow":
            view.update()
        assert view.is_current()


def _days(start: str = "2024-01-01", values: Any = None) -> xr.Dataset:
    values = np.arange(float(_DAYS)) if values is None else values
    return xr.Dataset({"t": ("time", values)}, {"time": pd.date_range(start, periods=_DAYS, freq="D")})


@pytest.mark.parametrize("when", ["commit", "follow"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_other_units_make_other_periods(repo: txstore.Repository, when: Any, zarr_format: int) -> None:
    with repo.transaction() as store:
        _days().to_zarr(store, group="d", consolidated=False, zarr_format=zarr_format)  # type: ignore[call-overload]
        store.views["m"] = Reduce("d/t", "time", "mean", to="m/t", by="month", when=when)
    _updated(repo)
    with repo.transaction("the days were others") as store:
        zarr.open_array(store, path="d/time").attrs["units"] = "days since 2024-01-17"
    _updated(repo)
    wanted = _opened(repo, "d").t.resample(time="MS").mean()
    found = _opened(repo, "m").t
    np.testing.assert_array_equal(found, wanted)
    assert str(found.time.values[0])[:10] == "2024-01-17"


@pytest.mark.parametrize("when", ["commit", "follow"])
def test_other_names_of_dimensions_reduce_another_axis(repo: txstore.Repository, when: Any) -> None:
    values = np.arange(24.0).reshape(6, 4)
    with repo.transaction() as store:
        made = zarr.create_array(store, name="a", data=values, chunks=(2, 2), zarr_format=2, fill_value=None)
        made.attrs["_ARRAY_DIMENSIONS"] = ["x", "y"]
        store.views["m"] = Reduce("a", "x", "mean", to="m", when=when)
    _updated(repo)
    with repo.transaction("they were the wrong way round") as store:
        zarr.open_array(store, path="a").attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    _updated(repo)
    np.testing.assert_array_equal(_stored(repo, "m"), values.mean(axis=1))


@pytest.mark.parametrize("when", ["commit", "follow"])
def test_attributes_follow(repo: txstore.Repository, when: Any) -> None:
    def write(store: txstore.TxStore, start: str, scale: float) -> None:
        encoding = {"t": {"dtype": "i2", "scale_factor": scale, "add_offset": 0.0}}
        _days(start).to_zarr(store, group="d", mode="w", consolidated=False, encoding=encoding)

    with repo.transaction() as store:
        write(store, "2024-01-01", 0.01)
        store.views["m"] = Reduce("d/t", "time", "max", to="m/t", by="month", when=when)
        store.views["p"] = Coarsen("d/t", to="p/t{level}", factors=(30,), method="max", when=when)
    _updated(repo)
    with repo.transaction() as store:
        zarr.open_array(store, path="p/t1").attrs["own"] = "stays"
    _updated(repo)
    with repo.transaction("the data set again, as xarray encodes it") as store:
        write(store, "2025-01-01", 0.002)
    _updated(repo)
    wanted, months = _opened(repo, "d").t, _opened(repo, "m").t
    np.testing.assert_array_equal(months, wanted.resample(time="MS").max())
    assert [str(each)[:10] for each in months.time.values] == ["2025-01-01", "2025-02-01", "2025-03-01"]
    np.testing.assert_array_equal(_opened(repo, "p").t1, wanted.coarsen(time=30).max())
    assert _opened(repo, "p").t1.attrs["own"] == "stays"


@pytest.mark.parametrize("when", ["commit", "follow"])
@pytest.mark.parametrize("is_widened", [False, True])
def test_a_source_changes_before_its_outputs_are_derived_first(
    repo: txstore.Repository, when: Any, is_widened: bool
) -> None:
    """The numbers would be taken for others, or cut off."""

    def change(store: txstore.TxStore) -> None:
        if is_widened:
            image(values=VALUES.astype("i4") + 1000, overwrite=True)(store)
        else:
            zarr.open_array(store, path="image/0").attrs.put({"units": "degC"})

    def declare(store: txstore.TxStore) -> None:
        image(values=VALUES.astype("i1"), attributes={"_Unsigned": "true", "units": "K"})(store)
        store.views["v"] = Reduce("image/0", "x", "min", to="image/1", when=when)
        zarr.open_array(store, path="image/1").attrs["own"] = "stays"
        if when == "commit":
            change(store)

    def derive() -> None:
        for step in [declare] if when == "commit" else [declare, change]:
            repo.run(step)
        _updated(repo)

    if is_widened:
        with pytest.raises(txstore.ViewError, match="its output has uint8"):
            derive()
    else:
        derive()
        assert dict(zarr.open_array(repo.snapshot(), path="image/1", mode="r").attrs) == {
            "units": "degC",
            "own": "stays",
        }
        np.testing.assert_array_equal(_stored(repo, "image/1"), VALUES.astype("i1").min(1))


def test_labels_of_another_type(repo: txstore.Repository) -> None:
    """They are what they were, or can't be stored."""
    with repo.transaction() as store:
        _days().to_zarr(store, group="d", consolidated=False)
        store.views["m"] = Reduce("d/t", "time", "mean", to="m/t", by="month")
    labels = _opened(repo, "d").time
    for hours in (0, 6):
        ds = _days().assign_coords(time=labels + np.timedelta64(hours, "h"))
        ds.time.encoding.update(units="days since 2024-01-01", dtype="f8")

        def write(store: txstore.TxStore, ds: xr.Dataset = ds) -> None:
            ds.to_zarr(store, group="d", mode="w", consolidated=False)

        if hours:
            with pytest.raises(txstore.ViewError, match="can't hold its labels"):
                repo.run(write)
        else:
            repo.run(write)
            np.testing.assert_array_equal(_opened(repo, "m").time, labels[[0, 31]])


def test_the_ground_below_levels_follows(repo: txstore.Repository) -> None:
    place = {"spatial:transform": [10.0, 0.0, 0.0, 0.0, -10.0, 100.0], "spatial:dimensions": ["y", "x"]}
    commit(repo, image(attributes=place), p=Coarsen("image/0", "image/{level}", (2, 2), 2))
    with repo.transaction() as store:
        moved = [5.0, 0.0, 7.0, 0.0, -5.0, 100.0]
        zarr.open_array(store, path="image/0").attrs["spatial:transform"] = moved
    levels = [zarr.open_array(repo.snapshot(), path=f"image/{level}", mode="r").attrs for level in (1, 2)]
    assert [each["spatial:transform"] for each in levels] == [
        [10.0, 0.0, 7.0, 0.0, -10.0, 100.0], [20.0, 0.0, 7.0, 0.0, -20.0, 100.0]
    ]  # fmt: skip


@pytest.mark.parametrize(
    "view", [Coarsen("image/0", "image/{level}", (2, 2)), Reduce("image/0", "x", "max", to="image/1")]
)
def test_a_source_of_another_type(repo: txstore.Repository, view: ViewDefinition) -> None:
    """Its values would be rounded, or cut off."""
    commit(repo, image(values=VALUES.astype("u1")), v=view)
    with pytest.raises(txstore.ViewError, match="is of type uint16 now, and 'image/1' of uint8"):
        commit(repo, image(values=VALUES.astype("u2") + 1000, overwrite=True))
    with repo.transaction() as store:
        del zarr.open_group(store)["image/1"]
        image(values=VALUES.astype("u2") + 1000, overwrite=True)(store)
        store.views["v"] = view
    assert _stored(repo, "image/1").max() > 1050


# --- no values
_ENCODINGS: dict[str, dict[str, Any]] = {
    "packed": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.0, "_FillValue": -32767},
    "integers": {"dtype": "i4", "_FillValue": -9999},
    "zeros": {"dtype": "u1", "_FillValue": 0},
    "floats": {"_FillValue": 1e20},
    "small floats": {"dtype": "f4", "_FillValue": np.float32(1e20)},
    "NaN": {"dtype": "f4", "_FillValue": np.nan},
    "missing": {"dtype": "f4", "_FillValue": np.float32(-999), "missing_value": np.float32(-999)},
    "only missing": {"dtype": "i2", "missing_value": -1},
    "unsigned": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1, "scale_factor": 0.5},
    "unsigned zeros": {"dtype": "i2", "_Unsigned": "true", "_FillValue": 0, "scale_factor": 0.003},
    "signed": {"dtype": "u1", "_Unsigned": "false", "_FillValue": 127, "scale_factor": 1.0, "add_offset": 100.0},
}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("encoding", _ENCODINGS.values(), ids=_ENCODINGS)
def test_views_combine_what_xarray_decodes(repo, encoding, zarr_format):
    values = 20.0 + np.arange(_DAYS) % 7
    values[3::5] = 120
    values[::5] = values[21:23] = np.nan
    values[31:] = np.nan  # all of a month, and all of some elements of a level
    written = _days(values=values).to_zarr
    with repo.transaction() as store:
        written(store, group="d", consolidated=False, encoding={"t": encoding}, zarr_format=zarr_format)  # type: ignore[call-overload]
        method: Any
        for method in ("mean", "min", "max", "count"):
            store.views[method] = Reduce("d/t", "time", method, f"{method}/t")
            store.views[f"{method}s"] = Reduce("d/t", "time", method, f"{method}s/t", by="month")
        for method in ("mean", "min", "max", "mode"):
            store.views[f"{method}-levels"] = Coarsen("d/t", f"{method}-levels/{{level}}", (4,), method=method)
    ds = _opened(repo, "d")
    np.testing.assert_allclose(ds.t, values, rtol=1e-3)
    for method in ("mean", "min", "max", "count"):
        np.testing.assert_allclose(_opened(repo, method).t, getattr(ds.t, method)(), rtol=1e-6)
        np.testing.assert_allclose(
            _opened(repo, f"{method}s").t, getattr(ds.t.resample(time="MS"), method)(), rtol=1e-6
        )
    exact = 0.51 * encoding.get("scale_factor", 1) if np.dtype(encoding.get("dtype", "f8")).kind in "iu" else 1e-3
    for method in ("mean", "min", "max"):
        wanted = getattr(ds.t.coarsen(time=4), method)()
        np.testing.assert_allclose(_opened(repo, f"{method}-levels")["1"], wanted, rtol=0, atol=exact)
    modes = [[*pd.Series(block).mode(), np.nan][0] for block in ds.t.values.reshape(-1, 4)]
    np.testing.assert_allclose(_opened(repo, "mode-levels")["1"], modes)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("labels", "attributes"),
    [
        (np.arange(_DAYS, dtype="i2"), {"scale_factor": 24.0, "units": "hours since 2024-01-01"}),
        (-np.arange(_DAYS, dtype="i4"), {"scale_factor": -1.0, "add_offset": 30.0, "units": "days since 2024-01-01"}),
        ((100 + np.arange(_DAYS)).astype("i1"), {"_Unsigned": "true", "units": "days since 2023-10-01"}),
    ],
)
def test_periods_of_times_as_xarray_decodes_them(repo, labels, attributes, zarr_format):
    with repo.transaction() as store:
        for name, data in (("t", np.arange(float(_DAYS))), ("time", labels)):
            made = zarr.create_array(store, name=f"d/{name}", data=data, zarr_format=zarr_format, fill_value=99)
            made.attrs.update({"_ARRAY_DIMENSIONS": ["time"], **(attributes if name == "time" else {})})
            if zarr_format == 3:
                zarr.create_array(
                    store, name=f"d/{name}", data=data, dimension_names=["time"], attributes=dict(made.attrs),
                    overwrite=True,
                )  # fmt: skip
        store.views["m"] = Reduce("d/t", "time", "mean", to="m/t", by="month")
    wanted, found = _opened(repo, "d").t, _opened(repo, "m").t
    months = [str(each)[:7] for each in wanted.time.values]
    firsts = [months.index(each) for each in dict.fromkeys(months)]
    np.testing.assert_array_equal(found.time, wanted.time[firsts])
    np.testing.assert_array_equal(found, wanted.resample(time="MS").mean())


def test_means_of_booleans_are_fractions(repo: txstore.Repository) -> None:
    """xarray stores them as integers, with an attribute that says so: of their means that is not true."""
    ds = _days(values=np.arange(_DAYS) % 4 == 0)
    with repo.transaction() as store:
        ds.to_zarr(store, group="d", consolidated=False)
        store.views["m"] = Reduce("d/t", "time", "mean", to="m/t")
        store.views["c"] = Reduce("d/t", "time", "count", to="c/t")
        store.views["x"] = Reduce("d/t", "time", "max", to="x/t")
    assert float(_opened(repo, "m").t) == 0.25
    assert int(_opened(repo, "c").t) == _DAYS
    assert _opened(repo, "x").t.dtype == bool


def test_levels_hold_no_means_of_booleans(repo: txstore.Repository) -> None:
    """They would say whether any is true."""
    view = Coarsen("image/0", "image/{level}", (2, 2))
    with pytest.raises(ValueError, match="can't hold means of booleans"):
        commit(repo, image(values=VALUES % 3 == 0), v=view)
    with repo.transaction() as store:
        image(values=VALUES % 3 == 0)(store)
        image("image/1", np.zeros([-(-n // 2) for n in VALUES.shape]))(store)
        store.views["v"] = view
    assert 0 < _stored(repo, "image/1").mean() < 0.5


def test_a_group_that_xarray_will_refuse(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        _days().to_zarr(store, consolidated=False)
        with pytest.warns(UserWarning, match=r"'t1' has fewer elements along 'time'.*xr\.open_dataset will refuse"):
            store.views["beside"] = Coarsen("t", to="t{level}", factors=(2,))
        store.views["apart"] = Coarsen("t", to="levels/{level}/t", factors=(2,))
    with pytest.raises(ValueError, match="conflicting sizes"):
        _opened(repo, "")
    assert _opened(repo, "levels/1").t.size == _DAYS // 2


def test_the_mode_of_no_values_is_no_value(repo: txstore.Repository) -> None:
    data = np.array([0.0, 0.0, 0.0, 1.0, np.nan, 0.0])
    commit(
        repo, image("a", data, chunks=(2,), attributes={"_FillValue": 0.0}), v=Coarsen("a", "v{level}", (2,), 1, "mode")
    )
    np.testing.assert_array_equal(_stored(repo, "v1"), [np.nan, 1, np.nan])


def test_another_number_stands_for_no_value(repo: txstore.Repository) -> None:
    data = np.array([1.0, -1.0, 5.0, 7.0])
    commit(repo, image("a", data, chunks=(2,)), v=Reduce("a", "x", "min", to="v"))
    with repo.transaction() as store:
        zarr.open_array(store, path="a").attrs["_FillValue"] = -1.0
    assert _stored(repo, "v") == 1


def test_a_fill_value_that_is_no_number(repo: txstore.Repository) -> None:
    with pytest.raises(ValueError, match="'image/0' says by 'none' which elements are no values"):
        commit(repo, image(attributes={"_FillValue": "none"}), v=Coarsen("image/0", "image/{level}", (2, 2)))


@pytest.mark.parametrize(
    "data", [np.array(["2020-01-01", "2020-01-03", "NaT"], "M8[D]"), np.array([1, 3, "NaT"], "m8[s]")]
)
def test_no_time_is_no_value(repo: txstore.Repository, data: np.ndarray) -> None:
    views = {method: Reduce("a", "x", method, to=method) for method in ("mean", "min", "max", "count")}  # type: ignore[arg-type]
    commit(repo, image("a", data, chunks=(2,)), **views)
    assert _stored(repo, "min") == data[0]
    assert _stored(repo, "max") == data[1]
    assert _stored(repo, "mean") == data[0] + (data[1] - data[0]) // 2
    assert _stored(repo, "count") == 2


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["2020-02-05", "NaT", "2020-01-03"], "M8[s]"),
        np.array([np.iinfo("i8").min, 0, 1]),
        np.array([0.0, 1.0, np.inf]),
    ],
)
def test_labels_that_are_no_times(repo: txstore.Repository, labels: np.ndarray) -> None:
    with pytest.raises(ValueError, match="no times"), repo.transaction() as store:
        zarr.create_array(store, name="d/x", data=np.arange(3.0), dimension_names=("time",))
        time = zarr.create_array(store, name="d/time", data=labels, dimension_names=("time",))
        if labels.dtype.kind != "M":
            time.attrs["units"] = "days since 2000-01-01"
        store.views["m"] = Reduce("d/x", "time", "mean", to="m/x", by="month")


_INFINITE = complex(np.inf, 0)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value)")
@pytest.mark.parametrize(
    ("dtype", "fill", "mean"),
    [
        ("i8", 2**53 + 1, 2**53),
        ("f8", 1e308, np.inf),
        ("c16", _INFINITE, None),
        ("f8", 0.5, 0.5),
        ("u1", 7, 7),
        ("f8", np.nan, np.nan),
    ],
)
def test_means_of_what_is_not_stored(repo: txstore.Repository, dtype: str, fill: Any, mean: Any) -> None:
    """All elements have equal inputs: those that were there when the view was declared, and those of later rows."""
    with repo.transaction() as store:
        zarr.create_array(store, name="a", shape=(2,), dtype=dtype, chunks=(2,), fill_value=fill)
        store.views["m"] = Coarsen("a", "m{level}", (2,))
    with repo.transaction() as store:
        zarr.open_array(store, path="a").resize((8,))
    found = _stored(repo, "m1")
    assert len({each.tobytes() for each in found}) == 1
    if mean is not None:
        np.testing.assert_array_equal(found, np.full(4, mean, dtype))


# --- two at once


def test_somebody_writes_to_an_output_during_its_first_update(repo, monkeypatch):
    """Also where the update writes nothing."""
    with repo.transaction() as store:
        zarr.create_array(store, name="a", shape=(8,), dtype="f8", chunks=(2,))[:2] = 5
        store.views["m"] = Coarsen("a", "m{level}", (2,), method="max", when="follow")
    derive_part = following.derive_part

    def beside(*given: Any) -> Any:
        done = derive_part(*given)
        monkeypatch.undo()
        with repo.transaction("by hand") as store:
            zarr.open_array(store, path="m1")[3] = 99
        return done

    monkeypatch.setattr(following, "derive_part", beside)
    view = repo.views["m"]
    with pytest.raises(txstore.ConflictError):
        view.update()
    assert not view.is_current()
    _updated(repo)
    assert _stored(repo, "m1").tolist() == [5, 0, 0, 0]
