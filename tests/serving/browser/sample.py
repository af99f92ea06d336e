"""A repository to look at: some weeks of weather that somebody might have, with branches, tags, a merge and gaps."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import zarr
from numcodecs import LZMA, Blosc
from zarr.codecs import BloscCodec

import txstore
from txstore.history import new_commit as versions

LATITUDES, LONGITUDES, DAYS = 181, 360, 12
AUTHORS = ("amal@ocean", "jonas@lab-3", "mei@lab-3", "nightly@cron")
#: Commits, and hours between two of them: made in one go, they would all be of the same minute.
_COMMITS, _HOURS = 18, 9

#: What would be a script, if any of it were taken for HTML. Names of arrays may hold most of it.
HOSTILE = "<img src=x onerror=\"document.title='stolen'\"><script>document.title='stolen'</script>"
HOSTILE_NAME = "<b onmouseover=\"document.title='stolen'\">bold & 100%?#"


def temperature(day: int) -> npt.NDArray[np.float32]:
    """Return a field in kelvin that looks like one: warm in the middle, with waves that travel."""
    lat = np.deg2rad(np.linspace(90, -90, LATITUDES))[:, None]
    lon = np.deg2rad(np.arange(LONGITUDES))[None, :]
    waves = 5 * np.sin(3 * lon + 0.4 * day) * np.cos(2 * lat) + 3 * np.sin(7 * lon - 0.7 * day + 4 * lat)
    land = 9 * np.sin(2 * lon + 1.2) * np.cos(lat) * np.sin(lat + 0.6 * np.sin(3 * lon))
    noise = np.random.default_rng(day).normal(scale=0.4, size=(LATITUDES, LONGITUDES))
    return (255 + 45 * np.cos(lat) ** 2 + waves * np.cos(lat) + land + noise).astype("f4")


@contextmanager
def _made_by(author: str, when: int) -> Iterator[None]:
    """Commit as somebody else, at another time (in microseconds)."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(versions, "this_user", return_value=author))
        stack.enter_context(mock.patch.object(versions, "_commit_time", return_value=when))
        yield


