"""Merges of branches: chunks that one side has changed, chunks that both have, and metadata beside Icechunk."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import txstore
from benchmarks.harness import OURS, Row, Setting, interleaved, medians, ratio, settle, timed

_COMMIT, _REWRITE = "a commit of as many chunks of 8 bytes", "reading and writing these chunks"


def disjoint(setting: Setting) -> list[Row]:
    """10,000 chunks that dev has changed, and 10,000 others that main has: only refs are written."""
    count = setting.rounds(10_000, 1_000)
    with setting.scratch() as scratch:
        repo = txstore.Repository(scratch / "data.tx")
        with repo.transaction() as store:
            zarr.create_array(store, name="x", shape=(2 * count,), chunks=(1,), dtype="i8", compressors=None)
        repo.branches["dev"] = repo.head()
        salts, copied = itertools.count(1), []

        def write(branch: str, first: int) -> None:
            salt = next(salts) * count
            with repo.begin(branch=branch) as mapping:
                for number in range(first, first + count):
                    mapping[f"x/c/{number}"] = (number + salt).to_bytes(8, "little")

        def commit() -> float:
            with timed() as seconds:
                write("main", 0)
            return seconds()

        def merge() -> float:
            write("main", 0)
            write("dev", count)
            with timed() as seconds:
                made = repo.merge("dev")
            assert isinstance(made, txstore.Commit)
            assert made.statistics["keys_set"] == count
            copied.append(made.statistics["bytes_set"])
            return seconds()

        settle(scratch)
        samples = interleaved({OURS: merge, _COMMIT: commit}, setting.rounds(9, 3))
        here, there = repo.mapping(), repo.mapping(branch="dev")
        assert all(here[key] == there[key] for number in range(count, 2 * count) for key in [f"x/c/{number}"])
    what = f"merge of {count:,} changed chunks, disjoint"
    return [
        Row(
            "history: merge", f"{what}: time of {_COMMIT}", ratio(samples, OURS, _COMMIT), 3.0,
            medians=medians(samples), samples=samples,
        ),
        Row("history: bytes of a merge", f"{what}: bytes of values copied", max(copied), 0, "B"),
    ]  # fmt: skip


def overlapping(setting: Setting) -> list[Row]:
    """1,000 chunks of which both have changed other elements, against reading and writing them once."""
    count, side = setting.rounds(1_000, 100), 64
    with setting.scratch() as scratch:
        repo = txstore.Repository(scratch / "data.tx")
        data = np.random.default_rng(1).integers(0, 100, (count * side, side)).astype("f4")
        with repo.transaction() as store:
            zarr.create_array(store, name="x", data=data, chunks=(side, side))
        repo.branches["dev"] = repo.head()
        numbers = itertools.count(1_000)

        def change(branch: str, column: int) -> None:
            data[:, column] = number = next(numbers)
            with repo.transaction(branch=branch) as store:
                zarr.open_array(store, path="x")[:, column] = number

        def merge() -> float:
            change("main", 0)
            change("dev", side - 1)
            with timed() as seconds:
                repo.merge("dev")
            assert (zarr.open_array(repo.snapshot(), path="x", mode="r")[:] == data).all()
            return seconds()

        def rewrite() -> float:
            data[:, 1] = number = next(numbers)
            with timed() as seconds, repo.transaction() as store:
                array = zarr.open_array(store, path="x")
                values = array[:]
                values[:, 1] = number
                array[:] = values
            return seconds()

        settle(scratch)
        samples = interleaved({OURS: merge, _REWRITE: rewrite}, setting.rounds(9, 3))
    what = f"merge where both have changed other elements of {count:,} chunks: time of {_REWRITE}"
    return [
        Row(
            "history: merge of elements", what, ratio(samples, OURS, _REWRITE), 3.0,
            medians=medians(samples), samples=samples,
        )
    ]  # fmt: skip


# --- attributes on both sides, growth on one, chunks on both


def _ours(array: Any) -> None:
    array.attrs["units"] = "K"
    array[0] = 1


def _theirs(array: Any) -> None:
    array.attrs["title"] = "temperature"
    array.append(np.arange(4, dtype="i4"))
    array[7] = 9


_CREATED: dict[str, Any] = {"shape": (8,), "chunks": (4,), "dtype": "i4", "attributes": {"version": 1}}
_MERGED = [1, 0, 0, 0, 0, 0, 0, 9, 0, 1, 2, 3], {"version": 1, "units": "K", "title": "temperature"}


def _with_txstore(directory: Path) -> list[str]:
    """Return what is in conflict."""
    repo = txstore.Repository(directory / "data.tx")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", **_CREATED)
    repo.branches["dev"] = repo.head()
    for branch, change in (("main", _ours), ("dev", _theirs)):
        with repo.transaction(branch=branch) as store:
            change(zarr.open_array(store, path="x"))
    try:
        repo.merge("dev")
    except txstore.MergeConflictError as error:
        return [str(each) for each in error.conflicts]
    array = zarr.open_array(repo.snapshot(), path="x", mode="r")
    assert (np.asarray(array[:]).tolist(), dict(array.attrs)) == _MERGED
    return []


def _with_icechunk(directory: Path) -> list[str]:
    """It merges no branches. What comes nearest: two sessions of one branch, the second of which is rebased."""
    import icechunk

    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(directory / "icechunk")))
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="x", **_CREATED)
    session.commit("base")
    ours, theirs = repo.writable_session("main"), repo.writable_session("main")
    _ours(zarr.open_array(ours.store, path="x"))
    _theirs(zarr.open_array(theirs.store, path="x"))
    ours.commit("ours")
    try:
        theirs.commit("theirs", rebase_with=icechunk.BasicConflictSolver())
    except icechunk.RebaseFailedError as error:
        return [str(each.conflict_type) for each in error.conflicts]
    return []


def metadata(setting: Setting) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=setting.directory) as scratch:
        ours, theirs = _with_txstore(Path(scratch)), _with_icechunk(Path(scratch))
    told = ", ".join(theirs) or "none"
    what = f"attributes on both sides, growth on one, chunks on both: conflicts (Icechunk: {told})"
    return [
        Row(
            "history: merge of metadata", what, len(ours), 0, "conflicts",
            figures=[{"TxStore": ours, "Icechunk": theirs}],
        )
    ]  # fmt: skip


BENCHMARKS = {
    "history: merge": disjoint,
    "history: merge of elements": overlapping,
    "history: merge of metadata": metadata,
}
