"""What the tests of this folder do to arrays, in few words."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import zarr
import zarr.core.metadata.v3

import txstore
from tests.tools.parts import write_part

HAS_RECTILINEAR = hasattr(zarr.core.metadata.v3, "RectilinearChunkGridMetadata")

Step = Callable[[txstore.TxStore], object]


def array(store: txstore.TxStore, path: str = "x", **options: Any) -> zarr.Array:
    return zarr.open_array(store, path=path, **options)


def create(path: str = "x", n: int = 8, chunks: int = 4, fill: int = 0, value: int = 1, **options: Any) -> Step:
    """Create an array of `n` ones; `value=0` leaves its chunks out."""

    def step(store: txstore.TxStore) -> None:
        z = zarr.create_array(store, name=path, shape=(n,), chunks=(chunks,), dtype="i4", fill_value=fill, **options)
        if value != fill:
            z[:] = value

    return step


def create_flat(**options: Any) -> Step:
    """Create x, 8 by 8 ones in chunks of 4 by 4."""

    def step(store: txstore.TxStore) -> None:
        zarr.create_array(store, name="x", data=np.ones((8, 8), "i4"), chunks=(4, 4), **options)

    return step


def group(path: str = "g", fmt: int = 3, **attributes: Any) -> Step:
    return lambda store: zarr.create_group(store, path=path, zarr_format=fmt, attributes=attributes)


def put(where: Any, value: int, path: str = "x") -> Step:
    return lambda store: array(store, path).__setitem__(where, value)


def part(where: slice, value: int, path: str = "x", chunk: str = "c/0") -> Step:
    """Write elements of one chunk, and say so: `where` is in the chunk."""
    return lambda store: write_part(store.mapping, f"{path}/{chunk}", where, value)  # type: ignore[arg-type]


def add_part(where: slice, value: int, path: str = "x", chunk: str = "c/0") -> Step:
    def step(store: txstore.TxStore) -> None:
        store.mapping.get_view(f"{path}/{chunk}")  # type: ignore[union-attr]
        write_part(store.mapping, f"{path}/{chunk}", where, lambda there: there + value)  # type: ignore[arg-type]

    return step


def add(where: Any, value: int, path: str = "x") -> Step:
    def step(store: txstore.TxStore) -> None:
        z = array(store, path)
        z[where] = z[where] + value

    return step


def append(*rows: int, path: str = "x") -> Step:
    return lambda store: array(store, path).append(np.array(rows, "i4"))


def resize(*shape: int, path: str = "x") -> Step:
    return lambda store: array(store, path).resize(shape)


def attributes(path: str = "x", **values: Any) -> Step:
    return lambda store: zarr.open(store, path=path, mode="r+").attrs.update(values)


def delete(path: str = "x") -> Step:
    def step(store: txstore.TxStore) -> None:
        above, _, name = path.rpartition("/")
        del zarr.open_group(store, path=above, mode="r+")[name]

    return step


def edit_document(key: str, **values: Any) -> Step:
    """Change a document as no operation of zarr's does: without clearing what is below it."""

    def step(store: txstore.TxStore) -> None:
        store[key] = json.dumps(json.loads(store[key]) | values).encode()

    return step


def both(*steps: Step) -> Step:
    def step(store: txstore.TxStore) -> None:
        for one in steps:
            one(store)

    return step


def commit(repo: txstore.Repository, *steps: Step, branch: str = "main") -> None:
    with repo.transaction(branch=branch) as store:
        both(*steps)(store)


def values(repo: txstore.Repository, path: str = "x") -> list[Any]:
    """The array at the head."""
    return array(repo.snapshot(), path, mode="r")[...].tolist()


def commit_often(repo: txstore.Repository, times: int = 40) -> None:
    """Make so many commits that runs are merged."""
    for number in range(times):
        with repo.begin() as mapping:
            mapping["noise/c/0"] = str(number).encode()
