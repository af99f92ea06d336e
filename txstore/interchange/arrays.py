"""Arrays of a file that is imported: what each importer of a format has to say about it."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from txstore.interchange.blocks import Selection

#: Attributes without which the numbers mean something else. Files that differ in them can't be joined as they are.
MEANING = (
    "units",
    "calendar",
    "scale_factor",
    "add_offset",
    "_FillValue",
    "missing_value",
    "_Unsigned",
    "dtype",
    "flag_values",
)


@dataclass(frozen=True)
class ForeignArray:
    """One array of a file. `read` takes slices and returns a numpy array."""

    shape: tuple[int, ...]
    dtype: Any
    dimensions: tuple[str | None, ...]
    read: Callable[[Selection], Any] = field(repr=False, compare=False)
    meaning: Mapping[str, Any]
    itemsize: int

    @property
    def nbytes(self) -> int:
        size = self.itemsize
        for length in self.shape:
            size *= length
        return size

    def axis(self, dimension: str | int) -> int | None:
        """Return the number of a dimension, None if this array does not have it."""
        if isinstance(dimension, int):
            return dimension if dimension < len(self.shape) else None
        return self.dimensions.index(dimension) if dimension in self.dimensions else None


class ForeignArrays(Protocol):
    """An open file."""

    @property
    def arrays(self) -> Mapping[str, ForeignArray]: ...

    def describe(self, store: Any, shapes: Mapping[str, tuple[int, ...]], chunks: Mapping[str | int, int]) -> None:
        """Create its groups and arrays, attributes and all, in a store of zarr: to be resized to `shapes`.

        What they hold does not matter.
        """

    def close(self) -> None: ...


def meaning_of(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {name: repr(attributes[name]) for name in MEANING if name in attributes}


def is_excluded(path: str, patterns: Sequence[str]) -> bool:
    """Tell whether a node, or one above it, matches a pattern."""
    parts = path.split("/")
    above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return any(fnmatch.fnmatchcase(each, pattern.strip("/")) for each in above for pattern in patterns)
