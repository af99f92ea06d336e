"""What an open transaction declares: the constraints, views and cursors of its base, with those that it changes."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Literal

from txstore.commit import Commit
from txstore.deriving import declared
from txstore.deriving.declared import Backfill
from txstore.deriving.definitions import ViewDefinition
from txstore.errors import TransactionStateError
from txstore.format.constraints import Constraint
from txstore.format.cursors import check_cursor
from txstore.format.declarations import Declarations
from txstore.history import declarations
from txstore.history.declarations import Constraints, Cursors
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.staging import Staging

Kind = Literal["constraints", "views", "cursors"]


class StagedDeclarations:
    """Reads and changes the declarations of a transaction."""

    def __init__(self, staging: Staging, lifecycle: Lifecycle) -> None:
        self.staging = staging
        self.url = staging.storage.url
        self._lifecycle = lifecycle

    def now(self) -> Declarations:
        """Return what the transaction would hand on, or what it has handed on."""
        committed = self.staging.view.committed
        return self._with(Declarations()) if committed is None else committed.declared

    def check_may_declare(self, told: str) -> None:
        """Raise `TransactionStateError` in a transaction of several processes: only the one that began it knows."""
        if self.staging.members.is_named or self.staging.members.is_participant:
            raise TransactionStateError(told, state="foreign")

    def after(self, kind: Kind, name: str, written: Mapping[str, Any] | None) -> Declarations:
        """Return what the transaction would hand on if a name were set, or dropped: None.

        Raises `ValueError` if it is too long.
        """
        return self._with(Declarations(**{kind: {name: written}}))

    def set(self, kind: Kind, name: str, written: Mapping[str, Any] | None) -> None:
        """Set a name, or drop it: None. Raises `ValueError` now, not at the commit, if it is too long."""
        self.after(kind, name, written)
        with self._lifecycle.guard:
            self._lifecycle.check_open()
            getattr(self.staging.declared, kind)[name] = written

    def _with(self, more: Declarations) -> Declarations:
        base = self.staging.view.base.declared
        return declarations.changed(more, declarations.changed(self.staging.declared, base))


def constraints_of(staged: StagedDeclarations) -> Constraints:
    """Return the constraints of a transaction, to read and to change."""

    def read() -> Mapping[str, Constraint]:
        return declarations.decode_constraints(staged.url, staged.now().constraints)

    def declare(name: str, constraint: Constraint | None) -> None:
        staged.check_may_declare(
            "constraints are declared in a transaction without a name, by the process that began it: "
            "repo.constraints[...] = ... makes one"
        )
        settled = None if constraint is None else constraint.settled(staged.staging.view)
        staged.set("constraints", name, None if settled is None else declarations.encode_constraint(settled))

    return Constraints(read, declare)


def cursors_of(staged: StagedDeclarations) -> Cursors:
    """Return the cursors of a transaction, to read and to move."""

    def read() -> Mapping[str, Any]:
        return copy.deepcopy(dict(staged.now().cursors))

    def declare(name: str, cursor: Mapping[str, Any] | None) -> None:
        staged.check_may_declare(
            "feeds are moved in a transaction without a name, by the process that began it: "
            "begin one with repo.transaction()"
        )
        written = None if cursor is None else json.loads(json.dumps(dict(cursor)))
        if written is not None:
            check_cursor(name, written)
        staged.set("cursors", name, written)

    return Cursors(read, declare)


class StagedViews:
    """Reads and declares the views of a transaction. `Repository.views` documents them."""

    def __init__(self, staged: StagedDeclarations) -> None:
        self._staged = staged

    def read(self) -> Mapping[str, ViewDefinition]:
        return declared.decode(self._staged.url, self._staged.now().views)

    def declare(self, name: str, view: ViewDefinition | None) -> None:
        """Declare a view, or drop it if it is None. Raises `ValueError` if it does not go with the others."""
        self._staged.check_may_declare(
            "views are declared in a transaction without a name, by the process that began it: "
            "repo.views[...] = ... makes one"
        )
        written = None if view is None else declared.encode(view)
        declared.ordered(declared.decode(self._staged.url, self._staged.after("views", name, written).views))
        self._staged.set("views", name, written)

    def bring_to(self, name: str, done: Commit | Backfill) -> None:
        """Say that the outputs of a view are, after this transaction, what it makes of its sources at a commit.

        Or how much of that they are.
        """
        self._staged.set("views", name, declared.encode(self.read()[name], done))
