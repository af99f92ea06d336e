"""Derives the outputs of views for one commit, chunk by chunk, where they depend on what it changes.

By induction: at the head, each output is what its view makes of its sources. A commit changes some chunks of the
sources; the elements of the outputs that depend on these are computed anew, from the sources as the commit leaves them,
and no others. What a commit itself writes to an output is replaced.
"""

from __future__ import annotations

import json
import math
import operator
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from txstore.codecs.chunk_codec import ChunkCodec, NotMergeableError
from txstore.deriving.attributes import followed
from txstore.deriving.declared import DerivableCommit, Reached, Value, Views, changes, ordered
from txstore.deriving.definitions import ViewDefinition
from txstore.deriving.stages import Box, DerivingStage, around, common, edge, is_empty, shape_of, slices, whole
from txstore.errors import ViewError
from txstore.format.cf import number_type
from txstore.format.documents import Described, below, describe, index_of
from txstore.format.grids import Chunk, Grid
from txstore.format.keys import document_key
from txstore.storage.request_threads import in_advance

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

#: An array, and how it is cut into chunks.
Cut = tuple[Described, Grid]
#: A chunk of an output, and the region of it to compute.
Affected = tuple[Chunk, Box]

#: Chunks that are computed at once.
_THREADS = min(8, os.cpu_count() or 1)
#: Chunks that one commit makes of one output, and that one chunk of an output depends on, at most; and the bytes of
#: those. An array says of itself how large it is: without a bound, one that is empty would keep a commit busy for ever.
_MOST_CHUNKS, _MOST_BYTES = 1 << 20, 8 << 30
#: Bytes of decoded chunks to keep: outputs whose chunks do not fit those of their inputs need one several times.
_KEPT_BYTES = 64 << 20


def derive(views: Views, new: Collection[str], commit: DerivableCommit) -> None:
    """Put what a commit has to set and delete besides, for all views to hold. `new` views are derived as a whole.

    Raises `ViewError`.
    """
    for name in ordered(views):
        view = views[name]
        # By induction the others hold, whatever their arrays say that they are: this commit reads nothing of them.
        if name not in new and not any(changes(commit, path) for path in (*view.sources, *view.outputs)):
            continue
        derivation = Derivation(commit, is_new=name in new)
        with _telling(name):
            for stage in view.stages(derivation):
                derivation.run(stage)


def derive_part(name: str, view: ViewDefinition, commit: DerivableCommit, start: Reached, limit: int) -> Reached | None:
    """Put a part of what a new view makes: from `start` on, chunks of `limit` bytes of elements together, or one more.

    Return where the rest begins; None if there is none. Raises `ViewError`.
    """
    derivation = Derivation(commit, is_new=True)
    with _telling(name):
        for number, stage in enumerate(view.stages(derivation)):
            if number < start.stage:
                continue
            begin = start.chunk if number == start.stage else 0
            next_chunk, length = derivation.run_part(stage, begin, limit)
            if next_chunk is not None:
                return Reached(number, next_chunk)
            limit -= length
    return None


