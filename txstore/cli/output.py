"""How commands print, as text for people and as JSON for scripts, and how they report errors.

Text from a repository may be hostile, and arguments may hold a password. So all text goes through `tell` and the
tables, which escape terminal control characters. Errors go through `_fail`, which also removes secrets.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, get_type_hints

import typer
from typer.core import TyperGroup

from txstore.cli.options import PathArgument, StorageOption, open_repository, shield, unshield
from txstore.errors import ConflictError, ConstraintError, CorruptionError, MergeConflictError, TxStoreError
from txstore.format.display import plain, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from txstore.commit import Commit
    from txstore.repository import Repository
    from txstore.storage.objects.errors import Secrets

P = ParamSpec("P")

#: click's error for wrong usage; typer may have its own copy of click.
_CommandError: Any = typer.BadParameter.__mro__[2]

#: These say what is wrong with the data. After any other error the command has no answer.
_BAD_ANSWERS = (ConflictError, ConstraintError, CorruptionError, MergeConflictError)

#: Width, in columns, if the output is not a terminal: each row then stays on one line.
_WIDE = 100_000
#: From this width on, in columns, tables show the columns marked `?`, too.
_ROOMY = 100


def reporting_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Print an error as one line on the standard error, and exit with status 1 for a bad answer, 2 for none."""

    @functools.wraps(command)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **unshield(kwargs))
        except BrokenPipeError:
            raise  # the reader of our output closed the pipe; click exits quietly
        except (TxStoreError, OSError, ValueError, ImportError) as error:
            _fail(error)
        except (_CommandError, typer.Exit, typer.Abort):
            raise
        except Exception as error:
            import traceback

            for line in traceback.format_exc().splitlines():
                tell(_secrets().hide(line), err=True)
            raise typer.Exit(2) from error

    return reporting


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command of `app`. Its errors are reported as by `reporting_errors`.

    If its first parameter is `repo`, the command takes PATH and --storage-options for it, and opens the repository.
    """

    def added(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, localns={"Repository": object}, include_extras=True)
        own = [each.replace(annotation=hints[each.name]) for each in inspect.signature(function).parameters.values()]
        called = function
        if own[0].name == "repo":
            path = inspect.Parameter("path", own[0].kind, annotation=PathArgument)
            options = inspect.Parameter("storage_options", own[0].kind, default=None, annotation=StorageOption)
            own = [path, *own[1:-1], options, own[-1]]  # --json comes last

            @functools.wraps(function)
            def called(path: str, storage_options: str | None, **given: Any) -> None:
                function(open_repository(path, storage_options), **given)

        reporting = reporting_errors(called)
        reporting.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        reporting.__annotations__ = {each.name: each.annotation for each in own}
        app.command(name)(reporting)
        return function

    return added


def _fail(error: Exception) -> NoReturn:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        told = f"{error.filename}: {error.strerror}"
    else:
        told = str(error) or type(error).__name__
    tell(f"txstore: {_secrets().hide(' '.join(told.split()))}", err=True)
    raise typer.Exit(1 if isinstance(error, _BAD_ANSWERS) else 2)


# --- hiding secrets of the command line


class Commands(TyperGroup):
    """The commands. Their errors show no argument that may be a secret, nor a library's message that repeats it."""

    def main(self, args: Sequence[str] | None = None, *arguments: Any, **options: Any) -> Any:
        _given[:] = sys.argv[1:] if args is None else args
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return super().main(args, *arguments, **options)

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        return super().parse_args(context, shield(args))

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _usage_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, context: Any) -> Any:
        with _usage_errors():
            return super().invoke(context)


_given: list[str] = []

#: The program. `txstore.cli.main` imports the modules that add commands to it.
app = typer.Typer(
    help="Inspect, check and maintain TxStore repositories.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=Commands,
)


