"""What is staged on an object store: how many packs are uploaded at the same time."""

import itertools
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest

import txstore
from tests.tools.inside import objects_of
from tests.tools.waiting import TIMEOUT, wait_for_background_cleanup, wait_until
from txstore.format import names, packfile
from txstore.format.encoding import crc32c
from txstore.segments import object_writer
from txstore.segments.object_writer import ObjectWriter, _Room
from txstore.segments.pack_writer import Staged
from txstore.storage.objects.interface import open_objects
from txstore.storage.remote import RemoteStorage
from txstore.storage.request_threads import REQUESTS, executor


def limit(monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(object_writer, name, value)


def before_each_pack(objects: Any, act: Callable[[Sequence[bytes]], object]) -> None:
    """Do something before each pack is uploaded."""
    put = objects.put

    def put_after(path: str, parts: Sequence[bytes]) -> None:
        if path.startswith(names.PACKS):
            act(parts)
        put(path, parts)

    objects.put = put_after


def test_packs_are_uploaded_side_by_side_the_last_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, INLINE_SIZE=0, OBJECT_SIZE=1000)
    objects = open_objects(f"memory://{uuid.uuid4().hex}")
    together = threading.Barrier(8, timeout=TIMEOUT)
    before_each_pack(objects, lambda _: together.wait())
    writer = ObjectWriter(RemoteStorage(objects), os.urandom(16), 0, bytes(16))
    values = [os.urandom(700) for _ in range(8)]
    staged = [
        writer.append(packfile.FRAME_VALUE, b"key", value, seen=packfile.SEEN_NOTHING) for value in values
    ]  # fmt: skip
    writer.finish(writer.size)
    assert [writer.read(each) for each in staged] == values
    writer.drop()


@pytest.mark.parametrize("size", [5, 100_000, object_writer.LONG - 1])
def test_a_value_that_another_thread_changes_meanwhile(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    writer, value = _changed_meanwhile(monkeypatch, size)
    staged = [writer.append(packfile.FRAME_VALUE, b"key", value, seen=packfile.SEEN_NOTHING) for _ in range(3)]
    writer.finish(writer.size)
    assert [writer.read(each)[0] for each in staged] == [0, 1, 2]
    writer.drop()


def test_a_long_value_that_another_thread_changes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is uploaded from where it lies: the checksum before it is another by then."""
    writer, value = _changed_meanwhile(monkeypatch, object_writer.LONG)
    with pytest.raises(OSError, match="another thread changed a value"):
        writer.append(packfile.FRAME_VALUE, b"key", value, seen=packfile.SEEN_NOTHING)
    with pytest.raises(OSError, match="another thread changed a value"):
        writer.finish(writer.size)
    writer.drop()


def _changed_meanwhile(monkeypatch: pytest.MonkeyPatch, size: int) -> tuple[ObjectWriter, bytearray]:
    """Return a writer, and what changes as soon as it has computed a checksum."""
    value = bytearray(size)

    def checksum_then_change(data: memoryview) -> int:
        found = crc32c(data)
        value[:] = bytes([value[0] + 1]) * size
        return found

    limit(monkeypatch, INLINE_SIZE=0, crc32c=checksum_then_change)
    return ObjectWriter(
        RemoteStorage(open_objects(f"memory://{uuid.uuid4().hex}")), os.urandom(16), 0, bytes(16)
    ), value


# --- long values
class Uploads:
    """The uploads of a writer's packs, which can be held up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, at_once: int = 1) -> None:
        limit(monkeypatch, LONG=1000, INLINE_SIZE=0)
        self.objects = open_objects(f"memory://{uuid.uuid4().hex}")
        self.parts: list[Sequence[bytes]] = []
        self.together = threading.Barrier(at_once, timeout=TIMEOUT)
        self.interrupts = False
        before_each_pack(self.objects, self.begin)

    def begin(self, parts: Sequence[bytes]) -> None:
        if self.interrupts:
            raise KeyboardInterrupt
        self.parts.append(parts)
        self.together.wait()

    def writer(self) -> ObjectWriter:
        return ObjectWriter(RemoteStorage(self.objects), os.urandom(16), 0, bytes(16))


def append(writer: ObjectWriter, value: bytes | bytearray) -> Staged:
    return writer.append(packfile.FRAME_VALUE, b"key", value, seen=packfile.SEEN_NOTHING)


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
    limit(monkeypatch, UPLOAD_BYTES=6000)
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
    writer = uploads.writer()
    uploads.interrupts = True
    with mock.patch.object(_Room, "take_now", return_value=False), pytest.raises(KeyboardInterrupt):
        append(writer, bytearray(5000))
    uploads.interrupts = False
    with pytest.raises(OSError, match="interrupted"):
        writer.finish(writer.size)
    assert not uploads.parts
    writer.drop()


def test_threads_that_stage_long_values_wait_for_no_other_key(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, LONG=1000, UPLOAD_BYTES=1)
    repo = txstore.Repository(f"memory://{uuid.uuid4().hex}")
    transaction = repo.begin()
    turns, keys = transaction.staging.turns, []
    for key in map(str, itertools.count()):  # which share a turn
        if turns.at(key) is turns.at("0"):
            keys.append(key)
        if len(keys) == 4:
            break
    together = threading.Barrier(len(keys), timeout=TIMEOUT)
    before_each_pack(objects_of(repo), lambda _: together.wait())
    with ThreadPoolExecutor(len(keys)) as threads:
        list(threads.map(lambda key: transaction.set(key, key.encode() * 5000), keys))
    transaction.commit()
    assert {key: bytes(value) for key, value in repo.mapping().items()} == {key: key.encode() * 5000 for key in keys}


def test_what_is_let_go_of_needs_no_thread_for_single_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend may delete two objects by single requests: what waits for these must not take the last thread."""
    uploads, free = Uploads(monkeypatch), threading.Event()
    writer = uploads.writer()
    append(writer, b"value")
    writer.finish(writer.size)
    writer._storage.staged.forget(writer.path)
    threads = executor("single request", REQUESTS)
    blocked = [threads.submit(free.wait, TIMEOUT) for _ in range(REQUESTS)]
    try:
        writer.release()
        wait_for_background_cleanup()
        assert not uploads.objects.list(names.STAGING)
    finally:
        free.set()
        for each in blocked:
            each.result()
