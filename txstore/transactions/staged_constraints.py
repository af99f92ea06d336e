"""The constraints of an open transaction: those of its base, with the ones that it declares or drops."""

from __future__ import annotations

from collections.abc import Mapping

from txstore.errors import TransactionStateError
from txstore.format.constraints import Constraint
from txstore.format.declarations import Declarations
from txstore.history import declarations, declared_constraints
from txstore.history.declared_constraints import Constraints
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.staging import Staging


def constraints_of(staging: Staging, lifecycle: Lifecycle) -> Constraints:
    """Return the constraints of a transaction, to read and to change."""

    def read() -> Mapping[str, Constraint]:
        committed, base = staging.view.committed, staging.view.base
        if committed is not None:
            return committed.constraints
        written = declarations.changed(staging.declared, base.declared)
        return declared_constraints.decode(staging.storage.url, written.constraints)

    def declare(name: str, constraint: Constraint | None) -> None:
        if staging.members.is_named or staging.members.is_participant:
            raise TransactionStateError(
                "constraints are declared in a transaction without a name, by the process that began it: "
                "repo.constraints[...] = ... makes one",
                state="foreign",
            )
        written = None if constraint is None else declared_constraints.encode(constraint.settled(staging.view))
        changes = Declarations({**staging.declared.constraints, name: written})
        # Raises an error now, not at the commit, if they are too large.
        declarations.changed(changes, staging.view.base.declared)
        with lifecycle.lock:
            lifecycle.check_open()
            staging.declared.constraints[name] = written  # type: ignore[index]

    return Constraints(read, declare)
