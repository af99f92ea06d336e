"""Finds which numbers of an array stand for no value, as CF does and xarray writes it.

https://cfconventions.org/cf-conventions/cf-conventions.html#missing-data
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from typing import Any

from txstore.deriving.methods import Missing
from txstore.format.documents import Described

_PACKED = "scale_factor", "add_offset"


def missing_of(array: Described) -> Missing:
    """Return the numbers of the attributes `_FillValue` and `missing_value`, the first of them first. NaN is none.

    In Zarr 2, xarray stores `_FillValue` as the fill value. It counts only if the array is packed: else it may be that
    of an array that was made by something else, and a value like others. Raises `ValueError` for what is no number.
    """
    if not _has_numbers(array):
        return ()
    found = [array.attributes.get(name) for name in ("_FillValue", "missing_value")]
    if array.key.endswith(".zarray") and any(name in array.attributes for name in _PACKED):
        found.append(array.document.get("fill_value"))
    numbers = [number for each in found if each is not None for number in (each if isinstance(each, list) else [each])]
    parsed = [_number(array.path, each) for each in numbers]
    return tuple(dict.fromkeys(each for each in parsed if not (isinstance(each, float) and math.isnan(each))))


def _has_numbers(array: Described) -> bool:
    told = array.document.get("dtype" if array.key.endswith(".zarray") else "data_type")
    return isinstance(told, str) and told.strip("<>|").startswith(("b", "i", "u", "f", "c"))


def _number(path: str, told: Any) -> int | float:
    """Return a number of JSON, or one that xarray has encoded: the Base64 of a little-endian double."""
    if isinstance(told, int | float):
        return told
    if told in ("NaN", "Infinity", "-Infinity"):
        return float(told.replace("Infinity", "inf"))
    try:
        (number,) = struct.unpack("<d", base64.b64decode(told, validate=True))
    except (TypeError, ValueError, binascii.Error, struct.error):
        raise ValueError(f"{path!r} says by {told!r} which elements are no values: that is no number") from None
    return float(number)
