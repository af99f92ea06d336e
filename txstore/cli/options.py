"""The arguments and options that commands share: each has one name, one metavar and one meaning in every command.

`tests/cli/test_options.py` has the table. A negative number, such as -1, is a commit, not an option.

The shell completes names of branches, tags, feeds, transactions and views, for repositories on this machine. If the
repository can't be read, it gets no names, and no error. A completion never asks a server: the Tab key must not wait
for a network, nor need credentials.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstore.errors import CommitNotFoundError, KeyFormatError, TxStoreError
from txstore.format.keys import check_name
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.commit import Commit
    from txstore.repository import Repository


#: `find_commit` takes these for the newest commit of the command's branch.
_HEAD = "HEAD"


def complete_commit(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: [*repo.branches, *repo.tags, _HEAD])


def complete_branch(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: repo.branches)


def complete_tag(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: repo.tags)


def complete_transaction(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: [each.name for each in repo.transactions()])


def complete_view(context: typer.Context, incomplete: str) -> list[str]:
    branch = context.params.get("branch")
    return _names(context, incomplete, lambda repo: repo.snapshot(branch=branch or MAIN).views)


def complete_feed(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, lambda repo: repo.feeds)


def _names(context: typer.Context, incomplete: str, asked: Callable[[Repository], Iterable[str]]) -> list[str]:
    # After an option without its value, click can't tell the arguments apart: one of them is the repository.
    given = context.params.get("path")
    for path in context.args if given is None else [given]:
        if "://" in path:
            continue
        with warnings.catch_warnings(), suppress(TxStoreError, OSError, ValueError, ImportError):
            warnings.simplefilter("ignore")
            from txstore.repository import Repository

            found = asked(Repository(path, create=False))
            return [name for name in found if name.startswith(incomplete) and _is_word(name)]
    return []


def _is_word(name: str) -> bool:
    """Tell whether a name is the same in every shell, quoted or not. No other one may come to a command line."""
    try:
        return check_name("name", name) == name
    except KeyFormatError:
        return False


#: A commit argument (`history/find.py`). A decimal number this short is a version; a longer one is the start of an id.
_VERSION = re.compile(r"(-?\d{1,9})((?:~\d*)*)")
_NEGATIVE = re.compile(r"-\d+(~\d*)*")
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_COMMIT = "A version (-1: the newest), id, tag, branch, date, or HEAD~1."

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="The repository.", show_default=False)]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="The array or group.", show_default=False)]
NewArgument = Annotated[str, typer.Argument(metavar="NEW", help="Its new path.", show_default=False)]
CommitArgument = Annotated[
    str, typer.Argument(metavar="COMMIT", help=_COMMIT, show_default=False, autocompletion=complete_commit)
]
NewestArgument = Annotated[
    str | None,
    typer.Argument(metavar="COMMIT", help=_COMMIT, show_default="the newest", autocompletion=complete_commit),
]
OtherArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="COMMIT", help="The commit to compare with.", show_default=False, autocompletion=complete_commit
    ),
]
BranchArgument = Annotated[
    str, typer.Argument(metavar="BRANCH", help="The branch.", show_default=False, autocompletion=complete_branch)
]
TagArgument = Annotated[
    str, typer.Argument(metavar="TAG", help="The tag.", show_default=False, autocompletion=complete_tag)
]
NewNameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The new name.", show_default=False)]
TransactionArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the transaction.", show_default=False, autocompletion=complete_transaction
    ),
]
DirectoryArgument = Annotated[
    str, typer.Argument(metavar="DIRECTORY", help="A local directory outside the repository.", show_default=False)
]

DestinationArgument = Annotated[
    str,
    typer.Argument(metavar="DESTINATION", help="A directory or URL outside the repository.", show_default=False),
]

AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="COMMIT", help=_COMMIT, show_default="the newest", autocompletion=complete_commit),
]
NeededAtOption = Annotated[
    str, typer.Option("--at", metavar="COMMIT", help=_COMMIT, show_default=False, autocompletion=complete_commit)
]
BranchOption = Annotated[
    str, typer.Option("--branch", metavar="BRANCH", help="The branch.", autocompletion=complete_branch)
]
TargetOption = Annotated[
    str, typer.Option("--branch", metavar="BRANCH", help="The branch to commit to.", autocompletion=complete_branch)
]
MessageOption = Annotated[
    str | None, typer.Option("--message", "-m", metavar="TEXT", help="The commit message.", show_default=False)
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Show the newest N.", show_default=False)
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
NoVerifyOption = Annotated[bool, typer.Option("--no-verify", help="Do not read written files back to check them.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only JSON on the standard output.")]
StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage-options",
        metavar="JSON",
        help="Options of PATH's fsspec file system, as JSON: '{\"anon\": true}', or @FILE to read them from a file.",
        show_default=False,
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to-options", metavar="JSON", help="The same, for the destination.", show_default=False),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="PREFIX[=JSON]",
        help="Allow reads of referenced files below this directory or URL; fsspec options may follow. Can be repeated.",
        show_default=False,
    ),
]


def open_repository(
    path: str, storage_options: str | None, *, source: list[str] | None = None, create: bool = False
) -> Repository:
    """Raises `typer.BadParameter`, and the errors of `Repository`."""
    from txstore.repository import Repository

    options = options_of(storage_options, "--storage-options")
    return Repository(path, create=create, storage_options=options, sources=sources_of(source))


def options_of(given: str | None, option: str) -> dict[str, Any]:
    """Return the file-system options given to a command. Raises `typer.BadParameter`, `OSError`."""
    if given is None:
        return {}
    text = Path(given[1:]).read_text(encoding="utf-8") if given.startswith("@") else given
    try:
        options = json.loads(text)
    except ValueError as error:
        options = error
    if not isinstance(options, dict):  # the message omits the value: it may be a secret
        why = f": {options.msg}" if isinstance(options, json.JSONDecodeError) else ""
        raise typer.BadParameter(f"{option} takes a JSON object, such as '{{\"anon\": true}}'{why}")
    return options


def sources_of(given: list[str] | None) -> dict[str, dict[str, Any]]:
    """Return the repository's `sources`, as given by `--source`. Raises `typer.BadParameter`."""
    from txstore.storage.objects.urls import public

    found: dict[str, dict[str, Any]] = {}
    for each in given or ():
        prefix, begins, rest = each.partition("={")
        try:
            found[prefix] = json.loads(begins[1:] + rest) if begins else {}
        except ValueError as error:  # the message omits the value: it may be a secret
            raise typer.BadParameter(f"the options of {public(prefix)!r} are not JSON: {error}") from None
    return found


