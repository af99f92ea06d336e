"""What is staged on an object store: how many packs are uploaded at the same time."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Sequence

import pytest

from tests.waiting import TIMEOUT
from txstore.format import names, packfile
from txstore.history import object_writer
from txstore.history.object_writer import UPLOAD_BYTES, UPLOADS, ObjectWriter, _Room
from txstore.storage.objects.interface import open_objects
from txstore.storage.remote import RemoteStorage


def test_packs_are_uploaded_side_by_side_the_last_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_writer, "INLINE_SIZE", 0)
    monkeypatch.setattr(object_writer, "OBJECT_SIZE", 1000)
    objects = open_objects(f"memory://{uuid.uuid4().hex}")
    together = threading.Barrier(8, timeout=TIMEOUT)
    put = objects.put

    def put_together(path: str, parts: Sequence[bytes]) -> None:
        if path.startswith(names.PACKS):
            together.wait()
        put(path, parts)

    monkeypatch.setattr(objects, "put", put_together)
    writer = ObjectWriter(RemoteStorage(objects), os.urandom(16), 0, bytes(16))
    values = [os.urandom(700) for _ in range(8)]
    staged = [
        writer.append(packfile.FRAME_VALUE, b"key", value, seen=packfile.SEEN_NOTHING) for value in values
    ]  # fmt: skip
    writer.finish(writer.size)
    assert [writer.read(each) for each in staged] == values
    writer.drop()


def test_as_many_bytes_are_uploaded_at_once_as_there_is_room_for() -> None:
    room = _Room()
    room.take(2 * UPLOAD_BYTES)  # alone
    other = threading.Thread(target=room.take, args=(1,))
    other.start()
    assert not room._fits(1)
    room.give_back(2 * UPLOAD_BYTES)
    other.join(TIMEOUT)
    assert not other.is_alive()
    for _ in range(UPLOADS - 1):
        room.take(1)
    assert not room._fits(1)
