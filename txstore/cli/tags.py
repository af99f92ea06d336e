"""`txstore tag`: list, create and delete tags."""

from __future__ import annotations

from typing import Annotated

import typer

from txstore.cli.options import (
    BranchOption,
    JsonOption,
    NewestArgument,
    PathArgument,
    StorageOption,
    TagArgument,
    commit_or_newest,
    open_repository,
)
from txstore.cli.output import (
    Commands,
    commit_as_dict,
    print_named,
    print_outcome,
    reporting_errors,
)
from txstore.format.names import MAIN

app = typer.Typer(help="Name commits, so that a vacuum keeps them.", no_args_is_help=True, cls=Commands)

NewTagArgument = Annotated[str, typer.Argument(metavar="TAG", help="Name of the new tag.", show_default=False)]


@app.command("list")
@reporting_errors
def list_tags(path: PathArgument, storage_options: StorageOption = None, as_json: JsonOption = False) -> None:
    """List the tags, with the commit of each."""
    print_named("tag", dict(open_repository(path, storage_options).tags), as_json=as_json)


@app.command()
@reporting_errors
def create(
    path: PathArgument,
    name: NewTagArgument,
    at: NewestArgument = None,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tag a commit. A tag is never moved."""
    repo = open_repository(path, storage_options)
    tags = repo.tags
    tags[name] = commit = commit_or_newest(repo, at, branch)
    print_outcome({"tag": name, "commit": commit_as_dict(commit)}, f"{name} is {commit} ({commit.id})", as_json=as_json)


@app.command()
@reporting_errors
def delete(
    path: PathArgument, name: TagArgument, storage_options: StorageOption = None, as_json: JsonOption = False
) -> None:
    """Delete a tag. Its commit stays until a vacuum expires it."""
    tags = open_repository(path, storage_options).tags
    try:
        commit = tags[name]
    except KeyError:
        raise ValueError(f"there is no tag {name!r}: see `txstore tag list`") from None
    del tags[name]
    print_outcome(
        {"tag": name, "commit": commit_as_dict(commit)},
        f"tag {name} is deleted; it was {commit} ({commit.id})",
        as_json=as_json,
    )
