"""`merge`, `cherry-pick`, `revert`: apply changes of other commits to the head of a branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from txstore.cli.options import (
    BranchArgument,
    CommitArgument,
    DryOption,
    JsonOption,
    MessageOption,
    PathArgument,
    StorageOption,
    TargetOption,
    find_commit,
    one_of,
    open_repository,
)
from txstore.cli.output import (
    commit_as_dict,
    print_json,
    print_table,
    reporting_errors,
    tell,
)
from txstore.errors import CUT, MergeConflictError
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.commit import Commit
    from txstore.merging.merge_conflicts import Answer
    from txstore.merging.three_way import MergePlan
    from txstore.repository import Repository

_ResolveOption = Annotated[
    list[str] | None,
    typer.Option(
        "--resolve",
        metavar="NODE=SIDE",
        help="Take this side in conflicts at and below this path: 'ours' or 'theirs'. '=theirs' is for all paths. "
        "Can be repeated.",
        show_default=False,
    ),
]
_AppendOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="'concatenate': if both sides appended rows, put theirs after ours.",
        show_default=False,
    ),
]


@reporting_errors
def merge(
    path: PathArgument,
    source: BranchArgument,
    branch: TargetOption = MAIN,
    resolve: _ResolveOption = None,
    append: _AppendOption = None,
    dry_run: DryOption = False,
    message: MessageOption = None,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge a branch into that of --branch. On conflicts, list them, change nothing, and exit with status 1."""
    how, answers = _append(append), _answers(resolve)
    repo = open_repository(path, storage_options)
    _report(
        repo,
        branch,
        lambda: repo.merge(
            source, branch, resolve=answers, append=how, dry_run=dry_run, message=message, progress=True
        ),
        as_json,
    )


@reporting_errors
def cherry_pick(
    path: PathArgument,
    commit: CommitArgument,
    branch: TargetOption = MAIN,
    resolve: _ResolveOption = None,
    append: _AppendOption = None,
    dry_run: DryOption = False,
    message: MessageOption = None,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Apply the changes of one commit to a branch. Conflicts are handled as in `merge`."""
    how, answers = _append(append), _answers(resolve)
    repo = open_repository(path, storage_options)
    found = find_commit(repo, commit, branch)
    _report(
        repo,
        branch,
        lambda: repo.cherry_pick(found, branch, resolve=answers, append=how, dry_run=dry_run, message=message),
        as_json,
    )


@reporting_errors
def revert(
    path: PathArgument,
    commit: CommitArgument,
    branch: TargetOption = MAIN,
    resolve: _ResolveOption = None,
    dry_run: DryOption = False,
    message: MessageOption = None,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo the changes of one commit, in a new commit. Conflicts are handled as in `merge`."""
    repo, answers = open_repository(path, storage_options), _answers(resolve)
    found = find_commit(repo, commit, branch)
    _report(
        repo, branch, lambda: repo.revert(found, branch, resolve=answers, dry_run=dry_run, message=message), as_json
    )


def _append(how: str | None) -> Literal["concatenate"] | None:
    from txstore.merging.merge_commits import CONCATENATE

    one_of("--append", how, [CONCATENATE])
    return None if how is None else CONCATENATE


def _answers(resolve: Sequence[str] | None) -> dict[str, Answer]:
    from txstore.merging.merge_conflicts import SIDES

    answers: dict[str, Answer] = {}
    for each in resolve or ():
        node, equals, side = each.rpartition("=")
        if not equals or side not in SIDES:
            raise typer.BadParameter(f"--resolve takes NODE=ours or NODE=theirs, not {each!r}")
        answers[node] = side
    return answers


def _report(repo: Repository, branch: str, change: Callable[[], Commit | MergePlan], as_json: bool) -> None:
    from txstore.commit import Commit
    from txstore.merging.merge_conflicts import KINDS, Conflict
    from txstore.merging.three_way import MergePlan

    before = repo.head(branch)
    try:
        made: Commit | MergePlan | None = change()
        conflicts, is_cut = (made.conflicts, made.is_cut) if isinstance(made, MergePlan) else ([], False)
    except MergeConflictError as error:
        made, conflicts = None, [each for each in error.conflicts if isinstance(each, Conflict)]
        is_cut = error.is_cut
    if as_json:
        commit = made if isinstance(made, Commit) else None
        print_json(
            {
                "commit": None if commit is None else commit_as_dict(commit),
                "is_new": commit is not None and commit != before,
                "plan": made.as_dict() if isinstance(made, MergePlan) else None,
                "conflicts": [each.as_dict() for each in conflicts],
            }
        )
    else:
        if isinstance(made, MergePlan):
            tell(f"would change {branch}: {made}")
        elif made is not None and made == before:
            tell(f"nothing to do: {branch} has all of these changes, at {made}")
        elif made is not None:
            tell(f"{made} {made.id[:12]} {made.message}")
        if conflicts:
            rows = ((each.path or "/", each.place, each.kind, KINDS[each.kind]) for each in conflicts)
            print_table(["path~", "where~", "conflict", "what~"], rows)
            tell()
            if is_cut:
                tell(f"txstore: {CUT}", err=True)
            tell(
                f"txstore: {len(conflicts)} conflicts; nothing was changed. Choose a side by path: "
                "--resolve NODE=ours or NODE=theirs",
                err=True,
            )
    if conflicts:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    app.command()(merge)
    app.command("cherry-pick")(cherry_pick)
    app.command()(revert)
