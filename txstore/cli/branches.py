"""`txstore branch` and `txstore tag`: list, create, delete, rename; and the graph of `txstore log --graph`.

`merge`, `cherry-pick`, `revert` apply changes of other commits to the head of a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from txstore.cli.options import (
    BranchArgument,
    BranchOption,
    CommitArgument,
    DryOption,
    JsonOption,
    MessageOption,
    NewestArgument,
    NewNameArgument,
    TagArgument,
    TargetOption,
    commit_or_newest,
    find_commit,
    one_of,
)
from txstore.cli.output import (
    Commands,
    app,
    command,
    commit_as_dict,
    print_json,
    print_named,
    print_outcome,
    print_table,
    tell,
)
from txstore.errors import CUT, MergeConflictError
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.commit import Commit
    from txstore.merging.merge_conflicts import Answer
    from txstore.merging.three_way import MergePlan
    from txstore.repository import Repository


branches_app = typer.Typer(help="List, create, rename and delete branches.", no_args_is_help=True, cls=Commands)

NewBranchArgument = Annotated[str, typer.Argument(metavar="BRANCH", help="Name of the new branch.", show_default=False)]


@command(branches_app, "list")
def list_branches(repo: Repository, as_json: JsonOption = False) -> None:
    """List the branches, with the newest commit of each."""
    print_named("branch", dict(repo.branches), as_json=as_json)


@command(branches_app, "create")
def create_branch(
    repo: Repository,
    name: NewBranchArgument,
    at: NewestArgument = None,
    branch: BranchOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Create a branch that starts at a commit."""
    repo.branches[name] = commit = commit_or_newest(repo, at, branch)
    print_outcome(
        {"branch": name, "commit": commit_as_dict(commit)}, f"branch {name} starts at {commit}", as_json=as_json
    )


@command(branches_app, "delete")
def delete_branch(repo: Repository, name: BranchArgument, as_json: JsonOption = False) -> None:
    """Delete a branch. The next vacuum deletes the files that only this branch needs."""
    branches = repo.branches
    commit = _existing(branches.get(name), name)
    del branches[name]
    print_outcome(
        {"branch": name, "commit": commit_as_dict(commit)},
        f"branch {name} is deleted; it was at {commit} ({commit.id})",
        as_json=as_json,
    )


@command(branches_app)
def rename(
    repo: Repository,
    name: BranchArgument,
    new: NewNameArgument,
    as_json: JsonOption = False,
) -> None:
    """Rename a branch. Its readers and writers continue to work."""
    branches = repo.branches
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


@command(tags_app, "list")
def list_tags(repo: Repository, as_json: JsonOption = False) -> None:
    """List the tags, with the commit of each."""
    print_named("tag", dict(repo.tags), as_json=as_json)


@command(tags_app, "create")
def create_tag(
    repo: Repository,
    name: NewTagArgument,
    at: NewestArgument = None,
    branch: BranchOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Tag a commit. A tag is never moved."""
    tags = repo.tags
    tags[name] = commit = commit_or_newest(repo, at, branch)
    print_outcome({"tag": name, "commit": commit_as_dict(commit)}, f"{name} is {commit} ({commit.id})", as_json=as_json)


@command(tags_app, "delete")
def delete_tag(repo: Repository, name: TagArgument, as_json: JsonOption = False) -> None:
    """Delete a tag. Its commit stays until a vacuum expires it."""
    tags = repo.tags
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


@command(app)
def merge(
    repo: Repository,
    source: BranchArgument,
    branch: TargetOption = MAIN,
    resolve: _ResolveOption = None,
    append: _AppendOption = None,
    dry_run: DryOption = False,
    message: MessageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge a branch into that of --branch. On conflicts, list them, change nothing, and exit with status 1."""
    how, answers = _append(append), _answers(resolve)
    _report(
        repo,
        branch,
        lambda: repo.merge(
            source, branch, resolve=answers, append=how, dry_run=dry_run, message=message, progress=True
        ),
        as_json,
    )


@command(app)
def cherry_pick(
    repo: Repository,
    commit: CommitArgument,
    branch: TargetOption = MAIN,
    resolve: _ResolveOption = None,
    append: _AppendOption = None,
    dry_run: DryOption = False,
    message: MessageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Apply the changes of one commit to a branch. Conflicts are handled as in `merge`."""
    how, answers = _append(append), _answers(resolve)
    found = find_commit(repo, commit, branch)
    _report(
        repo,
        branch,
        lambda: repo.cherry_pick(found, branch, resolve=answers, append=how, dry_run=dry_run, message=message),
        as_json,
    )


@command(app)
def revert(
    repo: Repository,
    commit: CommitArgument,
    branch: TargetOption = MAIN,
    resolve: _ResolveOption = None,
    dry_run: DryOption = False,
    message: MessageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo the changes of one commit, in a new commit. Conflicts are handled as in `merge`."""
    found = find_commit(repo, commit, branch)
    _report(
        repo,
        branch,
        lambda: repo.revert(found, branch, resolve=_answers(resolve), dry_run=dry_run, message=message),
        as_json,
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
