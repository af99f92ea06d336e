"""Makes the cursors of a transaction, or of a commit, a mapping. A cursor says how far a feed has come. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from txstore.format.cursors import check_cursor_name


@dataclass(frozen=True, repr=False, eq=False)
class Cursors(MutableMapping[str, Mapping[str, Any]]):
    """Cursors by their names: JSON objects. A commit moves the names that you set, and drops those that you delete.

    Two transactions that set one name conflict, unless they set it to equal objects. So does one that sets a name to
    what its base has there, if another commit has changed it. `move` sets one, or drops it if it is given None.
    """

    _read: Callable[[], Mapping[str, Any]]
    move: Callable[[str, Mapping[str, Any] | None], None]

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._read()[name]
        return found

    def __setitem__(self, name: str, cursor: Mapping[str, Any]) -> None:
        check_cursor_name(name)
        self.move(name, cursor)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self.move(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._read()))

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return f"<Cursors {', '.join(self)}>"
