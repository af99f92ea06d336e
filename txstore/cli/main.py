"""The command line: each command parses its arguments, asks the repository, and prints; `--json` for scripts.

Exit status: 0 success; 1 the answer is bad (faults or damage, a conflict, a torn read in the demo); 2 there is no
answer: wrong usage, no such repository or commit, no access.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import txstore
from txstore.cli import (  # noqa: F401 - those unused here add commands of their own to `app`
    branches,
    feeds,
    import_export,
    maintenance,
    nodes,
    serve,
    transactions,
    views,
)
from txstore.cli.options import (
    AtOption,
    BranchOption,
    JsonOption,
    LimitOption,
    NewestArgument,
    commit_or_newest,
    find_commit,
)
from txstore.cli.output import (
    app,
    command,
    commit_as_dict,
    local_time,
    names_of_commits,
    print_json,
    print_pairs,
    print_table,
    tell,
)
from txstore.errors import SnapshotExpiredError
from txstore.format.display import readable_size
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.commit import Commit
    from txstore.format.constraints import Constraint
    from txstore.history.operations import LoggedOperation
    from txstore.repository import Repository

__all__ = ["app"]

app.add_typer(transactions.app, name="tx")
app.add_typer(branches.branches_app, name="branch")
app.add_typer(branches.tags_app, name="tag")
app.add_typer(views.app, name="views")
app.add_typer(feeds.app, name="feed")


def _version(wanted: bool) -> None:
    if wanted:
        tell(f"txstore {txstore.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# --- commands


@command(app)
def demo(
    seconds: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long each of the four runs lasts.")
    ] = 4.0,
    directory: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Directory for the scratch data.", show_default="the system's"),
    ] = None,
    picture: Annotated[Path, typer.Option(metavar="PATH", help="PNG, PDF or SVG file to write.")] = Path("demo.png"),
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Draw no picture.")] = False,
    keep: Annotated[
        Path,
        typer.Option(
            metavar="PATH", help="Keep the repository of the demo here, unless something exists at this path."
        ),
    ] = Path("demo.tx"),
    as_json: JsonOption = False,
) -> None:
    """Let one process write while another reads, on plain Zarr and on TxStore, and count torn reads."""
    from rich.console import Console

    from txstore.cli.demo import run

    report = run(seconds, directory, None if no_picture else picture, Console(stderr=as_json), keep)
    if as_json:
        print_json(report)
    if not report["ok"]:
        raise typer.Exit(1)


@command(app)
def log(
    repo: Repository,
    limit: LimitOption = None,
    node: Annotated[
        str | None,
        typer.Option(
            "--path", metavar="NODE", help="Only commits that changed this array or group.", show_default=False
        ),
    ] = None,
    branch: BranchOption = MAIN,
    graph: Annotated[bool, typer.Option("--graph", help="Draw all branches and where they started.")] = False,
    operations: Annotated[
        bool,
        typer.Option(
            "--operations",
            help="List what was done beside commits instead: maintenance, and changes of branches and tags.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the commits, newest first, with the branches whose head they are, and their tags."""
    if operations:
        if graph or node is not None or branch != MAIN:
            raise ValueError("--operations lists those of the whole repository: leave out --graph, --path and --branch")
        found = repo.log(operations=True, limit=limit)
        if as_json:
            print_json([each.as_dict() for each in found])
        else:
            print_table(["time", "by?", "operation", "on~", "result~"], map(_operation_row, found))
        return
    if graph:
        lines = [repo.log(each, path=node) for each in dict.fromkeys([branch, *repo.branches])]
        commits = branches.newest_first(lines)[:limit]
    else:
        commits = list(repo.log(branch=branch, limit=limit, path=node))
    called = names_of_commits(repo)
    if as_json:
        print_json([commit_as_dict(commit) | {"names": called.get(commit.id, [])} for commit in commits])
    elif graph:
        for drawn, commit in branches.draw(commits):
            tell(drawn if commit is None else f"{drawn} {_commit_line(commit, called)}")
    else:
        rows = (_commit_row(commit, called, branch) for commit in commits)
        print_table(["version>", "id", "time", "author?", "keys>", "size>", "message~"], rows)


@command(app)
def show(
    repo: Repository,
    commit: NewestArgument = None,
    branch: BranchOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Show one commit and what it changed."""
    found = commit_or_newest(repo, commit, branch)
    told = commit_as_dict(found)
    try:
        changes = repo.diff(found)
    except SnapshotExpiredError:  # its parent is not kept: nothing to compare with
        changes = None
    if as_json:
        print_json(told | {"changes": None if changes is None else changes.as_dict()["nodes"]})
        return
    told["time"] = local_time(found.time, seconds=True)
    print_pairs(_pairs(told))
    tell()
    for line in (
        ["its changes are not known: its parent is no longer kept"] if changes is None else str(changes).splitlines()
    ):
        tell(line)


@command(app)
def constraints(
    repo: Repository,
    at: AtOption = None,
    branch: BranchOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """List the constraints that every commit must satisfy."""
    from txstore.history.declarations import encode_constraint

    declared = repo.mapping(None if at is None else find_commit(repo, at, branch), branch=branch).constraints
    if as_json:
        print_json({name: encode_constraint(each) for name, each in sorted(declared.items())})
        return
    print_table(["name~", "kind", "what~"], [_constraint_row(*each) for each in sorted(declared.items())])


# --- printing


def _commit_row(commit: Commit, called: Mapping[str, list[str]], branch: str) -> tuple[str, ...]:
    statistics = commit.statistics
    deleted = statistics["keys_deleted"] + statistics["prefixes_deleted"]
    return (
        f"{commit.version}" if commit.branch == branch else str(commit),
        commit.id[:12],
        local_time(commit.time),
        commit.author,
        f"+{statistics['keys_set']:,}" + (f" -{deleted:,}" if deleted else ""),
        readable_size(statistics["bytes_set"]),
        _titled(commit, called),
    )


def _commit_line(commit: Commit, called: Mapping[str, list[str]]) -> str:
    return f"{commit} {commit.id[:12]} {local_time(commit.time)} {_titled(commit, called)}"


def _operation_row(operation: LoggedOperation) -> tuple[str, ...]:
    about = (
        ", ".join(map(str, value)) if isinstance(value, list) else str(value) for value in operation.arguments.values()
    )
    return (local_time(operation.time), operation.by, operation.operation, " ".join(about), operation.outcome)


def _titled(commit: Commit, called: Mapping[str, list[str]]) -> str:
    title = commit.message.partition("\n")[0]
    return f"({', '.join(called[commit.id])}) {title}" if commit.id in called else title


def _constraint_row(name: str, constraint: Constraint) -> tuple[str, ...]:
    return (
        name,
        constraint.kind,
        "; ".join(f"{field}: {json.dumps(content)}" for field, content in constraint.as_dict().items()),
    )


def _pairs(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in told.items():
        if isinstance(value, Mapping):
            for inner, content in value.items():
                yield f"{name}.{inner}", f"{content:,}" if name == "statistics" else json.dumps(content)
        else:
            yield name, "-" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(app())
