"""`txstore import` and `export`: files of other kinds into a repository, and a commit out of it as plain Zarr."""

from __future__ import annotations

from typing import Annotated

import typer

from txstore.cli.output import (
    BranchOption,
    JsonOption,
    PathArgument,
    SourceOption,
    StorageOption,
    ToOption,
    commit_as_dict,
    find_commit,
    open_repository,
    options_of,
    print_json,
    public_place,
    reporting_errors,
    showing_progress,
    tell,
)
from txstore.history.commit import MAIN, Commit
from txstore.interchange.manifests import is_manifest


def register(app: typer.Typer) -> None:
    app.command("import")(import_)
    app.command()(export)


@reporting_errors
def import_(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Files, directories, URLs or patterns.", show_default=False)
    ],
    path: PathArgument,
    into: Annotated[str, typer.Option("--path", help="The group that it becomes. [default: the root]")] = "",
    concat: Annotated[
        str | None, typer.Option(metavar="DIMENSION", help="Join several sources along it: its name, or number from 0.")
    ] = None,
    chunks: Annotated[
        str | None, typer.Option(metavar="DIMENSION=N,...", help="Lengths of chunks. [default: as in the source]")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Leave this out; a pattern. Can be repeated.")
    ] = None,
    source_format: Annotated[
        str | None, typer.Option("--format", metavar="zarr|netcdf|hdf5", help="[default: what the source looks like]")
    ] = None,
    message: Annotated[str | None, typer.Option(help="What the log says.", show_default=False)] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the transaction: the same command goes on where it was interrupted.")
    ] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not read back what was written.")] = False,
    storage_options: StorageOption = None,
    from_options: Annotated[
        str | None, typer.Option(metavar="JSON", help="The same, of the sources.", show_default=False)
    ] = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import plain Zarr, NetCDF or HDF5 in one commit: everything, or nothing.

    Of a manifest of kerchunk's, references are imported: the chunks stay in the files that it names, below --source.
    """
    repo = open_repository(path, storage_options, source=source, create=True)
    options = options_of(from_options, "--from-options")
    if source_format is None and len(sources) == 1 and is_manifest(sources[0]):
        if concat is not None or chunks is not None or exclude or no_verify:
            raise typer.BadParameter("references are imported as they are: without --concat, --chunks, --exclude, ...")
        with showing_progress("import") as progress:
            made = repo.import_references(
                sources[0], into, message=message, name=name, storage_options=options, progress=progress
            )
        _print_imported(made, as_json=as_json)
        return
    with showing_progress("import") as progress:
        made = repo.import_from(
            sources,
            into,
            concat=None if concat is None else _dimension(concat),
            chunks=None if chunks is None else _lengths(chunks),
            exclude=exclude or (),
            format=source_format,
            message=message,
            name=name,
            verify=not no_verify,
            storage_options=options,
            progress=progress,
        )
    _print_imported(made, as_json=as_json)


def _print_imported(made: Commit, *, as_json: bool) -> None:
    told = made.properties["import"]
    if as_json:
        print_json({"commit": commit_as_dict(made)})
    elif "references" in told:
        what = f"{told['references']:,} references to {told['bytes']:,} bytes of {told['files']:,} files"
        tell(f"imported {what}, as {made}")
    else:
        tell(f"imported {told['files']:,} files, {told['bytes']:,} bytes, as {made}")


@reporting_errors
def export(
    path: PathArgument,
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", help="An empty or new directory, or a URL.", show_default=False)
    ],
    at: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="A slot, an id or a tag instead of the newest.")
    ] = None,
    group: Annotated[str, typer.Option("--path", help="The array or group to export. [default: all]")] = "",
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not read back what was written.")] = False,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    to_options: ToOption = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one commit as plain Zarr, byte for byte. Interrupted, it is run again."""
    repo = open_repository(path, storage_options, source=source)
    commit = None if at is None else find_commit(repo, at, branch)
    options = options_of(to_options, "--to-options")
    with showing_progress("export") as progress:
        done = repo.export(
            destination, at=commit, branch=branch, path=group, verify=not no_verify, storage_options=options,
            progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(
            {"commit": commit_as_dict(done.commit), "keys": done.keys, "bytes": done.bytes, "written": done.written}
        )
    else:
        tell(f"exported {done.commit}, {done.keys:,} keys, {done.bytes:,} bytes, to {public_place(destination)}")


def _dimension(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def _lengths(text: str) -> dict[str | int, int]:
    """Raises `typer.BadParameter`."""
    found: dict[str | int, int] = {}
    for part in text.split(","):
        name, equals, length = part.partition("=")
        if not equals or not length.strip().isdecimal() or int(length) < 1:
            raise typer.BadParameter(f"{part!r} is no length of a chunk: give a dimension and a number, time=100")
        found[_dimension(name.strip())] = int(length)
    return found
