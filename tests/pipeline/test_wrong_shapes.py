"""A value that does not fit its selection is refused before any of its chunks is staged."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import txstore


@pytest.mark.parametrize(
    "write",
    [
        lambda z: z.__setitem__((slice(0, 10), 0), np.zeros(7)),
        lambda z: z.__setitem__((slice(0, 10), slice(0, 2)), np.zeros((7, 2))),
        lambda z: z.__setitem__(slice(1, 9), np.zeros((8, 3))),
        lambda z: z.__setitem__(slice(1, 9), np.zeros((2, 8, 6))),
    ],
)
def test_a_typo_in_a_shape_costs_no_transaction(repo: txstore.Repository, write: Callable[[Any], None]) -> None:
    with repo.transaction() as store:
        z = zarr.create_array(store, name="x", shape=(20, 6), chunks=(5, 2), dtype="i4")
        z[:] = 1
        with pytest.raises((ValueError, IndexError)):
            write(z)
        z[5:8] = np.full((3, 6), 2)
    expected = np.ones((20, 6), "i4")
    expected[5:8] = 2
    np.testing.assert_array_equal(zarr.open_array(repo.snapshot(), path="x", mode="r")[:], expected)


def test_what_numpy_stretches_is_written(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        z = zarr.create_array(store, name="x", shape=(4, 6), chunks=(2, 2), dtype="i4")
        z[1:4, 3] = np.array([7, 8, 9])
        z.oindex[[0, 3], slice(0, 4)] = np.full((2, 4), 5)
    assert zarr.open_array(repo.snapshot(), path="x", mode="r")[:].tolist() == [
        [5, 5, 5, 5, 0, 0], [0, 0, 0, 7, 0, 0], [0, 0, 0, 8, 0, 0], [5, 5, 5, 5, 0, 0]
    ]  # fmt: skip
