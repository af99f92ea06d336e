"""`txstore verify` and `txstore backup`. Exit status: 0 well, 1 faults are left, 2 it could not be done."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from txstore.cli.output import (
    JsonOption,
    PathArgument,
    SourceOption,
    StorageOption,
    options_of,
    print_json,
    reporting_errors_as,
    showing_progress,
    sources_of,
    tell,
)
from txstore.errors import CorruptionError, RepositoryNotFoundError, UnsupportedFormatError
from txstore.history.opening import Access, open_commits, open_storage
from txstore.maintenance import repair as repairing
from txstore.maintenance.backup import back_up
from txstore.maintenance.report import Report
from txstore.maintenance.verify import check_sources
from txstore.maintenance.verify import verify as verify_commits
from txstore.storage.sources import Sources, allowed


@reporting_errors_as(2)
def verify(
    path: PathArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Restore what can be restored. Nothing is deleted: see quarantine/.")
    ] = False,
    storage_options: StorageOption = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every checksum and every reference of the whole history.

    With --source, also whether the files are the same still that the newest commit refers to.
    """
    storage = open_storage(path, Access(options_of(storage_options, "--storage-options")))
    commits = open_commits(storage)
    try:
        if not commits.identity.exists():
            raise RepositoryNotFoundError(storage.url)
    except CorruptionError:
        pass  # that is what we are to tell, and may be able to repair
    except UnsupportedFormatError:
        if not repair:
            raise
    with showing_progress("verify") as progress:
        report = repairing.verify_and_repair(storage, progress) if repair else verify_commits(commits, progress)
    if source:
        report.faults += check_sources(storage, Sources(allowed(sources_of(source))))
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
        left = " It can't be repaired: restore the file from a backup." if repair and fault.part != "source" else ""
        tell(f"FAULT {fault}{left}")
    for path in report.strays:
        tell(f"NOTE  {path}: no file of a repository is called so; it does no harm, and stays")
    tell(str(report))


@reporting_errors_as(2)
def backup(
    path: PathArgument,
    destination: Annotated[str, typer.Argument(metavar="DEST", help="An empty or new directory, or an older backup.")],
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not check what was copied.")] = False,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a repository while it is in use; a second time, only what is new."""
    storage = open_storage(path, Access(options_of(storage_options, "--storage-options")))
    with showing_progress("backup") as progress:
        made = back_up(storage, destination, verify=not no_verify, progress=progress)
    if as_json:
        print_json(asdict(made))
    else:
        what = "is new" if made.files else "was up to date"
        tell(f"{destination} {what}: commits up to slot {made.slot}; {made.files:,} files, {made.bytes:,} bytes copied")
