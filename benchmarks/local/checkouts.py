"""A directory that programs change: checked out, one file in a hundred changed, committed."""

from __future__ import annotations

import statistics
import time

import numpy as np
import zarr

import txstore
from benchmarks.harness import Row, Setting

_FILES, _LENGTH = 10_000, 4_096  # chunks of an array of one dimension, of bytes that do not compress


def checkouts(setting: Setting) -> list[Row]:
    """Write 10,000 chunks to a new directory, change 100 of them with zarr, commit the directory."""
    samples: dict[str, list[float]] = {"checkout": [], "commit_directory": []}
    with setting.scratch() as scratch:
        repo = txstore.Repository(scratch / "data.tx")
        with repo.transaction("data") as store:
            data = np.random.default_rng(0).integers(0, 256, _FILES * _LENGTH, "u1")
            zarr.open_group(store).create_array("x", data=data, chunks=(_LENGTH,), compressors=None)
        for number in range(setting.rounds(5, 3)):
            out = scratch / f"out-{number}.zarr"
            began = time.perf_counter()
            repo.checkout(out)
            samples["checkout"].append(time.perf_counter() - began)
            first = number * _FILES // 100 * _LENGTH
            zarr.open_array(out / "x")[first : first + _FILES // 100 * _LENGTH] = number + 1
            began = time.perf_counter()
            repo.commit_directory(out)
            samples["commit_directory"].append(time.perf_counter() - began)
    medians = {name: statistics.median(each) for name, each in samples.items()}
    what = f"checkout of {_FILES:,} files, 1% of them changed, commit_directory: both calls together"
    return [Row("checkout", what, sum(medians.values()), 2, "s", medians=medians, samples=samples)]


BENCHMARKS = {"checkout": checkouts}
