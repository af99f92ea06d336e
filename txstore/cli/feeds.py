"""`txstore feed`: lists, creates, resets and deletes feeds, and runs a command for each change of one."""

from __future__ import annotations

import math
import os
import subprocess
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstore.cli.options import (
    JsonOption,
    NewNameArgument,
    PathArgument,
    StorageOption,
    age_of,
    complete_branch,
    complete_commit,
    complete_feed,
    find_commit,
    open_repository,
)
from txstore.cli.output import (
    Commands,
    command,
    json_text,
    local_time,
    print_json,
    print_outcome,
    print_table,
    tell,
)
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.commit import Commit
    from txstore.feeds import Feed, FeedChange, FeedStatus
    from txstore.repository import Repository

app = typer.Typer(
    help="List, create, reset and delete feeds; run a command for each change.", no_args_is_help=True, cls=Commands
)

FeedArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The feed.", show_default=False, autocompletion=complete_feed)
]
KeptOption = Annotated[
    str,
    typer.Option(
        "--branch", metavar="BRANCH", help="The branch that the job commits to.", autocompletion=complete_branch
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="COMMIT",
        help="Begin behind this commit of the branch that it follows.",
        show_default="the newest",
        autocompletion=complete_commit,
    ),
]
BeginningOption = Annotated[bool, typer.Option("--from-beginning", help="Begin with the first commit.")]

#: Seconds after which `watch` lets a feed pass over commits that change nothing it follows.
_PASS_OVER = 60.0


@command(app, "list")
def list_feeds(repo: Repository, branch: KeptOption = MAIN, as_json: JsonOption = False) -> None:
    """List the feeds, and how far each is behind."""
    found = [feed.status() for feed in repo.feeds.on(branch).values()]
    if as_json:
        print_json([each.as_dict() for each in found])
        return
    rows = [(each.name, each.branch, ", ".join(each.paths) or "everything", _told(each)) for each in found]
    print_table(["name~", "follows", "paths~", "state"], rows)


