"""Offers the views of a transaction, and of a repository, as mappings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from txstore.commit import Commit
from txstore.deriving.definitions import ViewDefinition
from txstore.format.keys import check_name
from txstore.views.following import DeclaredView
from txstore.views.interface import ViewRepository


@dataclass(frozen=True, repr=False, eq=False)
class Views(MutableMapping[str, ViewDefinition]):
    """Views by their names. Setting a name makes the outputs and declares the view; deleting it drops the view alone.

    `declare` declares a view, or drops it if it is given None.
    """

    _read: Callable[[], Mapping[str, ViewDefinition]]
    declare: Callable[[str, ViewDefinition | None], None]
    #: Says that the outputs of a view are, after this transaction, what it makes of its sources at a commit.
    bring_to: Callable[[str, Commit], None]

    def __getitem__(self, name: str) -> ViewDefinition:
        return self._read()[name]

    def __setitem__(self, name: str, view: ViewDefinition) -> None:
        check_view(name, view)
        self.declare(name, view)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self.declare(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._read()))

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return f"<Views {dict(self)}>"


@dataclass(frozen=True, repr=False, eq=False)
class RepositoryViews(MutableMapping[str, Any]):
    """The views of a repository. What is read is a `DeclaredView`, what is set is a `ViewDefinition`."""

    _repo: ViewRepository
    _read: Callable[[], Mapping[str, ViewDefinition]]
    _declare: Callable[[str, ViewDefinition | None], None]

    def __getitem__(self, name: str) -> DeclaredView:
        return DeclaredView(name, self._read()[name], self._repo)

    def __setitem__(self, name: str, view: ViewDefinition) -> None:
        check_view(name, view)
        self._declare(name, view)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._declare(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._read()))

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return f"<Views {dict(self)}>"


def check_view(name: str, view: ViewDefinition) -> None:
    """Raise `TypeError` or `ValueError` unless this is a view and the name one that it may have."""
    check_name("view", name)
    if not isinstance(view, ViewDefinition):
        raise TypeError(f"{view!r} is no view: use a class of txstore.views")
