"""`txstore branch`: list, create, delete, rename; and the graph of `txstore log --graph`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from txstore.cli.options import (
    BranchArgument,
    BranchOption,
    JsonOption,
    NewestArgument,
    NewNameArgument,
    PathArgument,
    StorageOption,
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

app = typer.Typer(help="List, create, rename and delete branches.", no_args_is_help=True, cls=Commands)

NewBranchArgument = Annotated[str, typer.Argument(metavar="BRANCH", help="Name of the new branch.", show_default=False)]


@app.command("list")
@reporting_errors
def list_branches(path: PathArgument, storage_options: StorageOption = None, as_json: JsonOption = False) -> None:
    """List the branches, with the newest commit of each."""
    print_named("branch", dict(open_repository(path, storage_options).branches), as_json=as_json)


@app.command()
@reporting_errors
def create(
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


@app.command()
@reporting_errors
def delete(
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


@app.command()
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


class Row(NamedTuple):
    """One line of the graph and the commit it shows; None if it shows only lanes."""

    drawn: str
    commit: Commit | None


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


def draw(commits: Sequence[Commit]) -> Iterator[Row]:
    """Yield the lines of a graph, with one lane for each line of commits that continues below."""
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
            yield Row(drawn.rstrip(), None)
            del lanes[other]
        yield Row(" ".join("*" if i == at else "|" for i in range(len(lanes))), commit)
        parents = [parent for parent in (commit.parent, commit.merged) if parent is not None and parent in there]
        lanes[at : at + 1] = parents[:1]
        if len(parents) > 1 and parents[1] not in lanes:
            lanes.insert(at + 1, parents[1])
            yield Row(("| " * at + "|\\ " + "| " * (len(lanes) - at - 2)).rstrip(), None)
