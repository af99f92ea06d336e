"""Plans: every element is in one piece, no piece is larger than the room, and two passes come only where they help."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstore.rechunk.job import _rewritten
from txstore.rechunk.plans import Pieces, ReadAxis, plan


def axes(shape: tuple[int, ...], chunks: tuple[int, ...]) -> list[ReadAxis]:
    return [ReadAxis.regular(length, size) for length, size in zip(shape, chunks, strict=True)]


@st.composite
def grids(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    dimensions = draw(st.integers(0, 3))
    lengths = st.lists(st.integers(0, 30), min_size=dimensions, max_size=dimensions)
    sizes = st.lists(st.integers(1, 12), min_size=dimensions, max_size=dimensions)
    return tuple(draw(lengths)), tuple(draw(sizes)), tuple(draw(sizes))


@given(grids(), st.integers(1, 4000))
def test_pieces_cover_each_element_once(grid, room):
    shape, old, new = grid
    read = axes(shape, old)
    if math.prod(new) > room or math.prod(axis.longest for axis in read) > room:
        with pytest.raises(ValueError, match="max_memory="):
            plan(read, new, 1, room)
        return
    planned = plan(read, new, 1, room)
    assert len(planned.pieces) == (1 if planned.between is None else 2)
    written = [planned.between or new, new][-len(planned.pieces) :]
    for piece, chunks in zip(planned.pieces, written, strict=True):
        assert all(size % chunk == 0 for size, chunk in zip(piece, chunks, strict=True))
        count = np.zeros(shape, int)
        for box in Pieces(shape, piece):
            assert math.prod(part.stop - part.start for part in box) <= room
            count[box] += 1
        assert (count == 1).all()


@given(grids(), st.data())
def test_changed_regions_are_in_boxes_of_whole_chunks(grid, data):
    shape, unit, times = grid
    piece = tuple(size * n for size, n in zip(unit, times, strict=True))
    if 0 in shape:
        return
    regions = []
    for _ in range(data.draw(st.integers(0, 4))):
        starts = [data.draw(st.integers(0, n - 1)) for n in shape]
        regions.append(tuple(slice(a, data.draw(st.integers(a + 1, n))) for a, n in zip(starts, shape, strict=True)))
    wanted, met, parts = (np.zeros(shape, int) for _ in range(3))
    for region in regions:
        wanted[region] = 1
    for box, inside in _rewritten(shape, regions, unit, piece):
        assert all(
            part.start % size == 0 and (part.stop % size == 0 or part.stop == length)
            for part, size, length in zip(box, unit, shape, strict=True)
        )
        met[box] += 1
        for part in inside:
            parts[part] = 1
    assert (met <= 1).all()
    assert (parts == wanted).all()
    assert (met >= wanted).all()


@pytest.mark.parametrize(
    ("shape", "old", "new", "passes"),
    [
        ((1 << 15, 1 << 15), (64, 1 << 15), (1 << 15, 64), 2),  # rows to columns
        ((1 << 15, 1 << 15), (512, 512), (256, 1024), 1),
        ((8760, 721, 1440), (1, 721, 1440), (8760, 10, 10), 2),  # maps to time series
        ((1000, 1000, 1000, 4), (100, 100, 100, 4), (10, 10, 1000, 1), 1),
        ((1000,), (1000,), (3,), 1),
    ],
)
def test_two_passes_where_one_would_read_chunks_many_times(shape, old, new, passes):
    planned = plan(axes(shape, old), new, 4, 85 << 20)
    assert len(planned.pieces) == passes
    reads = [(old, planned.pieces[0])] + ([(planned.between, planned.pieces[1])] if passes == 2 else [])
    for chunks, piece in reads:
        times = math.prod(axis.reads(size) for axis, size in zip(axes(shape, chunks), piece, strict=True))
        assert times <= 3


def test_irregular_chunks():
    read = [ReadAxis(10, np.array([0, 3, 4, 9]))]
    assert read[0].longest == 5
    assert read[0].reads(3) == 1 + 1 / 4  # the cuts are at 3, 6 and 9
    assert plan(read, (3,), 1, 5).pieces == ((3,),)
