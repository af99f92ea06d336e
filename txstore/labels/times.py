"""Dates and durations of datasets: in one resolution, without time zones, and checked against what is read back.

xarray encodes exactly only what has the resolution of its units, or a finer one: dates in microseconds that it is to
count in nanoseconds become NaT without a word.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import xarray as xr

#: Whole seconds before and after 1970 that nanoseconds reach in 64 bits, less one.
_REACH = np.iinfo(np.int64).max // 10**9 - 1

#: By the name of a dtype of pandas: what it is, and what can be stored instead.
_OF_PANDAS = {
    "PeriodDtype": "a PeriodIndex: convert it to dates, as by .to_timestamp() of pandas",
    "CategoricalDtype": "a Categorical: convert it to its values, as by .astype(object) of pandas",
    "IntervalDtype": "an IntervalIndex: convert it to its ends, as by .left of pandas",
}

#: How units begin that dates of numpy may be too coarse for.
_FINE = ("nano", "micro", "milli", "ns", "us", "ms")


def is_date(values: npt.NDArray[Any]) -> bool:
    """Tell whether values are dates: of numpy, or objects of cftime."""
    return values.dtype.kind == "M" or (
        values.dtype.kind == "O" and values.size > 0 and hasattr(values.reshape(-1)[0], "calendar")
    )


def first_of(variable: xr.Variable) -> npt.NDArray[Any]:
    """Return the first element of a variable, which may be lazy, as an array; an empty one if there is none."""
    return np.asarray(variable[(slice(0, 1),) * variable.ndim].values).reshape(-1)


def is_time(variable: xr.Variable) -> bool:
    """Tell whether a variable has dates or durations."""
    return variable.dtype.kind in "mM" or (variable.dtype.kind == "O" and is_date(first_of(variable)))


def check_no_zone(name: str, variable: xr.Variable) -> None:
    """Raise `TypeError` for dates with a time zone: xarray would drop it, or take them for text.

    Also for what pandas alone has, which no array of Zarr holds.
    """
    of_pandas = _OF_PANDAS.get(type(variable.dtype).__name__)
    if variable.dtype.kind == "O" and any(isinstance(each, tuple) for each in first_of(variable)):
        of_pandas = "a MultiIndex: make variables of its levels, as by .reset_index() of the dataset"
    if of_pandas is not None:
        raise TypeError(f"{name!r} is {of_pandas}")
    zoned = getattr(variable.dtype, "tz", None) is not None
    if not zoned and variable.dtype.kind == "O":
        zoned = any(getattr(each, "tzinfo", None) is not None for each in first_of(variable))
    if zoned:
        raise TypeError(
            f"{name!r} has dates with a time zone, which can't be stored: convert them, as by "
            ".tz_convert('UTC').tz_localize(None) of pandas"
        )


def in_nanoseconds(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return dates or durations of numpy in nanoseconds, if all of them can be; anything else as it is."""
    if values.dtype.kind not in "mM" or np.datetime_data(values.dtype) == ("ns", 1):
        return values
    there = values[~np.isnat(values)].astype(f"{values.dtype.kind}8[s]").astype(np.int64)
    if ((there < -_REACH) | (there > _REACH)).any():
        return values
    return values.astype(f"{values.dtype.kind}8[ns]")


def in_units_of_encoding(name: str, variable: xr.Variable) -> xr.Variable:
    """Return a variable as `to_zarr` can encode it: dates and durations in nanoseconds, for units that are finer.

    Raises `ValueError` if nanoseconds do not reach that far; of a lazy variable when it is computed.
    """
    if variable.dtype.kind not in "mM":
        return variable
    is_fine = str(variable.encoding.get("units")).startswith(_FINE)
    if variable.chunks is None:
        values = np.asarray(variable.values)
        return variable.copy(data=_only_nanoseconds(values, name) if is_fine else in_nanoseconds(values))
    if not is_fine:
        return variable
    dtype = f"{variable.dtype.kind}8[ns]"
    meta = np.empty((0,) * variable.ndim, dtype)
    return variable.copy(data=variable.data.map_blocks(_only_nanoseconds, name, dtype=dtype, meta=meta))


