"""`txstore verify`, `check-format`, `backup` and `protect`."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from txstore.cli.options import (
    DestinationArgument,
    JsonOption,
    NoVerifyOption,
    PathArgument,
    SourceOption,
    StorageOption,
    ToOption,
    options_of,
    sources_of,
)
from txstore.cli.output import (
    print_json,
    reporting_errors,
    tell,
)
from txstore.errors import CorruptionError, RepositoryNotFoundError, UnsupportedFormatError
from txstore.progress import showing

if TYPE_CHECKING:
    from txstore.maintenance.report import Report


@reporting_errors
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


@reporting_errors
def check_format(path: PathArgument, storage_options: StorageOption = None, as_json: JsonOption = False) -> None:
    """Compare every file with the format document, for authors of other readers and writers.

    No process should commit meanwhile.
    """
    from txstore.history.opening import Access, open_commits, open_storage
    from txstore.maintenance.check_format import check_format as departures

    storage = open_storage(path, Access(options_of(storage_options, "--storage-options")))
    commits = open_commits(storage)
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


@reporting_errors
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


@reporting_errors
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
