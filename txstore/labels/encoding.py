"""Encodes labels and values as the arrays of a store hold them: in their CF units, scales and dtypes.

A label that can't be stored exactly is refused, where a plain `to_zarr` would round it or cut it off: a label that is
rounded is another label. Each block of values is checked when it is encoded, lazy ones when they are computed: no value
may be read as another one. Only floats are rounded, where the stored array has fewer digits, or a scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from txstore.labels.times import (
    cast_times,
    check_no_zone,
    encode_in_units,
    fine_units,
    in_nanoseconds,
    is_date,
    is_time,
    read_back,
)

if TYPE_CHECKING:
    import xarray as xr


#: Calendars that count days as `numpy.datetime64` does, at any date that data have.
_STANDARD = {"standard", "gregorian", "proleptic_gregorian"}
#: Floats count in steps of one up to here.
_LARGEST_EXACT = 1 << 53
#: Kinds of numpy types that hold text.
TEXT = "OUST"


def encode_labels(name: str, labels: xr.Variable, stored: xr.Variable) -> npt.NDArray[Any]:
    """Return labels in the dtype and units of the stored coordinate. `stored` is not decoded.

    Raises `ValueError` if one of them is missing (NaN or NaT) or can't be stored exactly, `TypeError` if they are of
    another kind.
    """
    check_no_zone(name, labels)
    values = in_nanoseconds(np.asarray(labels.values))
    check_present(name, values)
    if not values.size:  # of objects, no type says whether they would be dates
        return np.empty(values.shape, stored.dtype)
    if values.dtype.kind in TEXT and not is_date(values):
        encoded = encode_texts(name, values, stored.dtype)
    elif stored.dtype.kind in "mM":
        if values.dtype.kind != stored.dtype.kind:
            raise _other_kind(name, values, stored)
        encoded, same = cast_times(values, stored.dtype)
        _check_exact(name, values, same)
    elif is_date(values) or values.dtype.kind == "m":
        encoded = _times(name, labels, values, stored)
    elif values.dtype.kind in "biuf" and stored.dtype.kind in "biuf" and "since" not in str(stored.attrs.get("units")):
        encoded = _numbers(name, values, stored)
    else:
        raise _other_kind(name, values, stored)
    check_not_missing(name, values, encoded, stored.attrs)
    return encoded


def encode_first_labels(name: str, labels: xr.Variable) -> dict[str, Any]:
    """Return the encoding of the first labels of a coordinate: units for dates and durations that have none.

    Raises `ValueError` if one is missing or would be another label when it is read, `TypeError` for dates with a zone.
    """
    import xarray as xr  # late: xarray is an extra

    check_no_zone(name, labels)
    values = in_nanoseconds(np.asarray(labels.values))
    check_present(name, values)
    if values.dtype.kind in TEXT and not is_date(values):
        return {}
    is_undecided = (is_date(values) or values.dtype.kind == "m") and "units" not in labels.encoding
    encoding = {"units": fine_units(values), "dtype": "int64"} if is_undecided else {}
    plain = xr.Variable(labels.dims, values, labels.attrs, {**labels.encoding, **encoding})
    stored = xr.conventions.encode_cf_variable(plain, name=name)
    if (encode_labels(name, plain, stored) != np.asarray(stored.values)).any():
        raise ValueError(f"{name!r}: these labels are not what is read of them, by their encoding {labels.encoding}")
    return encoding


def check_present(name: str, values: npt.NDArray[Any]) -> None:
    """Raise `ValueError` if a label is NaN, NaT or None."""
    if values.dtype.kind in "mM":
        missing = np.isnat(values)
    elif values.dtype.kind in "fc":
        missing = np.isnan(values)
    elif values.dtype.kind == "O":
        import pandas  # late: xarray, which needs it, is an extra

        missing = np.asarray(pandas.isna(values))
    else:
        return
    if missing.any():
        raise ValueError(
            f"{name!r} has no label at {np.flatnonzero(missing)[:5].tolist()} (NaN or NaT): drop these rows, since "
            "they could never be found again"
        )


def _other_kind(name: str, values: npt.NDArray[Any], stored: xr.Variable) -> TypeError:
    units = f" in units {stored.attrs['units']!r}" if "units" in stored.attrs else ""
    return TypeError(
        f"{name!r} is stored as {stored.dtype}{units}, and the dataset's labels are {values.dtype}: convert them"
    )


def _check_exact(name: str, labels: npt.NDArray[Any], is_exact: Any, units: str = "") -> None:
    wrong = np.flatnonzero(~np.broadcast_to(np.asarray(is_exact, bool), labels.shape))
    if len(wrong):
        shown = ", ".join(str(labels[place]) for place in wrong[:3])
        raise ValueError(
            f"{name!r}: {shown} can't be stored exactly in the coordinate's dtype{units}. Round the labels, or write "
            "the coordinate anew with finer units"
        )


def encode_texts(name: str, values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind not in TEXT:
        raise TypeError(f"{name!r} is stored as {dtype}, and the dataset has text: convert it")
    found = values.astype(object)
    if dtype.kind in "US":
        found = values.astype(str).astype(dtype)
        cut = np.flatnonzero(found.astype(str) != values.astype(str))
        if len(cut):
            length = dtype.itemsize // np.dtype(f"{dtype.kind}1").itemsize
            raise ValueError(
                f"{name!r}: {values[cut[0]]} can't be stored exactly: the array holds {length} characters of each "
                "text. Write the array anew with a longer dtype, or as text of any length"
            )
    return found


def _times(name: str, labels: xr.Variable, values: npt.NDArray[Any], stored: xr.Variable) -> npt.NDArray[Any]:
    """Encode dates or durations in the units of the stored coordinate. Units that are too coarse are noticed."""
    import xarray as xr  # late: xarray is an extra

    units = str(stored.attrs.get("units", ""))
    if not units or is_date(values) != ("since" in units):
        raise _other_kind(name, values, stored)
    encoding: dict[str, Any] = {"units": units}
    if is_date(values):
        calendar = str(stored.attrs.get("calendar", "standard")).lower()
        own = "standard" if values.dtype.kind == "M" else str(values.reshape(-1)[0].calendar)
        if own != calendar and not {own, calendar} <= _STANDARD:
            raise TypeError(f"{name!r} has the calendar {calendar!r}, and the dataset's dates {own!r}: convert them")
        encoding["calendar"] = calendar
    # As floats there are fractions where the units are too coarse, and no large integers. As integers, xarray would
    # choose finer units without a word.
    plain = xr.Variable(labels.dims, values, {}, {**encoding, "dtype": np.dtype("f8")})
    found = np.asarray(xr.conventions.encode_cf_variable(plain, name=name).values)
    if stored.dtype.kind in "iu" and found.size and np.abs(found).max() >= _LARGEST_EXACT:
        plain = xr.Variable(labels.dims, values, {}, {**encoding, "dtype": stored.dtype})
        exact = encode_in_units(name, plain, units)
        found = np.asarray(exact.values)
    encoded = _cast(name, values, found, stored, f" and units {units!r}")
    same, _ = read_back(name, values, encoded, stored.attrs)
    _check_exact(name, values, same, f" and units {units!r}")
    return encoded


def _cast(
    name: str, labels: npt.NDArray[Any], found: npt.NDArray[Any], stored: xr.Variable, units: str
) -> npt.NDArray[Any]:
    with np.errstate(invalid="ignore"):
        if stored.dtype.kind in "iu":
            encoded: npt.NDArray[Any] = (
                np.rint(found).astype(stored.dtype) if found.dtype.kind == "f" else found.astype(stored.dtype)
            )
        else:
            encoded = found.astype(stored.dtype)
        is_exact = (encoded == found) & (encoded.astype(found.dtype) == found)
    _check_exact(name, labels, is_exact, units)
    return encoded


def _numbers(name: str, values: npt.NDArray[Any], stored: xr.Variable) -> npt.NDArray[Any]:
    scale, offset = stored.attrs.get("scale_factor", 1), stored.attrs.get("add_offset", 0)
    if scale == 1 and offset == 0:
        return _cast(name, values, values, stored, "")
    with np.errstate(invalid="ignore"):
        encoded: npt.NDArray[Any] = np.rint((values - offset) / scale).astype(stored.dtype)
    _check_exact(name, values, encoded * scale + offset == values, " and scale")
    return encoded


def check_not_missing(
    name: str, values: npt.NDArray[Any], encoded: npt.NDArray[Any], attributes: Mapping[str, Any]
) -> None:
    """Raise `ValueError` for a value that is stored as one that stands for missing values."""
    for attribute in ("_FillValue", "missing_value") if encoded.dtype.kind in "biufc" else ():
        for fill in np.atleast_1d(np.asarray(attributes.get(attribute, []))):
            there = np.asarray(encoded == fill)
            if there.any():
                raise ValueError(
                    f"{name!r}: {values[there][0]} is stored as {fill}, the {attribute} of the array, and would be "
                    "read as missing: change it, or write the array anew with another one"
                )


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