def age_of(text: str) -> timedelta:
    """Return an age such as 30d. Raises `typer.BadParameter`."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not an age: give a number and one of s, m, h, d or w, such as 30d")
    return timedelta(seconds=float(found[1]) * _SECONDS[found[2]])


def one_of(option: str, given: str | None, known: Sequence[str]) -> None:
    """Raise `typer.BadParameter` if an option's value is not one of `known`."""
    if given is not None and given not in known:
        raise typer.BadParameter(f"{option} takes {' or '.join(known)}, not {given!r}")


# --- commits


def find_commit(repo: Repository, commit: str, branch: str = MAIN) -> Commit:
    """Return the commit named by a version of `branch`, a tag, a date, another branch or the first digits of an id."""
    version = _VERSION.fullmatch(commit)
    if version is None:
        return repo.commit(commit, branch=branch)
    found = repo.commit(int(version[1]), branch=branch)
    return repo.commit(found.id + version[2], branch=branch) if version[2] else found


def commit_or_newest(repo: Repository, commit: str | None, branch: str) -> Commit:
    """Return the named commit, by default the newest of a branch. Raises `CommitNotFoundError`."""
    found = repo.head(branch) if commit is None else find_commit(repo, commit, branch)
    if found is None:
        raise CommitNotFoundError(repo.url, advice="nothing was committed yet")
    return found


# --- negative numbers: the command-line parser takes them for options


def shield(arguments: Sequence[str]) -> list[str]:
    """Put a space before negative numbers, so that the parser takes none for an option. `unshield` removes it."""
    return [f" {each}" if _NEGATIVE.fullmatch(each) else each for each in arguments]


def unshield(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command as the user typed them."""
    return {name: _unshielded(value) for name, value in values.items()}


def _unshielded(value: Any) -> Any:
    if isinstance(value, list):
        return [_unshielded(each) for each in value]
    if isinstance(value, str) and value[:1] == " " and _NEGATIVE.fullmatch(value[1:]):
        return value[1:]
    return value
