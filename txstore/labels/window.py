"""Rolling windows: rows before the first one are added, the oldest ones are dropped, and all others move.

A regular grid of chunks begins at the first row. Where rows move by a multiple of the chunks' length, the commit refers
to the stored chunks under their new keys. Else every chunk of the array is read and written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from txstore.errors import NodeNotFoundError
from txstore.interfaces import AnyStore, check_store, zarr_store
from txstore.labels.groups import LabelledGroup, open_group
from txstore.labels.matching import Placed
from txstore.labels.moving import Moved, move_rows
from txstore.labels.upsert import UpsertPlan, make_room, named, rely_on_labels, write_rows
from txstore.pipeline import open_own

if TYPE_CHECKING:
    import xarray as xr


def prepend(ds: xr.Dataset, store: AnyStore, *, dim: str, group: str = "") -> None:
    """Stage a dataset before the first row of every variable with a dimension, in the order of the dataset.

    The stored rows move up: whole chunks by reference if the dataset's length is a multiple of their length, else all
    of them are written again. A reader sees either state. Who began to write before conflicts, and tries again.

    Parameters
    ----------
    ds : xarray.Dataset
        All variables of the group that have the dimension, and its coordinate. Values are stored in the units, scale
        and dtype of the stored arrays.
    store : TxStore
        The store of a transaction that has not changed these arrays.

    Raises
    ------
    ValueError, TypeError
        A label is there already, is repeated or missing, or can't be stored exactly; or the variables do not fit.
    TransactionStateError
        The transaction has changed one of the arrays.

    Examples
    --------
    >>> import tempfile, txstore, xarray as xr
    >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
    >>> with repo.transaction() as store:
    ...     _ = xr.Dataset({"t": ("x", [3.0, 4.0])}, {"x": [30, 40]}).to_zarr(store, consolidated=False)
    >>> with repo.transaction() as store:
    ...     txstore.prepend(xr.Dataset({"t": ("x", [1.0, 2.0])}, {"x": [10, 20]}), store, dim="x")
    >>> xr.open_dataset(repo, engine="txstore").t.values
    array([1., 2., 3., 4.])
    """
    check_store(store)
    (name,) = named(ds, dim)
    there = _opened(store, group, name)
    plan = UpsertPlan(ds, there, (name,))
    found = plan.find(name)
    if (found >= 0).any():
        raise ValueError(
            f"these labels of {name!r} are there already: {plan.shown(name, np.flatnonzero(found >= 0))}. "
            "`upsert` changes their rows"
        )
    count, length = len(found), len(plan.stored[name])
    placed = {name: Placed(np.arange(count), np.ones(count, bool), count + length, ((0, length, count),))}
    plan.check_fits(grown=[name] if count else [])
    rely_on_labels(store, there, placed)
    make_room(there, placed)
    write_rows(plan, placed, "update")


def roll(store: AnyStore, dim: str, *, keep: int, group: str = "") -> int:
    """Stage that only the last rows of every variable with a dimension stay; return how many rows are dropped.

    The rows that stay move to the beginning, as `prepend` says. Old commits are read as before: a vacuum removes what
    only they refer to.

    Parameters
    ----------
    keep : int
        Number of rows. If there are fewer, nothing is changed.
    """
    check_store(store)
    keep = _whole(keep, f"keep={keep!r}: the number of rows that stay")
    if keep < 0:
        raise ValueError(f"keep={keep}: the number of rows that stay is not negative")
    there = _opened(store, group, dim)
    length = there.sizes[dim]
    dropped = max(0, length - keep)
    along = there.with_dimension((dim,))
    if not dropped:  # a commit that has made the arrays longer conflicts
        store.rely_on(there.document_of(name) for name in along)
    else:
        there.check_none_inherit(dim)
        kept = Moved(keep, ((dropped, length, 0),) if keep else ())
        move_rows(store, {there.path_of(name): {there.variables[name].dims.index(dim): kept} for name in along})
    return dropped


def shift(store: AnyStore, path: str, offsets: Mapping[int, int], fill: Any = None) -> None:
    """Stage that the rows of an array move. `TxStore.shift` documents the parameters and errors."""
    array = open_own(zarr_store(store), path, mode="r")
    axes = {}
    for axis, given in offsets.items():
        offset = _whole(given, f"{path!r}: the offset {given!r} of axis {axis}")
        if not -array.ndim <= axis < array.ndim:
            raise ValueError(f"{path!r} has {array.ndim} dimensions, and no axis {axis}")
        length = array.shape[axis]
        first, stop = max(0, -offset), max(0, min(length, length - offset))
        axes[axis % array.ndim] = Moved(length, ((first, stop, first + offset),) if first < stop else ())
    if not axes:
        return
    move_rows(store, {path: axes})
    if fill is None:
        return
    array = open_own(zarr_store(store), path, mode="r+")
    for axis, moved in axes.items():
        ends = [(to, to + stop - first) for first, stop, to in moved.segments] or [(0, 0)]
        (begin, end) = ends[0]
        for free in (slice(0, begin), slice(end, moved.length)):
            array[(slice(None),) * axis + (free,)] = fill


def _whole(number: Any, told: str) -> int:
    try:
        return index(number)
    except TypeError:
        raise TypeError(f"{told} is an integer, and this is a {type(number).__name__}") from None


def _opened(store: AnyStore, group: str, dim: str) -> LabelledGroup:
    there = open_group(store, group)
    if there is None or dim not in there.sizes:
        raise NodeNotFoundError(group, wanted=f"group with dimension {dim!r}", found="absent")
    return there
