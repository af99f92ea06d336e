"""Batches of chunks, in C and in Python: what both say of the same rows; what is stored is hostile."""

import random
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import google_crc32c
import numpy as np
import pytest

from txstore._native import chunks as chosen
from txstore._native import chunks_fallback
from txstore.codecs.layout import ELIDE_EQUAL, ELIDE_NAN, KEEP, libraries
from txstore.format.packfile import decode_frame

KINDS = [chunks_fallback] + ([chosen] if chosen.IMPLEMENTATION == "c" else [])
ZERO = bytes(4)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.IMPLEMENTATION)
def chunks(request: pytest.FixtureRequest) -> Any:
    libraries()
    return request.param


def row(chunk: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
    return None, None, chunk, out, True


def strides(shape: tuple[int, ...], itemsize: int = 4) -> tuple[int, ...]:
    return np.empty(shape, f"V{itemsize}").strides


def batch(chunks: Any, rows: list[Any], array: Any, shape: tuple[int, ...], **options: Any) -> Any:
    empties, writable = options.get("empties", KEEP), options.get("writable", False)
    inner = options.get("inner")
    if inner is not None:
        inner = (inner, strides(inner), options.get("at_start", False), options.get("checked", True))
    layout = shape, options.get("strides", strides(shape))
    codecs, fill = options.get("codecs", ()), options.get("fill", ZERO)
    return chunks.Batch(rows, array.view("V4"), layout, inner, 4, codecs, fill, empties, writable)


def table(*refs: tuple[int, int, int, int]) -> Any:
    return np.array(refs, np.int64)


def ref(data: bytes, pack: int = 0, offset: int = 0) -> tuple[int, int, int, int]:
    return pack, offset, len(data), google_crc32c.value(data)


def encoded(chunks: Any, made: Any, keys: tuple[bytes, ...], room: int = 1 << 16, position: int = 64) -> list[Any]:
    """Return what is stored of each row: bytes, None for what is not, or the state that it has."""
    arena, stored, sequence = bytearray(b"\xee" * room), {}, 5
    while True:
        used, count = made.encode(keys, bytes(len(keys)), arena, position, sequence, 2)
        if not count:
            break
        start = position
        for _ in range(count):
            frame = decode_frame(memoryview(arena)[:used], start, begin=position, size=position + used)
            value = bytes(arena[frame.offset - position : frame.offset - position + frame.length])
            assert google_crc32c.value(value) == frame.checksum
            assert frame.sequence == sequence
            assert not any(arena[frame.head_end - position : frame.offset - position])
            stored[frame.key] = value
            start, sequence = frame.end, sequence + 1
        assert start == position + used
        position += used
    found = []
    for key, (state, *_) in zip(keys, np.frombuffer(made.placed(), np.int64).reshape(-1, 5).tolist(), strict=True):
        found.append(stored[key] if state == chunks.PLACED else None if state == chunks.EMPTY else state)
    return found


def test_chunks_are_read_to_their_places(chunks: Any) -> None:
    values = np.arange(24, dtype="i4").reshape(4, 6)
    parts = [values[y : y + 2, x : x + 3].tobytes() for y in (0, 2) for x in (0, 3)]
    pack = b"junk" + b"".join(parts)
    rows = [row((slice(0, 2, 1), slice(0, 3, 1)), (slice(y, y + 2), slice(x, x + 3))) for y in (0, 2) for x in (0, 3)]
    refs = [ref(part, 0, 4 + 24 * at) for at, part in enumerate(parts)]
    out = np.full((4, 6), -1, "i4")
    assert batch(chunks, rows, out, (2, 3), writable=True).read([pack], table(*refs), 3) == bytes(4)
    assert (out == values).all()


def test_parts_steps_integers_and_missing_chunks(chunks: Any) -> None:
    values = np.arange(12, dtype="i4").reshape(3, 4)
    out = np.full(5, -1, "i4")
    rows = [row((1, slice(0, 4, 2)), (slice(0, 2),)), row((0, slice(1, 4, 1)), (slice(2, 5),))]
    made = batch(chunks, rows, out, (3, 4), writable=True, fill=struct.pack("<i", 9))
    assert made.read([values.tobytes()], table(ref(values.tobytes()), (-1, 0, 0, 0)), 1) == bytes([0, chunks.MISSING])
    assert out.tolist() == [4, 6, 9, 9, 9]


def test_other_strides(chunks: Any) -> None:
    values = np.arange(6, dtype="i4").reshape(2, 3)
    out = np.empty((3, 4), "i4").T[1:3]
    made = batch(chunks, [row((slice(0, 2), slice(0, 3)), (slice(0, 2), slice(0, 3)))], out, (2, 3), strides=(4, 8),
                 writable=True)  # fmt: skip
    assert made.read([values.tobytes("F")], table(ref(values.tobytes("F"))), 1) == bytes(1)
    assert (out == values).all()


@pytest.mark.parametrize(
    ("chunk", "out"),
    [
        ((slice(0, 4, -1),), (slice(0, 4),)),
        ((np.array([0, 1]),), (slice(0, 2),)),
        ((slice(0, 4),), (slice(0, 3),)),
        ((slice(0, 4),), (np.array([0, 1, 2, 3]),)),
        ((slice(0, 4),), ()),
        ((4,), ()),
        ((-1,), ()),
        ((slice(2, 2),), (slice(0, 0),)),
        ((slice(0, 4), slice(0, 4)), (slice(0, 4),)),
        (..., (slice(0, 4),)),
        ((slice(0, 4),), ...),
    ],
)
def test_odd_selections_are_left(chunks: Any, chunk: Any, out: Any) -> None:
    data = bytes(16)
    array = np.full(4, -1, "i4")
    odd = (None, None, chunk, out, True)
    made = batch(chunks, [odd], array, (4,), writable=True)
    assert [made.read([data], table(ref(data)), 1) for _ in range(2)] == [bytes([2])] * 2
    assert array.tolist() == [-1] * 4
    made = batch(chunks, [odd], array, (4,))
    assert encoded(chunks, made, (b"k",)) == [3]


@pytest.mark.parametrize(
    "bad",
    [(0, 0, 15, 0), (0, -1, 16, 0), (0, 1, 16, 0), (0, 0, -1, 0), (0, (1 << 63) - 1, 16, 0), (0, 0, (1 << 63) - 1, 0),
     (1, 0, 16, 0), (-2, 0, 16, 0), (-(1 << 63), 0, 16, 0), (0, 0, 16, 1)],
)  # fmt: skip
def test_what_is_stored_is_hostile(chunks: Any, bad: tuple[int, int, int, int]) -> None:
    out = np.full(4, -1, "i4")
    made = batch(chunks, [row((slice(0, 4),), (slice(0, 4),))], out, (4,), writable=True)
    assert made.read([bytes(16)], table(bad), 1) == bytes([2])


def test_a_value_of_another_length(chunks: Any) -> None:
    for length in (0, 12, 20):
        out = np.full(4, -1, "i4")
        made = batch(chunks, [row((slice(0, 4),), (slice(0, 4),))], out, (4,), writable=True)
        assert made.read([bytes(length)], table(ref(bytes(length))), 1) == bytes([2])


def test_frames_as_python_makes_them(chunks: Any) -> None:
    values = np.arange(40, dtype="i4").reshape(2, 20)
    rows = [row((slice(0, 2), slice(0, 5)), (slice(0, 2), slice(x, x + 5))) for x in range(0, 20, 5)]
    keys = tuple(f"x/c/0/{n}".encode() for n in range(4))
    expected = [values[:, x : x + 5].tobytes() for x in range(0, 20, 5)]
    assert encoded(chunks, batch(chunks, rows, values, (2, 5)), keys) == expected
    # One frame at a time, since there is room for no more.
    made = batch(chunks, rows, values, (2, 5))
    assert encoded(chunks, made, keys, room=made.bound + 8, position=104) == expected


def test_large_values_are_aligned(chunks: Any) -> None:
    values = np.arange(600, dtype="i4")
    rows = [row((slice(0, 300),), (slice(x, x + 300),)) for x in (0, 300)]
    made = batch(chunks, rows, values, (300,))
    arena = bytearray(1 << 13)
    _, count = made.encode((b"a", b"bc"), bytes(2), arena, 72, 0, 1)
    assert count == 2
    assert all(offset % 64 == 0 for _, offset, *_ in np.frombuffer(made.placed(), np.int64).reshape(-1, 5).tolist())


def test_what_is_not_written_of_a_chunk_is_the_fill_value(chunks: Any) -> None:
    made = batch(chunks, [row((slice(1, 3),), (slice(0, 2),))], np.array([5, 6], "i4"), (4,), fill=struct.pack("<i", 9))
    assert encoded(chunks, made, (b"k",)) == [np.array([9, 5, 6, 9], "i4").tobytes()]


def test_one_value_for_all(chunks: Any) -> None:
    made = batch(chunks, [row((slice(0, 3), 1), (slice(0, 3),))], np.array(7, "i4"), (3, 2))
    assert encoded(chunks, made, (b"k",)) == [np.array([0, 7, 0, 7, 0, 7], "i4").tobytes()]


def test_chunks_of_fill_values_are_not_stored(chunks: Any) -> None:
    nan = np.array([np.nan, -np.nan, np.nan], "f4")
    rows = [row((slice(0, 3),), (slice(0, 3),))]
    zeros = np.array([0, -0.0, 0], "f4")
    assert encoded(chunks, batch(chunks, rows, np.zeros(3, "f4"), (3,), empties=ELIDE_EQUAL), (b"k",)) == [None]
    assert encoded(chunks, batch(chunks, rows, zeros, (3,), empties=ELIDE_EQUAL), (b"k",)) == [zeros.tobytes()]
    assert encoded(chunks, batch(chunks, rows, nan, (3,), empties=ELIDE_NAN, fill=nan[:1].tobytes()), (b"k",)) == [None]
    assert encoded(chunks, batch(chunks, rows, np.zeros(3, "f4"), (3,)), (b"k",)) == [bytes(12)]


def test_what_has_seen_a_frame_is_left(chunks: Any) -> None:
    made = batch(chunks, [row((slice(0, 3),), (slice(0, 3),))], np.ones(3, "i4"), (3,))
    assert made.encode((b"k",), bytes([255]), bytearray(1000), 64, 0, 1) == (0, 0)
    assert np.frombuffer(made.placed(), np.int64)[0] == 3


SHARD = {"inner": (2, 2)}


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("checked", [False, True])
def test_shards(chunks: Any, at_start: bool, checked: bool) -> None:
    values = np.arange(24, dtype="i4").reshape(4, 6)
    values[:2, 2:4] = 0
    options: dict[str, Any] = {**SHARD, "at_start": at_start, "checked": checked, "empties": ELIDE_EQUAL}
    whole = row((slice(0, 4), slice(0, 6)), (slice(0, 4), slice(0, 6)))
    (shard,) = encoded(chunks, batch(chunks, [whole], values, (4, 6), **options), (b"k",))
    assert len(shard) == 5 * 16 + 6 * 16 + 4 * checked
    for chunk in [(slice(0, 4), slice(0, 6)), (slice(1, 4, 2), slice(0, 6, 5)), (3, slice(2, 5)), (0, 3)]:
        expected = values[chunk]
        out = np.full(expected.shape, -1, "i4")
        place = tuple(slice(0, extent) for extent in expected.shape)
        made = batch(chunks, [row(chunk, place)], out, (4, 6), **options, writable=True)
        assert made.read([shard], table(ref(shard)), 2) == bytes(1)
        assert (out == expected).all()
    (nothing,) = encoded(chunks, batch(chunks, [whole], np.zeros((4, 6), "i4"), (4, 6), **options), (b"k",))
    assert nothing is None


def test_shards_that_lie(chunks: Any) -> None:
    values = np.arange(1, 25, dtype="i4").reshape(4, 6)
    whole = row((slice(0, 4), slice(0, 6)), (slice(0, 4), slice(0, 6)))
    options: dict[str, Any] = {**SHARD, "checked": False}
    (shard,) = encoded(chunks, batch(chunks, [whole], values, (4, 6), **options), (b"k",))
    rng = random.Random(1)
    for _ in range(300):
        lying = bytearray(shard)
        at = rng.randrange(len(shard) - 96, len(shard) - 7)
        lying[at : at + 8] = rng.choice([rng.randbytes(8), b"\xff" * 8, bytes(8), struct.pack("<q", -(1 << 63))])
        lying = lying[: rng.choice([len(lying), rng.randrange(len(lying))])]
        out = np.full((4, 6), -1, "i4")
        made = batch(chunks, [whole], out, (4, 6), **options, writable=True)
        assert made.read([bytes(lying)], table(ref(bytes(lying))), 1) in (bytes(1), bytes([2]))


def test_checksums(chunks: Any) -> None:
    values = np.arange(4, dtype="i4")
    whole = row((slice(0, 4),), (slice(0, 4),))
    codecs = (("crc32c",), ("crc32c",))
    (stored,) = encoded(chunks, batch(chunks, [whole], values, (4,), codecs=codecs), (b"k",))
    first = values.tobytes() + google_crc32c.value(values.tobytes()).to_bytes(4, "little")
    assert stored == first + google_crc32c.value(first).to_bytes(4, "little")
    out = np.empty(4, "i4")
    made = batch(chunks, [whole], out, (4,), codecs=codecs, writable=True)
    assert made.read([stored], table(ref(stored)), 1) == bytes(1)
    assert (out == values).all()
    wrong = stored[:-1] + bytes([stored[-1] ^ 1])
    made = batch(chunks, [whole], out, (4,), codecs=codecs, writable=True)
    assert made.read([wrong], table(ref(wrong)), 1) == bytes([2])


COMPRESSORS: list[tuple[str | int, ...]] = [("zstd", 1, 1), ("blosc", 5, 1, 4, 0, "lz4"), ("blosc", 1, 2, 4, 0, "zstd")]


@pytest.mark.parametrize("codec", COMPRESSORS, ids=lambda codec: "-".join(map(str, codec)))
@pytest.mark.parametrize("around", [((), ()), ((), (("crc32c",),)), ((("crc32c",),), ())])
def test_compressors_and_what_only_looks_compressed(chunks: Any, codec: Any, around: Any) -> None:
    if codec[0] not in libraries():
        pytest.skip("no such library")
    if chunks is chunks_fallback:
        with pytest.raises(ValueError, match="is loaded"):
            batch(chunks, [], np.empty(4, "i4"), (4,), codecs=(codec,))
        return
    values = np.arange(1000, dtype="i4")
    whole = row((slice(0, 1000),), (slice(0, 1000),))
    codecs = (*around[0], codec, *around[1])
    (stored,) = encoded(chunks, batch(chunks, [whole], values, (1000,), codecs=codecs), (b"k",))
    assert len(stored) < 4000
    rng, out = random.Random(2), np.empty(1000, "i4")
    for attempt in range(400):
        bad = bytearray(stored)
        for _ in range(min(attempt, 3)):
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        bad = bad[: rng.choice([len(bad), rng.randrange(len(bad) + 1)])] if attempt else bad
        made = batch(chunks, [whole], out, (1000,), codecs=codecs, writable=True)
        state = made.read([bytes(bad)], table(ref(bytes(bad))), 1)
        assert state in (bytes(1), bytes([2]))
        if bytes(bad) == stored:
            assert state == bytes(1)
            assert (out == values).all()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"fill": b"12345"}, ValueError),
        ({"strides": (4, 4)}, ValueError),
        ({"codecs": (("nothing",),)}, ValueError),
        ({"codecs": (5,)}, TypeError),
        ({"inner": (3, 2)}, ValueError),
        ({"inner": (2,)}, ValueError),
        ({"inner": (2, 2, 2)}, ValueError),
    ],
)
def test_what_makes_no_batch(chunks: Any, change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        batch(chunks, [], np.empty((4, 4), "i4"), (4, 4), **change)


def test_what_is_read_only(chunks: Any) -> None:
    array = np.ones(4, "i4")
    array.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        batch(chunks, [row((slice(0, 4),), (slice(0, 4),))], array, (4,), writable=True)
    assert encoded(chunks, batch(chunks, [row((slice(0, 4),), (slice(0, 4),))], array, (4,)), (b"k",))


def test_wrong_tables_and_keys(chunks: Any) -> None:
    array = np.ones(4, "i4")
    made = batch(chunks, [row((slice(0, 4),), (slice(0, 4),))], array, (4,), writable=True)
    with pytest.raises(ValueError, match="four numbers"):
        made.read([], np.zeros(3, np.int64), 1)
    with pytest.raises(ValueError, match="a key and what was seen"):
        made.encode((), b"", bytearray(100), 64, 0, 1)
    with pytest.raises(ValueError, match="a key and what was seen"):
        made.encode((b"k",), bytes(1), bytearray(100), 63, 0, 1)


@pytest.mark.parametrize("step", [1 << 62, (1 << 63) - 3, (1 << 63) - 1])
def test_a_step_may_be_as_long_as_an_integer(chunks: Any, step: int) -> None:
    data = np.arange(12, dtype="u4").tobytes()
    taken, to = (slice(1, 4, step), slice(0, 3, 1)), (slice(0, 1, step), slice(0, 3, 1))
    for inner in (None, (2, 3)):
        stored = data
        if inner is not None:
            index = struct.pack("<QQQQ", 0, 24, 24, 24)
            stored += index + struct.pack("<I", google_crc32c.value(index))
        out = np.zeros((1, 3), "u4")
        made = batch(chunks, [row(taken, to)], out, (4, 3), inner=inner, writable=True)
        assert made.read([stored], table(ref(stored)), 1) == bytes([chunks.READ])
        assert out.tolist() == [[3, 4, 5]]


def test_inner_chunks_with_more_axes_than_the_shard(chunks: Any) -> None:
    with pytest.raises(ValueError):
        batch(chunks, [], np.empty((), "i4"), (), inner=(1, 1, 1))


@contextmanager
def meanwhile(function: Any) -> Iterator[None]:
    """Call a function in a thread, again and again, until the block ends."""
    over, begun = threading.Event(), threading.Event()

    def work() -> None:
        number = 0
        while not over.is_set():
            function(number)
            begun.set()
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_an_array_that_another_thread_changes_meanwhile(chunks: Any) -> None:
    """What is stored may be of two moments, but its checksum is that of what is stored."""
    size = 1 << 20
    array = np.ones(4 * size, "i4")
    rows = [row((slice(0, size),), (slice(at, at + size),)) for at in range(0, 4 * size, size)]
    with meanwhile(lambda number: array.fill(number + 1)):
        for _ in range(10):
            encoded(chunks, batch(chunks, rows, array, (size,)), (b"a", b"b", b"c", b"d"), room=20 << 20)


def test_a_value_that_is_erased_while_it_is_read(chunks: Any) -> None:
    """An erasure writes zeros to a file that is mapped: no reader takes them for elements."""
    values = np.arange(1, (1 << 19) + 1, dtype="i4").reshape(2, -1)
    half = values.shape[1] - 1
    taken = (slice(0, 2), slice(0, half))
    data = values.tobytes()
    place = table(ref(data))
    for _ in range(30):
        stored, out = bytearray(data), np.zeros((2, half), "i4")
        made = batch(chunks, [row(taken, taken)], out, values.shape, writable=True)
        erase, backwards = threading.Event(), np.frombuffer(stored, "u1")[::-1]
        thread = threading.Thread(target=lambda erase=erase, stored=backwards: (erase.wait(), stored.fill(0)))
        thread.start()
        erase.set()
        state = made.read([stored], place, 1)
        thread.join()
        assert state == bytes([2]) or (out == values[taken]).all()
