"""`merge`, `cherry-pick`, `revert`: changes of other commits, put together with what a branch has become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from txstore.cli.history import MessageOption, TargetOption
from txstore.cli.output import (
    JsonOption,
    PathArgument,
    StorageOption,
    commit_as_dict,
    find_commit,
    open_repository,
    print_json,
    print_table,
    reporting_errors,
    tell,
)
from txstore.errors import MergeConflictError
from txstore.history.commit import MAIN, Commit
from txstore.merging.conflicts import KINDS, SIDES, Answer, Conflict
from txstore.merging.three_way import Plan
from txstore.repository import Repository

_CommitArgument = Annotated[
    str,
    typer.Argument(metavar="COMMIT", help="A slot, an id or its first digits, a tag, a date.", show_default=False),
]
_ResolveOption = Annotated[
    list[str] | None,
    typer.Option(
        "--resolve",
        metavar="NODE=SIDE",
        help="What to do about conflicts at and below this path: 'ours' or 'theirs'. '=theirs' is for all. Can be "
        "repeated.",
        show_default=False,
    ),
]
_AppendOption = Annotated[
    str | None,
    typer.Option(metavar="HOW", help="'concatenate': put rows that both have appended one behind the other."),
]
_DryOption = Annotated[bool, typer.Option("--dry-run", help="Tell what would be done, and change nothing.")]


@reporting_errors
def merge(
    path: PathArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The branch to be merged.", show_default=False)],
    into: Annotated[str, typer.Option(metavar="NAME", help="The branch to commit to.")] = MAIN,
    resolve: _ResolveOption = None,
    append: _AppendOption = None,
    dry_run: _DryOption = False,
    message: MessageOption = None,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge a branch into another one. Conflicts are listed; then nothing is changed, and the exit status is 1."""
    repo, answers = open_repository(path, storage_options), _answers(resolve)
    _report(
        repo,
        into,
        lambda: repo.merge(source, into, resolve=answers, append=append, dry_run=dry_run, message=message),
        as_json,
    )


@reporting_errors
def cherry_pick(
    path: PathArgument,
    commit: _CommitArgument,
    branch: TargetOption = MAIN,
    resolve: _ResolveOption = None,
    append: _AppendOption = None,
    dry_run: _DryOption = False,
    message: MessageOption = None,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the changes of one commit once more, on a branch. Conflicts are as those of `merge`."""
    repo, answers = open_repository(path, storage_options), _answers(resolve)
    found = find_commit(repo, commit, branch)
    _report(
        repo,
        branch,
        lambda: repo.cherry_pick(found, branch, resolve=answers, append=append, dry_run=dry_run, message=message),
        as_json,
    )


@reporting_errors
def revert(
    path: PathArgument,
    commit: _CommitArgument,
    branch: TargetOption = MAIN,
    resolve: _ResolveOption = None,
    dry_run: _DryOption = False,
    message: MessageOption = None,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo the changes of one commit, in a new one. Conflicts are as those of `merge`."""
    repo, answers = open_repository(path, storage_options), _answers(resolve)
    found = find_commit(repo, commit, branch)
    _report(
        repo, branch, lambda: repo.revert(found, branch, resolve=answers, dry_run=dry_run, message=message), as_json
    )


def _answers(resolve: Sequence[str] | None) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for each in resolve or ():
        node, equals, side = each.rpartition("=")
        if not equals or side not in SIDES:
            raise typer.BadParameter(f"--resolve takes NODE=ours or NODE=theirs, not {each!r}")
        answers[node] = side
    return answers


def _report(repo: Repository, branch: str, change: Callable[[], Commit | Plan], as_json: bool) -> None:
    before = repo.head(branch)
    try:
        made: Commit | Plan | None = change()
        conflicts = made.conflicts if isinstance(made, Plan) else []
    except MergeConflictError as error:
        made, conflicts = None, [each for each in error.conflicts if isinstance(each, Conflict)]
    if as_json:
        commit = made if isinstance(made, Commit) else None
        print_json(
            {
                "commit": None if commit is None else commit_as_dict(commit),
                "is_new": commit is not None and commit != before,
                "plan": made.as_dict() if isinstance(made, Plan) else None,
                "conflicts": [each.as_dict() for each in conflicts],
            }
        )
    else:
        if isinstance(made, Plan):
            tell(f"would be done to {branch}: {made}")
        elif made is not None and made == before:
            tell(f"nothing to do: {branch} has it all, at {made}")
        elif made is not None:
            tell(f"{made} {made.id[:12]} {made.message}")
        if conflicts:
            rows = ((each.path or "/", each.place, each.kind, KINDS[each.kind]) for each in conflicts)
            print_table(["path~", "where~", "conflict", "what~"], rows)
            tell()
            tell(
                f"txstore: {len(conflicts)} conflicts; nothing was changed. Say whose to take, by path: "
                "--resolve NODE=ours or NODE=theirs",
                err=True,
            )
    if conflicts:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    app.command()(merge)
    app.command("cherry-pick")(cherry_pick)
    app.command()(revert)
