"""`txstore tag`: list, create, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from txstore.cli.output import (
    BranchOption,
    Commands,
    JsonOption,
    PathArgument,
    StorageOption,
    commit_as_dict,
    find_commit,
    local_time,
    open_repository,
    print_json,
    print_table,
    reporting_errors,
    tell,
)
from txstore.errors import CommitNotFoundError
from txstore.history.commit import MAIN

app = typer.Typer(help="Give commits names, which a vacuum then keeps.", no_args_is_help=True, cls=Commands)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The tag.", show_default=False)]


@app.command("list")
@reporting_errors
def list_tags(path: PathArgument, storage_options: StorageOption = None, as_json: JsonOption = False) -> None:
    """List the tags, with the commit of each."""
    found = dict(open_repository(path, storage_options).tags)
    if as_json:
        print_json({name: commit_as_dict(commit) for name, commit in found.items()})
        return
    rows = (
        (name, str(commit), commit.id[:12], local_time(commit.time), commit.message.partition("\n")[0])
        for name, commit in found.items()
    )
    print_table(["tag", "commit", "id", "time", "message~"], rows)


@app.command()
@reporting_errors
def create(
    path: PathArgument,
    name: NameArgument,
    at: Annotated[
        str | None,
        typer.Argument(
            metavar="[COMMIT]",
            help="A slot, an id, a tag, a date or a branch. [default: the newest of the branch]",
            show_default=False,
        ),
    ] = None,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tag a commit. A tag is never moved."""
    repo = open_repository(path, storage_options)
    tags = repo.tags
    commit = repo.head(branch) if at is None else find_commit(repo, at, branch)
    if commit is None:
        raise CommitNotFoundError(repo.url, hint="nothing was committed yet")
    tags[name] = commit
    _tell(as_json, {"tag": name, "commit": commit_as_dict(commit)}, f"{name} is {commit} ({commit.id})")


@app.command()
@reporting_errors
def delete(
    path: PathArgument, name: NameArgument, storage_options: StorageOption = None, as_json: JsonOption = False
) -> None:
    """Delete a tag. Its commit stays for as long as `vacuum` keeps it."""
    tags = open_repository(path, storage_options).tags
    try:
        commit = tags[name]
    except KeyError:
        raise ValueError(f"there is no tag {name!r}: see `txstore tag list`") from None
    del tags[name]
    _tell(
        as_json,
        {"tag": name, "commit": commit_as_dict(commit)},
        f"tag {name} is deleted; it was {commit} ({commit.id})",
    )


def _tell(as_json: bool, told: dict[str, object], text: str) -> None:
    if as_json:
        print_json(told)
    else:
        tell(text)
