"""Writes a dataset by the labels of its coordinates: rows that are there are changed, others are added.

Into a repository it is done in a transaction, again on each new head until it commits, always by label. Two upserts of
different labels both survive: the second one finds the rows where the first one has left them. If another process has
changed the same label since the call began, that is a conflict, as between any two transactions (I5).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import zarr

from txstore.errors import LabelConflictError
from txstore.interfaces import AnyRepository, AnyStore, check_store, zarr_store
from txstore.labels import matching
from txstore.labels.encoding import encode_first_labels, encode_labels, encode_variable
from txstore.labels.grids import Piece, Positions, axes_of, differ, pieces, read, select, write
from txstore.labels.groups import LabelledGroup, open_group
from txstore.labels.matching import Placed, RepeatedLabelsError
from txstore.labels.moving import Moved, move_rows
from txstore.labels.times import check_no_zone, in_units_of_encoding

if TYPE_CHECKING:
    import xarray as xr


#: Bytes that are compared at once, about: in a row that has changed, most often the first ones tell.
_COMPARED = 4 << 20


@dataclass(frozen=True)
class RowBlock:
    """Positions of the source along each axis, and those of the array. `is_stored`: all of them have values already.

    `axes` are the axes whose rows have labels.
    """

    source: list[Positions]
    target: list[Positions]
    axes: tuple[int, ...]
    is_stored: bool

    def of_labels(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which combinations of labels have an element that a mask marks."""
        return mask.any(axis=tuple(axis for axis in range(mask.ndim) if axis not in self.axes))


def blocks(positions: Sequence[Positions], is_new: Mapping[int, npt.NDArray[np.bool_]]) -> Iterator[RowBlock]:
    """Cut a selection into one block that is stored, and the others, each of which is new along some axis.

    `is_new` has the axes whose rows have labels, ascending.
    """
    for choice in product((False, True), repeat=len(is_new)):
        source = [np.arange(len(along)) for along in positions]
        for wants_new, (axis, new) in zip(choice, is_new.items(), strict=True):
            source[axis] = np.flatnonzero(new == wants_new)
        if all(map(len, source)):
            target = [along[chosen] for along, chosen in zip(positions, source, strict=True)]
            yield RowBlock(source, target, tuple(is_new), is_stored=not any(choice))


def write_block(array: zarr.Array[Any], values: Any, block: RowBlock) -> npt.NDArray[np.bool_] | None:
    """Write a block. Of one that is stored, write only rows that differ.

    Return which combinations of labels of `values` do, along the labelled axes; None for a block that is new.
    """
    found = list(pieces(array, block.source, block.target))
    if isinstance(values, np.ndarray):
        masks = [_write_piece(array, values[_place(piece)], piece, block) for piece in found]
    else:
        from dask.base import compute  # late: only lazy data need it
        from dask.delayed import delayed

        tasks = [delayed(_write_piece)(array, _lazy(values, piece), piece, block) for piece in found]
        masks = list(compute(*tasks))  # type: ignore[no-untyped-call]
    if not block.is_stored:
        return None
    differs = np.zeros([values.shape[axis] for axis in block.axes], bool)
    for piece, mask in zip(found, masks, strict=True):
        if mask is not None:
            differs[np.ix_(*(piece.source[axis] for axis in block.axes))] |= mask
    return differs


def _place(piece: Piece) -> tuple[Any, ...]:
    chosen = select(piece.source)
    return chosen if all(isinstance(each, slice) for each in chosen) else np.ix_(*piece.source)


def part_of(values: Any, piece: Piece) -> npt.NDArray[Any]:
    """Return the part of a numpy array, or of a lazy one, that a piece names."""
    return np.asarray(values[_place(piece)] if isinstance(values, np.ndarray) else _lazy(values, piece))


def _lazy(values: Any, piece: Piece) -> Any:
    """Return the part of a lazy array, which is computed when the piece is written."""
    for axis, chosen in enumerate(select(piece.source)):
        values = values[(slice(None),) * axis + (chosen,)]
    return values


def _write_piece(
    array: zarr.Array[Any], part: npt.NDArray[Any], piece: Piece, block: RowBlock
) -> npt.NDArray[np.bool_] | None:
    """Write one piece; return which labels have elements that differ from the stored ones, None if there are none."""
    if not block.is_stored:
        write(array, piece.target, part)
        return None
    mask = _differing(array, part, piece, block)
    if not mask.any():
        return None
    kept: list[npt.NDArray[np.bool_] | None] = [None] * part.ndim
    for number, axis in enumerate(block.axes):
        kept[axis] = mask.any(axis=tuple(other for other in range(mask.ndim) if other != number))
    for axis, along in enumerate(kept):
        if along is not None and not along.all():
            part = np.compress(along, part, axis=axis)
    write(array, piece.only(kept).target, part)
    return mask


