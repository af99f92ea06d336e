"""`diff`, `blame`: show what commits changed, and which commits wrote what is there."""

from __future__ import annotations

from typing import Annotated

import typer

from txstore.cli.options import (
    AtOption,
    BranchOption,
    JsonOption,
    NewestArgument,
    NodeArgument,
    OtherArgument,
    PathArgument,
    StorageOption,
    commit_or_newest,
    find_commit,
    open_repository,
)
from txstore.cli.output import (
    local_time,
    print_json,
    print_table,
    reporting_errors,
    tell,
)
from txstore.format.names import MAIN


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


def register(app: typer.Typer) -> None:
    app.command()(diff)
    app.command()(blame)
