"""A pyramid of five levels that each commit derives: one tile of an image, and tiles by eight processes at once."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import zarr

import txstore
from benchmarks.harness import OURS, Row, Setting
from benchmarks.local.crowd import PROCESSES, timed_crowd
from txstore.codecs.chunk_codec import ChunkCodec
from txstore.views import Coarsen

_TILE, _LEVELS = 256, 5


def _image(path: Path, extent: int) -> txstore.Repository:
    repo = txstore.Repository(path)
    random = np.random.default_rng(0)
    with repo.transaction() as store:
        image = zarr.create_array(store, name="image/0", shape=(extent, extent), chunks=(_TILE, _TILE), dtype="u1")
        for row in range(0, extent, 4 * _TILE):
            image[row : row + 4 * _TILE] = random.integers(0, 64, (4 * _TILE, extent), dtype="u1")
    return repo


def _write_tile(repo: txstore.Repository, random: np.random.Generator, row: int, column: int) -> float:
    """Return the seconds that the commit took."""
    store = repo.transaction()
    image = zarr.open_array(store, path="image/0")
    place = slice(row * _TILE, (row + 1) * _TILE), slice(column * _TILE, (column + 1) * _TILE)
    image[place] = random.integers(0, 64, (_TILE, _TILE), dtype="u1")
    began = time.perf_counter()
    store.commit()
    return time.perf_counter() - began


def _decoded_chunks(repo: txstore.Repository, random: np.random.Generator) -> int:
    decode, count = ChunkCodec.decode, 0

    def counting(codec: ChunkCodec, encoded: object) -> object:
        nonlocal count
        count += encoded is not None
        return decode(codec, encoded)  # type: ignore[arg-type]

    with mock.patch.object(ChunkCodec, "decode", counting):
        _write_tile(repo, random, 3, 5)
    return count


def tiles(setting: Setting) -> list[Row]:
    """Change one tile after the other."""
    extent = 4_096 if setting.quick else 32_768
    random = np.random.default_rng(1)
    with setting.scratch() as scratch:
        repo = _image(scratch / "data.tx", extent)
        began = time.perf_counter()
        repo.views["pyramid"] = Coarsen("image/0", "image/{level}", (2, 2), _LEVELS)
        whole = time.perf_counter() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        count = setting.rounds(40, 10)
        places = random.integers(0, extent // _TILE, (count, 2)).tolist()
        samples = {OURS: [_write_tile(repo, random, *place) * 1e3 for place in places]}
        chunks = _decoded_chunks(repo, random)
    what = f"one tile of {_TILE} x {_TILE} of {extent:,} x {extent:,}, {_LEVELS} levels"
    print(f"{what}: all levels derived in {whole:.1f} s; peak of this process {memory:,.0f} MiB")
    median = statistics.median(samples[OURS])
    return [
        Row("tile of a pyramid", f"{what}: the commit", median, 60, "ms", samples=samples),
        Row("chunks of a tile", f"{what}: chunks decoded", chunks, 20, "chunks"),
    ]


def _write_tiles(path: Path, count: int, which: int) -> Callable[[], None]:
    repo, random = txstore.Repository(path), np.random.default_rng(which)

    def write() -> None:
        for number in range(count):
            _write_tile(repo, random, which, number)  # neighbours, whose parents are in the same chunks

    return write


def crowds(setting: Setting) -> list[Row]:
    """Let eight processes write neighbouring tiles: a conflict would end one of them."""
    count = setting.rounds(16, 4)
    with setting.scratch() as scratch:
        repo = _image(scratch / "data.tx", 16 * _TILE)
        repo.views["pyramid"] = Coarsen("image/0", "image/{level}", (2, 2), _LEVELS)
        seconds, failed = timed_crowd(_write_tiles, scratch / "data.tx", count)
        image = zarr.open_group(repo.snapshot(), path="image", mode="r")
        for level in range(1, _LEVELS + 1):
            below = np.asarray(image[str(level - 1)][...], "f8")
            means = below.reshape(below.shape[0] // 2, 2, below.shape[1] // 2, 2).mean((1, 3))
            assert (np.rint(means) == image[str(level)][...]).all()
    what = f"{PROCESSES} processes commit neighbouring tiles, {PROCESSES * count / seconds:.0f} a second: conflicts"
    return [Row("tiles of a crowd", what, failed, 0, "conflicts")]


BENCHMARKS = {"tiles": tiles, "crowd of tiles": crowds}
