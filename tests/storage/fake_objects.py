"""An object store in memory, or over a directory, that counts what is asked of it; and packs to put into it."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from tests.tools.waiting import TIMEOUT
from txstore.format import packfile
from txstore.format.encoding import crc32c
from txstore.format.packfile import PackName
from txstore.segments.ranged_packs import RemotePack, RemotePacks
from txstore.storage.kept import PackCache, PieceMemory
from txstore.storage.objects.backend import TryRange
from txstore.storage.objects.interface import Object

REPOSITORY = bytes(16)


class FakeObjects:
    """Only what reading needs. Each range counts as a request, and so does a tail."""

    url = "fake://"
    creation = "none"
    makes_requests = True
    has_links = False
    try_range: TryRange | None = None

    def __init__(self, root: Path | None = None) -> None:
        self.root = root
        self.contents: dict[str, bytes] = {}
        self.requests: list[tuple[str, int, int]] = []
        self.calls: list[list[tuple[int, int]]] = []  # ranges that were asked for together
        self.before: Callable[[str], object] = lambda path: None  # called before each request
        self.lock = threading.Lock()

    def clear(self) -> None:
        self.requests.clear()
        self.calls.clear()

    def _content(self, path: str) -> bytes:
        if path in self.contents:
            return self.contents[path]
        if self.root is None:
            raise FileNotFoundError(2, "there is no such object", path)
        return (self.root / path).read_bytes()

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self.get_ranges(path, [(offset, length)])[0]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        assert all(offset >= 0 and length > 0 for offset, length in ranges)
        with self.lock:
            self.requests += [(path, offset, length) for offset, length in ranges]
            self.calls.append(list(ranges))
        self.before(path)
        content = self._content(path)
        return [content[offset : offset + length] for offset, length in ranges]

    def can_await(self) -> None:
        """From now on ranges can be awaited, too: None after an error."""

        async def try_range(path: str, offset: int, length: int) -> bytes | None:
            try:
                return await asyncio.to_thread(self.get_range, path, offset, length)
            except OSError:
                return None

        self.try_range = try_range

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        with self.lock:
            self.requests.append((path, -length, length))
        self.before(path)
        content = self._content(path)
        return content[max(len(content) - length, 0) :], len(content)

    def get(self, path: str) -> bytes:
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        raise NotImplementedError

    def list(self, directory: str) -> list[Object]:
        raise NotImplementedError

    def list_after(self, directory: str, name: str, limit: int) -> Sequence[str] | None:
        raise NotImplementedError

    def put(self, path: str, parts: Sequence[bytes]) -> None:
        self.contents[path] = b"".join(parts)

    def create(self, path: str, parts: Sequence[bytes]) -> None:
        raise NotImplementedError

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.contents.pop(path, None)

    def now(self) -> float:
        raise NotImplementedError


def new_cache(limit: int = 64 << 20) -> PackCache:
    """A cache in memory that no other test uses."""
    return PackCache(memory=PieceMemory(limit))


class Values:
    """A pack of values that lie side by side, as a writer's frames would."""

    def __init__(self, objects: FakeObjects, count: int, length: int, *, seed: int = 1, cache: PackCache | None = None):
        source = Random(seed)
        self.name = PackName(source.randbytes(16))
        self.values = [source.randbytes(length) for _ in range(count)]
        self.offsets: list[int] = []
        content = bytearray(packfile.encode_head(self.name.id, REPOSITORY))
        for value in self.values:
            content += bytes(64)
            self.offsets.append(len(content))
            content += value
        self.content = bytes(content)
        objects.contents[self.name.path] = self.content
        self.packs = RemotePacks(objects, cache or new_cache())

    @property
    def pack(self) -> RemotePack:
        return self.packs.get(self.name)

    def view(self, i: int) -> memoryview:
        value = self.values[i]
        found = self.pack.view(self.offsets[i], len(value), crc32c(value), f"key {i}")
        assert found == value
        assert found.readonly
        return found

    def range(self, i: int) -> tuple[str, int, int]:
        return self.name.path, self.offsets[i], len(self.values[i])


class Gate:
    """Lets a request through once it is told to, or `until` holds. Every wait ends after a while."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, path: str) -> None:
        self.reached.set()
        assert self._open.wait(TIMEOUT)

    def open(self) -> None:
        self._open.set()
