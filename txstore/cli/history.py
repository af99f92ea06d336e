"""`diff`: what has changed, and who has changed it."""

from __future__ import annotations

from typing import Annotated

import typer

from txstore.cli.output import (
    JsonOption,
    PathArgument,
    StorageOption,
    find_commit,
    open_repository,
    print_json,
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


def register(app: typer.Typer) -> None:
    app.command()(diff)
