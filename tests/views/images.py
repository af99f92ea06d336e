"""Images and their views, in few words."""

import pickle
from typing import Any

import numpy as np
import zarr

import txstore
from tests.tools.arrays import Step
from txstore.views import Coarsen, ViewDefinition

PYRAMID = Coarsen("image/0", "image/{level}", (2, 2), 2)
VALUES = np.arange(64.0).reshape(8, 8)


def image(path: str = "image/0", values: Any = VALUES, **options: Any) -> Step:
    names = {} if options.get("zarr_format") == 2 else {"dimension_names": ("t", "z", "y", "x")[-values.ndim :]}
    chunks = options.pop("chunks", (4,) * values.ndim)
    return lambda store: zarr.create_array(store, name=path, data=values, chunks=chunks, **names, **options)


def commit(repo: txstore.Repository, *steps: Step, branch: str = "main", **views: ViewDefinition) -> txstore.Commit:
    with repo.transaction(branch=branch) as store:
        for step in steps:
            step(store)
        for name, view in views.items():
            store.views[name] = view
        made = store.commit()
    assert made is not None
    return made


def put(where: Any, value: float, path: str = "image/0") -> Step:
    return lambda store: zarr.open_array(store, path=path).__setitem__(where, value)


def value(repo: txstore.Repository, path: str, **where: Any) -> np.ndarray:
    found: np.ndarray = zarr.open_array(repo.snapshot(**where), path=path, mode="r")[...]  # type: ignore[assignment]
    return found


def halved(values: np.ndarray) -> np.ndarray:
    return values.reshape(values.shape[0] // 2, 2, values.shape[1] // 2, 2).mean(axis=(1, 3))


def write_row(store: bytes, row: int) -> None:
    """Write a row of the image in a process that was given the store."""
    with pickle.loads(store) as participant:
        zarr.open_array(participant, path="image/0")[row] = row
