"""The views of an open transaction: those of its base, with the ones that it declares or drops."""

from __future__ import annotations

from collections.abc import Mapping

from txstore.commit import Commit
from txstore.deriving import declared
from txstore.deriving.definitions import ViewDefinition
from txstore.errors import TransactionStateError
from txstore.format.declarations import Declarations
from txstore.history import declarations
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.staging import Staging


class StagedViews:
    """Reads and declares the views of a transaction. `Repository.views` documents them."""

    def __init__(self, staging: Staging, lifecycle: Lifecycle) -> None:
        self._staging = staging
        self._lifecycle = lifecycle

    def read(self) -> Mapping[str, ViewDefinition]:
        staging = self._staging
        committed = staging.view.committed
        now = committed.declared if committed is not None else self._with(Declarations())
        return declared.decode(staging.storage.url, now.views)

    def declare(self, name: str, view: ViewDefinition | None) -> None:
        """Declare a view, or drop it if it is None. Raises `ValueError` if it does not go with the others."""
        staging = self._staging
        if staging.members.is_named or staging.members.is_participant:
            raise TransactionStateError(
                "views are declared in a transaction without a name, by the process that began it: "
                "repo.views[...] = ... makes one",
                state="foreign",
            )
        written = None if view is None else declared.encode(view)
        after = self._with(Declarations(views={name: written}))
        declared.ordered(declared.decode(staging.storage.url, after.views))
        with self._lifecycle.lock:
            self._lifecycle.check_open()
            staging.declared.views[name] = written  # type: ignore[index]

    def bring_to(self, name: str, commit: Commit) -> None:
        """Say that the outputs of a view are, after this transaction, what it makes of its sources at a commit."""
        with self._lifecycle.lock:
            self._lifecycle.check_open()
            self._staging.declared.views[name] = declared.encode(self.read()[name], commit)  # type: ignore[index]

    def _with(self, more: Declarations) -> Declarations:
        base = self._staging.view.base.declared
        return declarations.changed(more, declarations.changed(self._staging.declared, base))
