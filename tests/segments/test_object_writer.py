"""What is staged on an object store: how many packs are uploaded at the same time."""

import os
import threading
import uuid
from collections.abc import Sequence

import pytest

from tests.tools.waiting import TIMEOUT, wait_for_background_cleanup, wait_until
from txstore.format import names, packfile
from txstore.format.encoding import crc32c
from txstore.segments import object_writer
from txstore.segments.object_writer import ObjectWriter, _Room
from txstore.segments.pack_writer import Staged
from txstore.storage.objects.interface import open_objects
from txstore.storage.remote import RemoteStorage
from txstore.storage.request_threads import REQUESTS, executor


class Uploads:
    """The uploads of a writer's packs, which can be held up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, at_once: int = 1, long: int = 1000) -> None:
        monkeypatch.setattr(object_writer, "LONG", long)
        monkeypatch.setattr(object_writer, "INLINE_SIZE", 0)
        self.objects = open_objects(f"memory://{uuid.uuid4().hex}")
        self.parts: list[Sequence[bytes]] = []
        self.together = threading.Barrier(at_once, timeout=TIMEOUT)
        self.error: BaseException | None = None
        put = self.objects.put

        def noting(path: str, parts: Sequence[bytes]) -> None:
            if path.startswith(names.PACKS):
                if self.error is not None:
                    raise self.error
                self.parts.append(parts)
                self.together.wait()
            put(path, parts)

        monkeypatch.setattr(self.objects, "put", noting)

    def writer(self) -> ObjectWriter:
        return ObjectWriter(RemoteStorage(self.objects), os.urandom(16), 0, bytes(16))


def append(writer: ObjectWriter, value: bytes | bytearray) -> Staged:
    return writer.append(packfile.FRAME_VALUE, b"key", value, seen=packfile.SEEN_NOTHING)


def test_packs_are_uploaded_side_by_side_the_last_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_writer, "OBJECT_SIZE", 1000)
    writer = Uploads(monkeypatch, at_once=8, long=1 << 20).writer()
    values = [os.urandom(700) for _ in range(8)]
    staged = [append(writer, value) for value in values]
    writer.finish(writer.size)
    assert [writer.read(each) for each in staged] == values
    writer.drop()


@pytest.mark.parametrize("size", [5, 100_000, object_writer.LONG - 1, object_writer.LONG])
def test_a_value_that_another_thread_changes_meanwhile(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    value = bytearray(size)

    def checksum_then_change(data: memoryview) -> int:
        found = crc32c(data)
        value[:] = bytes([value[0] + 1]) * size
        return found

    monkeypatch.setattr(object_writer, "crc32c", checksum_then_change)
    writer = Uploads(monkeypatch, long=object_writer.LONG).writer()
    if size == object_writer.LONG:  # it is uploaded from where it lies: the checksum before it is another by then
        for fails in (lambda: append(writer, value), lambda: writer.finish(writer.size)):
            with pytest.raises(OSError, match="another thread changed a value"):
                fails()
    else:
        staged = [append(writer, value) for _ in range(3)]
        writer.finish(writer.size)
        assert [writer.read(each)[0] for each in staged] == [0, 1, 2]
    writer.drop()


def test_a_long_value_ends_its_pack_which_is_uploaded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = Uploads(monkeypatch)
    writer = uploads.writer()
    staged = {append(writer, value): value for value in (b"short", b"l" * 5000, b"next")}
    wait_until(lambda: len(uploads.parts) == 1)  # nobody has waited for what comes next, nor for the commit
    writer.finish(writer.size)
    assert len(uploads.parts) == 2
    assert [writer.read(each) for each in staged] == list(staged.values())
    writer.drop()


def test_where_no_room_is_left_a_long_value_is_sent_from_where_the_caller_has_it(monkeypatch):
    uploads = Uploads(monkeypatch, at_once=2)
    monkeypatch.setattr(object_writer, "UPLOAD_BYTES", 6000)
    writer = uploads.writer()
    first, second = bytearray(b"1" * 5000), bytearray(b"2" * 5000)
    staged = append(writer, first)
    first[:] = bytes(5000)  # it was copied, and is under way
    other = append(writer, second)  # returns when it is stored: both were under way together
    second[:] = bytes(5000)
    sent = {memoryview(part).obj is second for parts in uploads.parts for part in parts}
    assert sent == {False, True}
    writer.finish(writer.size)
    assert (writer.read(staged), writer.read(other)) == (b"1" * 5000, b"2" * 5000)
    writer.drop()


def test_a_long_value_whose_upload_was_interrupted_is_not_sent_later(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = Uploads(monkeypatch)
    monkeypatch.setattr(_Room, "take_now", lambda room, length: False)
    writer = uploads.writer()
    uploads.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        append(writer, bytearray(5000))
    uploads.error = None
    with pytest.raises(OSError, match="interrupted"):
        writer.finish(writer.size)
    assert not uploads.parts
    writer.drop()


def test_what_is_let_go_of_takes_one_request_and_no_thread_for_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend may delete two objects by single requests: what waits for these must not take the last thread."""
    uploads, free, deleted = Uploads(monkeypatch), threading.Event(), list[Sequence[str]]()
    delete = uploads.objects.delete
    monkeypatch.setattr(uploads.objects, "delete", lambda paths: deleted.append(paths) or delete(paths))
    storage = RemoteStorage(uploads.objects)
    writer = ObjectWriter(storage, os.urandom(16), 0, bytes(16))
    append(writer, b"value")
    writer.finish(writer.size)
    storage.staged.forget(writer.path)  # its version is taken
    threads = executor("single request", REQUESTS)
    blocked = [threads.submit(free.wait, TIMEOUT) for _ in range(REQUESTS)]
    try:
        writer.release()
        wait_for_background_cleanup()
    finally:
        free.set()
        for each in blocked:
            each.result()
    assert deleted == [[writer.path, writer.path + names.LEASE]]
    assert not uploads.objects.list(names.STAGING)
