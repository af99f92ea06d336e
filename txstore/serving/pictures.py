"""Reads a part of an array for display, as numbers for a picture or as texts, if the browser can't decode it."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from txstore.codecs.allowed_codecs import check_codecs
from txstore.errors import NodeNotFoundError
from txstore.format.documents import describe
from txstore.history.snapshot import Snapshot
from txstore.serving.answers import Failure, Headers
from txstore.serving.decoders import Decoders, Fetch, Stop
from txstore.serving.positions import Positions
from txstore.serving.repository_protocol import Served
from txstore.store import TxStore

#: Most points along each of two axes, and along a single axis.
_POINTS, _POINTS_OF_LINE = 512, 4096
#: Most chunks, and most bytes, that are decoded for one picture.
_CHUNKS, _BYTES = 4096, 256 << 20
#: Most chunks along an axis: zarr iterates over all of them, at any step.
_PASSED = 1 << 18
#: Most values in an answer of texts, for arrays that do not hold numbers.
_TEXTS = 200


class Picture(NamedTuple):
    body: bytes
    headers: Headers


class Pictures:
    """Reads arrays in separate processes, so that hostile chunks can't harm the server. Safe in threads."""

    def __init__(self, repository: Served, positions: Positions) -> None:
        self._engine = repository.engine
        self._positions = positions
        self.decoders = Decoders()

    def read(self, ref: str, path: str = "", selection: str = "", *, stop: Stop) -> Picture | dict[str, Any]:
        """Return a selection as little-endian float32, with its shape, and with steps if it has too many points.

        For an array that does not hold numbers, return the first values as texts: `{"shape": ..., "values": [...]}`.

        `selection` has one item for each axis, separated by commas: an index, `start:stop`, or `:` for the whole axis;
        at most two axes may be ranges.
        """
        import numpy as np
        import zarr

        snapshot = self._positions.snapshot(ref)
        path = path.strip("/")
        described = describe(snapshot.get_view, path)
        if described is None or described.kind != "array":
            raise NodeNotFoundError(path, "array", "" if described is None else described.kind)
        document = described.key.rpartition("/")[2]
        check_codecs(path, document, described.document)
        zarr_format: Any = 3 if document == "zarr.json" else 2
        try:
            array: Any = zarr.open_array(
                TxStore.at(self._engine, snapshot), path=path, mode="r", zarr_format=zarr_format
            )
            dtype = np.dtype(array.dtype)
        except (ValueError, TypeError, KeyError, NotImplementedError) as error:
            raise Failure(400, "NoPicture", f"zarr can't read {path!r}: {error}") from error
        is_numeric = dtype.kind in "biufcmM" and dtype.itemsize <= 16
        spans = _spans(selection, array.shape)
        kept = [axis for axis, span in enumerate(spans) if isinstance(span, range)]
        if len(kept) > 2:
            raise Failure(400, "WrongArgument", "a picture has at most two axes: give an index for each other axis")
        chunks = getattr(array, "chunks", None) or array.shape
        if not is_numeric:
            spans = _first_of(spans, kept)
        most = _POINTS if len(kept) == 2 else _POINTS_OF_LINE
        steps = _steps(spans, kept, chunks, dtype.itemsize, most)
        taken = tuple(
            slice(span.start, span.stop, step) if isinstance(span, range) else span
            for span, step in zip(spans, steps, strict=True)
        )
        told, body = self.decoders.ask(path, zarr_format, [_part(each) for each in taken], _fetch(snapshot), stop)
        if not is_numeric:
            return told
        grid = described.grid()
        stored = [snapshot.lookup(key) is not None for key in grid.keys(grid.touched(taken))]
        return Picture(
            body,
            [
                (b"x-missing-chunks", b"%d/%d" % (stored.count(False), len(stored))),
                (b"x-shape", ",".join(map(str, told["shape"])).encode()),
                (b"x-step", ",".join(str(steps[axis]) for axis in kept).encode()),
                (b"x-min", json.dumps(told["min"]).encode()),
                (b"x-max", json.dumps(told["max"]).encode()),
            ],
        )


def _spans(selection: str, shape: tuple[int, ...]) -> list[range | int]:
    """Return the selection along each axis. By default all of the last two axes, and index 0 of the others."""
    items = selection.split(",") if selection else ["0"] * (len(shape) - 2) + [":"] * min(2, len(shape))
    if len(items) != len(shape):
        raise Failure(400, "WrongArgument", f"selection= has {len(items)} items, and the array {len(shape)} axes")
    return [_span(item.strip(), extent) for item, extent in zip(items, shape, strict=True)]


def _span(item: str, extent: int) -> range | int:
    start, colon, stop = item.partition(":")
    if not all(not part or (part.isascii() and part.isdecimal() and len(part) < 19) for part in (start, stop)):
        raise Failure(400, "WrongArgument", f"{item[:40]!r} is neither an index nor start:stop")
    if colon:
        end = min(int(stop), extent) if stop else extent
        return range(min(int(start or 0), end), end)
    if not start or int(start) >= extent:
        raise Failure(400, "WrongArgument", f"{item[:40]!r} is outside of an axis of {extent}")
    return int(start)


def _first_of(spans: list[range | int], kept: list[int]) -> list[range | int]:
    """Return the first part of a selection, with as many values as an answer of texts may have."""
    found, left = [*spans], _TEXTS
    for axis in reversed(kept):
        span = found[axis]
        assert isinstance(span, range)
        found[axis] = span[: max(1, left)]
        left //= max(1, len(span))
    return found


def _part(taken: slice | int) -> list[int] | int:
    return [taken.start, taken.stop, taken.step] if isinstance(taken, slice) else taken


def _fetch(snapshot: Snapshot) -> Fetch:
    return lambda key, part: snapshot.get_view(key) if part is None else snapshot.get_part(key, part)


def _steps(spans: list[range | int], kept: list[int], chunks: tuple[int, ...], itemsize: int, most: int) -> list[int]:
    """Return steps that limit the number of chunks read. Raises `Failure` if a single chunk is too large."""
    size = math.prod(chunks) * itemsize
    if size > _BYTES:
        raise Failure(413, "TooLarge", f"a chunk has {size:,} bytes: that is too large for a picture")
    for span, chunk in zip(spans, chunks, strict=True):
        if isinstance(span, range) and len(span) // max(chunk, 1) > _PASSED:
            raise Failure(413, "TooLarge", f"there are more than {_PASSED:,} chunks along an axis: select a part of it")
    while True:
        steps = [1] * len(spans)
        read = 1
        for axis in kept:
            span = spans[axis]
            assert isinstance(span, range)
            steps[axis] = max(1, -(-len(span) // most))
            points = -(-len(span) // steps[axis])
            read *= min(points, -(-len(span) // max(chunks[axis], 1)) + 1)
        if most == 1 or (read <= _CHUNKS and read * size <= _BYTES):
            return steps
        most = max(1, most // 2)
