"""Says what the elements of an array mean by the conventions of CF, as xarray writes and reads them. No I/O.

https://cfconventions.org/cf-conventions/cf-conventions.html#packed-data, and #missing-data. It imports numpy; where
dates are decoded, xarray, which is an extra.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from txstore.format.documents import Described

#: Attributes that say which numbers, or dates, the elements are.
MEANING = ("units", "calendar", "scale_factor", "add_offset", "_Unsigned", "_FillValue", "missing_value")
#: Those that say so of elements of one data type, and of no other: xarray stores booleans as integers with `dtype`.
OF_TYPE = frozenset({"_FillValue", "missing_value", "_Unsigned", "dtype"})
_PACKED = ("scale_factor", "add_offset")


class Meaning(NamedTuple):
    """How numbers are combined: in which data type, and which of them, in this type, stand for no value.

    Without a data type, the elements are no numbers.
    """

    dtype: str | None = None
    missing: tuple[Any, ...] = ()


def number_type(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the type of the numbers that elements are: with `_Unsigned`, not that in which they are stored."""
    kind = {"true": "u", "false": "i"}.get(str(attributes.get("_Unsigned")).lower())
    return dtype if kind is None or dtype.kind not in "iu" else np.dtype(f"{dtype.byteorder}{kind}{dtype.itemsize}")


def meaning_of(array: Described) -> Meaning:
    """Return what the numbers of an array are. The first of those that are missing is that of `_FillValue`; no NaN is.

    Raises `ValueError` if an attribute says by something else than a number which elements are missing.
    """
    stored = _dtype_of(array)
    if stored is None:
        return Meaning()
    own = number_type(stored, array.attributes)
    attributes = meaning_attributes(array)
    missing = []
    for name in ("_FillValue", "missing_value"):
        for told in _listed(attributes.get(name), stored):
            number = _number(array.path, told)
            # `_FillValue` is written as elements are stored, and `missing_value` as the numbers that they are.
            found = _as(number, stored if name == "_FillValue" else own)
            missing += [] if found is None else [found.view(own)[0]]
    return Meaning(own.str, tuple(dict.fromkeys(each for each in missing if not np.isnan(each))))


def meaning_attributes(array: Described) -> dict[str, Any]:
    """Return the attributes that say what elements mean.

    In Zarr 2, xarray stores `_FillValue` as the fill value, and takes that of any array for it. Here it counts if
    xarray can open the array, or it is packed: else it is that of an image, say, and a value like others.
    """
    found = {name: array.attributes[name] for name in MEANING if name in array.attributes}
    is_of_xarray = any(name in array.attributes for name in ("_ARRAY_DIMENSIONS", *_PACKED))
    if array.key.endswith(".zarray") and is_of_xarray and array.document.get("fill_value") is not None:
        found.setdefault("_FillValue", array.document["fill_value"])
    return found


def decoded(name: str, values: npt.NDArray[Any], attributes: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Return the numbers or dates that elements stand for, such as labels.

    Raises `ImportError` without xarray, unless they stand for themselves.
    """
    units = attributes.get("units")
    is_duration = str(attributes.get("dtype")).startswith("timedelta64")  # as xarray writes it
    is_time = isinstance(units, str) and (" since " in units or is_duration) and values.dtype.kind in "iuf"
    if not is_time and not any(each in attributes for each in (*_PACKED, "_Unsigned")):
        return values
    try:
        import xarray as xr  # late: xarray is an extra
    except ImportError as error:
        raise ImportError(
            f"{name!r} counts in {units!r}: to find its labels takes xarray: pip install 'txstore[xarray]', or give "
            "positions=True"
        ) from error
    told = dict(attributes)
    for each in ("_FillValue", "missing_value"):
        if isinstance(told.get(each), str):  # as xarray writes it in Zarr 3
            told[each] = _number(name, told[each])
    variable = xr.Variable((name,), values, told)
    return np.asarray(xr.conventions.decode_cf_variable(name, variable).values)


def _dtype_of(array: Described) -> np.dtype[Any] | None:
    """Return the data type of an array of numbers."""
    told = array.document.get("dtype" if array.key.endswith(".zarray") else "data_type")
    try:
        found = np.dtype(told) if isinstance(told, str) else None
    except TypeError:  # of an extension
        return None
    return found if found is not None and found.kind in "biufc" else None


def _listed(told: Any, dtype: np.dtype[Any]) -> list[Any]:
    if told is None:
        return []
    is_complex = dtype.kind == "c" and isinstance(told, list) and len(told) == 2
    return told if isinstance(told, list) and not is_complex else [told]


def _number(path: str, told: Any) -> int | float | complex:
    """Return a number of JSON, or one that xarray has encoded: the Base64 of a little-endian double."""
    if isinstance(told, int | float):
        return told
    if isinstance(told, list) and len(told) == 2:
        real, imaginary = (_number(path, each) for each in told)
        return complex(real.real, imaginary.real)
    if told in ("NaN", "Infinity", "-Infinity"):
        return float(told.replace("Infinity", "inf"))
    try:
        (number,) = struct.unpack("<d", base64.b64decode(told, validate=True))
    except (TypeError, ValueError, binascii.Error, struct.error):
        raise ValueError(f"{path!r} says by {told!r} which elements are no values: that is no number") from None
    return float(number)


def _as(number: complex, dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Return a number as an array of one element. None if an integer type has none like it."""
    if dtype.kind in "fc":
        with np.errstate(over="ignore"):
            return np.array([number]).astype(dtype)
    try:
        found = np.array([int(number.real)], dtype)
    except (OverflowError, ValueError):  # too large, NaN, or infinity
        return None
    return found if found[0] == number else None
