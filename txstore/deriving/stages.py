"""One step of a view: an output array, element by element a function of regions of its inputs. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from txstore.deriving.methods import Method, Missing, Starts, as_dtype, combined, nothing
from txstore.format.cf import OF_TYPE

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


#: For each axis, the first index and the one after the last.
Box = tuple[tuple[int, int], ...]


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, extent) for extent in shape)


def is_empty(box: Box) -> bool:
    return any(begin >= end for begin, end in box)


def common(one: Box, other: Box) -> Box:
    """Return what lies in both; it may be empty."""
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def around(boxes: Iterable[Box]) -> Box:
    """Return the smallest box that holds all of some."""
    return tuple((min(begin for begin, _ in along), max(end for _, end in along)) for along in zip(*boxes, strict=True))


def slices(box: Box, origin: Box | None = None) -> tuple[slice, ...]:
    """Return the selection of a box, in an array that begins where `origin` does."""
    starts = (0,) * len(box) if origin is None else tuple(begin for begin, _ in origin)
    return tuple(slice(begin - start, end - start) for (begin, end), start in zip(box, starts, strict=True))


def shape_of(box: Box) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in box)


#: Attributes that say what numbers mean, which counts of them do not.
_NOT_OF_COUNTS = OF_TYPE | {"units", "scale_factor", "add_offset"}


class DerivingStage(ABC):
    """What makes one output. All inputs have one shape."""

    inputs: tuple[str, ...]
    source: str  # the array whose chunks, type and codecs the output has when it is made
    output: str

    has_type_of_source = True
    """Whether the elements of the output are some of the source's, or between them."""

    combines_numbers = False
    """Whether it takes elements for the numbers that they stand for, and not for what is stored."""

    is_other: bool
    """Whether the same elements make something else than at the head."""

    def keeps(self, fill: Any) -> bool:
        """Tell whether elements that all have the fill value make this value, however many there are."""
        return False

    @property
    def dropped(self) -> frozenset[str]:
        """The names of attributes of the source that are not true of the output."""
        return frozenset()

    def dimensions(self, names: Sequence[Any]) -> list[Any]:
        """Return the names of the output's dimensions. `names` are those of the source."""
        return [*names]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape that the output has."""

    @property
    def also(self) -> tuple[Box, ...]:
        """Regions of the output that have to be computed though nothing says so that is stored in the inputs."""
        return ()

    @abstractmethod
    def needs(self, box: Box) -> Box:
        """Return the region of the inputs that a region of the output depends on."""

    @abstractmethod
    def affects(self, box: Box) -> Box:
        """Return the region of the output that depends on a region of the inputs."""

    @abstractmethod
    def compute(self, blocks: Sequence[Array], box: Box, dtype: np.dtype[Any]) -> Array:
        """Return a region of the output. `blocks` are what it `needs` of each input."""


@dataclass(frozen=True)
class CoarsenStage(DerivingStage):
    """Each element of the output combines `factors` elements of the input along each axis; those at the end, fewer."""

    source: str
    output: str
    extents: tuple[int, ...]  # the shape of the source
    factors: tuple[int, ...]
    method: Method
    missing: Missing = ()
    is_other: bool = False
    combines_numbers = True

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.source,)

    def keeps(self, fill: Any) -> bool:
        return _keeps(self.method, fill, self.missing)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(-(-extent // factor) for extent, factor in zip(self.extents, self.factors, strict=True))

    def needs(self, box: Box) -> Box:
        return tuple(
            (begin * factor, min(end * factor, extent))
            for (begin, end), factor, extent in zip(box, self.factors, self.extents, strict=True)
        )

    def affects(self, box: Box) -> Box:
        return tuple(
            (begin // factor, -(-end // factor)) for (begin, end), factor in zip(box, self.factors, strict=True)
        )

    def compute(self, blocks: Sequence[Array], box: Box, dtype: np.dtype[Any]) -> Array:
        (block,) = blocks
        starts: list[Starts | None] = [
            None if factor == 1 else range(0, extent, factor)
            for factor, extent in zip(self.factors, block.shape, strict=True)
        ]
        return combined(self.method, block, starts, dtype, self.missing)


def _keeps(method: Method, fill: Any, missing: Missing) -> bool:
    if isinstance(fill, bool) or fill == "NaN":
        return True
    if not isinstance(fill, int | float) or fill in missing:
        return False
    # Sums of small integers are exact, and so are their means.
    return method != "mean" or (abs(fill) < 1 << 20 and fill == int(fill))


@dataclass(frozen=True)
class ReduceStage(DerivingStage):
    """Along one axis, each element of the output combines a run of elements of the input: its `groups`.

    With `groups` None, all of them, and the output has no such axis. The groups from `others_from` on are others now.
    `along` is the name of the axis of groups.
    """

    source: str
    output: str
    extents: tuple[int, ...]
    axis: int
    groups: tuple[int, ...] | None  # where each begins; it ends where the next one does
    method: Method
    along: str
    others_from: int | None = None
    missing: Missing = ()
    is_other: bool = False
    combines_numbers = True

    @property
    def has_type_of_source(self) -> bool:  # type: ignore[override]
        return self.method in ("min", "max")

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.source,)

    def keeps(self, fill: Any) -> bool:
        is_empty = self.groups is None and not self.extents[self.axis]
        return self.method != "count" and not is_empty and _keeps(self.method, fill, self.missing)

    @property
    def dropped(self) -> frozenset[str]:
        return _NOT_OF_COUNTS if self.method == "count" else frozenset()

    def dimensions(self, names: Sequence[Any]) -> list[Any]:
        along = [] if self.groups is None else [self.along]
        return [*names[: self.axis], *along, *names[self.axis + 1 :]]

    @property
    def shape(self) -> tuple[int, ...]:
        along = () if self.groups is None else (len(self.groups),)
        return (*self.extents[: self.axis], *along, *self.extents[self.axis + 1 :])

    @property
    def also(self) -> tuple[Box, ...]:
        if self.others_from is None:
            return ()
        region = list(whole(self.shape))
        region[self.axis] = (self.others_from, self.shape[self.axis])
        return (tuple(region),)

    def needs(self, box: Box) -> Box:
        if self.groups is None:
            return (*box[: self.axis], (0, self.extents[self.axis]), *box[self.axis :])
        begin, end = box[self.axis]
        bounds = (*self.groups, self.extents[self.axis])
        return (*box[: self.axis], (bounds[begin], bounds[end]), *box[self.axis + 1 :])

    def affects(self, box: Box) -> Box:
        if self.groups is None:
            return (*box[: self.axis], *box[self.axis + 1 :])
        begin, end = box[self.axis]
        first = max(0, int(np.searchsorted(self.groups, begin, side="right")) - 1)
        last = int(np.searchsorted(self.groups, end, side="left"))
        return (*box[: self.axis], (first, max(first, last)), *box[self.axis + 1 :])

    def compute(self, blocks: Sequence[Array], box: Box, dtype: np.dtype[Any]) -> Array:
        (block,) = blocks
        starts: list[Starts | None] = [None] * block.ndim
        if self.groups is None:
            if not block.shape[self.axis]:
                none = np.zeros((), dtype) if self.method == "count" else nothing(dtype, self.missing)
                return np.broadcast_to(none, (*block.shape[: self.axis], *block.shape[self.axis + 1 :]))
            starts[self.axis] = [0]
            return combined(self.method, block, starts, dtype, self.missing).squeeze(self.axis)
        begin, end = box[self.axis]
        starts[self.axis] = [each - self.groups[begin] for each in self.groups[begin:end]]
        return combined(self.method, block, starts, dtype, self.missing)


@dataclass(frozen=True, eq=False)
class LabelsStage(DerivingStage):
    """The labels of groups: those of their first elements. `source` says how they are stored."""

    source: str
    output: str
    labels: Array
    along: str
    others_from: int
    is_other = False
    has_type_of_source = False  # another type will do, too, as long as it holds them

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        return ()

    def dimensions(self, names: Sequence[Any]) -> list[Any]:
        return [self.along] * len(names)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.labels.shape

    @property
    def also(self) -> tuple[Box, ...]:
        return (((self.others_from, len(self.labels)),),)

    def needs(self, box: Box) -> Box:
        return box

    def affects(self, box: Box) -> Box:
        return box

    def compute(self, blocks: Sequence[Array], box: Box, dtype: np.dtype[Any]) -> Array:
        labels = self.labels[slices(box)]
        found = labels.astype(dtype)
        if (found != labels).any():
            raise ValueError(f"{self.output!r} can't hold its labels: they are {labels.dtype}, and it has {dtype}")
        return found


@dataclass(frozen=True)
class ApplyStage(DerivingStage):
    """A function of equal regions of the inputs, which sees `overlap` elements more on each side, where there are."""

    inputs: tuple[str, ...]
    output: str
    extents: tuple[int, ...]
    overlap: tuple[int, ...]
    find: Callable[[], Callable[..., Any]]  # the function; who derives nothing need not have it
    is_other = False
    has_type_of_source = False

    @property
    def source(self) -> str:  # type: ignore[override]
        return self.inputs[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extents

    def needs(self, box: Box) -> Box:
        return tuple(
            (max(0, begin - more), min(extent, end + more))
            for (begin, end), more, extent in zip(box, self.overlap, self.extents, strict=True)
        )

    def affects(self, box: Box) -> Box:
        return self.needs(box)

    def compute(self, blocks: Sequence[Array], box: Box, dtype: np.dtype[Any]) -> Array:
        function = self.find()
        try:
            found = np.asarray(function(*blocks))
        except Exception as error:  # whatever a function of the user's raises
            raise ValueError(f"its function has raised {error!r}") from error
        if found.shape != blocks[0].shape:
            raise ValueError(f"it made an array of shape {found.shape} of ones of shape {blocks[0].shape}")
        return as_dtype(found[slices(box, self.needs(box))], dtype)


def edge(before: Sequence[int], after: Sequence[int], chunk_ends: Sequence[int]) -> list[Box]:
    """Return the regions of an array, as it is after a resize, whose elements may be others though no chunk was set.

    Along each resized axis, those are the last element that is there before and after, whose neighbours change, and all
    up to the end of its chunk: a chunk keeps what lies outside of the shape. `chunk_ends` are those ends.
    """
    found = []
    for axis, (old, new, end) in enumerate(zip(before, after, chunk_ends, strict=True)):
        if old != new:
            box = list(whole(after))
            box[axis] = (max(0, min(old, new) - 1), min(new, max(end, old + 1)))  # of no length, if the axis has none
            found.append(tuple(box))
    return found
