"""Declarations: the constraints, views and cursors of feeds that each commit hands on in its header. No I/O.

Applies what a transaction declares and drops to what the commits before it have handed on, and checks commits against
constraints. A cursor says how far a feed has come.
"""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from txstore.errors import (
    ConflictError,
    ConstraintError,
    CorruptionError,
    TxStoreError,
    UnsupportedFormatError,
    Violation,
)
from txstore.format import constraints
from txstore.format.commitfile import CommitName, Declarations, Written
from txstore.format.constraints import Constraint, Outcome, as_text
from txstore.format.cursors import check_cursor_name
from txstore.format.display import html_head, html_table
from txstore.format.keys import check_name

V = TypeVar("V")

#: Bytes of all declarations of one kind together, at most: every commit has them in its header.
MAX_BYTES = 1 << 16


#: Of each kind: its name, in the plural, and what another commit has done to them, where they are in conflict.
_KINDS = (
    ("constraints", "another commit declared or dropped these constraints"),
    ("views", "another commit declared or dropped these views"),
    ("feeds", "another commit has moved these feeds on, or deleted them"),
)


def changed(changes: Declarations, written: Declarations) -> Declarations:
    """Return the declarations after changes. Raises `ValueError` if those of one kind are longer than `MAX_BYTES`."""
    return Declarations(*map(_changed, _KINDS, changes, written))


def _changed(kind: tuple[str, str], changes: Written, written: Written) -> Written:
    if not changes:
        return written
    found = {name: each for name, each in {**written, **changes}.items() if each is not None}
    if (length := len(as_text(found))) > MAX_BYTES:
        raise ValueError(
            f"all {kind[0]} together have {length} bytes, and every commit stores them: the limit is {MAX_BYTES} bytes"
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
    for (_, reason), mine, old, new in zip(_KINDS, changes, base, head, strict=True):
        taken = [
            name for name, each in mine.items() if as_text(old.get(name)) != as_text(new.get(name)) != as_text(each)
        ]
        if taken:
            raise ConflictError(taken, reason=reason)


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


class Cursors(DeclaredByName[Mapping[str, Any]]):
    """Cursors by their names: JSON objects. A commit moves the names that you set, and drops those that you delete.

    Two transactions that set one name conflict, unless they set it to equal objects. So does one that sets a name to
    what its base has there, if another commit has changed it. `declare` sets one, or drops it if it is given None.
    """

    def _check(self, name: str, value: Mapping[str, Any]) -> None:
        check_cursor_name(name)

    def __repr__(self) -> str:
        return f"<Cursors {', '.join(self)}>"


#: Number of violations that an error lists for each constraint.
MAX_NAMED = 10

# --- constraints in headers


def encode_constraint(constraint: Constraint) -> dict[str, Any]:
    """Return a constraint as JSON that `decode_constraints` can read.

    Raises `TypeError` or `ValueError` if it is not valid JSON, or not a constraint that every writer can check.
    """
    try:
        written: dict[str, Any] = json.loads(json.dumps({"kind": constraint.kind, **constraint.as_dict()}))
    except RecursionError:
        raise ValueError(f"{type(constraint).__name__} is nested too deeply to be written") from None
    if type(constraint) is not constraints.KINDS.get(written["kind"]):
        kinds = ", ".join(f"constraints.{kind.__name__}" for kind in constraints.KINDS.values())
        raise TypeError(f"not every writer can check {constraint!r}: use one of {kinds}")
    constraints.KINDS[written["kind"]].from_dict(written)
    return written


def decode_constraints(url: str, written: Written) -> dict[str, Constraint]:
    """Return the constraints of a header as new objects, which the caller may change.

    Raises `UnsupportedFormatError` for a kind that this version can't check, `CorruptionError` for an invalid entry.
    """
    found = {}
    for name, fields in written.items():
        try:
            kind = constraints.KINDS.get(fields["kind"])
            if kind is not None:
                found[name] = kind.from_dict(copy.deepcopy(fields))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptionError(url, reason=f"constraint {name!r} of a commit is invalid: {error!r}") from error
        if kind is None:
            known = ", ".join(map(repr, constraints.KINDS))
            raise UnsupportedFormatError(url, found=f"a constraint of kind {fields['kind']!r}", supported=known)
    return found


# --- the commit


class CheckedOn(NamedTuple):
    """What a commit was checked against: the constraints, and the head below it, with those of that."""

    written: Written
    head: Written
    commit: CommitName | None


def check_constraints(
    url: str, written: Written, head: Written, outcome: Outcome, before: CheckedOn | None = None
) -> None:
    """Raise `ConstraintError` if a commit's outcome breaks a constraint of `written`. `head` has the parent's.

    `before`: the same commit has passed this on another head. What takes long is not checked again if no commit since
    then has changed what it depends on.
    """
    violations = []
    for name, each in decode_constraints(url, written).items():
        if before is not None and each.may_take_long and _is_as_before(name, written, head, outcome, before):
            continue
        is_new = as_text(written[name]) != as_text(head.get(name))
        for where, reason in islice(each.faults(outcome, is_new=is_new), MAX_NAMED):
            violations.append(Violation(name, where, reason))
    if violations:
        raise ConstraintError(violations)


def _is_as_before(name: str, written: Written, head: Written, outcome: Outcome, before: CheckedOn) -> bool:
    if before.commit is None or as_text([written[name], head.get(name)]) != as_text(
        [before.written.get(name), before.head.get(name)]
    ):
        return False
    return outcome.changed_since(before.commit, written[name]["path"]) == []


# --- for users


class Constraints(DeclaredByName[Constraint]):
    """Constraints by their names. A commit declares the names that you set, and drops the names that you delete.

    `declare` declares one, or drops it if it is given None.
    """

    def _check(self, name: str, value: Constraint) -> None:
        check_name("constraint", name)
        if not isinstance(value, Constraint):
            raise TypeError(f"{value!r} is no constraint: use a class of txstore.constraints")

    def _repr_html_(self) -> str:
        try:
            rows = [(name, type(each).__name__, as_text(each.as_dict())) for name, each in sorted(self._read().items())]
        except (TxStoreError, OSError) as error:  # a notebook's cell shows the error and does not fail
            return html_head("Constraints", str(error))
        return html_head("Constraints", f"{len(rows):,}") + html_table(rows, ("name", "kind", "definition"))
