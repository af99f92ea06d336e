"""Encodes the values of variables as the arrays of a store hold them: in their CF units, scales and dtypes.

Each block is checked when it is encoded, lazy ones when they are computed: no value may be read as another one. Only
floats are rounded, where the stored array has fewer digits, or a scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from txstore.labels.encoding import TEXT, check_not_missing, encode_texts
from txstore.labels.times import cast_times, check_no_zone, encode_in_units, in_nanoseconds, is_time, read_back

if TYPE_CHECKING:
    import xarray as xr

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
