"""TxCodecPipeline: zarr's codec pipeline of arrays over a `TxStore`.

An operation is one batch. The C code reads and writes the rows whose chunks it knows (`Layout`) together. All other
rows go through zarr's own pipeline in the same operation. So does a row that can't be read: zarr raises the error.

The pipeline reads, changes and stages a partly written chunk in one step (`ChunkStore.modify`), with the written
region. So threads that write parts of one chunk lose no writes of each other.

Reads of snapshots go through the cache of decoded chunks (`codecs/chunk_cache.py`). The unit is a chunk, or an inner
chunk of a shard. What is not in the cache is read whole, by the pipeline, into memory beside the array; the wanted part
of it is copied from there.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import zarr
from zarr.abc.buffer import Buffer, NDBuffer
from zarr.abc.codec import Codec, CodecPipeline
from zarr.buffer import cpu, default_buffer_prototype
from zarr.codecs import ShardingCodec
from zarr.storage import StorePath

from txstore._native import chunks
from txstore.codecs.bounded_codecs import check_size, zarr_pipeline
from txstore.codecs.chunk_cache import ChunkCache, Key
from txstore.codecs.layout import KEEP, Layout, chunk_shape, dtype_of, layout_of
from txstore.codecs.part_codec import AnyArray, PartCodec
from txstore.format.regions import MAX_BOXES, Box, Region
from txstore.pipeline.chunk_store import ChunkStore
from txstore.segments.runs import ELSEWHERE, LATER, Located
from txstore.sessions import calling_thread
from txstore.storage.request_threads import in_advance, in_thread
from txstore.zarr_private import ArrayConfig, ArraySpec, ArrayV3Metadata, BatchedCodecPipeline, FusedCodecPipeline

if TYPE_CHECKING:
    from typing import Self

    from zarr.abc.store import ByteGetter, Store


T = TypeVar("T")

#: On zarr's loop, a batch of fewer bytes stays there: that takes less time than passing it to a thread.
_SMALL = 256 << 10
#: Up to this number of chunks, the remote ones are requested on zarr's loop.
_FEW = 16
#: What one thread is given at least, in bytes.
_SHARE = 256 << 10

#: The longest raw chunks, in bytes, that the cache keeps, though they are mapped: it has them in fewer steps.
_COPIED = 64 << 10

#: How much is fetched at a time, and how much is under way, in bytes as they are decoded.
_FETCHED, _UNDER_WAY = 16 << 20, 128 << 20
#: Chunks that are read to their places at once: in memory of their own are only the pieces that are on their way, of
#: all together, and while the last ones of some are copied, the first ones of others are under way.
_PLACED = 4

_PRESENT, _MISSING = {"status": "present"}, {"status": "missing"}
_RESULTS = {chunks.READ: _PRESENT, chunks.MISSING: _MISSING}


class TxCodecPipeline(CodecPipeline):
    """The codec pipeline of one array over a `TxStore`. Safe in threads."""

    def __init__(self, metadata: Any, ordinary: CodecPipeline | None = None, *, is_bounded: bool = False) -> None:
        """`ordinary`: zarr's own, if it is not the one that the metadata say.

        `is_bounded`: it decodes no more than the metadata say that a chunk has: for reads of TxStore's own.
        """
        self._metadata = metadata
        self._ordinary = ordinary
        self._is_bounded = is_bounded

    # Of the arrays of a group that is opened few are read: both are made when they are needed.

    @cached_property
    def ordinary(self) -> CodecPipeline:
        """Zarr's own pipeline for this array."""
        if self._ordinary is not None:
            return self._ordinary
        return _pipeline_of(self._metadata, is_bounded=self._is_bounded)

    @cached_property
    def layout(self) -> Layout | None:
        """How the chunks lie, if the C knows them."""
        return layout_of(self._metadata)

    def __reduce__(self) -> tuple[Any, ...]:
        # Which libraries there are elsewhere is not known here.
        return partial(type(self), is_bounded=self._is_bounded), (self._metadata, self._ordinary)

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec]) -> Self:
        # Of an array over another store, or of the chunks in a shard: what everybody has.
        return _ordinary_class().from_codecs(codecs)  # type: ignore[return-value]

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Store) -> Self:
        if not isinstance(store, ChunkStore):
            other = _ordinary_class().from_array_metadata_and_store(array_metadata, store)
            return other  # type: ignore[return-value]
        return cls(array_metadata)

    def __str__(self) -> str:
        if self.layout is None:
            return f"txstore: chunk by chunk, as {type(self.ordinary).__name__} does"
        return "txstore: batches of chunks" if self.layout.inner is None else "txstore: batches of shards"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TxCodecPipeline) and self.ordinary == other.ordinary

    __hash__ = None  # type: ignore[assignment]

    # --- what the ordinary pipeline says

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        evolved = self.ordinary.evolve_from_array_spec(array_spec)
        return type(self)(self._metadata, evolved, is_bounded=self._is_bounded)

    @property
    def supports_partial_decode(self) -> bool:
        return self.ordinary.supports_partial_decode

    @property
    def supports_partial_encode(self) -> bool:
        return self.ordinary.supports_partial_encode

    def validate(self, **named: Any) -> None:
        self.ordinary.validate(**named)

    def compute_encoded_size(self, byte_length: int, array_spec: ArraySpec) -> int:
        return self.ordinary.compute_encoded_size(byte_length, array_spec)

    async def decode(
        self, chunk_bytes_and_specs: Iterable[tuple[Buffer | None, ArraySpec]]
    ) -> Iterable[NDBuffer | None]:
        return await self.ordinary.decode(chunk_bytes_and_specs)

    async def encode(
        self, chunk_arrays_and_specs: Iterable[tuple[NDBuffer | None, ArraySpec]]
    ) -> Iterable[Buffer | None]:
        return await self.ordinary.encode(chunk_arrays_and_specs)

    # --- reading

    async def read(
        self,
        batch_info: Iterable[tuple[ByteGetter, ArraySpec, Any, Any, bool]],
        out: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> Any:
        rows: list[Row] = list(batch_info)
        store = _store_of(rows)
        if store is not None and not drop_axes and _is_plain(rows, out):
            array: Any = out.as_ndarray_like()
            cached = self._cached(store)
            if cached is not None and array.dtype == self._dtype:
                found = await cached.read(rows, array, partial(self._read_rows, store))
                if found is not None:
                    return found
        return await self._read_rows(store, rows, out, drop_axes)

    async def _read_rows(
        self, store: ChunkStore | None, rows: list[Row], out: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        array = self._array(rows, out)
        if store is None or array is None or drop_axes:
            return await self.ordinary.read(rows, out, drop_axes)
        await store.let_in()
        if not store.is_fetched:
            states = await _in_thread(self._read, store, rows, array, work=self._work(len(rows), array))
        elif self.layout is not None and self.layout.inner is None:
            states = await self._fetched(store, rows, array)
        else:  # a part of a shard is a part of a request
            states = None
        if states is None:
            return await self.ordinary.read(rows, out, drop_axes)
        results: list[Any] = [_RESULTS.get(state) for state in states]
        left = [row for row, result in enumerate(results) if result is None]
        if left:
            found: Any = await self.ordinary.read([rows[row] for row in left], out, drop_axes)
            for row, result in zip(left, found or (), strict=False):  # zarr 3.1 returns nothing
                results[row] = result
        return tuple(results)

    def _cached(self, store: ChunkStore) -> CachedReads | None:
        """Return the reads through the cache of decoded chunks, if it makes this array's reads faster."""
        kept = store.decoded_chunks
        if kept is None or self._part_shape is None:
            return None
        layout = self.layout
        if not store.is_fetched and layout is not None and not layout.codecs and layout.size > _COPIED:
            return None  # a mapped file has the same bytes at hand
        return CachedReads(*kept, *self._part_shape)

    @cached_property
    def _dtype(self) -> np.dtype[Any]:
        """The type of the elements in memory."""
        return dtype_of(self._metadata)

    @cached_property
    def _part_shape(self) -> tuple[tuple[int, ...], bool] | None:
        """The shape of what is decoded at once, and whether it is an inner chunk of a shard. None: it differs."""
        shape = chunk_shape(self._metadata)
        codecs: tuple[Any, ...] = getattr(self._metadata, "codecs", ())
        if shape is None or not any(isinstance(codec, ShardingCodec) for codec in codecs):
            return None if shape is None else (shape, False)
        inner = tuple(codecs[0].chunk_shape) if len(codecs) == 1 else None
        if inner is None or any(whole % part for whole, part in zip(shape, inner, strict=True)):
            return None
        return inner, True

    def _read(self, store: ChunkStore, rows: list[Row], array: AnyArray) -> bytes | None:
        located = store.locate([row[0].path for row in rows])
        return None if located is None else self._decoded(located, rows, array)

    def _decoded(self, located: Located, rows: list[Row], array: AnyArray) -> bytes:
        assert self.layout is not None
        batch = self.layout.batch(rows, array, writable=True)
        later = [row for row in located.later if located.table[row, 0] == LATER]
        located.table[later, 0] = ELSEWHERE
        states = batch.read(located.buffers, located.table, _threads(self._work(len(rows), array)))
        if not later:
            return states
        found = bytearray(states)
        for row in later:
            target = self.layout.place(rows[row], array)
            if target is not None and located.later[row](target):
                found[row] = chunks.READ
        return bytes(found)

    async def _fetched(self, store: ChunkStore, rows: list[Row], array: AnyArray) -> bytes | None:
        if len(rows) <= _FEW and self._work(len(rows), array) < _SMALL:
            located = await store.await_located([row[0].path for row in rows])
            if located is not None:
                return self._decoded(located, rows, array)
        return await in_thread(self._fetch, store, rows, array)

    def _fetch(self, store: ChunkStore, rows: list[Row], array: AnyArray) -> bytes | None:
        """Read rows of which not all need fit in memory beside the array: some are fetched while others are decoded."""
        assert self.layout is not None
        count = max(1, _FETCHED // self.layout.size)
        batches = [rows[at : at + count] for at in range(0, len(rows), count)]
        if len(batches) == 1:
            return self._read(store, rows, array)
        is_placed = count == 1 and all(self.layout.place(row, array) is not None for row in rows)
        under_way = max(_PLACED if is_placed else 2, _UNDER_WAY // (count * self.layout.size))
        states = list(in_advance(lambda batch: self._read(store, batch, array), batches, under_way - 1))
        return b"".join([state for state in states if state is not None]) if None not in states else None

    # --- writing

    async def write(
        self,
        batch_info: Iterable[tuple[Any, ArraySpec, Any, Any, bool]],
        value: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> None:
        rows: list[Row] = list(batch_info)
        store = _store_of(rows)
        if store is None:
            await self.ordinary.write(rows, value, drop_axes)
            return
        _check_fits(rows, value.shape, drop_axes)
        await store.let_in()
        whole = [row for row in rows if row[4]]
        parts = [row for row in rows if not row[4]]
        try:
            if whole:
                await self._write_whole(store, whole, value, drop_axes)
            if parts:
                await _in_thread(self._write_parts, store, parts, value, drop_axes)
        except BaseException:
            if len(rows) > 1:  # something may be staged
                store.give_up("an operation failed when it had written some of its chunks")
            raise

    async def _write_whole(
        self, store: ChunkStore, rows: list[Row], value: NDBuffer, drop_axes: tuple[int, ...]
    ) -> None:
        layout, array = self.layout, self._array(rows, value)
        empties = None if layout is None else KEEP if rows[0][1].config.write_empty_chunks else layout.elides
        if layout is not None and array is not None and empties is not None and not drop_axes:
            batch = layout.batch(rows, array, empties=empties)
            left = await _in_thread(self._stage, store, batch, rows, work=len(rows) * layout.size)
            rows = [rows[row] for row in left]
        if rows:
            await self.ordinary.write(rows, value, drop_axes)

    def _stage(self, store: ChunkStore, batch: chunks.Batch, rows: list[Row]) -> list[int]:
        assert self.layout is not None
        return store.set_chunks([row[0].path for row in rows], batch, _threads(len(rows) * self.layout.size))

    def _write_parts(self, store: ChunkStore, rows: list[Row], value: NDBuffer, drop_axes: tuple[int, ...]) -> None:
        codecs: dict[tuple[int, ...], PartCodec] = {}  # the specs of one operation differ in their shapes alone
        array: AnyArray = value.as_numpy_array()
        for getter, spec, selection, out_selection, _ in rows:
            codec = codecs.get(spec.shape)
            if codec is None:  # in the memory of the processor, wherever the value is
                if self._is_bounded:
                    check_size(spec)
                here = replace(spec, prototype=cpu.buffer_prototype)
                codec = codecs[spec.shape] = PartCodec(here, self.layout, self.ordinary)
            change = partial(_changed, codec, selection, _part_of(array, out_selection, drop_axes, len(spec.shape)))
            store.modify(getter.path, change, region_of(selection, spec.shape))

    # --- threads

    def _array(self, rows: list[Row], buffer: NDBuffer) -> AnyArray | None:
        """Return the array of a buffer of zarr's, if it is one that the C takes."""
        if self.layout is None or not _is_plain(rows, buffer):
            return None
        array: Any = buffer.as_ndarray_like()
        return array if type(array) is np.ndarray and array.dtype == self.layout.dtype else None

    def _work(self, count: int, array: AnyArray) -> int:
        """Return about how many bytes are decoded to read `count` chunks, or a part of them, to an array."""
        assert self.layout is not None
        return array.nbytes if self.layout.inner is not None else count * self.layout.size


async def _in_thread(function: Callable[..., T], *arguments: Any, work: int = _SMALL) -> T:
    """Call a function in a thread, unless it works on few bytes, or no other operation waits for this event loop."""
    if work < _SMALL or calling_thread.is_here():
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _threads(work: int) -> int:
    """Return on how many threads `work` bytes are decoded or encoded."""
    most = work // _SHARE
    if most < 2:
        return 1
    for setting in ("codec_pipeline.max_workers", "threading.max_workers"):
        most = min(most, int(zarr.config.get(setting, None) or most))
    return max(1, min(most, _processors()))


def _part_of(array: AnyArray, out_selection: Any, drop_axes: tuple[int, ...], axes: int) -> AnyArray:
    """Return the part of a written value that goes to one chunk."""
    if not array.ndim:
        return array
    part: AnyArray = array[out_selection]
    return part[tuple([None if axis in drop_axes else slice(None) for axis in range(axes)])] if drop_axes else part


def _check_fits(rows: list[Row], shape: tuple[int, ...], drop_axes: tuple[int, ...]) -> None:
    """Raise `ValueError` if a value does not fit what it is written to, before any chunk of it is staged."""
    if not shape or len(rows) < 2:
        return
    last = rows[-1][3]
    if isinstance(last, tuple) and [item.stop if isinstance(item, slice) else None for item in last] == [*shape]:
        return  # as mostly: the last chunk of a box takes the end of the value
    value = np.broadcast_to(np.False_, shape)
    for _, spec, selection, out_selection, _ in rows:
        part = _part_of(value, out_selection, drop_axes, len(spec.shape)).shape
        target = np.broadcast_to(np.False_, spec.shape)[selection].shape
        while len(part) > len(target) and part[0] == 1:
            part = part[1:]
        pairs = zip(part[::-1], target[::-1], strict=False)
        if len(part) > len(target) or not all(one in (1, other) for one, other in pairs):
            raise ValueError(f"a value of shape {shape} does not fit the selection that it is written to")


def _changed(codec: PartCodec, selection: Any, part: AnyArray, present: memoryview | None) -> memoryview | None:
    chunk = codec.decode(present)
    chunk[selection] = part
    return codec.encode(chunk)


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def zarr_default() -> str:
    """Return what `codec_pipeline.path` is by default."""
    defaults: dict[str, Any] = zarr.config.defaults[0]
    path: str = defaults["codec_pipeline"]["path"]
    return path


def _ordinary_class() -> type[CodecPipeline]:
    """Return zarr's own pipeline: its default where no other is configured."""
    is_fused = zarr_default().endswith(".FusedCodecPipeline") and FusedCodecPipeline is not None
    return FusedCodecPipeline if is_fused else BatchedCodecPipeline


def _pipeline_of(metadata: Any, *, is_bounded: bool) -> CodecPipeline:
    """Return zarr's own pipeline for an array."""
    is_3 = isinstance(metadata, ArrayV3Metadata)
    spec = ArraySpec(
        shape=chunk_shape(metadata) or (1,) * len(metadata.shape),
        dtype=metadata.data_type if is_3 else metadata.dtype,
        fill_value=metadata.fill_value,
        config=ArrayConfig.from_dict({} if is_3 else {"order": metadata.order}),
        prototype=default_buffer_prototype(),
    )
    return zarr_pipeline(metadata, spec, _ordinary_class(), is_bounded=is_bounded)


def _is_plain(rows: list[Row], buffer: NDBuffer) -> bool:
    """Tell whether the buffers of an operation are zarr's own, in memory of the processor: the C takes no others."""
    return type(buffer) is cpu.NDBuffer and (not rows or rows[0][1].prototype.buffer is cpu.Buffer)


def _store_of(rows: list[Row]) -> ChunkStore | None:
    """Return the store of a batch, if it is one of ours."""
    if rows and isinstance(rows[0][0], StorePath) and isinstance(rows[0][0].store, ChunkStore):
        return rows[0][0].store
    return None


def region_of(selection: Any, shape: tuple[int, ...]) -> Region:
    """Return the region of a chunk that a selection takes."""
    box: list[tuple[int, int]] = []
    for item, extent in zip(selection, shape, strict=False) if isinstance(selection, tuple) else ():
        taken = range(*item.indices(extent)) if isinstance(item, slice) else range(0)
        if isinstance(item, int | np.integer):
            taken = range(int(item), int(item) + 1)
        if not taken or len(taken) != abs(taken[-1] - taken[0]) + 1:
            break
        box.append((min(taken[0], taken[-1]), max(taken[0], taken[-1]) + 1))
    if len(box) < len(shape):
        mask = np.zeros(shape, bool)
        mask[selection] = True
        boxes = _boxes(mask)
        if boxes is None:
            ends = [np.flatnonzero(mask.any(tuple({*range(mask.ndim)} - {axis}))) for axis in range(mask.ndim)]
            return Region.around(tuple([(int(taken[0]), int(taken[-1]) + 1) for taken in ends]))
        if len(boxes) != 1:
            return Region.of_all(map(Region.of_box, boxes))
        box = list(boxes[0])
    is_whole = all(part == (0, extent) for part, extent in zip(box, shape, strict=True))
    return Region.whole() if is_whole else Region.of_box(tuple(box))


def _boxes(mask: AnyArray) -> list[Box] | None:
    """Return boxes that hold the elements of a mask, and no others. None if that takes too many."""
    if not mask.ndim:
        return [()] if mask else []
    changes = np.flatnonzero((mask[1:] != mask[:-1]).any(tuple(range(1, mask.ndim)))) + 1
    if len(changes) > 2 * MAX_BOXES:
        return None
    found: list[Box] = []
    for start, stop in itertools.pairwise([0, *changes.tolist(), len(mask)]):
        boxes = _boxes(mask[start])
        if boxes is None or len(found) + len(boxes) > MAX_BOXES:
            return None
        found += [((start, stop), *box) for box in boxes]
    return found


#: Of a batch of zarr's: key, spec, what is taken of the chunk, to where, and whether that is the whole chunk.
Row = tuple[Any, ArraySpec, Any, Any, bool]
#: Reads rows to a buffer; returns zarr's result for each row, if it has any.
Read = Callable[[list[Row], NDBuffer], Awaitable[Any]]

#: Kinds of elements whose size in memory is known.
_KINDS = "biufcMmSUV"


class _Part(NamedTuple):
    """A part of one row: what it takes of a chunk or inner chunk, and to where."""

    row: int
    key: Key
    begin: tuple[int, ...]  # where the inner chunk begins in its shard
    taken: Any
    to: Any


class CachedReads(NamedTuple):
    """The reads of one array of a snapshot. `shape` is that of its chunks, or of its inner chunks if `is_sharded`."""

    cache: ChunkCache
    snapshot: int
    shape: tuple[int, ...]
    is_sharded: bool

    async def read(self, rows: list[Row], array: AnyArray, read: Read) -> Any:
        """Read rows to an array. Returns zarr's result for each, or None if the cache is not for these rows."""
        if not self.shape or array.dtype.kind not in _KINDS:
            return None
        parts = self._parts(rows, most=self.cache.most_at_once // (math.prod(self.shape) * array.dtype.itemsize))
        if parts is None:
            return None
        missing: list[_Part] = []
        results: list[Any] = [{"status": "present"}] * len(rows)
        for part in parts:
            chunk = self.cache.get(part.key)
            if chunk is None:
                missing.append(part)
            else:
                array[part.to] = chunk[part.taken]
        if missing:
            await self._fill(missing, rows, array, read, results)
        return tuple(results)

    async def _fill(
        self, missing: list[_Part], rows: list[Row], array: AnyArray, read: Read, results: list[Any]
    ) -> None:
        """Read chunks that are not in the cache, and put them there."""
        first, *rest = self.shape
        beside = np.empty((len(missing) * first, *rest), array.dtype)
        whole = tuple([slice(0, extent, 1) for extent in rest])
        wanted: list[Row] = []
        for at, part in enumerate(missing):
            getter, spec, *_ = rows[part.row]
            box = tuple([slice(low, low + extent, 1) for low, extent in zip(part.begin, self.shape, strict=True)])
            wanted.append((getter, spec, box, (slice(at * first, (at + 1) * first, 1), *whole), not self.is_sharded))
        found = await read(wanted, cpu.NDBuffer.from_numpy_array(beside))
        for at, part in enumerate(missing):
            chunk = beside[at * first : (at + 1) * first]
            array[part.to] = chunk[part.taken]
            result = found[at] if found else None
            results[part.row] = result
            if result is None or result["status"] == "present":
                self.cache.put(part.key, chunk if len(missing) == 1 else chunk.copy())

    def _parts(self, rows: list[Row], most: int) -> list[_Part] | None:
        """Return what the rows take of each chunk or inner chunk. None: more than `most`, or not told by slices."""
        parts: list[_Part] = []
        if len(rows) > most:
            return None
        for number, (getter, _, chunk, out, _) in enumerate(rows):
            if not self.is_sharded:
                parts.append(_Part(number, (self.snapshot, getter.path, ()), (0,) * len(self.shape), chunk, out))
                continue
            axes = self._axes(chunk, out)
            if axes is None or len(parts) + math.prod(map(len, axes)) > most:
                return None
            for pieces in product(*axes):
                inner = tuple([piece.inner for piece in pieces])
                begin = tuple([piece.inner * extent for piece, extent in zip(pieces, self.shape, strict=True)])
                to = tuple([piece.to for piece in pieces if piece.to is not None])
                key = self.snapshot, getter.path, inner
                parts.append(_Part(number, key, begin, tuple([piece.taken for piece in pieces]), to))
        return parts

    def _axes(self, chunk: Any, out: Any) -> list[list[_AxisPart]] | None:
        """Return, for each axis of a shard, what a selection takes of each inner chunk along it."""
        if not isinstance(chunk, tuple) or not isinstance(out, tuple) or len(chunk) != len(self.shape):
            return None
        axes: list[list[_AxisPart]] = []
        targets = iter(out)
        for taken, extent in zip(chunk, self.shape, strict=True):
            if isinstance(taken, int | np.integer):
                axes.append([_AxisPart(int(taken) // extent, int(taken) % extent, None)])
                continue
            to: Any = next(targets, None)
            if not (_is_run(taken) and _is_run(to)) or taken.stop - taken.start != to.stop - to.start:
                return None
            axes.append(_pieces(taken, to, extent))
        return None if next(targets, None) is not None else axes


class _AxisPart(NamedTuple):
    """What a selection takes of one inner chunk along one axis."""

    inner: int
    taken: int | slice
    to: slice | None  # None: the axis is dropped


def _is_run(item: Any) -> bool:
    return isinstance(item, slice) and item.start is not None and item.stop is not None and item.step in (None, 1)


def _pieces(taken: slice, to: slice, extent: int) -> list[_AxisPart]:
    pieces = []
    for inner in range(taken.start // extent, -(-taken.stop // extent)):
        low, high = max(taken.start, inner * extent), min(taken.stop, (inner + 1) * extent)
        shift = to.start - taken.start
        pieces.append(
            _AxisPart(inner, slice(low - inner * extent, high - inner * extent), slice(low + shift, high + shift))
        )
    return pieces
