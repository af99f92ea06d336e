"""One step of a view: an output array, element by element a function of regions of its inputs. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from txstore.deriving.boxes import Box, slices, whole
from txstore.deriving.methods import Method, Starts, as_dtype, combined

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


class DerivingStage(ABC):
    """What makes one output. All inputs have one shape."""

    inputs: tuple[str, ...]
    source: str  # the array whose chunks, type and codecs the output has when it is made
    output: str

    @property
    def keeps_fill(self) -> bool:
        """Whether elements that are all equal give this value, as those that are not stored."""
        return False

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

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.source,)

    @property
    def keeps_fill(self) -> bool:
        return True

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
        return combined(self.method, block, starts, dtype)


@dataclass(frozen=True)
class ReduceStage(DerivingStage):
    """Along one axis, each element of the output combines a run of elements of the input: its `groups`.

    With `groups` None, all of them, and the output has no such axis. The groups from `others_from` on are others now.
    """

    source: str
    output: str
    extents: tuple[int, ...]
    axis: int
    groups: tuple[int, ...] | None  # where each begins; it ends where the next one does
    method: Method
    others_from: int | None = None

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.source,)

    @property
    def keeps_fill(self) -> bool:
        return self.method != "count"

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
                return _of_nothing(self.method, (*block.shape[: self.axis], *block.shape[self.axis + 1 :]), dtype)
            starts[self.axis] = [0]
            return combined(self.method, block, starts, dtype).squeeze(self.axis)
        begin, end = box[self.axis]
        starts[self.axis] = [each - self.groups[begin] for each in self.groups[begin:end]]
        return combined(self.method, block, starts, dtype)


def _of_nothing(method: Method, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return the results of no elements at all: NaN where there is one, else 0."""
    return np.full(shape, np.nan if dtype.kind in "fc" and method != "count" else 0, dtype)


@dataclass(frozen=True, eq=False)
class LabelsStage(DerivingStage):
    """The labels of groups: those of their first elements. `source` says how they are stored."""

    source: str
    output: str
    labels: Array
    others_from: int

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        return ()

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
        return self.labels[slices(box)].astype(dtype)


@dataclass(frozen=True)
class ApplyStage(DerivingStage):
    """A function of equal regions of the inputs, which sees `overlap` elements more on each side, where there are."""

    inputs: tuple[str, ...]
    output: str
    extents: tuple[int, ...]
    overlap: tuple[int, ...]
    find: Callable[[], Callable[..., Any]]  # the function; who derives nothing need not have it

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
