"""Decodes parts of arrays in a separate process: `python -m txstore.codecs.decoder_process`.

Neither the document nor the length of a chunk tells how much time and memory its decoding takes. So the system enforces
the bounds, which the process sets before it decodes the first byte: a memory limit, and an alarm that ends the process.
The process opens no files: it asks its parent process for the values of keys, over a socket. The messages are JSON and
bytes, never pickles. To cancel the work, the parent ends the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from multiprocessing.connection import Connection
from typing import Any, Never

import numpy as np
import zarr
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.buffer import default_buffer_prototype

from txstore.zarr_private import FusedCodecPipeline

#: Characters that are told of a value that is no number.
_CHARACTERS = 2000
#: Threads that decode at once: each holds what it decodes.
_THREADS = 2


class Asked(Store):
    """A read-only view of the parent process's keys."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(read_only=True)
        self._connection = connection
        self._turn = threading.Lock()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        return self.get_sync(key, prototype=prototype, byte_range=byte_range)

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        with self._turn:
            self._connection.send_bytes(json.dumps({"key": key, "part": _part(byte_range)}).encode())
            if json.loads(self._connection.recv_bytes()) is None:
                return None
            value = self._connection.recv_bytes()
        return (prototype or default_buffer_prototype()).buffer.from_bytes(value)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    async def exists(self, key: str) -> bool:
        return await self.get(key) is not None

    supports_writes = supports_deletes = supports_listing = False

    async def set(self, key: str, value: Buffer) -> Never:
        self.set_sync(key, value)

    async def delete(self, key: str) -> Never:
        self.delete_sync(key)

    def set_sync(self, key: str, value: Buffer) -> Never:
        raise PermissionError("this is for reading")

    def delete_sync(self, key: str) -> Never:
        raise PermissionError("this is for reading")

    def list(self) -> AsyncIterator[str]:
        raise NotImplementedError

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        raise NotImplementedError

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        raise NotImplementedError


def _part(byte_range: ByteRequest | None) -> tuple[int, int | None] | None:
    """Return where a slice begins and ends."""
    match byte_range:
        case RangeByteRequest(start, end):
            return start, end
        case OffsetByteRequest(offset):
            return offset, None
        case SuffixByteRequest(suffix):
            return -suffix, None
        case _:
            return None


def _shown(values: np.ndarray[Any, Any]) -> tuple[dict[str, Any], bytes]:
    """Return what is told of values, and numbers as little-endian float32; of what is no numbers, texts."""
    kind = values.dtype.kind
    if kind not in "biufcmM" or values.dtype.itemsize > 16:
        return {"shape": values.shape, "values": [_text(each) for each in values.ravel().tolist()]}, b""
    if kind == "c":
        values = np.abs(values)
    if kind in "mM":
        values = np.where(np.isnat(values), np.nan, values.astype("i8").astype("f8"))
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (None, None)
    with np.errstate(over="ignore", invalid="ignore"):
        body = np.ascontiguousarray(values, dtype="<f4").tobytes()
    return {"shape": values.shape, "min": low, "max": high}, body


def _text(value: Any) -> str:
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]} …"


def _answer(store: Asked, path: str, zarr_format: Any, taken: list[Any]) -> tuple[dict[str, Any], bytes]:
    """Raises `MemoryError`, and `ValueError` for all else that fails."""
    try:
        array: Any = zarr.open_array(store, path=path, mode="r", zarr_format=zarr_format)
        return _shown(np.asarray(array[tuple(slice(*each) if isinstance(each, list) else each for each in taken)]))
    except MemoryError:
        raise
    except Exception as error:  # whatever zarr, or a library of codecs, makes of a chunk
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _limit_memory(most: int) -> None:
    """Let this process have `most` bytes more than it has now."""
    with contextlib.suppress(OSError, ValueError):  # of systems that have no such limit, or a lower one
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")  # all but files that are mapped
        resource.setrlimit(resource.RLIMIT_DATA, (used + most, used + most))


def main(descriptor: int, memory: int, seconds: float) -> None:
    """Answer questions until the other end is closed."""
    connection = Connection(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is meant for the server, which ends this process
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process, whatever runs
    zarr.config.set({"threading.max_workers": _THREADS, "async.concurrency": _THREADS})
    if FusedCodecPipeline is not None:  # it makes no coroutine for each chunk
        fused = f"{FusedCodecPipeline.__module__}.{FusedCodecPipeline.__qualname__}"
        zarr.config.set({"codec_pipeline.path": fused, "codec_pipeline.max_workers": _THREADS})
    _limit_memory(memory)
    store = Asked(connection)
    while True:
        try:
            asked = json.loads(connection.recv_bytes())
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, seconds)
        body = b""
        try:
            told, body = _answer(store, **asked)
        except MemoryError:
            told = {"failed": "memory"}
        except ValueError as error:
            told = {"failed": str(error)}
        connection.send_bytes(json.dumps(told).encode())
        connection.send_bytes(body)
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
