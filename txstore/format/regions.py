"""Regions: the written elements of a chunk. No I/O. Layout: docs/understand/format.md, "Region"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txstore.format.encoding import MalformedError, Reader, encode_varint

#: Where a box begins and ends along each axis, in the chunk's own coordinates. It is not empty.
Box = tuple[tuple[int, int], ...]

#: For what would take more boxes, or bytes, the one box around them stands. A loose box takes two.
MAX_BOXES, MAX_LENGTH = 16, 1024
#: An axis of numpy is no longer, and an array has no more axes.
_MAX_EXTENT, _MAX_AXES = (1 << 63) - 1, 64
#: Pieces of a box that are looked at, at most, to tell whether a region contains it.
_MAX_PIECES = 1000


@dataclass(frozen=True, slots=True)
class Region:
    """Some elements of a chunk: all that lie in one of at most 16 boxes, or the whole chunk (`boxes` is None).

    Of each `loose` box, which is one of `boxes`, only some elements were written, though it may be as large as the
    chunk.

    Boxes may overlap. A region knows nothing of the shape of the chunk.

    Examples
    --------
    >>> left, right = Region.of_box(((0, 4), (0, 2))), Region.of_box(((0, 4), (2, 9)))
    >>> left.intersects(right)
    False
    >>> print(left | right)
    [0:4, 0:9]
    """

    boxes: tuple[Box, ...] | None
    loose: tuple[Box, ...] = ()

    @classmethod
    def whole(cls) -> Region:
        return WHOLE

    @classmethod
    def of_box(cls, box: Box) -> Region:
        """Return the region of one box. Without axes, there is one element, which is all."""
        if not box:
            return WHOLE
        return cls((box,) if all(start < stop for start, stop in box) else ())

    @classmethod
    def around(cls, box: Box) -> Region:
        """Return the region of some elements of a box that has axes and is not empty."""
        return cls((box,), (box,))

    @classmethod
    def of_all(cls, regions: Iterable[Region]) -> Region:
        """Return what lies in any of some regions."""
        found = cls(())
        for region in regions:
            found |= region
        return found

    @property
    def is_whole(self) -> bool:
        return self.boxes is None

    def __or__(self, other: Region) -> Region:
        if self.boxes is None or other.boxes is None:
            return WHOLE
        dense = _joined((*self._dense, *other._dense))
        loose = tuple(box for box in _joined((*self.loose, *other.loose)) if not _is_covered(box, dense))
        found = Region(tuple(sorted((*dense, *loose))), loose)
        return found if len(dense) + 2 * len(loose) <= MAX_BOXES else found._around()

    @property
    def _dense(self) -> tuple[Box, ...]:
        """The boxes of which all elements were written."""
        return tuple(box for box in self.boxes or () if box not in self.loose)

    def __and__(self, other: Region) -> Region:
        if self.boxes is None or other.boxes is None:
            return other if self.boxes is None else self
        loose = {*self.loose, *other.loose}
        return Region.of_all(
            (Region.of_box if loose.isdisjoint((one, another)) else Region.around)(
                tuple((max(a, b), min(c, d)) for (a, c), (b, d) in zip(one, another, strict=True))
            )
            for one in self.boxes
            for another in other.boxes
            if _intersect(one, another)
        )

    def _around(self) -> Region:
        """Return the box around all boxes."""
        boxes = self.boxes or ()
        if len({len(box) for box in boxes}) != 1:
            return WHOLE  # of different chunks
        ends = [tuple(zip(*axis, strict=True)) for axis in zip(*boxes, strict=True)]
        return Region.around(tuple((min(starts), max(stops)) for starts, stops in ends))

    def intersects(self, other: Region) -> bool:
        """Tell whether there may be an element in both."""
        if self.boxes is None or other.boxes is None:
            return self.boxes != () and other.boxes != ()
        return any(_intersect(one, another) for one in self.boxes for another in other.boxes)

    def contains(self, other: Region) -> bool:
        """Tell whether all elements of `other` are known to be here."""
        if self.boxes is None or other.boxes is None:
            return self.boxes is None
        return all(_is_covered(box, self._dense) for box in other.boxes)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Tell whether it is one of a chunk of this shape."""
        return self.boxes is None or all(
            len(box) == len(shape) and all(stop <= extent for (_, stop), extent in zip(box, shape, strict=True))
            for box in self.boxes
        )

    def __str__(self) -> str:
        if self.boxes is None:
            return "all of it"
        return " and ".join("[" + ", ".join(f"{start}:{stop}" for start, stop in box) + "]" for box in self.boxes)

    def encode(self) -> bytes:
        """Return the bytes of the region, or of the box around it, if its own would be more than `MAX_LENGTH`.

        There are none of the whole chunk, nor of a box that takes more by itself.
        """
        if self.boxes is None:
            return b""
        if not self.boxes:
            raise ValueError("a region without elements is not written")
        boxes = [box for box in self.boxes for _ in range(2 if box in self.loose else 1)]
        numbers = [len(boxes), len(boxes[0])]
        for box in boxes:
            for start, stop in box:
                numbers += (start, stop - start)
        encoded = b"".join(map(encode_varint, numbers))
        if len(encoded) > MAX_LENGTH:
            return b"" if len(self.boxes) == 1 else self._around().encode()
        return encoded

    @classmethod
    def decode(cls, data: bytes) -> Region:
        if not data:
            return WHOLE
        if len(data) > MAX_LENGTH:
            raise MalformedError(f"a region of {len(data)} bytes, and at most {MAX_LENGTH} are possible")
        reader = Reader(data)
        count, axes = reader.varint(), reader.varint()
        if not 1 <= count <= MAX_BOXES or not 1 <= axes <= _MAX_AXES:
            raise MalformedError(f"a region of {count} boxes with {axes} axes", reader.position)
        boxes = [tuple([_read_extent(reader) for _ in range(axes)]) for _ in range(count)]
        if not reader.at_end:
            raise MalformedError("a region is longer than its boxes", reader.position)
        once = dict.fromkeys(boxes)
        return cls(tuple(once), tuple(box for box in once if boxes.count(box) > 1))


