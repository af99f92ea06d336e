"""What many commits leave behind once somebody has cleaned up; and what a repository that cleans up by itself pays."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zarr

import txstore
from benchmarks.harness import Row, Setting

_CHUNKS, _LENGTH = 100, 100  # of 800 bytes each


def rewriting(setting: Setting) -> list[Row]:
    """10,000 commits that rewrite 100 chunks of 800 B, then optimize and vacuum(keep=1)."""
    commits = setting.rounds(10_000, 1_000)
    with setting.scratch() as scratch:
        repo = _written(scratch / "data.tx", commits)
        before = _usage(Path(repo.url))
        began = time.perf_counter()
        repo.optimize()
        repo.vacuum(keep=1)
        seconds = time.perf_counter() - began
        files, size = _usage(Path(repo.url))
        snapshot = repo.mapping()
        least = sum(len(key) + (snapshot.size_of(key) or 0) for key in snapshot)
        del snapshot
        repo.verify()
    what = f"{commits:,} commits that rewrite {_CHUNKS} chunks of 800 B, optimize, vacuum(keep=1)"
    figures = [{"files_before": before[0], "bytes_before": before[1], "seconds": seconds, "least": least}]
    return [
        Row("maintenance-files", f"{what}: files", files, 10, "files", figures=figures),
        Row(
            "maintenance-bytes", f"{what}: bytes above keys, values and 64 KiB",
            max(0.0, (size - (64 << 10)) / least - 1) * 100, 5.0, "%", figures=figures,
        ),
        Row("maintenance-time", f"{what}: time of the two", seconds, 10.0, "s", figures=figures),
    ]  # fmt: skip


def retention(setting: Setting) -> list[Row]:
    """The same commits with `retention=100`, and without: what each pays, and what is left."""
    commits = setting.rounds(3_000, 300)
    with setting.scratch() as scratch:
        seconds = {}
        for name, keep in (("warm", None), ("without", None), ("with", 100)):
            began = time.perf_counter()
            repo = _written(scratch / f"{name}.tx", commits, keep, durability="fsync")
            seconds[name] = time.perf_counter() - began
        files, _ = _usage(Path(repo.url))
    return [
        Row(
            "retention-time", f"{commits:,} commits with retention=100: time of those without",
            seconds["with"] / seconds["without"], 2.0,
        ),
        Row("retention-files", f"{commits:,} commits with retention=100: files", files, 250, "files"),
    ]  # fmt: skip


def _written(path: Path, commits: int, retention: int | None = None, durability: str = "none") -> txstore.Repository:
    repo = txstore.Repository(path, durability=durability, retention=retention)
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(_CHUNKS * _LENGTH,), chunks=(_LENGTH,), dtype="f8", compressors=None)
        zarr.open_array(store, path="x")[:] = 1.0
    generator = random.Random(1)
    for number in range(commits - 1):
        with repo.begin() as mapping:
            mapping[f"x/c/{generator.randrange(_CHUNKS)}"] = np.full(_LENGTH, float(number)).tobytes()
    return repo


def _usage(root: Path) -> tuple[int, int]:
    """Return files and bytes, `locks/` aside."""
    files = size = 0
    for folder, names, contents in os.walk(root):
        names[:] = [name for name in names if name != "locks"]
        files += len(contents)
        size += sum(Path(folder, name).stat().st_size for name in contents)
    return files, size


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {"maintenance": rewriting, "maintenance-retention": retention}
