"""Writes that look at what is there, alone and by eight processes at once: by label, and into a pyramid of views."""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from filelock import FileLock
from zarr.storage import LocalStore

import txstore
from benchmarks.harness import OURS, Row, Setting, faster, interleaved, middle, slower, timed
from benchmarks.own_process import Parent, Values, together
from txstore.views import Coarsen

if TYPE_CHECKING:
    import xarray as xr

PROCESSES = 8
_HOURS, _NAMES, _LATITUDES, _LONGITUDES = 87_600, ("u", "v", "t", "q", "z"), 721, 1440
_DAYS = 10_000  # before which another one is put
_TILE, _LEVELS = 256, 5


def _crowd(task: Callable[..., Any], **order: Any) -> tuple[float, list[Any]]:
    """Let each process get ready, then all do their work; return how long that took, and what they return."""
    began: list[float] = []
    answers = together(
        task, [order | {"which": which} for which in range(PROCESSES)], before=lambda: began.append(time.monotonic())
    )
    return max(each["ended"] for each in answers) - began[0], answers


# --- by label: a day of reanalysis, and a block before the first row


def _days(first: int, shape: tuple[int, int], names: tuple[str, ...], hours: int = 24) -> xr.Dataset:
    import xarray as xr  # late: an extra

    random = np.random.default_rng(first)
    values = {name: (("time", "y", "x"), random.random((hours, *shape), dtype="f4")) for name in names}
    return xr.Dataset(values, {"time": np.arange(24 * first, 24 * first + hours)})


