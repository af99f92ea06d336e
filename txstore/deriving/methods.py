"""Combines blocks of elements to one element each, as numpy's functions for arrays with NaNs do.

NaN and NaT are no values, and neither is what an array says that it stores in their place: `_FillValue` and
`missing_value`. The others count. Where there is none, the result is NaN or NaT, or such a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    #: Which elements are values. None: all.
    Mask = npt.NDArray[np.bool_] | None

Method = Literal["mean", "min", "max", "mode", "nearest", "count"]

#: For one axis, where each block begins; each ends where the next one begins, the last at the end of the axis.
Starts = Sequence[int]
#: Numbers that stand for no value.
Missing = tuple[Any, ...]


def combined(
    method: Method, values: Array, starts: Sequence[Starts | None], dtype: np.dtype[Any], missing: Missing = ()
) -> Array:
    """Return one element for each block. Axes with starts None are not combined. No block is empty."""
    if method == "nearest":
        return as_dtype(_nearest(values, starts), dtype)
    if method == "mode":
        return as_dtype(_mode(values, starts, missing), dtype)
    is_value = _are_values(values, missing)
    if is_value is None:
        count = np.broadcast_to(_lengths(values, starts), _shape(values, starts))
    else:
        count = _reduced(np.add, is_value.astype(np.int64), starts)
    if method == "count":
        return as_dtype(count, dtype)
    if method == "mean":
        exact = _exact(values)
        found = _reduced(np.add, exact if is_value is None else np.where(is_value, exact, 0), starts)
        found = found / np.maximum(count, 1)
    else:
        found = _reduced(np.fmin if method == "min" else np.fmax, _other(values, is_value, method), starts)
    if is_value is None or count.all():
        return as_dtype(found, dtype)
    found = as_dtype(np.where(count == 0, np.zeros((), found.dtype), found), dtype)
    return np.where(count == 0, nothing(dtype, missing), found)


def nothing(dtype: np.dtype[Any], missing: Missing = ()) -> Array:
    """Return what stands for no value at all: NaN or NaT, or else the first number that does; 0 where there is none."""
    if dtype.kind in "fc":
        return np.asarray(np.nan, dtype)
    if dtype.kind in "mM":
        return np.asarray("NaT", dtype)
    return as_dtype(np.asarray(missing[0]), dtype) if missing else np.zeros((), dtype)


def _are_values(values: Array, missing: Missing) -> npt.NDArray[np.bool_] | None:
    """Return which elements count. None: all."""
    if values.dtype.kind in "fc":
        found = ~np.isnan(values)
    elif values.dtype.kind in "mM":
        found = ~np.isnat(values)
    elif missing:
        found = np.ones(values.shape, bool)
    else:
        return None
    for each in missing:
        found &= values != each
    return None if found.all() else found


def as_dtype(values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert results to the type in which they are stored. Integers are rounded, halves to the even neighbour.

    Floats beyond the limits of integers become these; raises `ValueError` for integers beyond them.
    """
    if values.dtype.kind == "f" and dtype.kind in "mM":
        return np.rint(values).astype(np.int64).astype(dtype)
    if values.dtype.kind == "f" and dtype.kind in "iu":
        limits, rounded = np.iinfo(dtype), np.rint(values)
        with np.errstate(invalid="ignore"):
            found = np.clip(rounded, limits.min, limits.max).astype(dtype)
        # As a float, the largest of 64 bits is too large for them.
        found = np.where(rounded >= limits.max, dtype.type(limits.max), found)
        return np.where(np.isnan(rounded), dtype.type(0), found)
    found = values.astype(dtype, copy=False)
    if found is not values and {values.dtype.kind, dtype.kind} <= {"i", "u"} and (found != values).any():
        raise ValueError(f"its elements go from {values.min()} to {values.max()}, and its output has {dtype}")
    return found


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


def _shape(values: Array, starts: Sequence[Starts | None]) -> tuple[int, ...]:
    return tuple(extent if along is None else len(along) for extent, along in zip(values.shape, starts, strict=True))


def _exact(values: Array) -> Array:
    numbers = values.astype(np.int64) if values.dtype.kind in "mM" else values
    return numbers.astype(np.complex128 if values.dtype.kind == "c" else np.float64, copy=False)


def _other(values: Array, is_value: Mask, method: Method) -> Array:
    """Return an array with what no extreme is in the place of what is no value."""
    if is_value is None:
        return values
    other: Any
    if values.dtype.kind in "iu":
        other = np.iinfo(values.dtype).max if method == "min" else np.iinfo(values.dtype).min
    else:
        other = method == "min" if values.dtype.kind == "b" else nothing(values.dtype)
    return np.where(is_value, values, np.asarray(other, values.dtype))


def _nearest(values: Array, starts: Sequence[Starts | None]) -> Array:
    """Return the first element of each block."""
    for axis, along in enumerate(starts):
        if along is not None:
            values = np.take(values, along, axis=axis)
    return values


def _mode(values: Array, starts: Sequence[Starts | None], missing: Missing) -> Array:
    """Return the most frequent value of each block, of equally frequent ones the lowest."""
    for axis, along in enumerate(starts):
        lengths = [] if along is None else np.diff([*along, values.shape[axis]]).tolist()
        if len(set(lengths)) > 1:
            return np.concatenate([*_parts(values, starts, axis, lengths, missing)], axis=axis)
    sizes = _shape(values, starts)
    blocks = values.reshape([each for size, extent in zip(sizes, values.shape, strict=True)
                             for each in (size, extent // max(size, 1))])  # fmt: skip
    order = [*range(0, blocks.ndim, 2), *range(1, blocks.ndim, 2)]
    ascending = np.sort(blocks.transpose(order).reshape(*sizes, -1), axis=-1)
    found = ascending[..., 0]
    run, longest = np.ones(found.shape, np.intp), np.where(np.isin(found, missing), 0, 1)
    for place in range(1, ascending.shape[-1]):
        value = ascending[..., place]
        run = np.where(value == ascending[..., place - 1], run + 1, 1)
        length = np.where(np.isin(value, missing), 0, run) if missing else run
        found = np.where(length > longest, value, found)
        longest = np.maximum(length, longest)
    return np.where(longest == 0, nothing(values.dtype, missing), found) if missing else found


def _parts(
    values: Array, starts: Sequence[Starts | None], axis: int, lengths: Sequence[int], missing: Missing
) -> Iterator[Array]:
    """Yield the modes of blocks that are next to each other along an axis and have one length there."""
    begin = 0
    for length, alike in groupby(lengths):
        end = begin + length * len(list(alike))
        part = values[(slice(None),) * axis + (slice(begin, end),)]
        yield _mode(part, [*starts[:axis], range(0, end - begin, length), *starts[axis + 1 :]], missing)
        begin = end
