"""Records a transaction's reads of its base (I5): all reads if it is serializable, else those of keys it then writes.

A serializable transaction records its reads, and checks them when it commits. Any other transaction records and checks
only the keys that its caller names (`TxStore.rely_on`). There are four kinds, and a kind of frame for each, which tells
other processes: a key (its value, a part of it, its size, or its absence), the names directly below a path, the keys
below a path, and whether there are any keys below it. A read of the transaction's own staged
data is not a read of the base, and is not recorded. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from txstore.format import packfile
from txstore.format.keys import after_prefix, directory_prefix, encode_key
from txstore.format.mapping import Hierarchy
from txstore.format.records import ISOLATIONS

_MARKS = 1 << 16


def check_isolation(isolation: str) -> None:
    """Raise `ValueError` for an unknown isolation level."""
    if isolation not in ISOLATIONS:
        raise ValueError(f"isolation is one of {ISOLATIONS}, not {isolation!r}")


class Reads(NamedTuple):
    """The reads that must give the same at the head and at the base. Paths are prefixes that end in `/`, or empty."""

    keys: Collection[str] = ()
    names_below: Collection[str] = ()
    keys_below: Collection[str] = ()
    any_below: Collection[str] = ()


NOTHING_READ = Reads()


class ReadLog:
    """The reads so far: one entry for each key or path, however often it was read. Safe in threads."""

    def __init__(self) -> None:
        self._noted: dict[int, set[str]] = {kind: set() for kind in packfile.FRAMES_READ}

    def __len__(self) -> int:
        return sum(map(len, self._noted.values()))

    def has(self, kind: int, key: str) -> bool:
        return key in self._noted[kind]

    def add(self, kind: int, key: str) -> None:
        self._noted[kind].add(key)

    def reads(self, more: Iterable[str] = ()) -> Reads:
        """Return the reads so far, and `more` keys. Other threads may continue to read."""
        noted = {kind: tuple(keys) for kind, keys in self._noted.items()}
        return Reads(
            (*noted[packfile.FRAME_READ], *more),
            noted[packfile.FRAME_NAMES_BELOW],
            noted[packfile.FRAME_KEYS_BELOW],
            noted[packfile.FRAME_ANY_BELOW],
        )


class NotingView(Hierarchy):
    """The view of a serializable transaction. It records each read before it returns the result.

    It calls `note(kind, key)` with the key, or with the prefix of a path. If `note` raises, the view reads nothing.
    """

    def __init__(self, view: Hierarchy, note: Callable[[int, str], None]) -> None:
        self._view = view
        self._note = note

    def _note_key(self, key: str) -> None:
        encode_key(key)  # raises for an invalid key, as the look-up does
        self._note(packfile.FRAME_READ, key)

    def get_view(self, key: str) -> memoryview | None:
        self._note_key(key)
        return self._view.get_view(key)

    def get_part(self, key: str, part: slice) -> memoryview | None:
        self._note_key(key)
        return self._view.get_part(key, part)

    def size_of(self, key: str) -> int | None:
        self._note_key(key)
        return self._view.size_of(key)

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        # A range that is not exactly a path counts as a listing of all keys.
        self._note(packfile.FRAME_KEYS_BELOW, start if _is_prefix(start) and stop == after_prefix(start) else "")
        yield from self._view.keys_between(start, stop, batch=batch)

    def has_keys_below(self, path: str) -> bool:
        self._note(packfile.FRAME_ANY_BELOW, directory_prefix(path))
        return self._view.has_keys_below(path)

    def list_dir(self, path: str) -> Iterator[str]:
        self._note(packfile.FRAME_NAMES_BELOW, directory_prefix(path))
        yield from self._view.list_dir(path)


class ReadMarks:
    """The keys that a transaction read before it wrote them: such a write relies on the value that was read (I5).

    Unless all keys were added exactly, the set may seem to have further keys. That makes I5 stricter, never laxer.
    """

    def __init__(self) -> None:
        self._marks: bytearray | None = None
        self._exact: set[str] = set()

    def add(self, key: str, *, exactly: bool) -> None:
        if exactly:
            self._exact.add(key)
            return
        marks = self._marks
        if marks is None:
            marks = self._marks = bytearray(_MARKS)
        marks[hash(key) % _MARKS] = 1

    def __bool__(self) -> bool:
        return self._marks is not None or bool(self._exact)

    def __contains__(self, key: str) -> bool:
        marks = self._marks
        return key in self._exact or (marks is not None and marks[hash(key) % _MARKS] == 1)


def _is_prefix(text: str) -> bool:
    return not text or text.endswith("/")
