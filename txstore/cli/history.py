"""`diff`, `blame`, `mv`, `cp`, `restore`: what has changed, who has changed it, and changing it without copying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from txstore.cli.output import (
    BranchOption,
    JsonOption,
    PathArgument,
    StorageOption,
    commit_as_dict,
    commit_or_newest,
    find_commit,
    local_time,
    open_repository,
    print_json,
    print_outcome,
    print_table,
    reporting_errors,
    tell,
)
from txstore.errors import CommitNotFoundError
from txstore.history.commit import MAIN
from txstore.repository import Repository
from txstore.transactions.transaction import Transaction

_COMMIT = "A slot, an id or its first digits, or a tag."


@reporting_errors
def diff(
    path: PathArgument,
    a: Annotated[
        str | None,
        typer.Argument(
            metavar="[A]", help=f"{_COMMIT} Alone: against its parent. [default: the newest]", show_default=False
        ),
    ] = None,
    b: Annotated[str | None, typer.Argument(metavar="[B]", help="What to compare A with.", show_default=False)] = None,
    three_dot: Annotated[
        bool, typer.Option("--three-dot", help="What B has changed since both had the same history.")
    ] = False,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what differs between two commits: arrays and groups, attributes, regions of elements."""
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
    node: Annotated[str, typer.Argument(metavar="NODE", help="The array or group.", show_default=False)],
    at: Annotated[str | None, typer.Option(metavar="COMMIT", help="As of this commit instead of the newest.")] = None,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell which commits have written the chunks and documents of an array or group."""
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
            "not kept any more" if commit is None else commit.message.partition("\n")[0],
        )
        for commit, chunks, documents in found.rows()
    ]
    print_table(["commit", "id", "time", "chunks>", "documents~", "message~"], rows)


MessageOption = Annotated[
    str | None, typer.Option("--message", "-m", help="What the log says of it.", show_default=False)
]
TargetOption = Annotated[str, typer.Option("--branch", metavar="NAME", help="The branch to commit to.")]
_Source = Annotated[str, typer.Argument(metavar="SOURCE", help="The array or group.", show_default=False)]
_Destination = Annotated[str, typer.Argument(metavar="DESTINATION", help="Its new path.", show_default=False)]


@reporting_errors
def mv(
    path: PathArgument,
    source: _Source,
    destination: _Destination,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move an array or group, without copying values, in a commit of its own."""
    told = message or f"move {source} to {destination}"
    _commit(path, storage_options, branch, told, lambda _, tx: tx.move(source, destination), as_json)


@reporting_errors
def cp(
    path: PathArgument,
    source: _Source,
    destination: _Destination,
    at: Annotated[str | None, typer.Option(metavar="COMMIT", help="As it was at this commit.")] = None,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy an array or group, without copying values, in a commit of its own."""

    def copy(repo: Repository, tx: Transaction) -> None:
        tx.copy(source, destination, None if at is None else repo.mapping(find_commit(repo, at, branch)))

    told = message or f"copy {source} to {destination}" + (f", as at {at}" if at else "")
    _commit(path, storage_options, branch, told, copy, as_json)


@reporting_errors
def restore(
    path: PathArgument,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The array or group.", show_default=False)],
    at: Annotated[str, typer.Option(metavar="COMMIT", help="Make it what it was at this commit.", show_default=False)],
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an array or group what it was at a commit, or delete it, if it was not there; in a commit of its own."""

    def back(repo: Repository, tx: Transaction) -> None:
        tx.restore(node, repo.mapping(find_commit(repo, at, branch)))

    _commit(path, storage_options, branch, message or f"restore {node}, as at {at}", back, as_json)


def _commit(
    path: str,
    storage_options: str | None,
    branch: str,
    message: str,
    change: Callable[[Repository, Transaction], None],
    as_json: bool,
) -> None:
    repo = open_repository(path, storage_options)
    with repo.begin(message, branch=branch) as transaction:
        change(repo, transaction)
        commit = transaction.commit().commit
    if commit is None:
        raise CommitNotFoundError(repo.url, hint="there was nothing to commit")
    print_outcome(commit_as_dict(commit), f"{commit} {commit.id[:12]} {message}", as_json=as_json)


def register(app: typer.Typer) -> None:
    app.command()(diff)
    app.command()(blame)
    app.command()(mv)
    app.command()(cp)
    app.command()(restore)
