"""Upserts into a repository: in a transaction, again on each new head until it commits, always by label.

Two upserts of different labels both survive: the second one finds the rows where the first one has left them. If
another process has changed the same label since the call began, that is a conflict, as between any two transactions
(I5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from txstore.errors import LabelConflictError
from txstore.interfaces import AnyRepository, AnyStore
from txstore.labels.grids import Positions, differ, pieces, read
from txstore.labels.groups import LabelledGroup, open_group
from txstore.labels.rows import part_of
from txstore.labels.upsert import Existing, Missing, Upserted, UpsertPlan, named, upsert

if TYPE_CHECKING:
    import xarray as xr


class _LeftError(Exception):
    """Leaves the transaction's block without a commit, and is not tried again. Internal."""


def upsert_into(
    repository: AnyRepository,
    ds: xr.Dataset,
    *,
    dim: str | Sequence[str],
    group: str,
    existing: Existing,
    missing: Missing,
    message: str | None,
    branch: str,
    properties: Mapping[str, Any] | None,
    timeout: float,
) -> Upserted:
    """Commit an upsert. `Repository.upsert` documents the parameters and errors."""
    # The base of the caller is the head now. It stays readable as long as this store is there.
    began = repository.snapshot(branch=branch) if repository.exists and repository.head(branch) is not None else None
    overlapping: list[LabelConflictError] = []
    told = f"upsert of {_described(ds, dim)}" if message is None else message

    def step(store: AnyStore) -> Upserted:
        now = store.base
        if existing == "update" and now is not None and (began is None or began.base.id != now.id):
            conflict = overlap(ds, named(ds, dim), group, began, store)
            if conflict is not None:  # other commits changed the same labels
                overlapping.append(conflict)
                raise _LeftError
        done = upsert(ds, store, dim=dim, group=group, existing=existing, missing=missing)
        if not done:
            raise _LeftError
        return done

    try:
        return repository.run(step, timeout=timeout, message=told, branch=branch, properties=properties)
    except _LeftError:
        if overlapping:
            raise overlapping[0] from None
        return Upserted(0, 0)
    finally:
        if began is not None:
            began.close()


def _described(ds: xr.Dataset, dim: str | Sequence[str]) -> str:
    return ", ".join(f"{ds.sizes[name]} labels of {name}" for name in named(ds, dim))


def overlap(
    ds: xr.Dataset, dims: tuple[str, ...], group: str, before: AnyStore | None, now: AnyStore
) -> LabelConflictError | None:
    """Return the conflict of a dataset with what was committed between two commits; None if there is none.

    An element is in conflict if it was changed in between, and is not what the dataset has for it.
    """
    here = open_group(now, group)
    there = None if before is None else open_group(before, group)
    if here is None or not here.with_dimension(dims):
        return None
    plan = UpsertPlan(ds, here, dims)
    found = {name: plan.find(name) for name in dims}
    known = _found_before(ds, dims, there)
    marks = {name: (found[name] < 0) & (known[name] >= 0) for name in dims}  # rows that were removed
    for name in plan.variables:
        if name not in dims and name in here.variables:
            for axis, mask in _changed(plan, name, there, found, known).items():
                marks[axis] |= mask
    labels = {name: list(ds.variables[name].values[mask]) for name, mask in marks.items() if mask.any()}
    if not labels:
        return None
    shown = "; ".join(f"{name} {plan.shown(name, np.flatnonzero(marks[name]))}" for name in labels)
    return LabelConflictError(
        labels, [here.path_of(name) for name in labels], shown=shown, base=None if before is None else before.base,
        head=now.base,
    )  # fmt: skip


def _found_before(ds: xr.Dataset, dims: tuple[str, ...], there: LabelledGroup | None) -> dict[str, Positions]:
    if there is None or not all(name in there.variables for name in dims):
        return {name: np.full(ds.sizes[name], -1, np.intp) for name in dims}
    plan = UpsertPlan(ds, there, dims)
    return {name: plan.find(name) for name in dims}


def _changed(
    plan: UpsertPlan,
    name: str,
    there: LabelledGroup | None,
    found: Mapping[str, Positions],
    known: Mapping[str, Positions],
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which labels of one variable were changed in between, and are not what the dataset says."""
    dims, values = plan.dims_of(name), plan.encoded(name)
    axes = [axis for axis, dim in enumerate(dims) if dim in found]
    marks = {dims[axis]: np.zeros(values.shape[axis], bool) for axis in axes}
    source = [
        np.flatnonzero(found[dim] >= 0) if dim in found else np.arange(n)
        for dim, n in zip(dims, values.shape, strict=True)
    ]
    target = [found[dim][along] if dim in found else along for dim, along in zip(dims, source, strict=True)]
    array = plan.group.array(name)
    old = there.array(name) if there is not None and name in there.variables else None
    for piece in pieces(array, source, target):
        present = read(array, piece.target)
        mine = part_of(values, piece).astype(present.dtype, copy=False)
        mask = differ(mine, present)
        if not mask.any():
            continue
        places = [known[dim][along] if dim in known else along for dim, along in zip(dims, piece.source, strict=True)]
        mask &= _differs_from_before(old, places, present, array.fill_value, counts_new=len(axes) == 1)
        for axis in axes:
            marks[dims[axis]][piece.source[axis]] |= mask.any(
                axis=tuple(other for other in range(mask.ndim) if other != axis)
            )
    return marks


def _differs_from_before(
    old: Any, places: Sequence[Positions], present: npt.NDArray[Any], fill: Any, *, counts_new: bool
) -> npt.NDArray[np.bool_]:
    """Return which present elements were other before. `places`: where they were, -1 for rows that were not there.

    Of a new row, all is changed; along several dimensions, what is not the fill value: it may be just room.
    """
    changed = np.ones(present.shape, bool) if counts_new else differ(present, np.full_like(present, fill))
    were = [np.flatnonzero(along >= 0) for along in places]
    if old is not None and all(map(len, were)):
        before = read(old, [along[kept] for along, kept in zip(places, were, strict=True)])
        inside = np.ix_(*were)
        changed[inside] = differ(present[inside], before.astype(present.dtype, copy=False))
    return changed
