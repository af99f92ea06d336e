"""Derives the outputs of views for one commit, chunk by chunk, where they depend on what it changes.

By induction: at the head, each output is what its view makes of its sources. A commit changes some chunks of the
sources; the elements of the outputs that depend on these are computed anew, from the sources as the commit leaves them,
and no others. What a commit itself writes to an output is replaced.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from txstore.codecs.chunk_codec import ChunkCodec, NotMergeableError
from txstore.deriving.boxes import Box, around, common, is_empty, shape_of, slices, whole
from txstore.deriving.declared import Views, ordered
from txstore.deriving.definitions import ViewDefinition
from txstore.deriving.stages import Stage, edge
from txstore.errors import ViewError
from txstore.format.documents import Described, below, describe, index_of
from txstore.format.grids import Chunk, Grid
from txstore.format.keys import directory_prefix

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

#: What is derived: values by key. None deletes the key.
Derived = Iterator[tuple[str, bytes | None]]

#: An array, and how it is cut into chunks.
Cut = tuple[Described, Grid]

#: Bytes of decoded chunks to keep: outputs whose chunks do not fit those of their inputs need one several times.
_KEPT_BYTES = 64 << 20


class DerivableCommit(Protocol):
    """The state of the head after a commit on top of it. `format.constraints.Outcome` documents most of it."""

    def before(self, path: str) -> Described | None: ...

    def document(self, key: str) -> bytes | memoryview | None:
        """Return a document, as it will be."""

    def value(self, key: str) -> bytes | memoryview | None:
        """Return what will be stored under a key."""

    def __contains__(self, key: str) -> bool: ...

    def remakes(self, path: str) -> bool: ...

    def restructures(self, path: str) -> bool: ...

    def clears_below(self, path: str) -> bool: ...

    def changed_below(self, path: str) -> Iterator[str]: ...

    def fetch(self, keys: Sequence[str]) -> None: ...


def derive(views: Views, new: Iterable[str], commit: DerivableCommit) -> Mapping[str, bytes | None]:
    """Return what a commit has to set and delete besides, for all views to hold. `new` views are derived as a whole.

    Raises `ViewError`.
    """
    derivation = Derivation(commit)
    for name in ordered(views):
        derivation.add(name, views[name], is_new=name in new)
    return derivation.values


class Derivation:
    """What one commit derives. Later views, and later stages, see what earlier ones have derived."""

    def __init__(self, commit: DerivableCommit) -> None:
        self.values: dict[str, bytes | None] = {}
        self._commit = commit
        self._kept: OrderedDict[str, Array] = OrderedDict()
        self._kept_bytes = 0

    def add(self, name: str, view: ViewDefinition, *, is_new: bool) -> None:
        """Derive the outputs of a view. Raises `ViewError`."""
        try:
            for stage in view.stages(self._after):
                self._run(stage, is_new=is_new)
        except (NotMergeableError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ViewError(name, str(error)) from error

    def _after(self, path: str) -> Described | None:
        return describe(self._document, path)

    def _document(self, key: str) -> bytes | memoryview | None:
        return self.values[key] if key in self.values else self._commit.document(key)

    def _value(self, key: str) -> bytes | memoryview | None:
        return self.values[key] if key in self.values else self._commit.value(key)

    # --- one stage

    def _run(self, stage: Stage, *, is_new: bool) -> None:
        inputs = [self._array(path) for path in stage.inputs]
        output, grid = self._output(stage)
        for chunk, box in self._affected(stage, inputs, grid, is_new=is_new):
            self._compute(stage, inputs, output, grid, chunk, box)

    def _array(self, path: str) -> Cut:
        found = self._after(path)
        if found is None or found.kind != "array":
            raise ValueError(f"there is no array {path!r}")
        return found, found.grid()

    def _output(self, stage: Stage) -> Cut:
        """Return the output, in its new shape. Delete its chunks that are outside of that."""
        output, grid = self._array(stage.output)
        if len(grid.shape) != len(stage.shape):
            raise ValueError(f"{output.path!r} has {len(grid.shape)} dimensions, and not {len(stage.shape)}")
        if grid.shape == stage.shape:
            return output, grid
        self.values[output.key] = json.dumps({**output.document, "shape": list(stage.shape)}, indent=2).encode()
        output, new = self._array(stage.output)
        for chunk in grid.outside(stage.shape):
            if any(place >= axis.count for place, axis in zip(chunk, new.axes, strict=True)):
                (key,) = grid.keys([chunk])
                if key in self._commit:
                    self.values[key] = None
        return output, new

    def _affected(
        self, stage: Stage, inputs: Sequence[Cut], grid: Grid, *, is_new: bool
    ) -> Iterator[tuple[Chunk, Box]]:
        """Yield the chunks of the output to compute, each with the region of it that may have changed."""
        if is_new or self._is_made_anew(stage.output) or any(map(self._is_made_anew, stage.inputs)):
            for chunk in grid.everything():
                yield chunk, _box_of(grid, chunk)
            return
        found: dict[Chunk, Box] = {}
        for box in self._regions(stage, inputs, grid):
            inside = common(box, whole(grid.shape))
            if is_empty(inside):
                continue
            for chunk in grid.touched(slices(inside)):
                part = common(inside, _box_of(grid, chunk))
                found[chunk] = around([found[chunk], part]) if chunk in found else part
        yield from sorted(found.items())

    def _is_made_anew(self, path: str) -> bool:
        return self._commit.remakes(path) or self._commit.clears_below(path) or self._commit.restructures(path)

    def _regions(self, stage: Stage, inputs: Sequence[Cut], grid: Grid) -> Iterator[Box]:
        """Yield regions of the output that depend on what was changed, or were changed themselves."""
        output, _ = self._array(stage.output)
        # Where nothing is stored, the inputs have their fill value. Unless it depends on more, so has the output then.
        fill = output.document.get("fill_value")
        keeps_fill = stage.keeps_fill and all(array.document.get("fill_value") == fill for array, _ in inputs)
        for array, cut in inputs:
            before = self._commit.before(array.path)
            if before is not None and before.node.shape != cut.shape:
                ends = cut.shape if not keeps_fill else _edge_ends(cut, before.node.shape)
                yield from map(stage.affects, edge(before.node.shape, cut.shape, ends))
            for chunk in self._changed_chunks(array, cut):
                yield stage.affects(_box_of(cut, chunk))
        before = self._commit.before(stage.output)
        if before is not None and before.node.shape != grid.shape:
            yield from edge(before.node.shape, grid.shape, _edge_ends(grid, before.node.shape))
        for key in self._commit.changed_below(output.path):
            if (place := _place_of(output, grid, key)) is not None:
                yield _box_of(grid, place)

    def _changed_chunks(self, array: Described, grid: Grid) -> Iterator[Chunk]:
        derived = (key for key in self.values if key.startswith(directory_prefix(array.path)))
        for key in {*self._commit.changed_below(array.path), *derived}:
            if (chunk := _place_of(array, grid, key)) is not None:
                yield chunk

    # --- one chunk

    def _compute(
        self,
        stage: Stage,
        inputs: Sequence[Cut],
        output: Described,
        grid: Grid,
        chunk: Chunk,
        box: Box,
    ) -> None:
        (key,) = grid.keys([chunk])
        codec = _codec(output, key)
        everything = _box_of(grid, chunk)
        stored = self._value(key)
        present = codec.decode(None if box == everything else stored)
        blocks = [self._read(array, cut, stage.needs(box)) for array, cut in inputs]
        present[slices(box, tuple((begin, begin) for begin, _ in everything))] = stage.compute(blocks, box, codec.dtype)
        made = codec.encode(present)
        if made != (None if stored is None else bytes(stored)):
            self._forget(key)
            self.values[key] = made

    def _read(self, array: Described, grid: Grid, box: Box) -> Array:
        """Return a region of an array, as the commit leaves it."""
        import numpy as np

        chunks = [] if is_empty(box) else list(grid.touched(slices(box)))
        keys = list(grid.keys(chunks))
        self._commit.fetch([key for key in keys if key not in self.values and key not in self._kept])
        found: Array | None = None
        for chunk, key in zip(chunks, keys, strict=True):
            held = self._decoded(array, key)
            there = _box_of(grid, chunk)
            part = common(box, there)
            if found is None:
                found = np.empty(shape_of(box), held.dtype)
            found[slices(part, box)] = held[slices(part, there)]
        return np.empty(shape_of(box), _dtype(array, grid)) if found is None else found

    def _decoded(self, array: Described, key: str) -> Array:
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        found = _codec(array, key).decode(self._value(key))
        self._kept[key] = found
        self._kept_bytes += found.nbytes
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return found

    def _forget(self, key: str) -> None:
        if key in self._kept:
            self._kept_bytes -= self._kept.pop(key).nbytes


def _codec(array: Described, key: str) -> ChunkCodec:
    return ChunkCodec(array.key.rpartition("/")[2], array.content, below(array.key, key))


def _dtype(array: Described, grid: Grid) -> np.dtype[Any]:
    (key,) = grid.keys([(0,) * len(grid.shape)])
    return _codec(array, key).dtype


def _box_of(grid: Grid, chunk: Chunk) -> Box:
    """Return the elements of a chunk that are inside of the array."""
    return tuple(
        (int(axis.start_of(place)), min(int(axis.start_of(place + 1)), axis.extent))
        for place, axis in zip(chunk, grid.axes, strict=True)
    )


def _edge_ends(grid: Grid, before: Sequence[int]) -> list[int]:
    """Return along each axis the end of the chunk in which the old or the new shape ends, whichever is smaller."""
    return [
        int(axis.start_of(axis.chunk_of(min(old, axis.extent) - 1) + 1)) if old and axis.extent else 0
        for axis, old in zip(grid.axes, before, strict=True)
    ]


def _place_of(array: Described, grid: Grid, key: str) -> Chunk | None:
    """Return the place in the grid of a key below an array; None for other keys, and outside of the grid."""
    place = index_of(below(array.key, key), len(grid.shape))
    if place is None or any(at >= axis.count for at, axis in zip(place, grid.axes, strict=True)):
        return None
    return place
