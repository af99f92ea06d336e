"""Tries one tool over a LocalStore and over TxStore: what it reads must be the same, and both are timed.

A test of a tool is marked with `@tool(...)`, which says what the table tells of it, and calls `both(write, read)`.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import txstore

LOCAL, OURS, UNSYNCED = "LocalStore", "TxStore", "TxStore without syncs"
STORES = (LOCAL, OURS, UNSYNCED)


def tool(
    name: str,
    *,
    code: str,
    tried: str,
    package: str | None = None,
    limit: str = "",
    whose: Literal["", "the tool", "zarr", "TxStore"] = "",
    slower: str = "",
) -> pytest.MarkDecorator:
    """Mark a test as one of a tool. Several tests of one tool are one row of the table.

    Parameters
    ----------
    code : str
        The line that a user writes for TxStore where the tool's own documents have a path.
    tried : str
        What the test does, in words that follow "works with".
    package : str, optional
        The distribution whose version is told, or "python"; by default `name`.
    limit : str
        What does not work, which the test shows; `whose` limit that is.
    slower : str
        Why TxStore may take more than 1.5 times as long as a LocalStore. Syncs need no reason: the table finds them.
    """
    return pytest.mark.tool(
        name=name, package=package or name, code=code, tried=tried, limit=limit, whose=whose, slower=slower
    )


@dataclass
class Times:
    """Seconds of each round, by store."""

    write: dict[str, list[float]] = field(default_factory=lambda: {store: [] for store in STORES})
    read: dict[str, list[float]] = field(default_factory=lambda: {store: [] for store in STORES})

    def quickest(self) -> dict[str, dict[str, float]]:
        """Return the shortest time of each: in the others, something else has run, too."""
        return {
            what: {store: min(seconds) for store, seconds in times.items() if seconds}
            for what, times in (("write", self.write), ("read", self.read))
        }


class Both:
    """Runs one program over LocalStore and over TxStore, in turns."""

    def __init__(self, directory: Path, *, timed: bool = True) -> None:
        self.times: list[Times] = []
        self._directory = directory
        self._timed = timed
        self._numbers = itertools.count()

    def __call__(
        self,
        write: Callable[[Any], Any],
        read: Callable[[Any], Any],
        *,
        local: Callable[[Path], AbstractContextManager[Any]] | None = None,
        ours: Callable[[txstore.Repository], AbstractContextManager[Any]] | None = None,
        checkout: bool = False,
        rounds: int = 3,
        members: bool = True,
    ) -> Any:
        """Write and read in each store, and return what was read from TxStore; the first round is not timed.

        Parameters
        ----------
        write : callable
            Takes a store: a LocalStore, or that of a transaction, which is committed when `write` returns.
        read : callable
            Takes a store: a LocalStore, or a snapshot; or what `local` and `ours` give. Returns what was read, whole.
        local, ours : callable, optional
            For tools that open no store: takes the directory or the repository, and gives what `read` takes.
        checkout : bool
            For tools that write to no store: `write` takes a directory with a group at its root, in TxStore's case one
            that was checked out, and is committed when `write` returns.
        members : bool
            Whether both hierarchies must have the same arrays and groups.
        """
        times = Times()
        for number in range(rounds + 1 if self._timed else 1):
            found: dict[str, Any] = {}
            for store in STORES if number % 2 else reversed(STORES):
                gc.collect()
                path = self._directory / f"{next(self._numbers)}"
                if store is LOCAL:
                    trial = _trial_of_local(path, write, read, local, checkout=checkout)
                else:
                    repo = txstore.Repository(path, durability="fsync" if store is OURS else "none")
                    trial = _trial_of_ours(repo, write, read, ours, checkout=checkout)
                found[store] = [trial.found, trial.members if members else {}]
                if number:
                    times.write[store].append(trial.wrote)
                    times.read[store].append(trial.has_read)
            assert_same(found[OURS], found[LOCAL])
            assert_same(found[UNSYNCED], found[LOCAL])
        self.times.append(times)
        return found[OURS][0]


@dataclass
class _Trial:
    """The seconds of writing and of reading, what was read, and which arrays and groups there are."""

    wrote: float
    has_read: float
    found: Any
    members: dict[str, Any]


def _trial_of_local(path: Path, write: Any, read: Any, local: Any, *, checkout: bool) -> _Trial:
    if checkout:
        zarr.create_group(path)
    begun = time.perf_counter()
    write(path if checkout else LocalStore(path))
    wrote = time.perf_counter() - begun
    store = LocalStore(path, read_only=True)
    with local(path) if local else nullcontext(store) as source:
        begun = time.perf_counter()
        found = read(source)
        has_read = time.perf_counter() - begun
    return _Trial(wrote, has_read, found, members_of(store))


def _trial_of_ours(repo: txstore.Repository, write: Any, read: Any, ours: Any, *, checkout: bool) -> _Trial:
    if checkout:
        with repo.transaction() as store:
            zarr.create_group(store)
        with directory_of(repo) as directory:
            begun = time.perf_counter()
            write(directory)
            repo.commit_directory(directory)
            wrote = time.perf_counter() - begun
    else:
        begun = time.perf_counter()
        with repo.transaction() as store:
            write(store)
        wrote = time.perf_counter() - begun
    with ours(repo) if ours else nullcontext(repo.snapshot()) as source:
        begun = time.perf_counter()
        found = read(source)
        has_read = time.perf_counter() - begun
    assert repo.verify().faults == []
    return _Trial(wrote, has_read, found, members_of(repo.snapshot()))


def members_of(store: Any) -> dict[str, Any]:
    """Return the shape and data type of each array, and None for each group."""
    group = zarr.open(store, mode="r")
    if isinstance(group, zarr.Array):
        return {"": (group.shape, str(group.dtype))}
    return {
        path: (node.shape, str(node.dtype)) if isinstance(node, zarr.Array) else None
        for path, node in group.members(max_depth=None)
    }


def assert_same(one: Any, other: Any) -> None:
    """Assert that two things that a tool has read are equal: what xarray, anndata and numpy have, or Python."""
    if hasattr(one, "identical"):  # of xarray
        assert one.identical(other)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, Mapping):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, Sequence) and not isinstance(one, str | bytes):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@contextmanager
def path_of(repo_or_path: txstore.Repository | Path) -> Iterator[str]:
    """For a tool that opens a path by itself."""
    yield repo_or_path.url if isinstance(repo_or_path, txstore.Repository) else str(repo_or_path)


@contextmanager
def chained_url_of(repo_or_path: txstore.Repository | Path) -> Iterator[str]:
    """For a tool that opens a URL by fsspec."""
    yield f"txstore::{repo_or_path.url}" if isinstance(repo_or_path, txstore.Repository) else repo_or_path.as_uri()


@contextmanager
def directory_of(repo_or_path: txstore.Repository | Path) -> Iterator[Path]:
    """For a tool that reads or writes a directory: that of the LocalStore, or a checkout."""
    if not isinstance(repo_or_path, txstore.Repository):
        yield repo_or_path
        return
    with TemporaryDirectory() as above:
        directory = Path(above, "checkout.zarr")
        repo_or_path.checkout(directory)
        yield directory
