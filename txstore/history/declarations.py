"""Applies what a transaction declares and drops to what the commits before it have handed on. No I/O."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from txstore.errors import ConflictError
from txstore.format.constraints import as_text
from txstore.format.declarations import Declarations, Written

V = TypeVar("V")

#: Bytes of all declarations of one kind together, at most: every commit has them in its header.
MAX_BYTES = 1 << 16


class _DeclaredKind(NamedTuple):
    name: str  # in the plural
    taken: str  # what another commit has done to them, where they are in conflict


_KINDS = (
    _DeclaredKind("constraints", "another commit declared or dropped these constraints"),
    _DeclaredKind("views", "another commit declared or dropped these views"),
    _DeclaredKind("feeds", "another commit has moved these feeds on, or deleted them"),
)


def changed(changes: Declarations, written: Declarations) -> Declarations:
    """Return the declarations after changes. Raises `ValueError` if those of one kind are longer than `MAX_BYTES`."""
    return Declarations(*map(_changed, _KINDS, changes, written))


def _changed(kind: _DeclaredKind, changes: Written, written: Written) -> Written:
    if not changes:
        return written
    found = {name: each for name, each in {**written, **changes}.items() if each is not None}
    if (length := len(as_text(found))) > MAX_BYTES:
        raise ValueError(
            f"all {kind.name} together have {length} bytes, and every commit stores them: the limit is {MAX_BYTES} "
            "bytes"
        )
    return found


def changes_nothing(changes: Declarations, written: Declarations) -> bool:
    return all(
        as_text(each) == as_text(there.get(name))
        for mine, there in zip(changes, written, strict=True)
        for name, each in mine.items()
    )


def check_unmoved(changes: Declarations, base: Declarations, head: Declarations) -> None:
    """Raise `ConflictError` if another commit has changed the same names since the base, and differently."""
    for kind, mine, old, new in zip(_KINDS, changes, base, head, strict=True):
        taken = [
            name for name, each in mine.items() if as_text(old.get(name)) != as_text(new.get(name)) != as_text(each)
        ]
        if taken:
            raise ConflictError(taken, reason=kind.taken)


@dataclass(frozen=True, repr=False, eq=False)
class DeclaredByName(MutableMapping[str, V]):
    """Declarations of one kind, by name: a commit declares the names that are set, and drops those that are deleted.

    `declare` declares one, or drops it if it is given None.
    """

    _read: Callable[[], Mapping[str, V]]
    declare: Callable[[str, V | None], None]

    @abstractmethod
    def _check(self, name: str, value: V) -> None:
        """Raise `TypeError` or `ValueError` unless a name can be set to this."""

    def __getitem__(self, name: str) -> V:
        return self._read()[name]

    def __setitem__(self, name: str, value: V) -> None:
        self._check(name, value)
        self.declare(name, value)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self.declare(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._read()))

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {dict(self)}>"