def _secrets() -> Secrets:
    """Return the secrets among the arguments: credentials in URLs, and the values of JSON options."""
    from txstore.storage.objects.errors import Secrets

    options = {}
    for number, each in enumerate(_given):
        _, begins, rest = each.partition("{")
        with suppress(ValueError, RecursionError):
            options[f"{number}"] = json.loads(begins + rest) if begins else None
    urls = [url for each in _given for url in (each, each.partition("={")[0])]
    return Secrets(options, tuple(urls))


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except _CommandError as error:
        error.message = printable(_secrets().hide(error.message))
        raise


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    tell(f"txstore: {_secrets().hide(' '.join(str(message).split()))}", err=True)


class LogLines(logging.Handler):
    """Prints log messages of libraries like all other text: control characters escaped, secrets removed."""

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            tell(_secrets().hide(line), err=True)


def log_printer() -> Callable[[], None]:
    """Return a function that prints what is logged from now on, in this process or, pickled, in one that it starts."""
    return functools.partial(_print_log, tuple(_given))


def _print_log(given: Sequence[str]) -> None:
    _given[:] = given
    logging.getLogger().addHandler(LogLines())


def names_of_commits(repo: Repository) -> dict[str, list[str]]:
    """Return the names of commits, by id: first the branches whose head they are, then tags."""
    names: dict[str, list[str]] = {}
    for name, commit in repo.branches.items():
        names.setdefault(commit.id, []).append(name)
    for name, commit in repo.tags.items():
        names.setdefault(commit.id, []).append(f"tag: {name}")
    return names


def commit_as_dict(commit: Commit) -> dict[str, Any]:
    return asdict(commit) | {"time": commit.time.isoformat()}


def tell(text: str = "", *, err: bool = False) -> None:
    """Print a line of text, which may come from a repository."""
    typer.echo(printable(text), err=err)


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print JSON, as `json_text` makes it."""
    typer.echo(json_text(value, indent=indent))


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return JSON, in ASCII only. Numbers that are not finite become strings, as Zarr writes them."""
    return json.dumps(plain(value), indent=indent, allow_nan=False).replace("\x7f", "\\u007f")


def print_outcome(told: dict[str, object] | None, text: str, *, as_json: bool) -> None:
    """Print the result of a command, as JSON or as a line of text."""
    if as_json:
        print_json(told)
    else:
        tell(text)


def print_named(kind: str, found: Mapping[str, Commit], *, as_json: bool) -> None:
    """Print commits by their tags or branches."""
    if as_json:
        print_json({name: commit_as_dict(commit) for name, commit in found.items()})
        return
    rows = (
        (name, str(commit), commit.id[:12], local_time(commit.time), commit.message.partition("\n")[0])
        for name, commit in found.items()
    )
    print_table([kind, "commit", "id", "time", "message~"], rows)


def public_place(place: str) -> str:
    """Return a path or URL from the command line without any secrets in it."""
    from txstore.storage.objects.urls import lacks_slashes, public

    return public(place) if "://" in place or lacks_slashes(place) else place


def new_console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    return console


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table. The last character of a column's name says how to show it.

    `>`: aligned to the right; `~`: the only column that is folded if there is no room; `?`: left out of 80 columns.
    """
    from rich import box
    from rich.table import Table

    console = new_console()
    shown = [at for at, column in enumerate(columns) if console.width >= _ROOMY or not column.endswith("?")]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for at in shown:
        column = columns[at]
        justify: Literal["left", "right"] = "right" if column.endswith(">") else "left"
        table.add_column(column.rstrip(">~?"), justify=justify, overflow="fold", no_wrap=not column.endswith("~"))
    for row in rows:
        table.add_row(*(as_text(row[at]) for at in shown))
    console.print(table)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in pairs:
        table.add_row(as_text(name), as_text(value))
    new_console().print(table)


def local_time(time: datetime, *, seconds: bool = False) -> str:
    """Show a time in the user's time zone, with its name."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z" if seconds else "%Y-%m-%d %H:%M %Z")


def as_text(content: str) -> Text:
    from rich.text import Text

    return Text(printable(content))
