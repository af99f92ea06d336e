"""Which elements of a chunk a selection writes: as boxes; the whole only if it writes all of them (I7)."""

from typing import Any

import numpy as np
import pytest

from txstore.format.regions import MAX_BOXES, Region
from txstore.pipeline.codec_pipeline import region_of


@pytest.mark.parametrize(
    ("selection", "shape"),
    [
        ((slice(0, 6, 1), slice(None)), (6, 4)),
        ((slice(None, None, -1),), (6,)),
        ((slice(0, 1, 5), 0), (1, 1)),
        ((), ()),
        (..., (6, 4)),
        ((np.arange(6),), (6,)),
    ],
)
def test_all_of_it(selection: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    assert region_of(selection, shape).is_whole


@pytest.mark.parametrize(
    "selection",
    [
        slice(0, 6, 5),
        slice(None, None, -5),
        np.array([5, 0]),
        np.array([True, False, False, False, False, True]),
        np.array([[0], [5]]),
    ],
)
def test_elements_between_which_others_are_left(selection: Any) -> None:
    assert region_of((selection,), (6,)).boxes == (((0, 1),), ((5, 6),))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_as_many_boxes_as_there_may_be_and_else_one_around_them(axes: int) -> None:
    drawn, shape = np.random.default_rng(axes), (40, 7, 3)[:axes]
    for number in range(300):
        mask = drawn.random(shape) < (number % 20) / 20
        region, found = region_of(mask, shape), np.zeros(shape, bool)
        for box in [((0, each) for each in shape)] if region.is_whole else region.boxes or ():
            found[tuple(slice(*each) for each in box)] = True
        assert (found == mask).all() if not region.loose else (found >= mask).all()
        assert not region.loose or len(region.boxes or ()) == 1
    many = slice(0, 2 * MAX_BOXES, 2)
    assert len(region_of((many,), (40,)).boxes or ()) == MAX_BOXES
    assert region_of((slice(1, 2 * MAX_BOXES + 2, 2),), (40,)) == Region.around(((1, 2 * MAX_BOXES + 2),))
