"""Encodes and decodes the constraints in commit headers, and checks commits against them. No I/O."""

from __future__ import annotations

import copy
import json
from itertools import islice
from typing import Any, NamedTuple

from txstore.errors import (
    ConstraintError,
    CorruptionError,
    TxStoreError,
    UnsupportedFormatError,
    Violation,
)
from txstore.format import constraints
from txstore.format.commitfile import CommitName
from txstore.format.constraints import Constraint, Outcome, as_text
from txstore.format.declarations import Written
from txstore.format.display import html_head, html_table
from txstore.format.keys import check_name
from txstore.history.declarations import DeclaredByName

#: Number of violations that an error lists for each constraint.
MAX_NAMED = 10

# --- constraints in headers


def encode(constraint: Constraint) -> dict[str, Any]:
    """Return a constraint as JSON that `decode` can read.

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


def decode(url: str, written: Written) -> dict[str, Constraint]:
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


def check(url: str, written: Written, head: Written, outcome: Outcome, before: CheckedOn | None = None) -> None:
    """Raise `ConstraintError` if a commit's outcome breaks a constraint of `written`. `head` has the parent's.

    `before`: the same commit has passed this on another head. What takes long is not checked again if no commit since
    then has changed what it depends on.
    """
    violations = []
    for name, each in decode(url, written).items():
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
