"""Applies what a transaction declares and drops to what the commits before it have handed on. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from txstore.errors import ConflictError
from txstore.format.constraints import as_text
from txstore.format.declarations import Declarations, Written

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
