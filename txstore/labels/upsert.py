"""Writes a dataset by the labels of its coordinates: rows that are there are changed, others are added.

Values are encoded as the arrays of a store hold them: in their CF units, scales and dtypes. Each block is checked when
it is encoded, lazy ones when they are computed: no value may be read as another one. Only floats are rounded, where the
stored array has fewer digits, or a scale.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import zarr

from txstore.interfaces import AnyStore, check_store, zarr_store
from txstore.labels import matching
from txstore.labels.encoding import TEXT, check_not_missing, encode_first_labels, encode_labels, encode_texts
from txstore.labels.grids import Positions, axes_of, differ, pieces, read, write
from txstore.labels.groups import LabelledGroup, open_group
from txstore.labels.matching import Placed, RepeatedLabelsError
from txstore.labels.moving import Moved, move_rows
from txstore.labels.rows import RowBlock, blocks, write_block
from txstore.labels.times import (
    cast_times,
    check_no_zone,
    encode_in_units,
    in_nanoseconds,
    in_units_of_encoding,
    is_time,
    read_back,
)

if TYPE_CHECKING:
    import xarray as xr


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
    placed = {name: _place(plan, name, missing) for name in dims}
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


def _place(plan: UpsertPlan, name: str, missing: str) -> Placed:
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


Values = npt.NDArray[Any]


def encode_variable(name: str, variable: xr.Variable, stored: xr.Variable) -> Any:
    """Return the data of a variable as the stored one holds them: a numpy array, or a lazy one of Dask.

    Raises `ValueError` if the variable does not fit; if it is lazy, its values do so when they are computed.
    """
    import xarray as xr  # late: xarray is an extra

    if set(variable.dims) != set(stored.dims):
        raise ValueError(f"{name!r} has dimensions {variable.dims}, and the stored array {stored.dims}")
    check_no_zone(name, variable)
    if not variable.size:  # of objects, no type says whether they would be dates
        return np.empty([variable.sizes[dim] for dim in stored.dims], stored.dtype)
    if not stored.size:  # xarray can't decode no dates of a calendar such as 360_day
        stored = xr.Variable(stored.dims, np.zeros((1,) * stored.ndim, stored.dtype), stored.attrs)
    encoding = xr.conventions.decode_cf_variable(name, stored, decode_timedelta=True).encoding
    has_times = is_time(variable)
    _check_dtype(name, variable, stored, encoding, has_times=has_times)
    encoder = _Encoder(name, tuple(stored.dims), stored.dtype, dict(stored.attrs), encoding, has_times)
    variable = variable.transpose(*stored.dims)
    if variable.chunks is None:
        return encoder(np.asarray(variable.values))
    meta = np.empty((0,) * variable.ndim, stored.dtype)
    return variable.data.map_blocks(encoder, dtype=stored.dtype, meta=meta)


def _check_dtype(
    name: str, variable: xr.Variable, stored: xr.Variable, encoding: Mapping[str, Any], *, has_times: bool
) -> None:
    """Refuse what would be stored as other values without a word: fractions as integers, dates as numbers."""
    is_packed = not {"scale_factor", "add_offset", "_FillValue", "missing_value"}.isdisjoint(encoding)
    given, kept = variable.dtype.kind, stored.dtype.kind
    fits = (
        (kept in TEXT and given in TEXT)
        or (has_times and ("units" in encoding or given == kept))
        or (
            given in "biufc"
            and kept in "biufc"
            and ((is_packed and given != "c") or np.can_cast(variable.dtype, stored.dtype, "same_kind"))
        )
    )
    if not fits:
        raise TypeError(f"{name!r} is stored as {stored.dtype}, and the dataset has {variable.dtype}: convert it first")


@dataclass(frozen=True)
class _Encoder:
    """Encodes blocks of one variable. `attributes` and `encoding` are those of the stored array."""

    name: str
    dims: tuple[Any, ...]
    dtype: np.dtype[Any]
    attributes: dict[str, Any]
    encoding: dict[str, Any]
    has_times: bool

    def __call__(self, values: Values) -> Values:
        if not values.size:
            return np.empty(values.shape, self.dtype)
        if self.has_times:
            return self._times(in_nanoseconds(values))
        return self._texts(values) if values.dtype.kind in TEXT else self._numbers(values)

    @property
    def _fill(self) -> Any:
        """What stands for missing values; None if nothing does."""
        return self.attributes.get("_FillValue", self.attributes.get("missing_value"))

    @property
    def _has_missing_as_nan(self) -> bool:
        return self._fill is None or bool(np.isnan(np.asarray(self._fill, self.dtype)))

    def _check(self, values: Values, fits: Any, reason: str) -> None:
        wrong = ~np.broadcast_to(np.asarray(fits, bool), values.shape)
        if wrong.any():
            raise ValueError(f"{self.name!r}: {values[wrong][0]} can't be stored as {self.dtype}{reason}")

    def _times(self, values: Values) -> Values:
        import xarray as xr  # late: xarray is an extra

        if self.dtype.kind in "mM":
            encoded, same = cast_times(values, self.dtype)
            self._check(values, same, ": round it")
            return encoded
        units = self.attributes.get("units")
        plain = xr.Variable(self.dims, values, {}, self.encoding)
        with np.errstate(invalid="ignore"):
            encoded = np.asarray(encode_in_units(self.name, plain, units).values).astype(self.dtype)
        same, present = read_back(self.name, values, encoded, self.attributes)
        is_exact = self.dtype.kind in "iu" and "scale_factor" not in self.attributes
        self._check(values, same if is_exact else present, f" in units {units!r}: it would be read as another time")
        return encoded

    def _texts(self, values: Values) -> Values:
        if values.dtype.kind == "O":
            import pandas  # late: xarray, which needs it, is an extra

            missing = np.asarray(pandas.isna(values))
            if self._fill is None:
                self._check(values, ~missing, " text, and the array has no _FillValue: fill it, or drop these rows")
            values = np.where(missing, self._fill, values)
        return encode_texts(self.name, values, self.dtype)

    def _numbers(self, values: Values) -> Values:
        is_scaled = not {"scale_factor", "add_offset"}.isdisjoint(self.attributes)
        if values.dtype == self.dtype and values.dtype.kind in "fc" and not is_scaled and self._has_missing_as_nan:
            return values  # most data: each value is what is stored
        found = self._scaled(values) if is_scaled else values
        missing = np.isnan(found) if found.dtype.kind in "fc" else np.zeros(found.shape, bool)
        told = f" with scale {self.attributes.get('scale_factor', 1)}" if is_scaled else ""
        with np.errstate(invalid="ignore", over="ignore"):
            if self.dtype.kind in "iu":
                if self._fill is None:
                    self._check(values, ~missing, f"{told}, and the array has no _FillValue: fill it")
                encoded, fits = self._integers(found, missing, is_scaled=is_scaled)
            else:
                encoded = np.asarray(found.astype(self.dtype))
                if found.dtype.kind in "iu":
                    fits = encoded.astype(found.dtype) == found
                else:
                    fits = ~np.isinf(encoded) | np.isinf(found)
        self._check(
            values, fits | missing, f"{told}: it would be another number. Write the array anew with a wider dtype"
        )
        if missing.any() and self._fill is not None:
            encoded = np.where(missing, np.asarray(self._fill).astype(self.dtype), encoded)
        if self.dtype.kind in "iu" or values.dtype.kind in "iu":
            kept = ~missing
            check_not_missing(self.name, values[kept], encoded[kept], self.attributes)
        return encoded

    def _scaled(self, values: Values) -> Values:
        """Return values as they are before xarray rounds them: in the floats that it calculates with."""
        import xarray as xr  # late: xarray is an extra

        packed = ("scale_factor", "add_offset")
        encoding: dict[str, Any] = {key: self.attributes[key] for key in packed if key in self.attributes}
        if self._fill is not None:  # xarray keeps the dtype of the values then
            encoding["_FillValue"] = np.nan
        plain = xr.Variable(self.dims, values if values.dtype.kind == "f" else values.astype("f8"), {}, encoding)
        return np.asarray(xr.conventions.encode_cf_variable(plain, name=self.name).values)

    def _integers(self, found: Values, missing: Values, *, is_scaled: bool) -> tuple[Values, npt.NDArray[np.bool_]]:
        """Return numbers as integers, and which of them are such."""
        kind = {"true": "u", "false": "i"}.get(str(self.attributes.get("_Unsigned")).lower(), self.dtype.kind)
        own = np.dtype(f"{kind}{self.dtype.itemsize}")
        if found.dtype.kind in "biu":
            encoded = found.astype(own)
            fits = (encoded.astype(found.dtype) == found) & ((encoded < 0) == (found < 0))
        else:
            whole, limits = np.rint(found), np.iinfo(own)
            # The highest integer of 64 bits is no float: the one above it is.
            fits = (whole >= limits.min) & (whole < float(limits.max) + (own.itemsize < 8))
            fits &= is_scaled | (whole == found)
            encoded = np.where(fits & ~missing, whole, 0).astype(own)
        return np.asarray(encoded).view(self.dtype), fits
