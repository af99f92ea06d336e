"""Offers the views of a transaction, and of a repository, as mappings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from txstore.commit import Commit
from txstore.deriving.declared import Backfill
from txstore.deriving.definitions import ViewDefinition
from txstore.format.keys import check_name
from txstore.history.declarations import DeclaredByName


@dataclass(frozen=True, repr=False, eq=False)
class Views(DeclaredByName[ViewDefinition]):
    """Views by their names. Setting a name makes the outputs and declares the view; deleting it drops the view alone.

    `declare` declares a view, or drops it if it is given None.
    """

    #: Says that the outputs of a view are, after this transaction, what it makes of its sources at a commit, or a part.
    bring_to: Callable[[str, Commit | Backfill], None]

    def _check(self, name: str, value: ViewDefinition) -> None:
        check_view(name, value)


class RepositoryViews(DeclaredByName[Any]):
    """The views of a repository. What is read is a `DeclaredView`, what is set is a `ViewDefinition`."""

    def _check(self, name: str, value: Any) -> None:
        check_view(name, value)

    def __repr__(self) -> str:
        return f"<Views {dict(self)}>"


def check_view(name: str, view: Any) -> None:
    """Raise `TypeError` or `ValueError` unless this is a view and the name one that it may have."""
    check_name("view", name)
    if not isinstance(view, ViewDefinition):
        raise TypeError(f"{view!r} is no view: use a class of txstore.views")
