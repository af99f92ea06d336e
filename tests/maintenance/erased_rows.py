"""What the tests of erased rows share: every array of every commit, as it was and as it should be."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

import txstore
from txstore.format.documents import describe
from txstore.format.keys import is_document, node_of_document

#: Branch, version and path of an array, and its elements.
Contents = dict[tuple[str, int, str], npt.NDArray[Any]]


def array_of(
    store: txstore.TxStore, path: str, data: Any, dims: list[str], chunks: tuple[int, ...], **options: Any
) -> None:
    """Create an array, which is stored as it is in memory unless `options` say otherwise."""
    zarr.create_array(
        store, name=path, data=data, dimension_names=dims, chunks=chunks, **{"compressors": None, **options}
    )


def contents(repo: txstore.Repository) -> Contents:
    """Return what every commit holds. It leaves no reader behind."""
    found: Contents = {}
    for branch in repo.branches:
        head = repo.head(branch)
        for version in range(0 if head is None else head.version + 1):
            try:
                snapshot = repo.snapshot(at=version, branch=branch)
            except (txstore.CommitNotFoundError, txstore.SnapshotExpiredError):
                continue
            nodes = {node_of_document(key) for key in repo.mapping(at=version, branch=branch) if is_document(key)}
            for path in sorted(nodes):
                described = describe(repo.mapping(at=version, branch=branch).get_view, path)
                if described is not None and described.kind == "array":
                    array = zarr.open_array(snapshot, path=path, mode="r")
                    found[branch, version, path] = np.array(array[...])
    gc.collect()
    return found


def check(
    before: Contents,
    after: Contents,
    is_erased: Callable[[str, int, str], Any],
    fill: Callable[[str], Any],
    *,
    in_between: bool = False,
) -> None:
    """`is_erased` returns an index of what is erased of an array at a commit, or None.

    `in_between`: it may still be there.
    """
    assert before.keys() <= after.keys()
    for place, was in before.items():
        expected = was.copy()
        index = is_erased(*place)
        if index is not None:
            is_as_before = in_between and np.array_equal(after[place][index], was[index])
            expected[index] = was[index] if is_as_before else fill(place[2])
        np.testing.assert_array_equal(after[place], expected, err_msg=str(place))


def files_of(root: str | os.PathLike[str]) -> Iterator[tuple[str, bytes]]:
    for path in sorted(Path(root).rglob("*")):
        if path.is_file():
            yield str(path), path.read_bytes()


def leaks(root: str | os.PathLike[str], *pieces: bytes) -> list[str]:
    """Return the files that have any of these bytes."""
    return [path for path, content in files_of(root) if any(piece in content for piece in pieces)]