def _create(store: Any, shape: tuple[int, int], names: tuple[str, ...]) -> None:
    """Write ten years of hours, of which no values are stored."""
    group = zarr.open_group(store)
    group.create_array("time", data=np.arange(_HOURS), chunks=(_HOURS,), dimension_names=("time",))
    for name in names:
        group.create_array(
            name, shape=(_HOURS, *shape), chunks=(24, -(-shape[0] // 4), -(-shape[1] // 4)), dtype="f4",
            dimension_names=("time", "y", "x"), compressors=None, fill_value=float("nan"),
        )  # fmt: skip


def upserts(setting: Setting) -> list[Row]:
    """Write one day of five variables into ten years: by its labels, and where the caller says that it belongs."""
    shape, numbers = (_LATITUDES, _LONGITUDES), itertools.count()
    with setting.scratch() as scratch:
        repo = txstore.Repository(scratch / "data.tx")
        with repo.transaction() as store:
            _create(store, shape, _NAMES)

        def upsert(ds: xr.Dataset) -> None:
            assert repo.upsert(ds).updated == 24

        def region(ds: xr.Dataset) -> None:
            first = int(ds.time[0])
            with repo.transaction() as store:
                ds.drop_vars("time").to_zarr(store, region={"time": slice(first, first + 24)}, consolidated=False)

        def take(write: Callable[[xr.Dataset], None]) -> float:
            ds = _days(next(numbers), shape, _NAMES)
            with timed() as seconds:
                write(ds)
            return seconds()

        takes = {"upsert": lambda: take(upsert), "region=": lambda: take(region)}
        samples = interleaved(takes, setting.rounds(7, 1))
    what = f"upsert of 24 of {_HOURS:,} hours, {len(_NAMES)} variables of {_LATITUDES} x {_LONGITUDES}: beside region="
    return [slower("upsert", what, samples, "upsert", "region=", 1.3)]


def inserts(setting: Setting) -> list[Row]:
    """Put a day before all others, so that each chunk is cut anew."""
    samples, count = list[float](), setting.rounds(_DAYS, _DAYS // 20)
    with setting.scratch() as scratch:
        repo = txstore.Repository(scratch / "data.tx")
        ds = _days(0, (60, 60), ("v",), count)
        with repo.transaction() as store:
            ds.to_zarr(store, consolidated=False, encoding={"v": {"chunks": (30, 60, 60), "compressors": None}})
        for number in range(1, setting.rounds(6, 3)):
            with timed() as seconds, repo.transaction() as store:
                txstore.prepend(ds.isel(time=slice(1)).assign_coords(time=[-number]), store, dim="time")
            samples.append(seconds())
        assert zarr.open_array(repo.snapshot(), path="v", mode="r").shape[0] == count + number
    return [middle("insert at the front", f"one of {count:,} days, in chunks of 30 x 60 x 60", samples, 2.5, "s")]


def upsert_days(path: Path, count: int, which: int, locked: bool, parent: Parent) -> Values:
    found = [_days(which * count + number, (64, 64), ("t",)) for number in range(count)]
    repo = None if locked else txstore.Repository(path / "data.tx", durability="none")
    parent.meet()
    for ds in found:
        if repo is not None:
            repo.upsert(ds)
            continue
        with FileLock(path / "lock"):
            ds.to_zarr(path / "data.zarr", region="auto", consolidated=False)
    return {"ended": time.monotonic()}


def crowd_of_upserts(setting: Setting) -> list[Row]:
    """Let eight processes write different days: by label, and with xarray under one lock."""
    count = setting.rounds(20, 2)

    def take(locked: bool) -> float:
        with setting.scratch() as scratch:
            with txstore.Repository(scratch / "data.tx", durability="none").transaction() as store:
                _create(store, (64, 64), ("t",))
            _create(LocalStore(scratch / "data.zarr"), (64, 64), ("t",))
            seconds, _ = _crowd(upsert_days, path=scratch, count=count, locked=locked)
        return seconds / (PROCESSES * count)

    peer = "to_zarr under a lock"
    samples = interleaved({OURS: lambda: take(False), peer: lambda: take(True)}, setting.rounds(3, 1))
    what = f"{PROCESSES} processes upsert different days: days a second, beside a lock around to_zarr"
    return [faster("upserts of a crowd", what, samples, OURS, peer, 4)]


# --- a pyramid of five levels that each commit derives: one tile of an image, and tiles by eight processes at once


def _image(path: Path, extent: int) -> txstore.Repository:
    repo = txstore.Repository(path)
    random = np.random.default_rng(0)
    with repo.transaction() as store:
        image = zarr.create_array(store, name="image/0", shape=(extent, extent), chunks=(_TILE, _TILE), dtype="u1")
        for row in range(0, extent, 4 * _TILE):
            image[row : row + 4 * _TILE] = random.integers(0, 64, (4 * _TILE, extent), dtype="u1")
    repo.views["pyramid"] = Coarsen("image/0", "image/{level}", (2, 2), _LEVELS)
    return repo


def _write_tile(repo: txstore.Repository, random: np.random.Generator, row: int, column: int) -> float:
    """Return the milliseconds that the commit took."""
    store = repo.transaction()
    place = slice(row * _TILE, (row + 1) * _TILE), slice(column * _TILE, (column + 1) * _TILE)
    zarr.open_array(store, path="image/0")[place] = random.integers(0, 64, (_TILE, _TILE), dtype="u1")
    with timed() as seconds:
        store.commit()
    return seconds() * 1e3


def tiles(setting: Setting) -> list[Row]:
    """Change one tile after the other."""
    extent = 4_096 if setting.quick else 32_768
    random = np.random.default_rng(1)
    with setting.scratch() as scratch:
        with timed() as whole:
            repo = _image(scratch / "data.tx", extent)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        places = random.integers(0, extent // _TILE, (setting.rounds(40, 5), 2)).tolist()
        samples = [_write_tile(repo, random, *place) for place in places]
    what = f"one tile of {_TILE} x {_TILE} of {extent:,} x {extent:,}, {_LEVELS} levels"
    print(f"{what}: image and all levels in {whole():.1f} s; peak of this process {memory:,.0f} MiB")
    return [middle("tile of a pyramid", f"{what}: the commit", samples, 60, "ms")]


def write_tiles(path: Path, count: int, which: int, parent: Parent) -> Values:
    repo, random, conflicts = txstore.Repository(path), np.random.default_rng(which), 0
    parent.meet()
    for number in range(count):
        try:
            _write_tile(repo, random, which, number)  # neighbours, whose parents are in the same chunks
        except txstore.ConflictError:
            conflicts += 1
    return {"ended": time.monotonic(), "conflicts": conflicts}


def crowd_of_tiles(setting: Setting) -> list[Row]:
    count = setting.rounds(16, 2)
    with setting.scratch() as scratch:
        _image(scratch / "data.tx", 16 * _TILE)
        seconds, answers = _crowd(write_tiles, path=scratch / "data.tx", count=count)
    what = f"{PROCESSES} processes commit neighbouring tiles, {PROCESSES * count / seconds:.0f} a second: conflicts"
    return [Row("tiles of a crowd", what, sum(each["conflicts"] for each in answers), 0, "conflicts")]


CASES = {
    "upsert": upserts, "insert at the front": inserts, "crowd of upserts": crowd_of_upserts, "tiles": tiles,
    "crowd of tiles": crowd_of_tiles,
}  # fmt: skip
