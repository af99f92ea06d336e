"""`txstore verify`, `check-format`, `backup` and `protect`.

`txstore optimize`, `vacuum`, `erase` and `du` show the disk use of a repository, and reduce it.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstore.cli.options import (
    BranchOption,
    DestinationArgument,
    DryOption,
    JsonOption,
    NoVerifyOption,
    PathArgument,
    SourceOption,
    StorageOption,
    ToOption,
    YesOption,
    age_of,
    options_of,
    sources_of,
)
from txstore.cli.output import (
    app,
    command,
    commit_as_dict,
    print_json,
    print_table,
    tell,
)
from txstore.errors import CorruptionError, RepositoryNotFoundError, UnsupportedFormatError
from txstore.format.display import printable, readable_size
from txstore.format.names import MAIN
from txstore.progress import showing

if TYPE_CHECKING:
    from txstore.maintenance.report import Report
    from txstore.maintenance.usage import Usage
    from txstore.repository import Repository


@command(app)
def verify(
    path: PathArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair damaged files where possible. Nothing is deleted: see quarantine/.")
    ] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Decode the chunks of the newest commits, too.")] = False,
    storage_options: StorageOption = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every checksum and every reference of the whole history.

    With --source, also check that the outside files that the newest commit refers to are unchanged.
    """
    from txstore.history.opening import Access, open_commits, open_storage
    from txstore.maintenance import repair as repairing
    from txstore.maintenance.verify import check_sources
    from txstore.maintenance.verify import verify as verify_commits
    from txstore.storage.foreign_files import Sources, allowed

    storage = open_storage(path, Access(options_of(storage_options, "--storage-options")))
    commits = open_commits(storage)
    try:
        if not commits.identity.exists():
            raise RepositoryNotFoundError(storage.url)
    except CorruptionError:
        pass  # `verify` reports this fault, and may be able to repair it
    except UnsupportedFormatError:
        if not repair:
            raise
    with showing(True, "verify") as progress:
        report = repairing.verify_and_repair(storage, progress) if repair else verify_commits(commits, progress)
    if source:
        report.faults += check_sources(storage, Sources(allowed(sources_of(source))))
    if decode:
        from txstore.maintenance.check_chunks import check_chunks  # late: it needs zarr

        report.faults += check_chunks(storage)
    if as_json:
        print_json({"ok": report.ok, **asdict(report)})
    else:
        _print(report, repair)
    if not report.ok:
        raise typer.Exit(1)


def _print(report: Report, repair: bool) -> None:
    for done in report.repairs:
        tell(f"REPAIR {done}")
    for fault in report.faults:
        left = (
            " It can't be repaired: restore the file from a backup."
            if repair and fault.part not in ("source", "lost", "chunk")
            else ""
        )
        tell(f"FAULT {fault}{left}")
    for path in report.strays:
        tell(f"NOTE  {path}: not a file of the repository; it does no harm and is left alone")
    tell(str(report))


@command(app)
def check_format(path: PathArgument, storage_options: StorageOption = None, as_json: JsonOption = False) -> None:
    """Compare every file with the format document, for authors of other readers and writers.

    No process should commit meanwhile.
    """
    from txstore.history.opening import Access, open_commits, open_storage
    from txstore.maintenance.check_format import check_format as departures

    storage = open_storage(path, Access(options_of(storage_options, "--storage-options")))
    commits = open_commits(storage)
    with contextlib.suppress(CorruptionError):  # it is among what is found
        if not commits.identity.exists():
            raise RepositoryNotFoundError(storage.url)
    with showing(True, "check-format") as progress:
        found = departures(commits, progress)
    if as_json:
        print_json({"ok": not found, "departures": [asdict(each) for each in found]})
    else:
        for each in found:
            tell(str(each))
        tell("the files are as the document says" if not found else f"{len(found):,} departures from the document")
    if found:
        raise typer.Exit(1)


