"""Encodes labels as the arrays of a store hold them: in their CF units, scales and dtypes.

What can't be stored exactly is refused, where a plain `to_zarr` would round it or cut it off: a label that is rounded
is another label.
"""

from __future__ import annotations

from collections.abc import Mapping
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
