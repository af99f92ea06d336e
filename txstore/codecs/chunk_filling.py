"""Puts a fill value into some elements of an encoded chunk, and encodes it anew: for erasures of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txstore.codecs.chunk_codec import ChunkDecoder, NotMergeableError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Buffer

#: For each axis the positions in the chunk, None for all: the elements at each combination of them.
Places = tuple["npt.NDArray[np.intp] | None", ...]


class ChunkFiller(ChunkDecoder):
    """Fills elements of one chunk; what is stored under one key, so a shard is one. Raises `NotMergeableError`."""

    def __init__(self, document: str, content: bytes, chunk: str) -> None:
        super().__init__(document, content, chunk, keeps_empty=True)

    def filled(
        self, encoded: Buffer, places: Sequence[Places], value: Any = None, *, shown: Mapping[int, int] | None = None
    ) -> bytes | None:
        """Return a chunk with the fill value, or another that fits the data type, in some elements.

        None if it has that already. What lies behind the elements that are `shown` along an axis gets the fill value.
        All other elements are the same, bit by bit.
        """
        chunk = self.decode(encoded)
        new = chunk.copy()
        fitting = _fitting(value, chunk.dtype)
        for each in places:
            new[self._index(each)] = self._fill_value if fitting is None else fitting
        hidden = [(slice(None),) * axis + (slice(max(end, 0), None),) for axis, end in (shown or {}).items()]
        for each in hidden:
            new[each] = self._fill_value
        if _equal(chunk, new):
            return None
        try:
            made = self._part.encode(new)
        except Exception as error:  # whatever a library of codecs raises
            raise NotMergeableError(f"its codecs fail: {error!r}") from error
        if made is None:
            raise NotMergeableError("its codecs don't store a chunk that is all fill value")
        content = bytes(made)
        if content == bytes(encoded):  # its codecs round the fill value, and did so before
            return None
        again = self.decode(content)
        for each in (*map(self._index, places), *hidden):
            again[each] = new[each]
        if not _equal(again, new):
            raise NotMergeableError("its codecs would change other elements, too")
        return content

    def _index(self, places: Places) -> Any:
        import numpy as np  # late: as in `decode`

        return np.ix_(*(np.arange(n) if each is None else each for each, n in zip(places, self.shape, strict=True)))


def _fitting(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number as a data type holds it; None if it can't."""
    import numpy as np  # late: as in `decode`

    try:
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return int(value) if int(value) == value and limits.min <= value <= limits.max else None
        if dtype.kind in "mM":
            return np.array(int(value), np.int64).astype(dtype) if int(value) == value else None
        if dtype.kind in "fc":
            with np.errstate(over="ignore"):
                found = dtype.type(value)
            return found if np.isinf(found) == np.isinf(float(value)) else None
    except (TypeError, ValueError, OverflowError):  # no number, not finite, or too large
        return None
    return None


def _equal(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Tell whether chunks are equal: numbers by their bits."""
    if one.dtype.kind in "OT":
        return bool((one == other).all())
    return one.tobytes() == other.tobytes()
