"""Combines blocks of elements to one element each, as numpy's functions for arrays with NaNs do.

NaN is no value: the others count, and where there is none, the result is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

Method = Literal["mean", "min", "max", "mode", "nearest", "count"]

#: For one axis, where each block begins; each ends where the next one begins, the last at the end of the axis.
Starts = Sequence[int]


def combined(method: Method, values: Array, starts: Sequence[Starts | None], dtype: np.dtype[Any]) -> Array:
    """Return one element for each block. Axes with starts None are not combined. No block is empty."""
    return as_dtype(_METHODS[method](values, starts), dtype)


def as_dtype(values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert results to the type in which they are stored. Integers are rounded, halves to the even neighbour."""
    if values.dtype.kind == "f" and dtype.kind in "iu":
        limits, rounded = np.iinfo(dtype), np.rint(values)
        with np.errstate(invalid="ignore"):
            found = np.clip(rounded, limits.min, limits.max).astype(dtype)
        # As a float, the largest of 64 bits is too large for them.
        found = np.where(rounded >= limits.max, dtype.type(limits.max), found)
        return np.where(np.isnan(rounded), dtype.type(0), found)
    return values.astype(dtype, copy=False)


def _reduced(ufunc: np.ufunc, values: Array, starts: Sequence[Starts | None]) -> Array:
    for axis, along in enumerate(starts):
        if along is not None:
            values = _along(ufunc, values, along, axis)
    return values


def _along(ufunc: np.ufunc, values: Array, starts: Starts, axis: int) -> Array:
    length, step = values.shape[axis], starts[1] - starts[0] if len(starts) > 1 else values.shape[axis]
    if length == step * len(starts) and all(begin == at * step for at, begin in enumerate(starts)):
        # Blocks of one length: numpy reduces them faster so.
        blocks = values.reshape(*values.shape[:axis], len(starts), step, *values.shape[axis + 1 :])
        found: Array = ufunc.reduce(blocks, axis=axis + 1)
        return found
    found = ufunc.reduceat(values, np.asarray(starts, np.intp), axis=axis)
    return found


def _lengths(values: Array, starts: Sequence[Starts | None]) -> Array:
    """Return how many elements each block has, to be broadcast against the results."""
    sizes = np.ones((1,) * values.ndim, np.int64)
    for axis, along in enumerate(starts):
        if along is not None:
            lengths = np.diff([*along, values.shape[axis]])
            sizes = sizes * lengths.reshape([-1 if each == axis else 1 for each in range(values.ndim)])
    return sizes


def _count(values: Array, starts: Sequence[Starts | None]) -> Array:
    if values.dtype.kind in "fc":
        return _reduced(np.add, (~np.isnan(values)).astype(np.int64), starts)
    shape = [extent if along is None else len(along) for extent, along in zip(values.shape, starts, strict=True)]
    return np.broadcast_to(_lengths(values, starts), shape)


def _mean(values: Array, starts: Sequence[Starts | None]) -> Array:
    exact = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64, copy=False)
    if values.dtype.kind not in "fc":
        return _reduced(np.add, exact, starts) / _lengths(values, starts)
    is_nan = np.isnan(exact)
    if not is_nan.any():
        return _reduced(np.add, exact, starts) / _lengths(values, starts)
    count = _reduced(np.add, (~is_nan).astype(np.int64), starts)
    with np.errstate(invalid="ignore"):  # 0 / 0 where there is no value
        found: Array = _reduced(np.add, np.where(is_nan, 0, exact), starts) / count
    return found


def _min(values: Array, starts: Sequence[Starts | None]) -> Array:
    return _reduced(np.fmin, values, starts)


def _max(values: Array, starts: Sequence[Starts | None]) -> Array:
    return _reduced(np.fmax, values, starts)


def _nearest(values: Array, starts: Sequence[Starts | None]) -> Array:
    """Return the first element of each block."""
    for axis, along in enumerate(starts):
        if along is not None:
            values = np.take(values, along, axis=axis)
    return values


def _mode(values: Array, starts: Sequence[Starts | None]) -> Array:
    """Return the most frequent value of each block, of equally frequent ones the lowest."""
    for axis, along in enumerate(starts):
        lengths = [] if along is None else np.diff([*along, values.shape[axis]]).tolist()
        if len(set(lengths)) > 1:
            return np.concatenate([*_parts(values, starts, axis, lengths)], axis=axis)
    sizes = [extent if along is None else len(along) for extent, along in zip(values.shape, starts, strict=True)]
    blocks = values.reshape([each for size, extent in zip(sizes, values.shape, strict=True)
                             for each in (size, extent // max(size, 1))])  # fmt: skip
    order = [*range(0, blocks.ndim, 2), *range(1, blocks.ndim, 2)]
    ascending = np.sort(blocks.transpose(order).reshape(*sizes, -1), axis=-1)
    found = ascending[..., 0]
    run, longest = np.ones(found.shape, np.intp), np.ones(found.shape, np.intp)
    for place in range(1, ascending.shape[-1]):
        run = np.where(ascending[..., place] == ascending[..., place - 1], run + 1, 1)
        found = np.where(run > longest, ascending[..., place], found)
        longest = np.maximum(run, longest)
    return found


def _parts(values: Array, starts: Sequence[Starts | None], axis: int, lengths: Sequence[int]) -> Iterator[Array]:
    """Yield the modes of blocks that are next to each other along an axis and have one length there."""
    begin = 0
    for length, alike in groupby(lengths):
        end = begin + length * len(list(alike))
        part = values[(slice(None),) * axis + (slice(begin, end),)]
        yield _mode(part, [*starts[:axis], range(0, end - begin, length), *starts[axis + 1 :]])
        begin = end


_METHODS: dict[Method, Callable[[Array, Sequence[Starts | None]], Array]] = {
    "mean": _mean, "min": _min, "max": _max, "mode": _mode, "nearest": _nearest, "count": _count,
}  # fmt: skip
