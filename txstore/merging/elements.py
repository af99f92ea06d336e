"""Merges chunks element by element: an element has changed if its bits differ from the base's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from txstore.codecs.chunk_codec import ChunkCodec

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Buffer

    #: The stored values of a chunk at the base, and at both sides.
    Three: TypeAlias = tuple[Buffer | None, Buffer | None, Buffer | None]

#: Element sizes, in bytes, that numpy compares as one number each.
_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Sides:
    """One decoded chunk, at the base and at both sides; a missing chunk is all fill value.

    `in_doubt` marks elements whose base value is unreliable: both sides count as having changed them.
    """

    base: npt.NDArray[Any]
    ours: npt.NDArray[Any]
    theirs: npt.NDArray[Any]
    in_doubt: npt.NDArray[np.bool_] | None = None

    @classmethod
    def decode(cls, codec: ChunkCodec, values: Three, in_doubt: npt.NDArray[np.bool_] | None = None) -> Sides:
        """Raises `NotMergeableError`."""
        base, ours, theirs = map(codec.decode, values)
        return cls(base, ours, theirs, in_doubt)

    @classmethod
    def decode_all(
        cls, codec: ChunkCodec, values: Sequence[Three], in_doubt: npt.NDArray[np.bool_] | None = None
    ) -> Sides:
        """Return many chunks of one shape, stacked along a new first axis. Raises `NotMergeableError`."""
        base, ours, theirs = map(codec.decode_all, zip(*values, strict=True))
        return cls(base, ours, theirs, in_doubt)

    @cached_property
    def _by_ours(self) -> npt.NDArray[np.bool_]:
        return self._changed(self.ours)

    @cached_property
    def _by_theirs(self) -> npt.NDArray[np.bool_]:
        return self._changed(self.theirs)

    def _changed(self, side: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        found = differ(self.base, side)
        return found if self.in_doubt is None else found | self.in_doubt

    def conflicts(self, *, is_strict: bool = False) -> npt.NDArray[np.bool_]:
        """Return which elements both changed differently; with `is_strict`, also those changed equally."""
        both = self._by_ours & self._by_theirs
        return both if is_strict or not both.any() else both & differ(self.ours, self.theirs)

    def merged(self) -> npt.NDArray[Any]:
        """Return ours, with the elements that only theirs changed."""
        import numpy as np  # late: most processes merge nothing

        chunk = self.ours.copy()
        np.copyto(chunk, self.theirs, where=self._by_theirs & ~self._by_ours)
        return chunk


def differ(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which elements of two arrays of one shape and dtype differ in their bits: so a NaN equals itself."""
    import numpy as np

    size = one.dtype.itemsize
    if not size:
        return np.zeros(one.shape, bool)
    first, second = (np.ascontiguousarray(each).reshape(-1) for each in (one, other))
    found: npt.NDArray[np.bool_]
    if size in _SIZES:
        found = first.view(f"u{size}") != second.view(f"u{size}")
    else:
        found = (first.view(np.uint8).reshape(-1, size) != second.view(np.uint8).reshape(-1, size)).any(axis=1)
    return found.reshape(one.shape)


def bounds(mask: npt.NDArray[np.bool_]) -> tuple[slice, ...]:
    """Return the smallest box that contains all set elements; at least one must be set.

    `array[(*box, ...)]` is that part of an array. An array without axes has the box `()`.
    """
    import numpy as np

    if not mask.ndim:
        return ()
    return tuple(slice(int(along.min()), int(along.max()) + 1) for along in np.nonzero(mask))