@command(app)
def show(
    repo: Repository,
    name: FeedArgument,
    branch: KeptOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Show a feed: what it follows, where it is, and what is kept for it."""
    status = repo.feeds.on(branch)[name].status()
    if as_json:
        print_json(status.as_dict())
        return
    keep = status.keep
    for field, told in {
        "follows": f"{status.branch}: {', '.join(status.paths) or 'everything'}",
        "is at": "the beginning" if status.commit is None else f"{status.branch}@{status.version} {status.commit}",
        "state": _told(status),
        "kept on": status.kept_on,
        "created": local_time(status.created),
        "keeps": "all" if keep is None else f"{keep:,} commits" if isinstance(keep, int) else str(keep),
    }.items():
        tell(f"{field:10}{told}")


@command(app)
def create(
    repo: Repository,
    name: NewNameArgument,
    follows: Annotated[
        str | None,
        typer.Option(
            "--follows",
            metavar="BRANCH",
            help="The branch to follow.",
            show_default="the one that the job commits to",
            autocompletion=complete_branch,
        ),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option("--path", metavar="NODE", help="Follow only this array or group. Can be repeated."),
    ] = None,
    since: SinceOption = None,
    from_beginning: BeginningOption = False,
    keep: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="A vacuum keeps N commits at most that the feed has not seen."),
    ] = None,
    keep_for: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="It keeps those for so long: 30d, 12h, 90m.",
            show_default="30d, without --keep",
        ),
    ] = None,
    branch: KeptOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Create a feed."""
    if keep is not None and keep_for is not None:
        raise typer.BadParameter("give --keep or --keep-for, not both")
    begin = _beginning(repo, since, follows or branch, from_beginning=from_beginning)
    limit = keep if keep is not None else timedelta(days=30) if keep_for is None else age_of(keep_for)
    feed = repo.feeds.on(branch).create(name, branch=follows, paths=nodes or (), since=begin, keep=limit)
    _print(feed, "is created", as_json=as_json)


@command(app)
def reset(
    repo: Repository,
    name: FeedArgument,
    since: SinceOption = None,
    from_beginning: BeginningOption = False,
    branch: KeptOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Move a feed to another commit, by default to the newest: what comes after it is pending."""
    feed = repo.feeds.on(branch)[name]
    feed.reset(_beginning(repo, since, feed.status().branch, from_beginning=from_beginning))
    _print(feed, "is reset", as_json=as_json)


@command(app)
def delete(
    repo: Repository,
    name: FeedArgument,
    branch: KeptOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Delete a feed. A vacuum no longer keeps anything for it."""
    del repo.feeds.on(branch)[name]
    print_outcome({"feed": name}, f"feed {name} is deleted", as_json=as_json)


@command(app)
def watch(
    path: PathArgument,
    name: FeedArgument,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Run this for each change, with the change as JSON on its standard input, and move the feed if its "
            "status is 0. Its environment has TXSTORE_TOKEN, the same each time for the same change.",
            show_default=False,
        ),
    ] = None,
    combine: Annotated[bool, typer.Option("--combine", help="Take all that is pending as one change.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Stop after this long without a change.", show_default=False),
    ] = None,
    branch: KeptOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print each change, and wait for the next. Only with --exec does this move the feed."""
    feed = open_repository(path, storage_options).feeds.on(branch)[name]
    try:
        if command is None:
            for change in feed.changes(combine=combine, timeout=timeout):
                _print_change(change, as_json=as_json)
            return
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            if not feed.wait(max(0.0, min(until - time.monotonic(), _PASS_OVER)), combine=combine):
                if time.monotonic() >= until:
                    return
                feed.advance()
                continue
            for change in feed.changes(combine=combine):
                _run(command, change, path)
                feed.advance(to=change)
                _print_change(change, as_json=as_json)
            until = math.inf if timeout is None else time.monotonic() + timeout
    except KeyboardInterrupt:
        pass


def _run(command: str, change: FeedChange, path: str) -> None:
    """Run the user's command in a shell. Its output goes to the standard error: JSON lines go to the other one."""
    about = {"TXSTORE_TOKEN": change.token, "TXSTORE_COMMIT": change.commit.id, "TXSTORE_PATH": path}
    done = subprocess.run(
        command,
        shell=True,  # it is the user's own command line
        input=json_text(change.as_dict()),
        text=True,
        env={**os.environ, **about},
        stdout=2,
        check=False,
    )
    if done.returncode:
        raise ValueError(
            f"the command has ended with status {done.returncode}, so the feed stays before {change.commit}: the same "
            "change comes again"
        )


def _print_change(change: FeedChange, *, as_json: bool) -> None:
    if as_json:
        print_json(change.as_dict(), indent=None)
        return
    tell(f"{change.commit}  {change.commit.message}")
    for path in change.erased:
        tell(f"  erased   {path}")
    for path in change.rows_erased:
        tell(f"  rows of {path} were erased")
    for node in change.nodes:
        came = "" if node.moved_from is None else f", from {node.moved_from}"
        count = len(node.regions)
        regions = f", {count:,} region{'' if count == 1 else 's'}" if node.kind == "array" else ""
        tell(f"  {node.change:8} {node.path or '/'}{came}{regions}")


def _beginning(repo: Repository, since: str | None, branch: str, *, from_beginning: bool) -> Commit | int | None:
    if from_beginning and since is not None:
        raise typer.BadParameter("give --since or --from-beginning, not both")
    return -1 if from_beginning else None if since is None else find_commit(repo, since, branch)


def _print(feed: Feed, what: str, *, as_json: bool) -> None:
    status = feed.status()
    told: dict[str, Any] = status.as_dict()
    where = "before the first commit" if status.commit is None else f"at {status.branch}@{status.version}"
    print_outcome(told, f"feed {status.name} {what}: it is {where}", as_json=as_json)


def _told(status: FeedStatus) -> str:
    if status.too_late is not None:
        return f"too late: {status.too_late}"
    if not status.pending:
        return "nothing pending"
    return f"{status.behind:,} commits behind" + (", shared by workers" if status.shared else "")
