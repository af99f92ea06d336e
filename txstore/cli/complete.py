"""Completes names of branches, tags, feeds, transactions and views in the shell, for repositories on this machine.

If the repository can't be read, the shell gets no names, and no error. A completion never asks a server: the Tab key
must not wait for a network, nor need credentials.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from txstore.errors import KeyFormatError, TxStoreError
from txstore.format.keys import check_name
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.repository import Repository

#: `find_commit` takes these for the newest commit of the command's branch.
_HEAD = "HEAD"


def complete_commit(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: [*repo.branches, *repo.tags, _HEAD])


def complete_branch(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: repo.branches)


def complete_tag(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: repo.tags)


def complete_transaction(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: [each.name for each in repo.transactions()])


def complete_view(context: typer.Context, incomplete: str) -> list[str]:
    branch = context.params.get("branch")
    return _names(context, incomplete, lambda repo: repo.snapshot(branch=branch or MAIN).views)


def complete_feed(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: repo.feeds)


def _names(context: typer.Context, incomplete: str, asked: Callable[[Repository], Iterable[str]]) -> list[str]:
    # After an option without its value, click can't tell the arguments apart: one of them is the repository.
    given = context.params.get("path")
    for path in context.args if given is None else [given]:
        if "://" in path:
            continue
        with warnings.catch_warnings(), suppress(TxStoreError, OSError, ValueError, ImportError):
            warnings.simplefilter("ignore")
            from txstore.repository import Repository

            found = asked(Repository(path, create=False))
            return [name for name in found if name.startswith(incomplete) and _is_word(name)]
    return []


def _is_word(name: str) -> bool:
    """Tell whether a name is the same in every shell, quoted or not. No other one may come to a command line."""
    try:
        return check_name("name", name) == name
    except KeyFormatError:
        return False
