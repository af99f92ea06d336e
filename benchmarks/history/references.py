"""What history costs: telling commits apart, telling who wrote what, moving and restoring without copying."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import zarr

import txstore
from benchmarks.harness import Row, Setting

_VALUE = b"0123456789abcdef"


def comparing(setting: Setting) -> list[Row]:
    """Two commits 1,000 apart that differ in 100 chunks: of 10^4 chunks, and of 10^6."""
    found = {}
    for side in (100, setting.rounds(1_000, 300)):
        with setting.scratch() as scratch:
            repo = _of_chunks(scratch / "data.tx", side)
            for number in range(1_000):
                with repo.begin() as mapping:
                    mapping[f"x/c/{number % 100 * side // 100}/{number % 10}"] = b"%16d" % number
            before, after = repo.commit(-1_001), repo.commit(-1)
            found[side * side] = [_timed(partial(repo.diff, before, after)) for _ in range(9)]
    few, many = found
    return [
        Row(
            "history: diff", f"diff of two commits 1,000 apart, 100 chunks changed, of {many:,}",
            1_000 * sorted(found[many])[4], 20, "ms", samples={str(many): found[many]},
        ),
        Row(
            "history: diff, flat", f"the same of {many:,} chunks: time of that of {few:,}",
            sorted(found[many])[4] / sorted(found[few])[4], 2.0, samples={str(n): taken for n, taken in found.items()},
        ),
    ]  # fmt: skip


def moving(setting: Setting) -> list[Row]:
    """An array of a million chunks is moved, and who wrote each is told."""
    side = setting.rounds(1_000, 300)
    with setting.scratch() as scratch:
        repo = _of_chunks(scratch / "data.tx", side)
        before = _size(scratch)

        def move() -> None:
            with repo.begin() as mapping:
                mapping.nodes.move("x", "y")

        seconds = _timed(move)
        each = (_size(scratch) - before) / side**2
        blame = min(_timed(lambda: repo.blame("y")) for _ in range(3))
    return [
        Row("history: move", f"move of an array of {side**2:,} chunks", seconds, 5, "s"),
        Row("history: bytes of a move", f"move of an array of {side**2:,} chunks: bytes of each", each, 40, "B"),
        Row("history: blame", f"blame of {side**2:,} chunks", blame, 2, "s"),
    ]


def restoring(setting: Setting) -> list[Row]:
    """A group of 10 GB is deleted, and restored. Its values are ranges of a sparse file."""
    chunks, length = 10_000, 1_000_000
    with setting.scratch() as scratch:
        outside = scratch / "outside"
        with outside.open("wb") as file:
            file.truncate(chunks * length)
        repo = txstore.Repository(scratch / "data.tx", sources=[str(scratch)])
        with repo.transaction() as store:
            zarr.create_array(
                store, name="g/x", shape=(chunks * length,), chunks=(length,), dtype="u1", compressors=None
            )
        with repo.begin() as mapping:
            for number in range(chunks):
                mapping.set_reference(f"g/x/c/{number}", outside, number * length, length)
        with repo.begin() as mapping:
            mapping.delete_dir("g")

        def restore() -> None:
            with repo.begin() as mapping:
                mapping.nodes.restore("g", repo.mapping(-2))

        seconds = _timed(restore)
    what = f"restore of a group of {chunks * length / 1e9:.0f} GB that was deleted"
    return [Row("history: restore", what, seconds, 1, "s")]


def _of_chunks(path: Path, side: int) -> txstore.Repository:
    """Return a repository of an array of side x side chunks."""
    repo = txstore.Repository(path, durability="none")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(side, 16 * side), chunks=(1, 16), dtype="u1", compressors=None)
    with repo.begin() as mapping:
        for row in range(side):
            for column in range(side):
                mapping[f"x/c/{row}/{column}"] = _VALUE
    return repo


def _timed(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def _size(root: Path) -> int:
    return sum(file.stat().st_size for file in root.rglob("*") if file.is_file())


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {
    "history: diff": comparing,
    "history: move": moving,
    "history: restore": restoring,
}
