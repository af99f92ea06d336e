"""One class for each store. To add a store, write a class with these four methods, and put it in `ADAPTERS`.

The array has 8-byte integers. A write is acknowledged when the method returns. A method raises `Refused` if the store
says that it can't do this now: the job counts it and tries again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

COLUMNS = 512
#: Rows of a chunk. A region has several chunks, so that a torn write can be seen.
CHUNK = 8


class Refused(Exception):
    """The store refused the work, and said so. Nothing was written."""


class Adapter:
    """The array of one store at a path, in one process."""

    name: ClassVar[str]

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, rows: int) -> None:
        """Create the array, filled with zeros."""
        raise NotImplementedError

    def write(self, start: int, values: np.ndarray[Any, Any]) -> None:
        """Replace rows from `start` on."""
        raise NotImplementedError

    def append(self, values: np.ndarray[Any, Any]) -> None:
        """Add rows at the end."""
        raise NotImplementedError

    def read(self, start: int | None = None, stop: int | None = None) -> np.ndarray[Any, Any]:
        """Return rows of the array as it is now."""
        raise NotImplementedError


def create_array(store: Any, rows: int, **options: Any) -> None:
    """Create the array in a store of zarr's."""
    import zarr

    zarr.create_array(store, shape=(rows, COLUMNS), chunks=(CHUNK, COLUMNS), dtype="i8", compressors=None, **options)


class TxStore(Adapter):
    name = "TxStore"

    def _repository(self) -> Any:
        import txstore

        if not hasattr(self, "_repo"):
            self._repo = txstore.Repository(self.path)
        return self._repo

    def create(self, rows: int) -> None:
        with self._repository().transaction() as store:
            create_array(store, rows, name="x")

    def write(self, start: int, values: np.ndarray[Any, Any]) -> None:
        import zarr

        def change(store: Any) -> None:
            zarr.open_array(store, path="x")[start : start + len(values)] = values

        self._repository().run(change)

    def append(self, values: np.ndarray[Any, Any]) -> None:
        import zarr

        self._repository().run(lambda store: zarr.open_array(store, path="x").append(values))

    def read(self, start: int | None = None, stop: int | None = None) -> np.ndarray[Any, Any]:
        import zarr

        return np.asarray(zarr.open_array(self._repository().snapshot(), path="x", mode="r")[start:stop])


class LocalStore(Adapter):
    """zarr's own store of files."""

    name = "LocalStore"

    def _open(self) -> Any:
        import zarr

        return zarr.open_array(str(self.path))

    def create(self, rows: int) -> None:
        create_array(str(self.path), rows)

    def write(self, start: int, values: np.ndarray[Any, Any]) -> None:
        self._open()[start : start + len(values)] = values

    def append(self, values: np.ndarray[Any, Any]) -> None:
        self._open().append(values)

    def read(self, start: int | None = None, stop: int | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._open()[start:stop])


class Icechunk(Adapter):
    """A session for each write, rebased on what others have committed meanwhile."""

    name = "Icechunk"

    def _repository(self) -> Any:
        import icechunk

        if not hasattr(self, "_repo"):
            icechunk.set_logs_filter("error")
            self._repo = icechunk.Repository.open_or_create(icechunk.local_filesystem_storage(str(self.path)))
        return self._repo

    def create(self, rows: int) -> None:
        session = self._repository().writable_session("main")
        create_array(session.store, rows, name="x")
        session.commit("create")

    def _commit(self, change: Any) -> None:
        import icechunk
        import zarr

        session = self._repository().writable_session("main")
        change(zarr.open_array(session.store, path="x"))
        try:
            session.commit("change", rebase_with=icechunk.ConflictDetector())
        except (icechunk.ConflictError, icechunk.RebaseFailedError) as error:
            raise Refused(str(error)) from error

    def write(self, start: int, values: np.ndarray[Any, Any]) -> None:
        def change(array: Any) -> None:
            array[start : start + len(values)] = values

        self._commit(change)

    def append(self, values: np.ndarray[Any, Any]) -> None:
        self._commit(lambda array: array.append(values))

    def read(self, start: int | None = None, stop: int | None = None) -> np.ndarray[Any, Any]:
        import zarr

        session = self._repository().readonly_session("main")
        return np.asarray(zarr.open_array(session.store, path="x", mode="r")[start:stop])


class Ocdbt(Adapter):
    """TensorStore's B+tree of values; each write is one atomic transaction."""

    name = "TensorStore ocdbt"

    def _keys(self) -> dict[str, Any]:
        return {"driver": "ocdbt", "base": f"file://{self.path}/", "path": "x/"}

    def _open(self, transaction: Any = None) -> Any:
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": self._keys()}
        return tensorstore.open(spec, open=True, transaction=transaction).result()

    def create(self, rows: int) -> None:
        import tensorstore

        metadata = {
            "shape": [rows, COLUMNS],
            "data_type": "int64",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK, COLUMNS]}},
        }
        tensorstore.open({"driver": "zarr3", "kvstore": self._keys(), "metadata": metadata}, create=True).result()

    def write(self, start: int, values: np.ndarray[Any, Any]) -> None:
        import tensorstore

        array = self._open()
        with tensorstore.Transaction(atomic=True) as transaction:
            array.with_transaction(transaction)[start : start + len(values)].write(values).result()

    def append(self, values: np.ndarray[Any, Any]) -> None:
        """Read the length, resize and write in one transaction, which fails if the length has changed."""
        import tensorstore

        try:
            with tensorstore.Transaction(atomic=True, repeatable_read=True) as transaction:
                array = self._open(transaction)
                end = array.shape[0]
                larger = array.resize(exclusive_max=(end + len(values), COLUMNS), expand_only=True).result()
                larger[end:].write(values).result()
        except ValueError as error:
            raise Refused(str(error)) from error

    def read(self, start: int | None = None, stop: int | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._open()[start:stop].read().result())


class Hdf5(Adapter):
    """One file, opened for each call: HDF5 locks it, and refuses a second process."""

    name = "HDF5"

    def _open(self, mode: str) -> Any:
        import h5py

        try:
            return h5py.File(self.path, mode)
        except OSError as error:
            raise Refused(str(error)) from error

    def create(self, rows: int) -> None:
        with self._open("w") as file:
            file.create_dataset("x", (rows, COLUMNS), "i8", chunks=(CHUNK, COLUMNS), maxshape=(None, COLUMNS))

    def write(self, start: int, values: np.ndarray[Any, Any]) -> None:
        with self._open("r+") as file:
            file["x"][start : start + len(values)] = values

    def append(self, values: np.ndarray[Any, Any]) -> None:
        with self._open("r+") as file:
            end = file["x"].shape[0]
            file["x"].resize(end + len(values), axis=0)
            file["x"][end:] = values

    def read(self, start: int | None = None, stop: int | None = None) -> np.ndarray[Any, Any]:
        with self._open("r") as file:
            return np.asarray(file["x"][start:stop])


ADAPTERS: dict[str, type[Adapter]] = {each.name: each for each in (TxStore, LocalStore, Icechunk, Ocdbt, Hdf5)}
