"""`diff` and `blame`: what has changed, and who has changed it."""

from __future__ import annotations

from typing import Annotated

import typer

from txstore.cli.output import (
    JsonOption,
    PathArgument,
    StorageOption,
    find_commit,
    local_time,
    open_repository,
    print_json,
    print_table,
    reporting_errors,
    tell,
)
from txstore.errors import CommitNotFoundError

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
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what differs between two commits: arrays and groups, attributes, regions of elements."""
    repo = open_repository(path, storage_options)
    first = repo.head() if a is None else find_commit(repo, a)
    if first is None:
        raise CommitNotFoundError(repo.url, hint="nothing was committed yet")
    found = repo.diff(first, None if b is None else find_commit(repo, b), three_dot=three_dot)
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
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell which commits have written the chunks and documents of an array or group."""
    repo = open_repository(path, storage_options)
    found = repo.blame(node, None if at is None else find_commit(repo, at))
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


def register(app: typer.Typer) -> None:
    app.command()(diff)
    app.command()(blame)
