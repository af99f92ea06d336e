"""Listings of keys, shared by snapshots and transactions, and built on one primitive: the next live key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import islice

from txstore.format.consolidated import consolidated_at, is_marked, may_be_consolidated
from txstore.format.keys import after_prefix, directory_prefix

#: Keys that are looked up at a time to list names: at first, at least and at most.
_PAGE, _PAGE_SMALLEST, _PAGE_LARGEST = 16, 4, 4096
#: Where a name has fewer keys than this, more are looked up at a time: to skip some takes as long as to read them.
_KEYS_OF_A_NAME = 32


class Hierarchy(Mapping[str, bytes], ABC):
    """A mapping from Zarr keys to values that can be listed by directory.

    `listdir`, `getitems` and `getsize` are what zarr 2 looks for in a store besides the mapping itself.
    """

    @abstractmethod
    def get_view(self, key: str) -> memoryview | None:
        """Return a read-only view of a value, its checksum compared; None if there is no such key."""

    def get_part(self, key: str, part: slice) -> memoryview | None:
        """Return a part of a value; None if the key is not there."""
        view = self.get_view(key)
        return None if view is None else view[part]

    @abstractmethod
    def size_of(self, key: str) -> int | None:
        """Return the length of a value in bytes; None if there is no such key."""

    @abstractmethod
    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        """Yield the live keys from `start` on, below `stop`, in the order of their bytes.

        `batch` is how many are looked up at a time: 1 where the caller wants only the first.
        """

    def served(self, key: str) -> memoryview | None:
        """Return the value that a client gets: a view, or consolidated metadata, which is built now."""
        view = self.get_view(key)
        if view is None or not may_be_consolidated(key) or not is_marked(key, bytes(view)):
            return view
        return memoryview(consolidated_at(self, key))

    def __getitem__(self, key: str) -> bytes:
        view = self.served(key)
        if view is None:
            raise KeyError(key)
        return bytes(view)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.size_of(key) is not None

    def __iter__(self) -> Iterator[str]:
        return self.keys_between("", None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True  # an empty store is a store: `if store:` must not mean "if it has keys"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def keys_below(self, path: str) -> Iterator[str]:
        """Yield the keys of a node and everything under it."""
        prefix = directory_prefix(path)
        return self.keys_between(prefix, after_prefix(prefix))

    def has_keys_below(self, path: str) -> bool:
        prefix = directory_prefix(path)
        return any(True for _ in self.keys_between(prefix, after_prefix(prefix), batch=1))

    def list_dir(self, path: str) -> Iterator[str]:
        """Yield the names right below a path: keys, and the first segments of longer keys, each once.

        Keys are looked up by the page. Subtrees that are longer are skipped, not walked: then a page is a few keys.
        """
        prefix = directory_prefix(path)
        start, stop = prefix, after_prefix(prefix)
        batch, below = _PAGE, None
        met: list[str] = []  # names that are keys, and that the name which is looked at begins with
        while True:
            keys = list(islice(self.keys_between(start, stop, batch=batch), batch))
            names = 0
            for key in keys:
                name, deeper, _ = key[len(prefix) :].partition("/")
                if deeper and name == below:
                    continue
                below = name if deeper else None
                while met and not name.startswith(met[-1]):
                    met.pop()
                if not deeper:
                    met.append(name)
                if not deeper or not met or met[-1] != name:  # else it was met as a key
                    yield name
                names += 1
            if len(keys) < batch:
                return
            start = keys[-1] + "\0" if below is None else prefix + below + "0"  # "0" follows "/": beyond this subtree
            if names == 1:
                batch = max(batch // 4, _PAGE_SMALLEST)
            elif names * _KEYS_OF_A_NAME >= batch:
                batch = min(batch * 4, _PAGE_LARGEST)

    # --- what zarr 2 looks for

    def listdir(self, path: str = "") -> list[str]:
        return sorted(self.list_dir(path))

    def getsize(self, path: str = "") -> int:
        """Return the bytes of the values right below a path, or of one key; -1 if there are none, as zarr 2 does."""
        key = path.strip("/")
        own = self.size_of(key) if key else None
        if own is not None:
            return own
        prefix = directory_prefix(path)
        return sum(self.size_of(prefix + name) or 0 for name in self.list_dir(path))

    def getitems(self, keys: list[str], *, contexts: Mapping[str, object] | None = None) -> dict[str, bytes]:
        """Return the values of those keys that exist."""
        found = ((key, self.served(key)) for key in keys)
        return {key: bytes(view) for key, view in found if view is not None}
