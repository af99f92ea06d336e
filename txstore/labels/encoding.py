"""Encodes labels and variables as the arrays of a store hold them: in their CF units, scales and dtypes.

What can't be stored exactly is refused, where a plain `to_zarr` would round it or cut it off: a label that is rounded
is another label.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import xarray as xr

#: Calendars that count days as `numpy.datetime64` does, at any date that data have.
_STANDARD = {"standard", "gregorian", "proleptic_gregorian"}
#: Floats count in steps of one up to here.
_LARGEST_EXACT = 1 << 53
#: Kinds of numpy types that hold text.
_TEXT = "OUST"


def encode_labels(name: str, labels: xr.Variable, stored: xr.Variable) -> npt.NDArray[Any]:
    """Return labels in the dtype and units of the stored coordinate. `stored` is not decoded.

    Raises `ValueError` if one of them is missing (NaN or NaT) or can't be stored exactly, `TypeError` if they are of
    another kind.
    """
    values = np.asarray(labels.values)
    check_present(name, values)
    if values.dtype.kind in _TEXT and not is_date(values):
        encoded = _texts(name, values, stored.dtype)
    elif stored.dtype.kind in "mM":
        if values.dtype.kind != stored.dtype.kind:
            raise _other_kind(name, values, stored)
        encoded = values.astype(stored.dtype)
        _check_exact(name, values, encoded == values)
    elif is_date(values) or values.dtype.kind == "m":
        encoded = _times(name, labels, values, stored)
    elif values.dtype.kind in "biuf" and stored.dtype.kind in "biuf" and "since" not in str(stored.attrs.get("units")):
        encoded = _numbers(name, values, stored)
    else:
        raise _other_kind(name, values, stored)
    return encoded


def is_date(values: npt.NDArray[Any]) -> bool:
    """Tell whether values are dates: of numpy, or objects of cftime."""
    return values.dtype.kind == "M" or (
        values.dtype.kind == "O" and values.size > 0 and hasattr(values.reshape(-1)[0], "calendar")
    )


def fine_units(labels: xr.Variable) -> dict[str, str]:
    """Return the encoding for the first dates of a coordinate, if it has none: units that later ones fit in, too.

    xarray would choose the coarsest units that its first rows allow, as days.
    """
    values = np.asarray(labels.values)
    if not is_date(values) or "units" in labels.encoding:
        return {}
    is_fine = values.dtype.kind == "M" and bool((values.astype("M8[s]") != values).any())
    return {"units": f"{'nanoseconds' if is_fine else 'seconds'} since 1970-01-01", "dtype": "int64"}


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


def _texts(name: str, values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind not in _TEXT:
        raise TypeError(f"{name!r} is stored as {dtype}, and the dataset has text: convert it")
    found = values.astype(object)
    if dtype.kind in "US":
        found = values.astype(str).astype(dtype)
        _check_exact(name, values, found.astype(str) == values.astype(str))
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
    return _cast(name, values, found, stored, f" and units {units!r}")


def encode_in_units(name: str, variable: xr.Variable, units: str | None) -> xr.Variable:
    """Encode a variable as xarray does, and refuse if xarray has to choose other units than the stored ones."""
    import xarray as xr  # late: xarray is an extra

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # xarray says there that it has changed the units
        encoded = xr.conventions.encode_cf_variable(variable, name=name)
    if units is not None and str(encoded.attrs.get("units")).split()[:1] != units.split()[:1]:
        raise ValueError(
            f"{name!r}: these times can't be stored exactly in units {units!r}. Round them, or write the array anew "
            "with finer units"
        )
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
    encoded: npt.NDArray[Any] = np.rint((values - offset) / scale).astype(stored.dtype)
    _check_exact(name, values, encoded * scale + offset == values, " and scale")
    return encoded


def encode_variable(name: str, variable: xr.Variable, stored: xr.Variable) -> Any:
    """Return the data of a variable as the stored one holds them: a numpy array, or a lazy one of Dask.

    Raises `ValueError` if the variable does not fit.
    """
    import xarray as xr  # late: xarray is an extra

    if set(variable.dims) != set(stored.dims):
        raise ValueError(f"{name!r} has dimensions {variable.dims}, and the stored array {stored.dims}")
    encoding = xr.conventions.decode_cf_variable(name, stored, decode_timedelta=True).encoding
    _check_dtype(name, variable, stored, encoding)
    is_time = _is_time(variable)
    if stored.dtype.kind in "US" and not is_time:  # xarray would cut it off
        return _texts(name, np.asarray(variable.transpose(*stored.dims).values), stored.dtype)
    plain = xr.Variable(variable.dims, variable.data, {}, encoding)
    encoded = encode_in_units(name, plain, stored.attrs.get("units") if is_time else None).transpose(*stored.dims)
    if stored.dtype.kind in "OT":
        return np.asarray(encoded.values).astype(object)
    return encoded.data if encoded.dtype == stored.dtype else encoded.data.astype(stored.dtype)


def _is_time(variable: xr.Variable) -> bool:
    return variable.dtype.kind in "mM" or (variable.dtype.kind == "O" and is_date(np.asarray(variable[:1].values)))


def _check_dtype(name: str, variable: xr.Variable, stored: xr.Variable, encoding: dict[str, Any]) -> None:
    """Refuse what would be stored as other values without a word: fractions as integers, dates as numbers."""
    is_packed = not {"scale_factor", "add_offset", "_FillValue", "missing_value"}.isdisjoint(encoding)
    given, kept = variable.dtype.kind, stored.dtype.kind
    fits = (
        (kept in _TEXT and given in _TEXT)
        or (_is_time(variable) and ("units" in encoding or given == kept))
        or (
            given in "biufc"
            and kept in "biufc"
            and (is_packed or np.can_cast(variable.dtype, stored.dtype, "same_kind"))
        )
    )
    if not fits:
        raise TypeError(f"{name!r} is stored as {stored.dtype}, and the dataset has {variable.dtype}: convert it first")
