"""Which elements of a chunk a selection writes: the box around them; the whole only if it writes all of them (I7)."""

from typing import Any

import numpy as np
import pytest

from txstore.format.regions import Region
from txstore.pipeline.codec_pipeline import region_of


@pytest.mark.parametrize(
    ("selection", "shape"),
    [
        ((slice(0, 6, 1), slice(None)), (6, 4)),
        ((slice(None, None, -1),), (6,)),
        ((slice(0, 1, 5), 0), (1, 1)),
        ((), ()),
    ],
)
def test_all_of_it(selection: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    assert region_of(selection, shape).is_whole


@pytest.mark.parametrize(
    "selection",
    [
        slice(0, 6, 5),
        slice(None, None, -5),
        np.array([0, 5]),
        np.array([True, False, False, False, False, True]),
        np.array([[0], [5]]),
    ],
)
def test_elements_between_which_others_are_left(selection: Any) -> None:
    assert region_of((selection,), (6,)) == Region.of_box(((0, 6),))


def test_a_selection_of_which_nothing_is_known() -> None:
    assert region_of(..., (6, 4)) == Region.of_box(((0, 6), (0, 4)))
