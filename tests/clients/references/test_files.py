"""Files of other formats, as references and as copies; what reads an export, and what reads references."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import h5netcdf
import kerchunk.combine
import kerchunk.hdf
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore as ObstoreLocal
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser
from zarr_checksum import compute_zarr_checksum
from zarr_checksum.generators import yield_files_local

import txstore
from tests.clients.references.fields import directory, exported, field, write
from tests.clients.trials import Both, tool


@pytest.fixture
def halves(tmp_path: Path) -> list[Path]:
    """Two NetCDF files of twelve hours each."""
    paths = [tmp_path / "raw" / f"{half}.nc" for half in ("morning", "evening")]
    paths[0].parent.mkdir()
    for path, hours in zip(paths, (slice(0, 12), slice(12, 24)), strict=True):
        part = field().isel(time=hours)
        part.time.encoding = {"units": "hours since 2026-01-01"}
        part.t.encoding = {"chunksizes": (6, 90, 180)}
        part.to_netcdf(path, engine="h5netcdf")
    return paths


@tool(
    "virtualizarr",
    code='txstore.write_virtual(open_virtual_dataset(url, ...), store, append_dim="time")',
    tried="files of NetCDF as references, appended in one transaction",
)
def test_virtualizarr(halves: list[Path], tmp_path: Path) -> None:
    registry = ObjectStoreRegistry({"file://": ObstoreLocal()})
    repo = txstore.Repository(tmp_path / "data.tx", sources=[tmp_path / "raw"])
    with repo.transaction("both halves") as store:
        for number, path in enumerate(halves):
            virtual = open_virtual_dataset(path.as_uri(), registry=registry, parser=HDFParser())
            txstore.write_virtual(virtual, store, "day", **({"append_dim": "time"} if number else {}))
    xr.testing.assert_identical(xr.open_zarr(repo.snapshot(), group="day").load(), field())
    assert repo.verify(sources=True).faults == []


@tool(
    "kerchunk",
    code="repo.import_references(MultiZarrToZarr([...]).translate(), path)",
    tried="files of HDF5, combined, as references",
)
def test_kerchunk(halves: list[Path], tmp_path: Path) -> None:
    manifests = [kerchunk.hdf.SingleHdf5ToZarr(str(path)).translate() for path in halves]
    combined = kerchunk.combine.MultiZarrToZarr(manifests, concat_dims=["time"], identical_dims=["lat", "lon"])
    repo = txstore.Repository(tmp_path / "data.tx", sources=[tmp_path / "raw"])
    repo.import_references(combined.translate(), "day")
    with repo.transaction("corrected") as store:
        zarr.open_array(store, path="day/t")[0] = 0
    found = xr.open_zarr(repo.snapshot(), group="day").load()
    np.testing.assert_array_equal(found.t[1:], field().t[1:])
    assert not found.t[0].any()
    assert repo.verify(sources=True).faults == []


@tool(
    "fsspec",
    code='fsspec.filesystem("reference", fo="x.json")  # of repo.references("x.json", tag="v1")',
    tried="references into a repository, in JSON",
)
def test_references(repo: txstore.Repository, tmp_path: Path) -> None:
    with repo.transaction() as store:
        write(store)
    repo.references(tmp_path / "x.json", tag="v1", create_tag=True)
    found = xr.open_zarr("reference://", storage_options={"fo": str(tmp_path / "x.json")}, chunks=None).load()
    xr.testing.assert_identical(found, field())


@tool("fastparquet", code='repo.references("x.parquet", tag="v1")', tried="references into a repository, in Parquet")
def test_references_in_parquet(repo: txstore.Repository, tmp_path: Path) -> None:
    with repo.transaction() as store:
        write(store)
    repo.references(tmp_path / "x.parquet", tag="v1", create_tag=True)
    options = {"fo": str(tmp_path / "x.parquet"), "remote_protocol": "file"}
    found = xr.open_zarr("reference://", storage_options=options, chunks=None, zarr_format=2).load()
    xr.testing.assert_identical(found, field())


@tool(
    "h5netcdf",
    code='xr.open_zarr(repo.snapshot()).to_netcdf("x.nc", engine="h5netcdf"); repo.import_from("x.nc")',
    tried="a file that is written from a snapshot, and imported",
)
def test_h5netcdf(both: Both, tmp_path: Path) -> None:
    def read(store: Any) -> np.ndarray:
        xr.open_zarr(store, chunks=None).to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
        with h5netcdf.File(tmp_path / "x.nc") as file:
            return file["t"][:]

    both(write, read)
    repo = txstore.Repository(tmp_path / "imported.tx")
    repo.import_from(tmp_path / "x.nc")
    xr.testing.assert_identical(xr.open_zarr(repo.snapshot()).load(), field())


@tool(
    "netCDF4",
    code='netCDF4.Dataset("file:///exported.zarr#mode=zarr,file")  # of repo.export("exported.zarr")',
    tried="an export of format 2, read by netCDF-C as Zarr",
)
def test_netcdf(both: Both) -> None:
    def read(path: Path) -> np.ndarray:
        for _ in range(5):  # once is too short to be timed
            with netCDF4.Dataset(f"{path.as_uri()}#mode=zarr,file") as data:
                found = np.asarray(data["t"][:])
        return found

    found = both(lambda store: write(store, 2), read, local=directory, ours=exported)
    np.testing.assert_array_equal(found, field().t)


@tool(
    "zarr-checksum",
    code='compute_zarr_checksum(yield_files_local("exported.zarr"))  # of repo.export("exported.zarr")',
    tried="an export has the checksum of a directory, if it has no consolidated metadata",
)
def test_checksum(both: Both) -> None:
    def put(store: Any) -> None:
        field().to_zarr(store, encoding={"t": {"chunks": (6, 90, 180)}}, consolidated=False)

    export = partial(exported, consolidated=False)
    both(put, lambda path: compute_zarr_checksum(yield_files_local(path)).digest, local=directory, ours=export)