@contextmanager
def _telling(name: str) -> Iterator[None]:
    try:
        yield
    except (NotMergeableError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ViewError(name, str(error)) from error


class Derivation:
    """Derives the outputs of one view, stage by stage. It holds some chunks in memory at a time."""

    def __init__(self, commit: DerivableCommit, *, is_new: bool) -> None:
        self._commit = commit
        self._is_new = is_new
        self._chunks = _DecodedChunks()

    def after(self, path: str) -> Described | None:
        return describe(self._commit.document, path)

    def before(self, path: str) -> Described | None:
        return self._commit.before(path)

    # --- one stage

    def elements(self, path: str) -> Array:
        """Return a whole array."""
        array, grid = self._array(path)
        region = _Region(array, grid, whole(grid.shape))
        return region.assembled(self._chunks, [self._commit.value(key) for key in region.keys])

    def elements_before(self, path: str) -> Array | None:
        """Return a whole array, as it was at the head; None if there was none."""
        array = self._commit.before(path)
        if array is None or array.kind != "array":
            return None
        region = _Region(array, array.grid(), whole(array.grid().shape))
        return region.assembled(_DecodedChunks(), [self._commit.value_before(key) for key in region.keys])

    def run(self, stage: DerivingStage) -> None:
        inputs = [self._array(path) for path in stage.inputs]
        output, grid = self._output(stage)
        self._compute(stage, inputs, output, grid, self._affected(stage, inputs, grid))

    def run_part(self, stage: DerivingStage, start: int, limit: int) -> tuple[int | None, int]:
        """Compute the chunks from number `start` on, until they have `limit` bytes.

        Return the number of the next one, None if there is none, and the bytes.
        """
        inputs = [self._array(path) for path in stage.inputs]
        output, grid = self._output(stage)
        size, length, next_chunk, part = _dtype(output, grid).itemsize, 0, None, list[Affected]()
        for number, chunk in islice(enumerate(grid.everything()), start, None):
            if length >= limit:
                next_chunk = number
                break
            box = _box_of(grid, chunk)
            part.append((chunk, box))
            length += math.prod(shape_of(box)) * size
        self._compute(stage, inputs, output, grid, part)
        return next_chunk, length

    def _compute(
        self, stage: DerivingStage, inputs: Sequence[Cut], output: Described, grid: Grid, affected: Iterable[Affected]
    ) -> None:
        work = (partial(self._chunk, stage, inputs, output, grid, chunk, box) for chunk, box in affected)
        # Read here, and computed in other threads, while a few of them are in memory.
        for made in in_advance(operator.call, (prepare() for prepare in work), _THREADS):
            if made is not None:
                self._chunks.forget(made[0])
                self._commit.put(*made)

    def _array(self, path: str) -> Cut:
        found = self.after(path)
        if found is None or found.kind != "array":
            raise ValueError(f"there is no array {path!r}")
        return found, found.grid()

    def _output(self, stage: DerivingStage) -> Cut:
        """Return the output, in its new shape. Delete its chunks that are outside of that."""
        output, grid = self._array(stage.output)
        if len(grid.shape) != len(stage.shape):
            raise ValueError(f"{output.path!r} has {len(grid.shape)} dimensions, and not {len(stage.shape)}")
        if self._follow_source(stage, output, grid):
            output, grid = self._array(stage.output)
        if grid.shape == stage.shape:
            return output, grid
        document = json.dumps({**output.document, "shape": list(stage.shape)}, indent=2)
        self._commit.put(output.key, document.encode())
        output, new = self._array(stage.output)
        for chunk in _bounded(grid.outside(stage.shape), stage.output):
            if any(place >= axis.count for place, axis in zip(chunk, new.axes, strict=True)):
                (key,) = grid.keys([chunk])
                if key in self._commit:
                    self._commit.put(key, None)
        return output, new

    def _follow_source(self, stage: DerivingStage, output: Described, grid: Grid) -> bool:
        """Hand on changed attributes of the source, which say what numbers mean. Return whether there were some."""
        before, (after, cut) = self._commit.before(stage.source), self._array(stage.source)
        if self._is_new:
            before = None
        elif before is None or before.kind != "array":
            return False
        if before is not None and (before.content, before.attributes) == (after.content, after.attributes):
            return False
        own, new = _native(_dtype(output, grid)), _native(_dtype(after, cut))
        old = new if before is None else _native(_dtype(before, before.grid()))
        if stage.has_type_of_source and own == old != new:
            raise ValueError(
                f"{after.path!r} is of type {new} now, and {output.path!r} of {old}, as it was: delete that, and "
                "declare the view anew"
            )
        attributes = followed(stage, output, before, after, is_of_its_type=own == new)
        if attributes is None:
            return False
        if output.key.endswith(".zarray"):
            key, document = document_key(output.path, ".zattrs"), attributes
        else:
            key, document = output.key, {**output.document, "attributes": attributes}
        self._commit.put(key, json.dumps(document, indent=2).encode())
        return True

    def _affected(self, stage: DerivingStage, inputs: Sequence[Cut], grid: Grid) -> Iterator[Affected]:
        """Yield the chunks of the output to compute, each with the region of it that may have changed."""
        if (
            self._is_new
            or stage.is_other
            or self._is_made_anew(stage.output)
            or any(map(self._is_made_anew, stage.inputs))
        ):
            for chunk in _bounded(grid.everything(), stage.output):
                yield chunk, _box_of(grid, chunk)
            return
        found: dict[Chunk, Box] = {}
        for box in self._regions(stage, inputs, grid):
            inside = common(box, whole(grid.shape))
            if is_empty(inside):
                continue
            for chunk in _bounded(grid.touched(slices(inside)), stage.output):
                part = common(inside, _box_of(grid, chunk))
                found[chunk] = around([found[chunk], part]) if chunk in found else part
        yield from sorted(found.items())

    def _is_made_anew(self, path: str) -> bool:
        return self._commit.remakes(path) or self._commit.clears_below(path) or self._commit.restructures(path)

    def _regions(self, stage: DerivingStage, inputs: Sequence[Cut], grid: Grid) -> Iterator[Box]:
        """Yield regions of the output that depend on what was changed, or were changed themselves."""
        output, _ = self._array(stage.output)
        # Where nothing is stored, the inputs have their fill value. Unless it depends on more, so has the output then.
        fill = output.document.get("fill_value")
        keeps_fill = stage.keeps(fill) and all(array.document.get("fill_value") == fill for array, _ in inputs)
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
        yield from stage.also
        for key in self._commit.changed_below(output.path):
            if (place := _place_of(output, grid, key)) is not None:
                yield _box_of(grid, place)

    def _changed_chunks(self, array: Described, grid: Grid) -> Iterator[Chunk]:
        for key in self._commit.changed_below(array.path):
            if (chunk := _place_of(array, grid, key)) is not None:
                yield chunk

    # --- one chunk

    def _chunk(
        self, stage: DerivingStage, inputs: Sequence[Cut], output: Described, grid: Grid, chunk: Chunk, box: Box
    ) -> Callable[[], tuple[str, bytes | None] | None]:
        """Read what a chunk of the output depends on. Return what computes it, which another thread may do.

        That returns the key and its value, None to delete it, or None if the value is as it was.
        """
        (key,) = grid.keys([chunk])
        stored = self._commit.value(key)
        regions = [_Region(array, cut, stage.needs(box)) for array, cut in inputs]
        self._commit.fetch([each for region in regions for each in region.keys])
        stored_inputs = [[self._commit.value(each) for each in region.keys] for region in regions]

        def compute() -> tuple[str, bytes | None] | None:
            codec = ChunkCodec.of(output, key)
            everything = _box_of(grid, chunk)
            present = codec.decode(None if box == everything else stored)
            blocks = [
                region.assembled(self._chunks, values) for region, values in zip(regions, stored_inputs, strict=True)
            ]
            origin = tuple((begin, begin) for begin, _ in everything)
            if stage.combines_numbers:
                numbers = number_type(codec.dtype, output.attributes)
                blocks = [
                    block.view(number_type(block.dtype, array.attributes))
                    for block, (array, _) in zip(blocks, inputs, strict=True)
                ]
                present[slices(box, origin)] = stage.compute(blocks, box, numbers).view(codec.dtype)
            else:
                present[slices(box, origin)] = stage.compute(blocks, box, codec.dtype)
            made = codec.encode(present)
            return None if made == (None if stored is None else bytes(stored)) else (key, made)

        return compute


class _Region:
    """A region of an array, and the chunks that it lies in."""

    def __init__(self, array: Described, grid: Grid, box: Box) -> None:
        self._array, self._grid, self._box = array, grid, box
        if math.prod(shape_of(box)) * _dtype(array, grid).itemsize > _MOST_BYTES:
            raise ValueError(f"it needs more than {_MOST_BYTES >> 30} GiB of {array.path!r} at once")
        self._chunks = [] if is_empty(box) else list(_bounded(grid.touched(slices(box)), array.path))
        self.keys = list(grid.keys(self._chunks))

    def assembled(self, decoded: _DecodedChunks, values: Sequence[Value]) -> Array:
        """Return the elements. `values` are what is stored under the keys."""
        found: Array | None = None
        for chunk, key, value in zip(self._chunks, self.keys, values, strict=True):
            held = decoded.get(self._array, key, value)
            there = _box_of(self._grid, chunk)
            part = common(self._box, there)
            if found is None:
                found = np.empty(shape_of(self._box), held.dtype)
            found[slices(part, self._box)] = held[slices(part, there)]
        return np.empty(shape_of(self._box), _dtype(self._array, self._grid)) if found is None else found


class _DecodedChunks:
    """The chunks that were decoded last, by their keys. Safe in threads."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, Array] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, array: Described, key: str, value: Value) -> Array:
        """Return a chunk, which nobody may write to."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        found = ChunkCodec.of(array, key).decode(value)
        with self._lock:
            self._drop(key)
            self._held[key] = found
            self._bytes += found.nbytes
            while self._bytes > _KEPT_BYTES and len(self._held) > 1:
                self._drop(next(iter(self._held)))
        return found

    def forget(self, key: str) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: str) -> None:
        if key in self._held:
            self._bytes -= self._held.pop(key).nbytes


def _bounded(chunks: Iterable[Chunk], path: str) -> Iterator[Chunk]:
    """Yield chunks of an array. Raises `ValueError` if there are more than a commit can work on."""
    for number, chunk in enumerate(chunks):
        if number == _MOST_CHUNKS:
            raise ValueError(f"more than {_MOST_CHUNKS:,} chunks of {path!r} at once: drop the view, or let it follow")
        yield chunk


def _dtype(array: Described, grid: Grid) -> np.dtype[Any]:
    (key,) = grid.keys([(0,) * len(grid.shape)])
    return ChunkCodec.of(array, key).dtype


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("=")


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
