"""Which keys a transaction has read before it wrote them: such a write relies on what was there (I5). No I/O."""

from __future__ import annotations

_MARKS = 1 << 16


class ReadMarks:
    """A set of keys, which seems to hold others too unless all were added exactly: I5 is stricter for it, not laxer."""

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

    def __contains__(self, key: str) -> bool:
        marks = self._marks
        return key in self._exact or (marks is not None and marks[hash(key) % _MARKS] == 1)
