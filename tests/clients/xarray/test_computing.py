"""Libraries that compute with data sets of xarray: each reads from the store, and what it makes is written there."""

from __future__ import annotations

import warnings
from typing import Any

import arviz
import cf_xarray
import flox.xarray
import ndpyramid
import numpy as np
import pint
import pint_xarray  # noqa: F401 - gives data sets their `pint`
import pytest
import xarray as xr
import xarray_sql
import xclim
import xeofs
from pandas import MultiIndex

from tests.clients.trials import Both, tool
from tests.clients.xarray.weather import days

OPENED = "xr.open_zarr(repo.snapshot())"


@tool(
    "flox",
    code=f'flox.xarray.xarray_reduce({OPENED}.t, "time.month", func="mean").to_zarr(store)',
    tried="groups of days, read in the transaction that writes them",
)
def test_flox(both: Both) -> None:
    def write(store: Any) -> None:
        days().to_zarr(store, group="days")
        data = xr.open_zarr(store, group="days")
        mean = flox.xarray.xarray_reduce(data, data.time.dt.month, func="mean", method="map-reduce")
        mean.to_zarr(store, group="months")

    found = both(write, lambda store: xr.open_zarr(store, group="months").load())
    assert found.sizes["month"] == 2


@tool(
    "xclim",
    code=f"xclim.atmos.tg_mean({OPENED}.tas).to_zarr(store)",
    tried="indicators, read in the transaction that writes them",
)
@pytest.mark.filterwarnings("ignore")
def test_xclim(both: Both) -> None:
    def write(store: Any) -> None:
        about = {"units": "K", "cell_methods": "time: mean", "standard_name": "air_temperature"}
        tas = (days().t * 30 + 270).assign_attrs(about).rename("tas")
        tas.to_dataset().to_zarr(store, group="days")
        tas = xr.open_zarr(store, group="days").tas
        with xclim.set_options(data_validation="log"):
            found = [xclim.indicators.atmos.tg_mean(tas, freq="MS"), xclim.indicators.atmos.frost_days(tas, freq="MS")]
        xr.merge([each.drop_attrs() for each in found]).to_zarr(store, group="months")

    both(write, lambda store: xr.open_zarr(store, group="months").load())


@tool(
    "xeofs",
    code=f'EOF(2).fit({OPENED}.t, dim="time"); model.save(store); EOF.load(repo.snapshot())',
    tried="a model that is fitted, saved and loaded",
)
@pytest.mark.filterwarnings("ignore")
def test_xeofs(both: Both) -> None:
    field = days(side=60)

    def write(store: Any) -> None:
        model = xeofs.single.EOF(2, random_state=0).fit(field.t, dim="time")
        model.save(store)
        field.to_zarr(store, group="days")

    def read(store: Any) -> Any:
        model = xeofs.single.EOF.load(store)
        scores = model.transform(xr.open_zarr(store, group="days").t)
        return [model.components().to_numpy(), scores.to_numpy()]

    both(write, read)


@tool(
    "arviz",
    code="arviz.from_dict(...).to_zarr(store); arviz.from_zarr(repo.snapshot())",
    tried="samples of a posterior, as a tree",
)
def test_arviz(both: Both) -> None:
    random = np.random.default_rng(0)
    samples = {name: random.random((4, 500, 100)) for name in ("mu", "tau")}
    tree = arviz.from_dict({"posterior": samples, "log_likelihood": {"y": random.random((4, 500, 100))}})

    def read(store: Any) -> list[Any]:
        found = arviz.from_zarr(store)
        return [arviz.summary(found).to_numpy().tolist(), found["log_likelihood"].to_dataset().load()]

    both(lambda store: tree.to_zarr(store), read)


@tool("pint-xarray", code=f"ds.pint.dequantify().to_zarr(store); {OPENED}.pint.quantify()", tried="units")
def test_pint(both: Both) -> None:
    units = pint.UnitRegistry(force_ndarray_like=True)  # xclim has made one of its own the default

    def read(store: Any) -> xr.Dataset:
        quantities = xr.open_zarr(store).pint.quantify(unit_registry=units)
        return quantities.pint.to(t="degC").pint.dequantify().load()

    found = both(lambda store: days().pint.quantify(unit_registry=units).pint.dequantify().to_zarr(store), read)
    assert found.t.units == "degree_Celsius"


@tool(
    "cf-xarray",
    code=f"cf_xarray.decode_compress_to_multi_index({OPENED})",
    tried="axes by their role; an index of several levels, encoded and decoded",
)
def test_cf(both: Both) -> None:
    def write(store: Any) -> None:
        days().assign_coords(time=days().time.assign_attrs(axis="T")).to_zarr(store, group="days")
        index = MultiIndex.from_product([range(300), list("abc")], names=["number", "letter"])
        coordinates = xr.Coordinates.from_pandas_multiindex(index, "point")
        points = xr.Dataset({"value": ("point", np.arange(900.0))}, coordinates)
        cf_xarray.encode_multi_index_as_compress(points, "point").to_zarr(store, group="points")

    def read(store: Any) -> list[xr.Dataset]:
        points = cf_xarray.decode_compress_to_multi_index(xr.open_zarr(store, group="points").load(), "point")
        return [xr.open_zarr(store, group="days").cf.mean("T").load(), points]

    both(write, read)


@tool(
    "xarray-sql", code=f'XarrayContext().from_dataset("days", {OPENED})', tried="a table of a data set: groups, means"
)
def test_sql(both: Both) -> None:
    def read(store: Any) -> Any:
        context = xarray_sql.XarrayContext()
        context.from_dataset("days", xr.open_zarr(store), chunks={"time": 4})
        found = context.sql('SELECT "y", AVG("t") AS t FROM "days" WHERE "x" < 50 GROUP BY "y" ORDER BY "y"')
        return found.to_pandas().to_numpy()

    def close(store: Any) -> Any:  # the engine adds in the order in which its threads come
        return np.round(read(store), 9)

    both(lambda store: days().to_zarr(store), close)


@tool("ndpyramid", code="ndpyramid.pyramid_coarsen(ds, ...).to_zarr(store)", tried="a pyramid of three levels")
def test_pyramid(both: Both) -> None:
    def write(store: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pyramid = ndpyramid.pyramid_coarsen(days(count=20), factors=[4, 2, 1], dims=["y", "x"])
        pyramid.to_zarr(store)

    def read(store: Any) -> list[xr.Dataset]:
        tree = xr.open_datatree(store, engine="zarr", chunks={})
        return [tree[str(level)].to_dataset().load() for level in range(3)]

    both(write, read)