def _differing(array: zarr.Array[Any], part: npt.NDArray[Any], piece: Piece, block: RowBlock) -> npt.NDArray[np.bool_]:
    """Return which combinations of labels of a piece have an element that differs; what is known is not read for."""
    mask = np.zeros([part.shape[axis] for axis in block.axes], bool)
    for small in pieces(array, [np.arange(length) for length in part.shape], piece.target, _COMPARED):
        labels = np.ix_(*(small.source[axis] for axis in block.axes))
        if not mask[labels].all():
            there = read(array, small.target).astype(part.dtype, copy=False)
            mask[labels] |= block.of_labels(differ(part[_place(small)], there))
    return mask


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


Existing = Literal["update", "keep", "raise"]
Missing = Literal["append", "insert", "raise"]


@dataclass(frozen=True)
class Upserted:
    """What an upsert has changed.

    `updated` counts labels that were there and whose values changed; along several dimensions, combinations of labels.
    `inserted` counts new labels, along all dimensions together.
    """

    updated: int
    inserted: int

    def __bool__(self) -> bool:
        return bool(self.updated or self.inserted)


def upsert(
    ds: xr.Dataset,
    store: AnyStore,
    *,
    dim: str | Sequence[str],
    group: str = "",
    existing: Existing = "update",
    missing: Missing = "append",
) -> Upserted:
    """Stage a dataset in a transaction's store by its labels. `Repository.upsert` documents the parameters and errors.

    If another process commits rows of the same coordinate first, the commit raises `ConflictError`:
    `repo.run(lambda store: txstore.upsert(ds, store, dim=...))` tries again.

    Examples
    --------
    >>> import tempfile, txstore, xarray as xr
    >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
    >>> with repo.transaction() as store:
    ...     txstore.upsert(xr.Dataset({"t": ("x", [1.0, 2.0])}, {"x": [10, 20]}), store, dim="x")
    Upserted(updated=0, inserted=2)
    >>> with repo.transaction() as store:
    ...     txstore.upsert(xr.Dataset({"t": ("x", [5.0, 9.0])}, {"x": [30, 20]}), store, dim="x")
    Upserted(updated=1, inserted=1)
    >>> xr.open_dataset(repo, engine="txstore").t.values
    array([1., 9., 5.])
    """
    if existing not in ("update", "keep", "raise"):
        raise ValueError(f"existing={existing!r}: 'update', 'keep' or 'raise'")
    if missing not in ("append", "insert", "raise"):
        raise ValueError(f"missing={missing!r}: 'append', 'insert' or 'raise'")
    check_store(store)
    dims = named(ds, dim)
    there = open_group(store, group)
    if there is None or not there.with_dimension(dims):
        return _create(ds, store, dims, group, missing, there)
    plan = UpsertPlan(ds, there, dims)
    placed = {name: _placed(plan, name, missing) for name in dims}
    if existing == "raise" and all((~each.is_new).any() for each in placed.values()):
        known = {name: plan.shown(name, np.flatnonzero(~each.is_new)) for name, each in placed.items()}
        raise ValueError(f"these labels are there already: {_told(known)}. existing='update' changes them")
    plan.check_fits(grown=[name for name, each in placed.items() if each.inserted])
    rely_on_labels(store, there, placed)
    make_room(there, placed)
    return write_rows(plan, placed, existing)


def named(ds: xr.Dataset, dim: str | Sequence[str]) -> tuple[str, ...]:
    """Return the dimensions, all of which the dataset labels. Raises `ValueError`, and `TypeError` for no dataset."""
    import xarray as xr  # late: an extra

    if isinstance(ds, xr.DataArray):
        raise TypeError("this is a DataArray, and a Dataset is wanted: use .to_dataset(name=...)")
    if not isinstance(ds, xr.Dataset):
        raise TypeError(f"an xarray.Dataset is wanted, and this is a {type(ds).__name__}")
    dims = (dim,) if isinstance(dim, str) else tuple(dict.fromkeys(dim))
    if not dims:
        raise ValueError("dim= names the dimensions whose labels say where the data belong")
    for name in dims:
        if name not in ds.dims or name not in ds.variables or ds.variables[name].dims != (name,):
            raise ValueError(f"the dataset has no coordinate of its own along {name!r}: there are no labels to go by")
    return dims