def _only_nanoseconds(values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    found = in_nanoseconds(values)
    if np.datetime_data(found.dtype)[0] != "ns":
        raise ValueError(
            f"{name!r} has dates that nanoseconds do not reach, and an encoding in fine units: take units of whole "
            "seconds"
        )
    return found


def fine_units(values: npt.NDArray[Any]) -> str:
    """Return the units in which the first dates or durations of a coordinate are stored: later ones fit in, too.

    xarray would choose the coarsest units that its first rows allow, as days.
    """
    kind = values.dtype.kind
    if values.dtype.kind == "O":
        is_fine, unit = any(each.microsecond for each in values.reshape(-1)), "microseconds"
    else:
        is_fine = bool((values.astype(f"{kind}8[s]").astype(values.dtype) != values).any())
        unit = "nanoseconds" if in_nanoseconds(values).dtype == np.dtype(f"{kind}8[ns]") else "microseconds"
    return f"{unit if is_fine else 'seconds'}{'' if kind == 'm' else ' since 1970-01-01'}"


def cast_times(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return dates or durations in another resolution, and which of them are the same in it."""
    try:
        found = values.astype(dtype)
        same = (found.astype(values.dtype) == values) | (np.isnat(found) & np.isnat(values))
    except OverflowError:  # older versions of numpy return other dates
        return np.zeros(values.shape, dtype), np.zeros(values.shape, bool)
    return found, same


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


def read_back(
    name: str, values: npt.NDArray[Any], encoded: npt.NDArray[Any], attributes: dict[str, Any]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which dates or durations a reader decodes as they are here, and which are times, or none, here and there.

    `attributes` are those of the stored array. Floats may round times, by far less than what lies between two.
    """
    import xarray as xr  # late: xarray is an extra

    options: dict[str, Any] = {"decode_timedelta": True}
    if values.dtype.kind == "O":
        options["decode_times"] = xr.coders.CFDatetimeCoder(use_cftime=True)
    elif values.dtype.kind == "M":
        unit: Any = np.datetime_data(values.dtype)[0]
        options["decode_times"] = xr.coders.CFDatetimeCoder(time_unit=unit)
    neither = np.zeros(values.shape, bool)
    flat = xr.Variable(("place",), encoded.reshape(-1), attributes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dates that xarray decodes as objects: they differ from these
        try:
            found = np.asarray(xr.conventions.decode_cf_variable(name, flat, **options).values).reshape(values.shape)
        except (ValueError, OverflowError):  # a reader could not decode them either
            return neither, neither
    if found.dtype.kind != values.dtype.kind:
        return neither, neither
    if values.dtype.kind == "O":
        pairs = zip(found.reshape(-1), values.reshape(-1), strict=True)
        same = np.array([_fields(one) == _fields(other) for one, other in pairs], bool).reshape(values.shape)
        return same, np.ones(values.shape, bool)
    present = np.asarray(np.isnat(found) == np.isnat(values))
    found, kept = cast_times(found, values.dtype)
    same = np.asarray((found == values) & kept) | np.isnat(values)
    if encoded.dtype.kind == "f":
        same |= _is_rounded(found, values)
    return same & present, present


def _is_rounded(found: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which times are what a reader finds, rounded to a unit that is no less than four times the difference.

    So the labels of two rows, whole seconds for example, never become one: they are farther apart than that.
    """
    kind = values.dtype.kind
    rounded = np.zeros(values.shape, bool)
    for unit, quarter in (("us", 250), ("ms", 250_000), ("s", 250_000_000)):
        is_whole = values.astype(f"{kind}8[{unit}]").astype(values.dtype) == values
        rounded |= is_whole & (abs(found - values) <= np.timedelta64(quarter, "ns"))
    return rounded


def _fields(moment: Any) -> tuple[int, ...]:
    """Return a date of cftime as numbers: it can't be compared with one whose calendar has another name."""
    return (moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second, moment.microsecond)
