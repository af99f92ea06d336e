"""`diff`, `blame`, `mv`, `cp`, `restore`: show what commits changed, and change it without copying values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from txstore.cli.options import (
    AtOption,
    BranchOption,
    JsonOption,
    MessageOption,
    NeededAtOption,
    NewArgument,
    NewestArgument,
    NodeArgument,
    OtherArgument,
    PathArgument,
    StorageOption,
    TargetOption,
    commit_or_newest,
    find_commit,
    open_repository,
)
from txstore.cli.output import (
    commit_as_dict,
    local_time,
    print_json,
    print_outcome,
    print_table,
    reporting_errors,
    tell,
)
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.repository import Repository
    from txstore.transactions.transaction import Transaction


@reporting_errors
def diff(
    path: PathArgument,
    a: NewestArgument = None,
    b: OtherArgument = None,
    three_dot: Annotated[
        bool, typer.Option("--three-dot", help="Show what the second commit changed since the two diverged.")
    ] = False,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how two commits, or a commit and its parent, differ: nodes, attributes, regions of elements."""
    repo = open_repository(path, storage_options)
    first = commit_or_newest(repo, a, branch)
    found = repo.diff(first, None if b is None else find_commit(repo, b, branch), three_dot=three_dot)
    if as_json:
        print_json(found.as_dict())
        return
    for line in str(found).splitlines():
        tell(line)


@reporting_errors
def blame(
    path: PathArgument,
    node: NodeArgument,
    at: AtOption = None,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which commits wrote the chunks and metadata documents of an array or group."""
    repo = open_repository(path, storage_options)
    found = repo.blame(node, None if at is None else find_commit(repo, at, branch), branch=branch)
    if as_json:
        print_json(found.as_dict(), indent=None)
        return
    rows = [
        (
            "-" if commit is None else str(commit),
            "-" if commit is None else commit.id[:12],
            "-" if commit is None else local_time(commit.time),
            f"{chunks:,}",
            ", ".join(documents),
            "no longer kept" if commit is None else commit.message.partition("\n")[0],
        )
        for commit, chunks, documents in found.rows()
    ]
    print_table(["commit", "id", "time", "chunks>", "documents~", "message~"], rows)


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
    app.command()(diff)
    app.command()(blame)
    app.command()(mv)
    app.command()(cp)
    app.command()(restore)