def _told(labels: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {shown}" for name, shown in labels.items())


class UpsertPlan:
    """A dataset beside the group that it is written to: its labels and variables, encoded as that stores them."""

    def __init__(self, ds: xr.Dataset, group: LabelledGroup, dims: tuple[str, ...]) -> None:
        self.ds = ds = group.without_derived(ds)
        self.group = group
        self.dims = dims
        self.labels: dict[str, npt.NDArray[Any]] = {}  # of the dataset, encoded
        self.stored: dict[str, npt.NDArray[Any]] = {}
        self._encoded: dict[str, Any] = {}
        for name in dims:
            stored = group.variables.get(name)
            if stored is None or stored.dims != (name,):
                raise ValueError(
                    f"{group.path_of(name)!r} is no stored coordinate: there are no labels to compare with"
                )
            self.labels[name] = encode_labels(name, ds.variables[name], stored)
            if again := matching.repeated(self.labels[name]):
                raise ValueError(f"{name!r} repeats labels in the dataset: {self.shown(name, again)}")
            values = np.asarray(stored.values)
            self.stored[name] = values if values.dtype.kind in "biufcmMUS" else values.astype(object)

    def shown(self, name: str, places: Sequence[int] | Positions) -> str:
        """Return labels of the dataset, for a message."""
        values = self.ds.variables[name].values
        return ", ".join(str(values[place]) for place in places[:5]) + (", ..." if len(places) > 5 else "")

    def find(self, name: str) -> Positions:
        """Return where the labels of the dataset are stored along a dimension, -1 where they are not."""
        try:
            return matching.find(self.stored[name], self.labels[name])
        except RepeatedLabelsError as error:
            raise ValueError(
                f"{name!r} has the labels {self.shown(name, error.places)} more than once in the store: which row is "
                "meant? Remove one, and declare repo.constraints[...] = Unique(...)"
            ) from None

    @property
    def variables(self) -> list[str]:
        """The names of the variables to write: those of the dataset with one of the dimensions."""
        return [str(name) for name, each in self.ds.variables.items() if not set(self.dims).isdisjoint(each.dims)]

    def encoded(self, name: str) -> Any:
        if name not in self._encoded:
            self._encoded[name] = encode_variable(name, self.ds.variables[name], self.group.variables[name])
        return self._encoded[name]

    def dims_of(self, name: str) -> tuple[str, ...]:
        return tuple(str(dim) for dim in self.group.variables[name].dims)

    def check_fits(self, *, grown: Sequence[str]) -> None:
        """Raise `ValueError` if the dataset's variables are not those of the group. `grown` dimensions get rows."""
        absent = [name for name in map(str, self.ds.variables) if name not in self.group.variables]
        if absent:
            raise ValueError(
                f"there is no {', '.join(map(repr, absent))} in {self.group.path!r}: write it first, or drop it"
            )
        lacking = [name for name in self.group.with_dimension(tuple(grown)) if name not in self.ds.variables]
        if lacking:
            raise ValueError(
                f"the dataset brings new labels, and has no {', '.join(map(repr, lacking))}: every variable along "
                f"{', '.join(map(repr, grown))} needs values for them"
            )
        for name in map(str, self.ds.variables):
            self._check_sources(name)
            encoded, stored = self.encoded(name), self.group.variables[name]
            _check_sizes(name, encoded, stored, [dim for dim in stored.dims if dim not in self.dims])
            if name not in self.variables:
                _check_equal(name, encoded, stored, self.dims)

    def _check_sources(self, name: str) -> None:
        """Refuse lazy data that would be read from arrays whose rows have changed, or moved, by then."""
        if self.ds.variables[name].chunks is None:
            return
        changed = {self.group.path_of(each) for each in self.group.with_dimension(self.dims)}
        for array in arrays_read(self.ds.variables[name].data):
            if array.path in changed and self.group.store.is_in_transaction_of(array.store):
                raise ValueError(
                    f"{name!r} is computed from {array.path!r} as this transaction has it, whose rows change before it "
                    "is read: open the data from `store.at_base()` or a snapshot, or load them first, with ds.load()"
                )


def _check_sizes(name: str, encoded: Any, stored: xr.Variable, dims: Sequence[Hashable]) -> None:
    sizes = dict(zip(stored.dims, encoded.shape, strict=True))
    wrong = [
        f"{dim} has {sizes[dim]}, and {stored.sizes[dim]} are stored" for dim in dims if sizes[dim] != stored.sizes[dim]
    ]
    if wrong:
        raise ValueError(f"{name!r} does not fit: {'; '.join(wrong)}")


def _check_equal(name: str, encoded: Any, stored: xr.Variable, dims: tuple[str, ...]) -> None:
    if _differs(encoded, stored):
        raise ValueError(
            f"{name!r} has none of the dimensions {dims}, and differs from what is stored: drop it from the dataset, "
            "or write it by itself"
        )


def _differs(encoded: Any, stored: xr.Variable) -> bool:
    mine, theirs = np.atleast_1d(np.asarray(encoded)), np.atleast_1d(np.asarray(stored.values))
    return bool(differ(mine, theirs.astype(mine.dtype, copy=False)).any())


def _placed(plan: UpsertPlan, name: str, missing: str) -> Placed:
    found = plan.find(name)
    if missing == "raise" and (found < 0).any():
        absent = plan.shown(name, np.flatnonzero(found < 0))
        raise ValueError(f"{name!r} has no labels {absent}: missing='append' or 'insert' adds them")
    if missing == "insert":
        try:
            return matching.insert(plan.stored[name], plan.labels[name], found)
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from None
    return matching.append(plan.stored[name], found)


def rely_on_labels(store: AnyStore, group: LabelledGroup, placed: Mapping[str, Placed]) -> None:
    """Let the commit conflict if another one has changed labels that this upsert has found, or not found."""
    if store.base is None:
        return
    for name, each in placed.items():
        array = group.array(name)
        (axis,) = axes_of(array.metadata)
        # If there are new labels, no stored label may become one of them.
        chunks = np.arange(len(axis.starts)) if each.inserted else np.unique(axis.chunk_of(each.positions))
        path = group.path_of(name)
        store.rely_on(f"{path}/{array.metadata.encode_chunk_key((int(place),))}" for place in chunks)


def make_room(group: LabelledGroup, placed: Mapping[str, Placed]) -> None:
    """Move rows behind which others are inserted, and lengthen the arrays."""
    moved: dict[str, dict[int, Moved]] = {}
    lengthened: dict[str, dict[int, Placed]] = {}
    for name in group.with_dimension(tuple(placed)):
        axes = {axis: placed[str(dim)] for axis, dim in enumerate(group.variables[name].dims) if dim in placed}
        grown = {axis: each for axis, each in axes.items() if each.inserted}
        if any(each.moves_rows for each in grown.values()):
            moved[name] = {axis: Moved(each.length, each.segments) for axis, each in grown.items()}
        elif grown:
            lengthened[name] = grown
    for dim, each in placed.items() if moved else ():
        if each.moves_rows:
            group.check_none_inherit(dim)
    move_rows(group.store, {group.path_of(name): axes for name, axes in moved.items()})
    for name in moved:
        group.forget(name)
    for name, grown in lengthened.items():
        array = group.array(name)
        before = array.shape
        array.resize(tuple(grown[axis].length if axis in grown else n for axis, n in enumerate(before)))
        if len(set(placed) & set(group.variables[name].dims)) > 1:  # or else this upsert writes all that it shows
            _empty_edges(array, before)


def _empty_edges(array: zarr.Array[Any], before: Sequence[int]) -> None:
    """Set what an array shows of its old chunks, since it is longer than before, to the fill value.

    zarr leaves elements there if an array is made shorter.
    """
    axes = axes_of(array.metadata)
    seen = []  # along each axis: where the chunks end that were there
    for axis, length in zip(axes, before, strict=True):
        last = axis.chunk_of(np.array([length - 1]))[0]
        seen.append(min(axis.length, int(axis.starts[last] + axis.sizes[last])) if length else 0)
    for number, (length, end) in enumerate(zip(before, seen, strict=True)):
        edges = [
            np.arange(length, end) if axis == number else np.arange(before[axis] if axis < number else other)
            for axis, other in enumerate(seen)
        ]
        for piece in pieces(array, edges, edges):
            there = read(array, piece.target)
            fill = array.fill_value
            if fill is None:  # of format 2: zarr takes zeros then, or empty text
                fill = "" if there.dtype.kind == "O" else np.zeros((), there.dtype)[()]
            empty = np.full_like(there, fill)
            if differ(there, empty).any():
                write(array, piece.target, empty)


def write_rows(plan: UpsertPlan, placed: Mapping[str, Placed], existing: Existing) -> Upserted:
    """Write the rows, and count them."""
    known = {name: ~each.is_new for name, each in placed.items()}
    changed = np.zeros([len(known[name]) for name in plan.dims], bool)
    for name in plan.variables:
        for block in _blocks(plan, name, placed):
            if block.is_stored and existing == "keep":
                continue
            differs = write_block(plan.group.array(name), plan.encoded(name), block)
            if differs is not None:
                changed |= _along(plan, name, differs)
    for axis, name in enumerate(plan.dims):
        changed &= known[name].reshape([-1 if axis == other else 1 for other in range(changed.ndim)])
    return Upserted(int(changed.sum()), sum(each.inserted for each in placed.values()))


def _blocks(plan: UpsertPlan, name: str, placed: Mapping[str, Placed]) -> Iterator[RowBlock]:
    dims = plan.dims_of(name)
    shape = plan.encoded(name).shape
    positions = [placed[dim].positions if dim in placed else np.arange(n) for dim, n in zip(dims, shape, strict=True)]
    return blocks(positions, {axis: placed[dim].is_new for axis, dim in enumerate(dims) if dim in placed})


def _along(plan: UpsertPlan, name: str, differs: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return a mask over the labels of one variable as one over all dimensions of the upsert."""
    kept = [dim for dim in plan.dims_of(name) if dim in plan.dims]
    mask = differs.transpose(sorted(range(len(kept)), key=lambda axis: plan.dims.index(kept[axis])))
    shape = [len(plan.labels[dim]) if dim in kept else 1 for dim in plan.dims]
    return np.broadcast_to(mask.reshape(shape), [len(plan.labels[dim]) for dim in plan.dims])


def _create(
    ds: xr.Dataset, store: AnyStore, dims: tuple[str, ...], group: str, missing: Missing, there: LabelledGroup | None
) -> Upserted:
    """Write the first rows. The group may have other variables already."""
    units = {}
    for name in dims:
        if encoding := encode_first_labels(name, ds.variables[name]):
            units[name] = encoding
        values = np.asarray(ds.variables[name].values)
        if again := matching.repeated(values):
            raise ValueError(
                f"{name!r} repeats labels in the dataset: {', '.join(str(values[each]) for each in again[:5])}"
            )
    if missing == "raise":
        raise ValueError(f"there is nothing in {group!r} yet: missing='append' or 'insert' writes the first rows")
    for name, variable in ((str(name), each) for name, each in ds.variables.items()):
        check_no_zone(name, variable)
        stored = None if there is None else there.variables.get(name)
        if stored is not None:
            encoded = encode_variable(name, variable, stored)
            _check_sizes(name, encoded, stored, stored.dims)
            _check_equal(name, encoded, stored, dims)
    ordered = ds.sortby(list(dims)) if missing == "insert" else ds
    ordered = ordered.assign(
        {
            name: in_units_of_encoding(str(name), each)
            for name, each in ordered.variables.items()
            if each.dtype.kind in "mM"
        }
    )
    ordered.to_zarr(zarr_store(store), group=group or None, mode="a", consolidated=False, encoding=units)
    return Upserted(0, sum(ds.sizes[name] for name in dims))


# --- the arrays that lazy data of Dask are computed from: what xarray and `dask.array.from_zarr` open


def arrays_read(values: Any) -> Iterator[zarr.Array[Any]]:
    """Yield the zarr arrays in the graph of a lazy array. A user's function may open others, which this can't see."""
    graph = values.__dask_graph__()
    layers: Mapping[str, Any] = getattr(graph, "layers", {"": graph})
    for layer in layers.values():
        # A layer of `blockwise` makes its tasks when it is computed, all with the same arguments beside the blocks.
        tasks = [value for value, _ in layer.indices] if hasattr(layer, "indices") else layer.values()
        for task in tasks:
            yield from _within(task, 4)


def _within(value: Any, depth: int) -> Iterator[zarr.Array[Any]]:
    """Yield the zarr arrays that a task has as arguments, or that xarray's lazy arrays are around."""
    if isinstance(value, zarr.Array):
        yield value
    elif isinstance(value, list | tuple):
        for each in value if depth else ():
            yield from _within(each, depth - 1)
    elif type(value).__module__.startswith("dask."):
        for name in ("args", "value"):
            yield from _within(getattr(value, name, None), depth - 1) if depth else ()
    elif type(value).__module__.startswith("xarray."):
        for name in ("array", "_array"):  # one around the other; the last one is around zarr's
            yield from _within(getattr(value, name, None), depth)
