"""Regions are told apart as sets of elements are."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstore.format.encoding import MalformedError, encode_varint
from txstore.format.regions import MAX_BOXES, MAX_LENGTH, Box, Region

SHAPE = (6, 5)


def elements(region: Region) -> set[tuple[int, ...]]:
    everything = itertools.product(*map(range, SHAPE))
    if region.boxes is None:
        return set(everything)
    inside = lambda place, box: all(start <= at < stop for at, (start, stop) in zip(place, box, strict=True))  # noqa: E731
    return {place for place in everything if any(inside(place, box) for box in region.boxes)}


ranges = [
    st.tuples(st.integers(0, extent - 1), st.integers(1, extent)).map(lambda two: (min(two), max(min(two) + 1, two[1])))
    for extent in SHAPE
]
boxes = st.tuples(*ranges)


def united(parts: list[Box]) -> Region:
    return Region.of_all(map(Region.of_box, parts))


parts = st.one_of(boxes.map(Region.of_box), boxes.map(Region.of_box), boxes.map(Region.around))
regions = st.one_of(st.just(Region.whole()), st.lists(parts, min_size=1, max_size=5).map(Region.of_all))


def dense(region: Region) -> set[tuple[int, ...]]:
    """Return the elements that are known to be there."""
    if not region.loose:
        return elements(region)
    return elements(Region(tuple(box for box in region.boxes or () if box not in region.loose)))


@given(regions, regions)
def test_as_sets(one: Region, other: Region) -> None:
    assert elements(one | other) == elements(one) | elements(other)
    assert dense(one | other) == dense(one) | dense(other)
    assert elements(one & other) == elements(one) & elements(other)
    assert dense(one & other) == dense(one) & dense(other)
    assert one | other == other | one
    assert one.intersects(other) == bool(elements(one) & elements(other))
    if one.contains(other):
        assert elements(other) <= elements(one)
    if not one.is_whole and not other.is_whole:
        assert one.contains(other) == (elements(other) <= dense(one))
    assert one.fits(SHAPE)


@given(regions)
def test_encoding(region: Region) -> None:
    assert Region.decode(region.encode()) == region


@pytest.mark.parametrize("seed", range(5))
def test_neighbours_are_joined(seed: int) -> None:
    """Tiles that cover a chunk are one box in the end, in whatever order they come."""
    tiles = [((row, row + 2), (column, column + 1)) for row in (0, 2, 4) for column in range(5)]
    random.Random(seed).shuffle(tiles)
    assert united(tiles[:-1]).boxes != (((0, 6), (0, 5)),)
    assert united(tiles).contains(Region.of_box(((0, 6), (0, 5))))
    rows = [((row, row + 1),) for row in range(50)]
    random.Random(seed).shuffle(rows)
    assert united(rows[:MAX_BOXES]).boxes is not None


def test_for_too_many_boxes_stands_the_one_around_them() -> None:
    apart = [((2 * number, 2 * number + 1),) for number in range(MAX_BOXES + 1)]
    assert united(apart[:-1]).boxes == tuple(apart[:-1])
    assert united(apart) == Region.around(((0, 2 * MAX_BOXES + 1),))
    assert not united(apart).contains(united(apart[:1]))


def test_for_what_would_be_too_long_stands_the_box_around_it() -> None:
    apart = [((3 * number, 3 * number + 1),) * 64 for number in range(MAX_BOXES)]
    assert Region.decode(united(apart).encode()) == Region.around(((0, 3 * MAX_BOXES - 2),) * 64)
    region = Region.of_box(((1 << 60, (1 << 60) + 1),) * 64)
    assert len(region.encode()) <= MAX_LENGTH
    region |= Region.of_box(((1 << 61, (1 << 61) + 1),) * 64)
    assert region.encode() == b""


def test_no_axes_and_no_elements() -> None:
    assert Region.of_box(()).is_whole
    nothing = Region.of_box(((3, 3), (0, 5)))
    assert not nothing.intersects(Region.whole())
    assert not nothing.intersects(nothing)
    with pytest.raises(ValueError, match="without elements"):
        nothing.encode()


def test_other_shapes_do_not_fit() -> None:
    region = Region.of_box(((0, 4), (1, 3)))
    assert region.fits((4, 3))
    assert not region.fits((4, 2))
    assert not region.fits((4,))
    assert region.intersects(Region.of_box(((0, 1),)))  # nobody knows
    assert not region.contains(Region.of_box(((0, 1),)))


def encoded(*numbers: int) -> bytes:
    return b"".join(map(encode_varint, numbers))


@pytest.mark.parametrize(
    "data",
    [
        encoded(0, 1),
        encoded(1, 0),
        encoded(MAX_BOXES + 1, 1) + encoded(0, 1) * (MAX_BOXES + 1),
        encoded(1, 65) + encoded(0, 1) * 65,
        encoded(1, 1, 0, 0),
        encoded(1, 1, (1 << 63) - 1, 1),
        encoded(1, 1, 0, 1, 0),
        encoded(1, 2, 0, 1),
        encoded(1, 1, 0, 1)[:-1],
        b"\xff" * (MAX_LENGTH + 1),
    ],
)
def test_hostile(data: bytes) -> None:
    with pytest.raises(MalformedError):
        Region.decode(data)
