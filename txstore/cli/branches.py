"""`txstore branch` and `txstore tag`: list, create, delete, rename; and the graph of `txstore log --graph`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from txstore.cli.options import (
    BranchArgument,
    BranchOption,
    JsonOption,
    NewestArgument,
    NewNameArgument,
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

if TYPE_CHECKING:
    from txstore.commit import Commit


branches_app = typer.Typer(help="List, create, rename and delete branches.", no_args_is_help=True, cls=Commands)

NewBranchArgument = Annotated[str, typer.Argument(metavar="BRANCH", help="Name of the new branch.", show_default=False)]


@branches_app.command("list")
@reporting_errors
def list_branches(path: PathArgument, storage_options: StorageOption = None, as_json: JsonOption = False) -> None:
    """List the branches, with the newest commit of each."""
    print_named("branch", dict(open_repository(path, storage_options).branches), as_json=as_json)


@branches_app.command("create")
@reporting_errors
def create_branch(
    path: PathArgument,
    name: NewBranchArgument,
    at: NewestArgument = None,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a branch that starts at a commit."""
    repo = open_repository(path, storage_options)
    repo.branches[name] = commit = commit_or_newest(repo, at, branch)
    print_outcome(
        {"branch": name, "commit": commit_as_dict(commit)}, f"branch {name} starts at {commit}", as_json=as_json
    )


@branches_app.command("delete")
@reporting_errors
def delete_branch(
    path: PathArgument, name: BranchArgument, storage_options: StorageOption = None, as_json: JsonOption = False
) -> None:
    """Delete a branch. The next vacuum deletes the files that only this branch needs."""
    branches = open_repository(path, storage_options).branches
    commit = _existing(branches.get(name), name)
    del branches[name]
    print_outcome(
        {"branch": name, "commit": commit_as_dict(commit)},
        f"branch {name} is deleted; it was at {commit} ({commit.id})",
        as_json=as_json,
    )


@branches_app.command()
@reporting_errors
def rename(
    path: PathArgument,
    name: BranchArgument,
    new: NewNameArgument,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rename a branch. Its readers and writers continue to work."""
    branches = open_repository(path, storage_options).branches
    _existing(branches.get(name), name)
    branches.rename(name, new)
    print_outcome({"branch": new}, f"branch {name} is now called {new}", as_json=as_json)


def _existing(commit: Commit | None, name: str) -> Commit:
    if commit is None:
        raise ValueError(f"there is no branch {name!r}: see `txstore branch list`")
    return commit


# --- the graph


def newest_first(lines: Iterable[Iterable[Commit]]) -> list[Commit]:
    """Return the commits of several branches, each once, newest first, and always before its parents."""
    found: dict[str, Commit] = {}
    for line in lines:
        for commit in line:
            if commit.id in found:
                break  # its ancestors were seen too
            found[commit.id] = commit
    # A parent is older than its child and has a smaller seq; a merge is usually younger than the commits it merged.
    return sorted(found.values(), key=lambda commit: (commit.time, commit.seq), reverse=True)


def draw(commits: Sequence[Commit]) -> Iterator[tuple[str, Commit | None]]:
    """Yield the lines of a graph, with one lane for each line of commits that continues below.

    Each comes with the commit that it shows; None if it shows only lanes.
    """
    lanes: list[str] = []  # the id of the next commit in each lane
    there = {commit.id for commit in commits}
    for commit in commits:
        if commit.id not in lanes:
            lanes.append(commit.id)
        at = lanes.index(commit.id)
        while (other := next((i for i in range(len(lanes) - 1, at, -1) if lanes[i] == commit.id), None)) is not None:
            # Two lanes lead to this commit: the right one ends here.
            between = "_" if other > at + 1 else ""
            drawn = "| " * at + "|" + (between * 2 * (other - at - 1)) + "/ " + "| " * (len(lanes) - other - 1)
            yield drawn.rstrip(), None
            del lanes[other]
        yield " ".join("*" if i == at else "|" for i in range(len(lanes))), commit
        parents = [parent for parent in (commit.parent, commit.merged) if parent is not None and parent in there]
        lanes[at : at + 1] = parents[:1]
        if len(parents) > 1 and parents[1] not in lanes:
            lanes.insert(at + 1, parents[1])
            yield ("| " * at + "|\\ " + "| " * (len(lanes) - at - 2)).rstrip(), None


tags_app = typer.Typer(help="Name commits, so that a vacuum keeps them.", no_args_is_help=True, cls=Commands)

NewTagArgument = Annotated[str, typer.Argument(metavar="TAG", help="Name of the new tag.", show_default=False)]


@tags_app.command("list")
@reporting_errors
def list_tags(path: PathArgument, storage_options: StorageOption = None, as_json: JsonOption = False) -> None:
    """List the tags, with the commit of each."""
    print_named("tag", dict(open_repository(path, storage_options).tags), as_json=as_json)


@tags_app.command("create")
@reporting_errors
def create_tag(
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


@tags_app.command("delete")
@reporting_errors
def delete_tag(
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
