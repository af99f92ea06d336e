"""The data set that the tests of this group write, and where tools find it that open no store."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

import txstore
from tests.serving.client import running


def field(hours: int = 24) -> xr.Dataset:
    """Return a temperature of the Earth, of shape (hours, 180, 360)."""
    lat, lon = np.arange(-89.5, 90), np.arange(-179.5, 180)
    waves = 280 + 20 * np.cos(np.radians(lat))[:, None] + 5 * np.sin(np.radians(3 * lon))
    noise = np.random.default_rng(0).random((hours, 180, 360))
    time = np.datetime64("2026-01-01", "ns") + np.arange(hours) * np.timedelta64(1, "h")
    about = {"units": "K", "standard_name": "air_temperature"}
    return xr.Dataset(
        {"t": (("time", "lat", "lon"), (waves + noise).astype("f4"), about)},
        {"time": time, "lat": ("lat", lat, {"units": "degrees_north"}), "lon": ("lon", lon, {"units": "degrees_east"})},
        {"title": "field"},
    )


def write(store: Any, zarr_format: int = 3) -> None:
    """Write the field in chunks of shape (6, 90, 180), and consolidated metadata: HTTP has no listing."""
    encoding = {"t": {"chunks": (6, 90, 180)}}
    field().to_zarr(store, encoding=encoding, zarr_format=zarr_format, consolidated=False)
    zarr.consolidate_metadata(store, zarr_format=zarr_format)


@contextmanager
def served_directory(path: Path) -> Iterator[str]:
    """Give the URL of a directory that Python's own server serves."""
    command = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "--protocol", "HTTP/1.1", "0"]
    process = subprocess.Popen(command, cwd=path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = re.search(r"port (\d+)", process.stdout.readline())
        yield f"http://127.0.0.1:{port[1]}"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def served(repo: txstore.Repository) -> Iterator[str]:
    """Give the URL of the newest commit, which `txstore serve` serves."""
    head = repo.head()
    with running(repo.url) as server:
        yield f"{server.address}at/{head.id}"


@contextmanager
def exported(repo: txstore.Repository, *, consolidated: bool = True) -> Iterator[Path]:
    """Give the directory of an export."""
    directory = Path(f"{repo.url}.zarr")
    repo.export(directory, consolidated=consolidated)
    yield directory


@contextmanager
def directory(path: Path) -> Iterator[Path]:
    yield path