def make(path: Path | str) -> txstore.Repository:
    repo = txstore.Repository(path)
    hour = 3600 * 1_000_000
    times = (time.time_ns() // 1000 - (_COMMITS - i) * _HOURS * hour + 6 * hour for i in itertools.count())

    def commit(
        message: str, work: Callable[[Any], Any], *, author: int = 3, branch: str = "main", **properties: Any
    ) -> None:
        with (
            _made_by(AUTHORS[author], next(times)),
            repo.transaction(message, branch=branch, properties=properties) as tx,
        ):
            work(tx)

    def analyse(days: range) -> None:
        for day in days:
            commit(f"Analysis of day {day + 1}", partial(_add_day, day=day), run=f"2026-11-{day + 1:02}")

    commit("Begin: grids, stations and a relief\n\nThe grid is that of the reanalysis, one degree.", _begin, author=0)
    analyse(range(4))
    repo.tags["v1.0"] = repo.head()
    repo.branches["recalibrated"] = repo.head()
    commit("Stations: ten more days", _stations, author=2)
    commit("Recalibrate the southern ocean", _recalibrate, author=1, branch="recalibrated", ticket="QC-118")
    analyse(range(4, 8))
    commit("Bias of the drifting buoys", _describe, author=1, branch="recalibrated")
    with _made_by(AUTHORS[0], next(times)):
        repo.merge("recalibrated", message="Merge the recalibration")
    repo.branches["finer-relief"] = repo.head()
    commit("Satellite: first orbits", _satellite, author=2)
    commit("Relief with the new islands", _islands, author=2, branch="finer-relief")
    analyse(range(8, 10))
    commit("Mask the broken scan lines of orbit 3", _mask, author=1)
    repo.tags["for-the-report"] = repo.head()
    return repo


def _begin(store: Any) -> None:
    root = zarr.create_group(store, attributes={"title": "Weather of November", "licence": "CC-BY-4.0"})
    surface = root.create_group("surface", attributes={"grid": "1 degree", "conventions": ["CF-1.11", "ACDD-1.3"]})
    surface.create_array(
        "temperature",
        shape=(DAYS, LATITUDES, LONGITUDES),
        chunks=(1, 61, 90),
        dtype="f4",
        fill_value=float("nan"),
        dimension_names=("time", "latitude", "longitude"),
        attributes={"units": "K", "long_name": "Air temperature at 2 m", "valid_range": [180, 340]},
    )
    surface.create_array(
        "relief",
        data=_relief(),
        chunks=(46, 60),
        compressors=[BloscCodec(cname="lz4", shuffle="shuffle")],
        dimension_names=("latitude", "longitude"),
        attributes={"units": "m", "source": {"name": "made up", "year": 2026}},
    )
    surface.create_array(
        "moisture",
        shape=(180, 360),
        chunks=(6, 6),
        dtype="f4",
        fill_value=float("nan"),
        dimension_names=("latitude", "longitude"),
        attributes={"units": "m3 m-3", "comment": "the newest passage over each place"},
    )
    stations = root.create_group("stations")
    stations.create_array("pressure", data=_pressure(100), chunks=(64,), dimension_names=("time",))
    stations.create_array(
        "names", data=np.array(["Ny-Ålesund", "Quito", "Ulaanbaatar", "Dunedin"], dtype=np.dtypes.StringDType())
    )
    stations.create_array("count", data=np.array(4))
    root.create_array("checksum", data=np.arange(12, dtype="u8"), chunks=(5,))


def _text(*values: str) -> Any:
    return np.array(values, dtype=np.dtypes.StringDType())


def _relief() -> npt.NDArray[np.int16]:
    lat = np.deg2rad(np.linspace(90, -90, LATITUDES))[:, None]
    lon = np.deg2rad(np.arange(LONGITUDES))[None, :]
    field = sum(np.sin(k * lon + k * k) * np.cos((k + 1) * lat + k) / k for k in range(1, 9))
    return (field * 1400 - 900).astype("i2")


def _pressure(count: int) -> npt.NDArray[np.float64]:
    at = np.arange(count)
    return 1013 + 9 * np.sin(at / 17) + 4 * np.sin(at / 5.3) + np.random.default_rng(3).normal(scale=0.7, size=count)


def _add_day(store: Any, day: int) -> None:
    zarr.open_array(store, path="surface/temperature")[day] = temperature(day)
    # A satellite passes over a strip that leans, the next day over one that overlaps it.
    moisture = zarr.open_array(store, path="surface/moisture")
    field = 0.25 + 0.2 * np.sin(np.arange(360) / 21 + day / 9)[None, :] * np.cos(np.arange(180) / 31)[:, None]
    for row in range(0, 180, 6):
        left = (day * 36 + row // 3 // 6 * 6) % 360
        moisture[row : row + 6, left : left + 54] = field[row : row + 6, left : left + 54]


def _stations(store: Any) -> None:
    old, new = 100, 340
    pressure = zarr.open_array(store, path="stations/pressure")
    pressure.resize((new,))
    pressure[old:] = _pressure(new)[old:]


def _recalibrate(store: Any) -> None:
    array = zarr.open_array(store, path="surface/temperature")
    array[2, 122:, 90:270] = array[2, 122:, 90:270] + 2.5
    array.attrs["calibration"] = {"by": "buoys", "offset": 2.5}


def _describe(store: Any) -> None:
    zarr.open_array(store, path="surface/temperature").attrs["comment"] = "Corrected south of 32 degrees south."


def _islands(store: Any) -> None:
    relief = zarr.open_array(store, path="surface/relief")
    relief[40:60, 100:130] = 250


def _satellite(store: Any) -> None:
    root = zarr.open_group(store)
    swath = root.create_group("satellite").create_array(
        "radiance", shape=(1024, 1024), chunks=(64, 64), shards=(256, 256), dtype="f4", fill_value=0.0
    )
    y, x = np.mgrid[0:1024, 0:1024] / 1024
    field = (np.sin(18 * x + 6 * y * y) + np.cos(23 * y - 5 * x) + 2.4).astype("f4")
    for orbit in range(4):
        rows = slice(0, 1024)
        columns = slice(orbit * 256, orbit * 256 + 192 if orbit != 2 else orbit * 256 + 256)
        swath[rows, columns] = field[rows, columns]


def _mask(store: Any) -> None:
    zarr.open_array(store, path="satellite/radiance")[300:340, 512:768] = 0


def make_hostile(path: Path | str) -> txstore.Repository:
    """A repository whose every text is an attack on whoever shows it."""
    repo = txstore.Repository(path)
    now = time.time_ns() // 1000
    with _made_by(HOSTILE, now), repo.transaction(HOSTILE, properties={HOSTILE: HOSTILE}) as store:
        root = zarr.create_group(store, attributes={HOSTILE: HOSTILE})
        root.create_array(
            HOSTILE_NAME,
            data=np.arange(6.0).reshape(2, 3),
            dimension_names=(HOSTILE, "x"),
            attributes={HOSTILE: {HOSTILE: [HOSTILE]}},
        )
        root.create_array("words", data=_text(HOSTILE, "plain"))
    with _made_by(HOSTILE, now + 1), repo.transaction(HOSTILE) as store:
        zarr.open_array(store, path=HOSTILE_NAME)[0] = 7
        zarr.open_array(store, path=HOSTILE_NAME).attrs[HOSTILE] = "changed"
    repo.tags["a-tag"] = repo.head()
    return repo


def make_format_2(path: Path | str) -> txstore.Repository:
    """Arrays of format 2, in the codecs that it is usually in, and in one that the page does not know."""
    repo = txstore.Repository(path)
    with repo.transaction("format 2") as store:
        root = zarr.create_group(store, zarr_format=2)
        data = temperature(0)
        for name, compressor in {
            "blosclz": Blosc("blosclz", shuffle=Blosc.SHUFFLE),
            "bits": Blosc("zstd", shuffle=Blosc.BITSHUFFLE),
            "zlib": Blosc("zlib", shuffle=Blosc.NOSHUFFLE),
            "lzma": LZMA(),
        }.items():
            root.create_array(name, data=data, chunks=(64, 64), compressors=compressor)
    return repo
