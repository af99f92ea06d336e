"""Makes the cursors of a transaction, or of a commit, a mapping. A cursor says how far a feed has come. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txstore.format.cursors import check_cursor_name
from txstore.history.declarations import DeclaredByName


class Cursors(DeclaredByName[Mapping[str, Any]]):
    """Cursors by their names: JSON objects. A commit moves the names that you set, and drops those that you delete.

    Two transactions that set one name conflict, unless they set it to equal objects. So does one that sets a name to
    what its base has there, if another commit has changed it. `declare` sets one, or drops it if it is given None.
    """

    def _check(self, name: str, value: Mapping[str, Any]) -> None:
        check_cursor_name(name)

    def __repr__(self) -> str:
        return f"<Cursors {', '.join(self)}>"
