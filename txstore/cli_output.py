"""How commands print, as text for people and as JSON for scripts, and how they fail."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, NoReturn, ParamSpec

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from txstore.commit import Commit
from txstore.errors import KeyFormatError, TxStoreError
from txstore.repository import Repository

P = ParamSpec("P")

#: A number this long may be the beginning of a commit's id; a shorter one is a slot.
_SLOT_DIGITS = 10

#: Columns where the output is no terminal: nothing is folded, so that each row is one line.
_WIDE = 100_000

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="The repository.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on the standard output.")]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="PREFIX[=JSON]",
        help="Read files below this directory or URL that the repository refers to; with options of fsspec. Can be "
        "repeated.",
        show_default=False,
    ),
]


def sources_of(given: list[str] | None) -> dict[str, dict[str, Any]]:
    """Return the `sources` of a repository that `--source` says. Raises `typer.BadParameter`."""
    found: dict[str, dict[str, Any]] = {}
    for each in given or ():
        prefix, begins, rest = each.partition("={")
        try:
            found[prefix] = json.loads(begins[1:] + rest) if begins else {}
        except ValueError as error:  # without what was given: it may be a secret
            raise typer.BadParameter(f"the options of {prefix!r} are no JSON: {error}") from None
    return found


def reporting_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Show what went wrong as one line on the standard error, and exit with status 1."""
    return reporting_errors_as(1)(command)


def reporting_errors_as(status: int) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """The same with another status."""

    def decorate(command: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(command)
        def reporting(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                command(*args, **kwargs)
            except BrokenPipeError:
                raise  # the reader of our output has left; click ends quietly
            except (TxStoreError, OSError, ValueError, ModuleNotFoundError) as error:
                _fail(error, status)

        return reporting

    return decorate


def _fail(error: Exception, status: int) -> NoReturn:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        told = f"{error.filename}: {error.strerror}"
    else:
        told = str(error) or type(error).__name__
    typer.echo(f"txstore: {printable(' '.join(told.split()))}", err=True)
    raise typer.Exit(status)


def find_commit(repo: Repository, commit: str) -> Commit:
    """Return the commit that a slot, a tag or the first digits of an id name."""
    if commit.isdecimal() and len(commit) < _SLOT_DIGITS:
        return repo.commit(int(commit))
    try:
        return repo.tags[commit]
    except (KeyError, KeyFormatError):
        return repo.commit(commit)


def commit_as_dict(commit: Commit) -> dict[str, Any]:
    return asdict(commit) | {"time": commit.time.isoformat()}


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))


def new_console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    return console


def new_table(*columns: str) -> Table:
    """Return a table; a column whose name ends in `>` is aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
    return table


def as_text(content: str) -> Text:
    return Text(printable(content))


def printable(content: str) -> str:
    """Show control characters by their escapes: what a repository says must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in content)


@contextmanager
def showing_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of the bytes done while the block runs, where somebody can see it."""
    console = new_console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
