"""PackWriter: what is appended is read back, from the buffers and from the file, by any number of threads."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from txstore.format import packfile
from txstore.format.encoding import crc32c
from txstore.history.opening import open_storage
from txstore.segments import pack_writer
from txstore.segments.pack_writer import PackWriter, Staged

SIZES = [0, 1, 7, 1023, 1024, 5000, 16 << 10, (16 << 10) + 1, 100_000, (128 << 10) - 1, 128 << 10, 3 << 20]


@pytest.fixture
def writer(tmp_path: Path) -> PackWriter:
    return PackWriter(open_storage(tmp_path), "pack", bytes(16), bytes(16))


def frames(path: Path, end: int) -> list[packfile.Frame]:
    data, position, found = memoryview(path.read_bytes()), packfile.HEAD_SIZE, []
    while position < end:
        found.append(packfile.decode_frame(data, position))
        position = found[-1].end
    assert position == end
    return found


def append(writer: PackWriter, number: int, value: bytes) -> Staged:
    return writer.append(packfile.FRAME_VALUE, b"key/%d" % number, value, seen=False)


def test_values_of_all_sizes_in_any_order_are_read_back(writer: PackWriter, tmp_path: Path) -> None:
    source = random.Random(1)
    values = [source.randbytes(size) for size in source.choices(SIZES, k=120)]
    staged = [append(writer, number, value) for number, value in enumerate(values)]
    assert [writer.read(one) for one in staged] == values
    writer.finish(writer.size)
    assert [writer.read(one) for one in staged] == values
    content = (tmp_path / "pack").read_bytes()
    assert len(content) == writer.size
    found = frames(tmp_path / "pack", writer.size)
    assert [content[frame.offset : frame.offset + frame.length] for frame in found] == values
    assert [frame.sequence for frame in found] == list(range(len(values)))


def test_threads_append_and_read_at_the_same_time(writer: PackWriter, tmp_path: Path) -> None:
    def work(thread: int) -> list[tuple[Staged, bytes]]:
        source, mine = random.Random(thread), []
        for number in range(150):
            value = source.randbytes(source.choice(SIZES[:-1]))
            mine.append((append(writer, number, value), value))
            one, expected = source.choice(mine)
            assert writer.read(one) == expected
        return mine

    with ThreadPoolExecutor(4) as pool:
        done = [one for mine in pool.map(work, range(4)) for one in mine]
    writer.finish(writer.size)
    assert all(writer.read(one) == value for one, value in done)
    assert len(frames(tmp_path / "pack", writer.size)) == len(done)


def test_a_small_pack_is_no_file_before_it_is_finished(writer: PackWriter, tmp_path: Path) -> None:
    append(writer, 1, b"value")
    assert not (tmp_path / "pack").exists()
    writer.finish(writer.size)
    assert (tmp_path / "pack").exists()


@pytest.mark.parametrize("size", [10, 50_000, 200_000])
def test_frames_overwrite_what_an_attempt_to_commit_has_left(writer: PackWriter, tmp_path: Path, size: int) -> None:
    staged = [append(writer, 1, b"first")]
    writer.write_at(writer.size, b"section" * 30_000)
    writer.finish(writer.size + 210_000)
    staged += [append(writer, number, bytes([number]) * size) for number in (2, 3)]
    assert [writer.read(one) for one in staged] == [b"first", b"\2" * size, b"\3" * size]
    writer.finish(writer.size)
    assert len(frames(tmp_path / "pack", writer.size)) == 3
    assert (tmp_path / "pack").stat().st_size == writer.size


@pytest.mark.parametrize("is_published", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_value_that_another_thread_changes_meanwhile(writer, tmp_path, monkeypatch, size, is_published):
    """Its frame has the checksum of the bytes that it has, whatever moments these are of."""
    value = bytearray(size)

    def checksum_then_change(data: memoryview, before: int = 0) -> int:
        found = crc32c(data, before)
        value[:] = bytes([value[0] + 1]) * size if size else b""
        return found

    monkeypatch.setattr(pack_writer, "crc32c", checksum_then_change)
    if is_published:
        writer.publish()
    staged = [writer.append(packfile.FRAME_VALUE, b"key", value, seen=False) for _ in range(3)]
    monkeypatch.undo()
    writer.finish(writer.size)
    stored = [writer.read(one) for one in staged]
    assert [one.checksum for one in staged] == [frame.checksum for frame in frames(tmp_path / "pack", writer.size)]
    assert stored[0][:1000] == bytes(min(size, 1000))
