"""`mv`, `cp`, `restore`: move, copy and restore arrays and groups by reference, each in one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from txstore.cli.options import (
    AtOption,
    JsonOption,
    MessageOption,
    NeededAtOption,
    NewArgument,
    NodeArgument,
    PathArgument,
    StorageOption,
    TargetOption,
    find_commit,
    open_repository,
)
from txstore.cli.output import (
    commit_as_dict,
    print_outcome,
    reporting_errors,
)
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.repository import Repository
    from txstore.transactions.transaction import Transaction


@reporting_errors
def mv(
    path: PathArgument,
    node: NodeArgument,
    new: NewArgument,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move an array or group in one commit, without copying its values."""
    told = f"move {node} to {new}"
    _commit(path, storage_options, branch, message, told, lambda _, tx: tx.nodes.move(node, new), as_json)


@reporting_errors
def cp(
    path: PathArgument,
    node: NodeArgument,
    new: NewArgument,
    at: AtOption = None,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy an array or group in one commit, by reference: its values are not copied."""

    def copy(repo: Repository, tx: Transaction) -> None:
        tx.nodes.copy(node, new, None if at is None else repo.mapping(find_commit(repo, at, branch)))

    told = f"copy {node} to {new}" + (f", as at {at}" if at else "")
    _commit(path, storage_options, branch, message, told, copy, as_json)


@reporting_errors
def restore(
    path: PathArgument,
    node: NodeArgument,
    at: NeededAtOption,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore an array or group to its state at a commit. If it did not exist then, it is deleted."""

    def back(repo: Repository, tx: Transaction) -> None:
        tx.nodes.restore(node, repo.mapping(find_commit(repo, at, branch)))

    _commit(path, storage_options, branch, message, f"restore {node}, as at {at}", back, as_json)


def _commit(
    path: str,
    storage_options: str | None,
    branch: str,
    message: str | None,
    told: str,
    change: Callable[[Repository, Transaction], None],
    as_json: bool,
) -> None:
    """Commit a change, if it changes anything, with the user's message or a description of the change."""
    repo = open_repository(path, storage_options)
    with repo.begin(message or told, branch=branch) as transaction:
        transaction.ending.needs_change = not message
        change(repo, transaction)
        made = transaction.commit()
    commit = None if made is None else made.commit
    if commit is None:
        print_outcome(None, "nothing has changed, so there is no commit", as_json=as_json)
    else:
        print_outcome(commit_as_dict(commit), f"{commit} {commit.id[:12]} {commit.message}", as_json=as_json)


def register(app: typer.Typer) -> None:
    app.command()(mv)
    app.command()(cp)
    app.command()(restore)