@command(app)
def backup(
    path: PathArgument,
    destination: DestinationArgument,
    no_verify: NoVerifyOption = False,
    erase: Annotated[bool, typer.Option("--erase", help="Apply erasures of the repository to the copy, too.")] = False,
    storage_options: StorageOption = None,
    to_options: ToOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a repository while it is in use. The next backup to the same place copies only new files."""
    from txstore.history.opening import Access, open_storage
    from txstore.maintenance.backup import back_up

    storage = open_storage(path, Access(options_of(storage_options, "--storage-options")))
    with showing(True, "backup") as progress:
        made = back_up(
            storage,
            destination,
            storage_options=options_of(to_options, "--to-options"),
            verify=not no_verify,
            erase=erase,
            progress=progress,
        )
    if as_json:
        print_json(asdict(made))
    else:
        tell(str(replace(made, destination=destination)))


@command(app)
def protect(path: PathArgument, as_json: JsonOption = False) -> None:
    """Move a local repository to PATH.d and leave a link at PATH, which zarr and xarray refuse to overwrite.

    If the link was deleted, this puts it back and moves aside anything written at PATH since. First stop the processes
    that have the repository open: they would have to open it again.
    """
    from txstore.maintenance.protect import protect as protect_directory

    made = protect_directory(path)
    if as_json:
        print_json(asdict(made))
        return
    tell(f"{made.link} is a link to {made.directory}: zarr and xarray refuse to overwrite it")
    if made.aside is not None:
        tell(f"the files that were in the place of the link are in {made.aside} now")


@command(app)
def optimize(repo: Repository, branch: BranchOption = MAIN, as_json: JsonOption = False) -> None:
    """Copy small packs, and packs with mostly old values, into large ones. Nothing is deleted: see vacuum."""
    with warnings.catch_warnings(record=True) as told:
        made = repo.optimize(branch=branch, progress=True)
    for each in told:
        tell(f"txstore: {each.message}", err=True)
    if as_json:
        print_json({"commit": None if made is None else commit_as_dict(made)})
    elif made is None:
        tell("nothing to do")
    else:
        tell(f"optimized as {made}; `txstore vacuum` deletes the old files")


@command(app)
def vacuum(
    repo: Repository,
    keep: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Expire all but the N newest commits.", show_default=False),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Expire commits older than this: 30d, 12h, 90m.")
    ] = None,
    dry_run: DryOption = False,
    branch: BranchOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Delete files that no kept commit needs. Every commit is kept unless an option expires it, in one branch."""
    age = None if older_than is None else age_of(older_than)
    report = repo.vacuum(keep=keep, older_than=age, dry_run=dry_run, branch=branch)
    if as_json:
        print_json(asdict(report))
        return
    tell(str(report))


@command(app)
def erase(
    repo: Repository,
    nodes: Annotated[list[str], typer.Argument(metavar="NODE", help="Arrays and groups.")],
    rows: Annotated[
        list[str] | None,
        typer.Option(
            "--rows",
            metavar="DIMENSION=LABEL",
            help="Only these rows, in arrays with the dimension. FIRST..LAST: a range, both included. Give it again "
            "for more labels. Text that looks like a number is in double quotes.",
        ),
    ] = None,
    labels: Annotated[bool, typer.Option("--labels", help="Erase the labels of the rows, too.")] = False,
    positions: Annotated[
        bool, typer.Option("--positions", help="The rows are positions from 0 on, a range without its end.")
    ] = False,
    yes: YesOption = False,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for readers and transactions to end.")
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Erase every version of arrays and groups, or of rows, from every commit, branch and tag. This can't be undone."""
    chosen = _rows(rows or ())
    if (labels or positions) and not chosen:
        raise typer.BadParameter("--labels and --positions are about rows: give --rows, too")
    if as_json and not yes:
        raise typer.BadParameter("--json can't ask for confirmation: give --yes, too")
    if not yes:
        shown = ", ".join(repr(node) for node in nodes)
        what = f"rows of {shown} along {', '.join(map(repr, chosen))}" if chosen else f"every version of {shown}"
        typer.confirm(printable(f"Erase {what}, for good?"), abort=True, err=True)
    given = [*nodes, chosen] if chosen else nodes
    report = repo.erase(*given, labels=labels, positions=positions, timeout=timeout)
    if as_json:
        commit = None if report.commit is None else commit_as_dict(report.commit)
        print_json({**asdict(report), "commit": commit})
    elif report.commit is None:
        tell("nothing is left to erase")
    else:
        tell(f"{report}; copies in other places are not erased: see docs/how-to/erase.md")


def _rows(given: Sequence[str]) -> dict[str, Any]:
    """Return rows by their dimension: a label, a list of them, or a slice. Raises `typer.BadParameter`."""
    found: dict[str, Any] = {}
    for each in given:
        dimension, is_there, label = each.partition("=")
        if not (dimension and is_there and label):
            raise typer.BadParameter(f"{each!r} names no rows: give DIMENSION=LABEL, or DIMENSION=FIRST..LAST")
        first, is_range, last = label.partition("..")
        before = found.get(dimension)
        if is_range and (before is not None or not (first or last)):
            raise typer.BadParameter(f"{each!r}: give one range of a dimension, or labels")
        if isinstance(before, slice):
            raise typer.BadParameter(f"{each!r}: there is a range of {dimension!r} already")
        if is_range:
            found[dimension] = slice(*(_label(end) if end else None for end in (first, last)))
        elif before is None:
            found[dimension] = _label(label)
        else:
            found[dimension] = [*(before if isinstance(before, list) else [before]), _label(label)]
    return found


def _label(text: str) -> Any:
    """Return a label: a number, a text in quotes, or else the text as it is, which may be a date."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, str | int | float) and not isinstance(found, bool) else text


@command(app)
def du(repo: Repository, branch: BranchOption = MAIN, as_json: JsonOption = False) -> None:
    """Show what the bytes on the disk are used for, in all and for each array."""
    usage = repo.usage(branch=branch)
    if as_json:
        print_json({**asdict(usage), "total": usage.total})
        return
    purposes = [(f"{size:,}", readable_size(size), what) for size, what in _purposes(usage)]
    print_table(["bytes>", "size>", "what for~"], purposes)
    arrays = sorted(usage.arrays.items(), key=lambda item: -item[1].bytes)
    print_table(
        ["bytes>", "size>", "keys>", "array or group~"],
        [(f"{array.bytes:,}", readable_size(array.bytes), f"{array.keys:,}", name or "/") for name, array in arrays],
    )


def _purposes(usage: Usage) -> Iterator[tuple[int, str]]:
    yield usage.live, "live: values at the head"
    yield usage.history, "history: other values that kept commits need"
    yield usage.overwritten, "overwritten: freed by optimize, then vacuum --keep 1"
    yield usage.staged, "staged: open transactions, and what dead ones left"
    yield usage.orphan, "orphan: not needed; the next vacuum deletes it"
    yield usage.total, "total"
