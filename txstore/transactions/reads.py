"""What a transaction reads of its base (I5): of a serializable one all that it reads, of any what it wrote afterwards.

A serializable transaction notes its reads, and checks them when it commits. Four kinds are told apart, by the kind of
frame that says so to other processes: a key (its value, a part of it, its size, or that it is not there), the names
right below a path, the keys below a path, and whether there are any. What the transaction has staged itself is not of
the base, so reading it is not noted. No I/O.
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
    """What must be at the head as it was at the base. Paths are directory prefixes: they end in `/`, or are empty."""

    keys: Collection[str] = ()
    names_below: Collection[str] = ()
    keys_below: Collection[str] = ()
    any_below: Collection[str] = ()


NOTHING_READ = Reads()


class ReadLog:
    """What was read so far: one entry for each key and for each path, however often. Safe in threads."""

    def __init__(self) -> None:
        self._noted: dict[int, set[str]] = {kind: set() for kind in packfile.FRAMES_READ}

    def __len__(self) -> int:
        return sum(map(len, self._noted.values()))

    def has(self, kind: int, key: str) -> bool:
        return key in self._noted[kind]

    def add(self, kind: int, key: str) -> None:
        self._noted[kind].add(key)

    def reads(self, more: Iterable[str] = ()) -> Reads:
        """Return what was read, and `more` keys. Other threads may read on."""
        noted = {kind: tuple(keys) for kind, keys in self._noted.items()}
        return Reads(
            (*noted[packfile.FRAME_READ], *more),
            noted[packfile.FRAME_NAMES_BELOW],
            noted[packfile.FRAME_KEYS_BELOW],
            noted[packfile.FRAME_ANY_BELOW],
        )


class NotingView(Hierarchy):
    """The view of a serializable transaction: each read is noted before anything of it is handed out.

    `note(kind, key)` is told the key, or the prefix of a path. `note` may raise, and then nothing is read.
    """

    def __init__(self, view: Hierarchy, note: Callable[[int, str], None]) -> None:
        self._view = view
        self._note = note

    def _note_key(self, key: str) -> None:
        encode_key(key)  # raises for an impossible one, as the look-up does
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
        # Any other range than that of a path counts as a walk through everything.
        self._note(packfile.FRAME_KEYS_BELOW, start if _is_prefix(start) and stop == after_prefix(start) else "")
        yield from self._view.keys_between(start, stop, batch=batch)

    def has_keys_below(self, path: str) -> bool:
        self._note(packfile.FRAME_ANY_BELOW, directory_prefix(path))
        return self._view.has_keys_below(path)

    def list_dir(self, path: str) -> Iterator[str]:
        self._note(packfile.FRAME_NAMES_BELOW, directory_prefix(path))
        yield from self._view.list_dir(path)


class ReadMarks:
    """Which keys a transaction has read before it wrote them: such a write relies on what was there (I5).

    The set seems to hold others too unless all were added exactly: I5 is stricter for it, not laxer.
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
