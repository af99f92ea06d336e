"""Chunks, merged element by element: an element is changed if its bits are others than at the base."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from txstore.codecs.chunk_codec import ChunkCodec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Buffer


class Sides(NamedTuple):
    """One chunk, decoded, at the base and at both sides; what is missing is all fill value."""

    base: npt.NDArray[Any]
    ours: npt.NDArray[Any]
    theirs: npt.NDArray[Any]

    @classmethod
    def decode(cls, codec: ChunkCodec, base: Buffer | None, ours: Buffer | None, theirs: Buffer | None) -> Sides:
        """Raises `NotMergeableError`."""
        return cls(codec.decode(base), codec.decode(ours), codec.decode(theirs))

    def conflicts(self, *, is_strict: bool = False) -> npt.NDArray[np.bool_]:
        """Return which elements both have changed, differently; with `is_strict`, or equally."""
        both = differ(self.base, self.ours) & differ(self.base, self.theirs)
        return both if is_strict else both & differ(self.ours, self.theirs)

    def merged(self) -> npt.NDArray[Any]:
        """Return ours, and of theirs what they alone have changed."""
        chunk = self.ours.copy()
        theirs = differ(self.base, self.theirs) & ~differ(self.base, self.ours)
        chunk[theirs] = self.theirs[theirs]
        return chunk


def differ(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return in which elements two arrays of one shape and dtype differ: by their bits, so that a NaN is itself."""
    import numpy as np  # late: most processes merge nothing

    if not one.dtype.itemsize:
        return np.zeros(one.shape, bool)
    first, second = (np.ascontiguousarray(each).view(np.uint8) for each in (_flat(one), _flat(other)))
    size = one.dtype.itemsize
    found: npt.NDArray[np.bool_] = (first.reshape(-1, size) != second.reshape(-1, size)).any(axis=1).reshape(one.shape)
    return found


def _flat(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.reshape(-1)


def bounds(mask: npt.NDArray[np.bool_]) -> tuple[slice, ...]:
    """Return the smallest box that has all elements that are set, of which there is one at least."""
    import numpy as np

    return tuple(slice(int(along.min()), int(along.max()) + 1) for along in np.nonzero(mask))
