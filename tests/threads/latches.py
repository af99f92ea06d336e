"""Where an operation of zarr stops until a test lets it go on: a codec that the chunks of an array pass through."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import zarr
from zarr.abc.codec import BytesBytesCodec

import txstore
from tests.tools.waiting import TIMEOUT

#: Seconds that a test waits for what must not happen.
A_WHILE = 0.3


@dataclass(frozen=True)
class Latch(BytesBytesCodec):
    """Stops the chunks of an array, while it is closed, after `passes` more; `reached`: one was stopped."""

    is_fixed_size = True
    encodes: ClassVar[bool] = True  # else it stops what is decoded
    passes: ClassVar[int] = 0
    is_open: ClassVar[threading.Event] = threading.Event()
    reached: ClassVar[threading.Event] = threading.Event()
    _counting: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def close(cls, *, encodes: bool, passes: int = 0) -> None:
        cls.encodes, cls.passes = encodes, passes
        cls.reached.clear()
        cls.is_open.clear()

    @classmethod
    def open(cls) -> None:
        cls.is_open.set()

    @classmethod
    def _pass(cls, encodes: bool) -> None:
        if cls.is_open.is_set() or encodes != cls.encodes:
            return
        with cls._counting:
            cls.passes -= 1
            if cls.passes >= 0:
                return
        cls.reached.set()
        assert cls.is_open.wait(TIMEOUT), "the latch was not opened"

    def to_dict(self) -> dict[str, Any]:
        return {"name": "txstore.tests.latch", "configuration": {}}

    @classmethod
    def from_dict(cls, data: Any) -> Latch:
        return cls()

    def compute_encoded_size(self, length: int, spec: object) -> int:
        return length

    def _encode_sync(self, chunk: Any, spec: object) -> Any:
        self._pass(True)
        return chunk

    def _decode_sync(self, chunk: Any, spec: object) -> Any:
        self._pass(False)
        return chunk

    async def _encode_single(self, chunk: Any, spec: object) -> Any:
        return await asyncio.to_thread(self._encode_sync, chunk, spec)

    async def _decode_single(self, chunk: Any, spec: object) -> Any:
        return await asyncio.to_thread(self._decode_sync, chunk, spec)


zarr.registry.register_codec("txstore.tests.latch", Latch)


class Thread(threading.Thread):
    """A thread that gives back what its function returned or raised."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.function = function
        self._result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self.function()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asks
            self.error = error

    def result(self) -> Any:
        self.join(TIMEOUT)
        assert not self.is_alive(), "it does not come to an end"
        if self.error is not None:
            raise self.error
        return self._result


@contextmanager
def latch(*, encodes: bool, passes: int = 0) -> Iterator[None]:
    """Keep the latch closed while a `with` block runs."""
    Latch.close(encodes=encodes, passes=passes)
    try:
        yield
    finally:
        Latch.open()


def writing(store: txstore.TxStore, z: zarr.Array, value: int, *, at_once: bool = True) -> Thread:
    """Begin to write all of an array, and return when some of its chunks are staged, and others at the latch.

    Or, unless `at_once`, when that has not come about after a while.
    """
    before = store.staged_count
    operation = Thread(lambda: z.__setitem__(slice(None), value))
    deadline = time.monotonic() + (TIMEOUT if at_once else A_WHILE)
    while not (Latch.reached.is_set() and store.staged_count > before):
        if time.monotonic() > deadline:
            assert not at_once, "it did not begin"
            break
        time.sleep(0.001)
    return operation


def create(store: txstore.TxStore, name: str = "x", *, n: int = 16, chunks: int = 1, value: int = 1) -> zarr.Array:
    """Create an array of ones whose chunks pass through the latch."""
    z = zarr.create_array(
        store, name=name, shape=(n,), chunks=(chunks,), dtype="i8", fill_value=-1, compressors=[Latch()]
    )
    z[:] = value
    return z


def values(mapping: Mapping[str, bytes], name: str = "x") -> list[int]:
    """Return what such an array holds, without zarr, whose threads may be at the latch."""
    document = json.loads(mapping[f"{name}/zarr.json"])
    (length,), (chunk,) = document["shape"], document["chunk_grid"]["configuration"]["chunk_shape"]
    chunks = [np.frombuffer(mapping[f"{name}/c/{number}"], "<i8") for number in range(-(-length // chunk))]
    return np.concatenate(chunks)[:length].tolist()