WHOLE = Region(None)


def _read_extent(reader: Reader) -> tuple[int, int]:
    start, length = reader.varint(), reader.varint()
    if not length or start + length > _MAX_EXTENT:
        raise MalformedError(f"a box of {length} elements from {start} on", reader.position)
    return start, start + length


def _joined(boxes: Iterable[Box]) -> tuple[Box, ...]:
    """Return as few boxes as can easily be found that cover the same elements."""
    found: list[Box] = []
    for box in boxes:
        grown, place = box, 0
        while place < len(found):
            joined = _join(found[place], grown)
            if joined is None:
                place += 1
            else:  # it may be joined with one that was looked at before
                del found[place]
                grown, place = joined, 0
        found.append(grown)
    return tuple(sorted(found))


def _join(one: Box, other: Box) -> Box | None:
    """Return the box that has just the elements of both; None if there is none."""
    if _contains(one, other):
        return one
    if _contains(other, one):
        return other
    if len(one) != len(other):
        return None
    apart = [axis for axis in range(len(one)) if one[axis] != other[axis]]
    if len(apart) != 1:
        return None
    axis = apart[0]
    (start, stop), (begin, end) = one[axis], other[axis]
    if stop < begin or end < start:
        return None
    return (*one[:axis], (min(start, begin), max(stop, end)), *one[axis + 1 :])


def _contains(one: Box, other: Box) -> bool:
    return len(one) == len(other) and all(
        start <= begin and end <= stop for (start, stop), (begin, end) in zip(one, other, strict=True)
    )


def _intersect(one: Box, other: Box) -> bool:
    """Tell whether two boxes have an element in common; boxes of different chunks may."""
    return len(one) != len(other) or all(
        start < end and begin < stop for (start, stop), (begin, end) in zip(one, other, strict=True)
    )


def _is_covered(box: Box, boxes: Iterable[Box]) -> bool:
    left = [box]
    for cover in boxes:
        left = [piece for each in left for piece in _without(each, cover)]
        if len(left) > _MAX_PIECES:
            return False
    return not left


def _without(box: Box, cover: Box) -> list[Box]:
    """Return the pieces of a box that lie outside of another one."""
    if len(box) != len(cover) or not _intersect(box, cover):
        return [box]
    pieces = []
    for axis, ((start, stop), (begin, end)) in enumerate(zip(box, cover, strict=True)):
        before, behind = box[:axis], box[axis + 1 :]
        if start < begin:
            pieces.append((*before, (start, begin), *behind))
        if end < stop:
            pieces.append((*before, (end, stop), *behind))
        box = (*before, (max(start, begin), min(stop, end)), *behind)
    return pieces
