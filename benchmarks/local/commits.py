"""Small durable commits, against the least that a durable write of a file costs; and what many of them leave behind."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zarr

import txstore
from benchmarks.harness import OURS, Row, Setting, interleaved, medians, ratio, settle, timed

BARE = "write, fdatasync, rename, fsync of the directory"
_CHUNK = np.arange(100.0).tobytes()


def _document(length: int) -> bytes:
    """Return the metadata of an array as zarr writes it: some 700 bytes."""
    return json.dumps(
        {
            "shape": [length],
            "data_type": "float64",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [100]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0.0,
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
            ],
            "attributes": {"unit": "m"},
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        },
        indent=2,
    ).encode()


class SmallCommits:
    """Durable appends of one chunk: the chunk and the metadata document, through the mapping."""

    def __init__(self, path: Path) -> None:
        self._repo = txstore.Repository(path)
        self._numbers = itertools.count()

    def take(self) -> float:
        number = next(self._numbers)
        document = _document(100 * (number + 1))
        with timed() as seconds:
            transaction = self._repo.begin("append")
            transaction[f"position/c/{number}"] = _CHUNK
            transaction["position/zarr.json"] = document
            transaction.commit()
        return seconds()


class BareWrites:
    """2 KB in a file of its own, durable: what nobody can do without."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self._path = path
        self._numbers = itertools.count()
        self._content = bytes(2048)

    def take(self) -> float:
        number = next(self._numbers)
        with timed() as seconds:
            temporary = f"{self._path}/new"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.write(descriptor, self._content)
            os.fdatasync(descriptor)
            os.close(descriptor)
            os.rename(temporary, f"{self._path}/{number:010}")
            descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            os.close(descriptor)
        return seconds()


def one(setting: Setting) -> list[Row]:
    with setting.scratch() as scratch:
        takes = {OURS: SmallCommits(scratch / "data.tx").take, BARE: BareWrites(scratch / "bare").take}
        settle(scratch)
        samples = interleaved(takes, setting.rounds(500, 100), before_each=lambda: None)
    return [
        Row(
            "commit", f"commit of an 800 B chunk and its metadata: time of {BARE} of 2 KB",
            ratio(samples, OURS, BARE), 2.5, medians=medians(samples), samples=samples,
        )
    ]  # fmt: skip


def footprint(setting: Setting) -> list[Row]:
    """Append one element at a time through zarr; count what lies below the root."""
    total = setting.rounds(3_000, 300)
    with setting.scratch() as scratch:
        repo = txstore.Repository(scratch / "data.tx", durability="none")  # it changes nothing about the files
        with repo.transaction() as store:
            zarr.create_array(store, name="position", shape=(0,), chunks=(100,), dtype="f8")
        store = txstore.TxStore(repo)
        array = zarr.open_array(store, path="position")
        for number in range(total - 1):
            array.append(np.array([float(number)]))
            store.commit()
        files, apparent, allocated = _usage(scratch / "data.tx")
    what = f"{total:,} commits of one element each"
    scale = total / 3_000
    return [
        Row("files", f"{what}: files", files, round(3_100 * scale), "files"),
        Row(
            "bytes", f"{what}: bytes", max(apparent, allocated) / 1e6, 20 * scale, "MB",
            samples={"apparent": [apparent], "allocated": [allocated]},
        ),
    ]  # fmt: skip


def _usage(root: Path) -> tuple[int, int, int]:
    """Return files, bytes, and bytes of allocated blocks below a repository's root, `locks/` aside."""
    files = apparent = allocated = 0
    for folder, names, contents in os.walk(root):
        if Path(folder) == root:
            names[:] = [name for name in names if name != "locks"]
        for path in [Path(folder), *(Path(folder, name) for name in contents)]:
            status = path.stat()
            apparent += status.st_size
            allocated += status.st_blocks * 512
        files += len(contents)
    return files, apparent, allocated


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {"commit": one, "footprint": footprint}
