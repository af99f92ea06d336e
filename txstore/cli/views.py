"""`txstore views`: list the views of a branch, bring those that follow up to date, and drop views."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstore.cli.options import (
    BranchOption,
    JsonOption,
    TargetOption,
    complete_view,
)
from txstore.cli.output import Commands, command, commit_as_dict, print_json, print_outcome, print_table, tell
from txstore.errors import ConflictError, ViewError
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.commit import Commit
    from txstore.repository import Repository
    from txstore.views.following import DeclaredView

app = typer.Typer(
    help="Arrays that are derived from others: list them, bring them up to date, drop them.",
    no_args_is_help=True,
    cls=Commands,
)

_ViewArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the view.", show_default=False, autocompletion=complete_view)
]
_ViewsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="The views.", show_default="all that follow", autocompletion=complete_view),
]
_ImportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import this module, of this directory too, whose functions views apply. Can be repeated.",
        show_default=False,
    ),
]
_OnceOption = Annotated[bool, typer.Option("--once", help="Do not wait for new commits.")]

#: So often an update is tried while other workers are faster.
_TRIES = 10


@command(app, "list")
def list_views(repo: Repository, branch: BranchOption = MAIN, as_json: JsonOption = False) -> None:
    """List the views, and whether the outputs of each are what it makes of its sources at the newest commit."""
    views = _views(repo, branch)
    if as_json:
        print_json({view.name: view.as_dict(branch=branch) for view in views})
        return
    rows = (
        (
            view.name,
            view.definition.kind,
            view.definition.when,
            _state(view.as_dict(branch=branch)),
            ", ".join(view.definition.sources),
            ", ".join(view.definition.outputs),
        )
        for view in views
    )
    print_table(["name", "kind", "when", "state", "sources?", "outputs~"], rows)


@command(app, "run")
def run_views(
    repo: Repository,
    names: _ViewsArgument = None,
    modules: _ImportOption = None,
    once: _OnceOption = False,
    branch: TargetOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Bring views with when="follow" up to date, then again with each commit. Others may do the same meanwhile."""
    _import(modules or ())
    commits = repo.follow(branch)  # from now on: what is committed during the first round is not missed
    made, failed = _update(repo, branch, names or ())
    if once:
        if as_json:
            print_json({name: None if commit is None else commit_as_dict(commit) for name, commit in made.items()})
        else:
            _report(made, as_json=False)
        if failed:
            raise typer.Exit(1)
        return
    _report(made, as_json=as_json)
    for _ in commits:
        made, now = _update(repo, branch, names or (), told=failed)
        failed = now
        _report(made, as_json=as_json)


@command(app, "drop")
def drop_view(
    repo: Repository,
    name: _ViewArgument,
    branch: TargetOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Drop a view. Its outputs stay, as arrays like others."""
    with repo.transaction(f"view {name!r} dropped", branch=branch) as store:
        if name not in store.views:
            store.rollback()
            raise _no_view(name)
        del store.views[name]
        commit = store.commit()
    assert commit is not None  # for mypy: it changes what is declared
    print_outcome(
        {"view": name, "commit": commit_as_dict(commit)}, f"view {name} is dropped: {commit}", as_json=as_json
    )


# --- one round


def _update(
    repo: Repository, branch: str, names: Sequence[str], told: Sequence[str] = ()
) -> tuple[dict[str, Commit | None], list[str]]:
    """Bring views up to date. Return the commits by view, and what has failed, which is told unless it was `told`.

    A view that can't be derived now keeps no other from it. Raises `ValueError` for a name that can't be updated.
    """
    declared = {view.name: view for view in _views(repo, branch)}
    for name in names:
        if name not in declared:
            raise _no_view(name)
        if declared[name].definition.when != "follow":
            raise ValueError(f"the view {name!r} is derived by each commit: leave it out")
    made: dict[str, Commit | None] = {}
    failed = []
    for name, view in declared.items():
        if view.definition.when != "follow" or (names and name not in names):
            continue
        try:
            made[name] = _update_one(view, branch)
        except ViewError as error:
            failed.append(str(error))
            if failed[-1] not in told:
                tell(f"txstore: {' '.join(failed[-1].split())}", err=True)
    return made, failed


def _update_one(view: DeclaredView, branch: str) -> Commit | None:
    for _ in range(_TRIES):
        try:
            return view.update(branch=branch)
        except KeyError:  # dropped meanwhile
            return None
        except ConflictError:  # another worker has been faster, and has left nothing to do, as a rule
            continue
    return None  # others keep it up to date


def _report(made: dict[str, Commit | None], *, as_json: bool) -> None:
    for name, commit in made.items():
        if commit is not None and as_json:  # one line for each: the output has no end
            print_json({"view": name, "commit": commit_as_dict(commit)}, indent=None)
        elif commit is not None:
            tell(f"{commit} {commit.id[:12]} {name}")


# --- views


def _views(repo: Repository, branch: str) -> Iterator[DeclaredView]:
    """Yield the views of a branch, each after those that make its sources."""
    from txstore.deriving.declared import ordered
    from txstore.views.following import DeclaredView

    declared = repo.snapshot(branch=branch).views
    for name in ordered(declared):
        yield DeclaredView(name, declared[name], repo)


def _state(told: dict[str, Any]) -> str:
    if told["current"]:
        return "current"
    if told["when"] == "commit":
        return "its sources are behind"
    as_of = told["as_of"]
    return "not derived yet" if as_of is None else f"of {as_of['branch']}@{as_of['version']}"


def _no_view(name: str) -> ValueError:
    return ValueError(f"there is no view {name!r}: see `txstore views list`")


def _import(modules: Sequence[str]) -> None:
    """Import modules, whose functions `txstore.views.register` notes. Those of the working directory count, too."""
    if modules:
        sys.path.insert(0, os.getcwd())
    for module in modules:
        importlib.import_module(module)
