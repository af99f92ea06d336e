"""The cursors of an open transaction: those of its base, with the ones that it moves or drops."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from txstore.errors import TransactionStateError
from txstore.format.cursors import check_cursor
from txstore.format.declarations import Declarations
from txstore.history import declarations
from txstore.history.declared_cursors import Cursors
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.staging import Staging


def cursors_of(staging: Staging, lifecycle: Lifecycle) -> Cursors:
    """Return the cursors of a transaction, to read and to move."""

    def read() -> Mapping[str, Any]:
        committed, base = staging.view.committed, staging.view.base
        if committed is not None:
            return committed.cursors
        return copy.deepcopy(dict(declarations.changed(staging.declared, base.declared).cursors))

    def move(name: str, cursor: Mapping[str, Any] | None) -> None:
        if staging.members.is_named or staging.members.is_participant:
            raise TransactionStateError(
                "feeds are moved in a transaction without a name, by the process that began it: "
                "begin one with repo.transaction()",
                state="foreign",
            )
        written = None if cursor is None else json.loads(json.dumps(dict(cursor)))
        if written is not None:
            check_cursor(name, written)
        # Raises an error now, not at the commit, if they are too large.
        changes = Declarations(cursors={**staging.declared.cursors, name: written})
        declarations.changed(changes, staging.view.base.declared)
        with lifecycle.lock:
            lifecycle.check_open()
            staging.declared.cursors[name] = written  # type: ignore[index]

    return Cursors(read, move)
