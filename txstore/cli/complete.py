"""What the shell completes: names of branches, tags and transactions, of a repository on this machine.

Whatever is wrong with the repository, the shell is told of no names, and of nothing else. Nothing is asked of a server:
a key that is pressed in a shell must not wait, and needs no credentials.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from txstore.errors import TxStoreError

if TYPE_CHECKING:
    from txstore.repository import Repository

#: What `find_commit` takes for the newest commit of the branch that a command is about.
_HEAD = "HEAD"


def complete_commit(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: [*repo.branches, *repo.tags, _HEAD])


def complete_branch(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: repo.branches)


def complete_tag(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: repo.tags)


def complete_transaction(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: [each.name for each in repo.transactions()])


def _names(context: typer.Context, incomplete: str, asked: Callable[[Repository], Iterable[str]]) -> list[str]:
    # Behind an option that still lacks its value, the arguments are not told apart: one of them is the repository.
    given = context.params.get("path")
    for path in context.args if given is None else [given]:
        if "://" in path:
            continue
        with warnings.catch_warnings(), suppress(TxStoreError, OSError, ValueError, ImportError):
            warnings.simplefilter("ignore")
            from txstore.repository import Repository

            return [name for name in asked(Repository(path, create=False)) if name.startswith(incomplete)]
    return []
