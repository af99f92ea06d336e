"""`CountingObjects`: an object store that counts what is asked of it, by the kind of request."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from txstore.storage.objects.backend import Content, TryRange
from txstore.storage.objects.interface import ObjectStore

KINDS = {
    "get": "reads",
    "get_range": "reads",
    "get_tail": "reads",
    "exists": "reads",
    "now": "reads",
    "put": "writes",
    "create": "writes",
    "list": "lists",
    "list_after": "lists",
}


class CountingObjects:
    """Counts calls, and each range and each deleted object as one: what a proxy sees where none has to be repeated."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in KINDS:
            return found

        def call(*arguments: Any) -> Any:
            self._count(KINDS[name], 1, name, arguments[:1])
            return found(*arguments)

        return call

    @property
    def try_range(self) -> TryRange | None:
        try_range = self._store.try_range

        async def call(path: str, offset: int, length: int) -> Content | None:
            self._count("reads", 1, "try_range", (path,))
            return await try_range(path, offset, length)

        return None if try_range is None else call

    def _count(self, kind: str, number: int, name: str, what: Any) -> None:
        with self._lock:
            self.counts[kind] += number
            self.calls.append((name, what))

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self._count("reads", len(ranges), "get_ranges", (path, ranges))
        return self._store.get_ranges(path, ranges)

    def delete(self, paths: Sequence[str]) -> None:
        self._count("deletes", len(paths), "delete", paths)
        self._store.delete(paths)
