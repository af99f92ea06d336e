"""`txstore import` and `export`, `checkout` and `commit-directory`: copies into a repository, and out of it.

`txstore publish` and `references`: copies and references for readers without TxStore.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from txstore.cli.options import (
    AtOption,
    BranchOption,
    DestinationArgument,
    DirectoryArgument,
    JsonOption,
    MessageOption,
    NoVerifyOption,
    PathArgument,
    SourceOption,
    StorageOption,
    TargetOption,
    ToOption,
    complete_tag,
    find_commit,
    one_of,
    open_repository,
    options_of,
)
from txstore.cli.output import (
    app,
    command,
    commit_as_dict,
    print_json,
    public_place,
    tell,
)
from txstore.format.display import readable_size
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.commit import Commit
    from txstore.interchange.publish import Published
    from txstore.repository import Repository

_GroupOption = Annotated[str, typer.Option("--path", metavar="NODE", help="The array or group.", show_default="all")]


@command(app, "import")
def import_(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE", help="Files, directories, URLs or patterns.", show_default=False)
    ],
    path: PathArgument,
    into: Annotated[
        str,
        typer.Option("--path", metavar="NODE", help="Path of the new array or group.", show_default="the root"),
    ] = "",
    concat: Annotated[
        str | None,
        typer.Option(
            metavar="DIMENSION", help="Join the sources along this dimension: its name, or its number from 0."
        ),
    ] = None,
    chunks: Annotated[
        str | None,
        typer.Option(metavar="DIMENSION=N,...", help="Chunk lengths, in elements.", show_default="as in the source"),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Skip names that match this pattern. Can be repeated.")
    ] = None,
    source_format: Annotated[
        str | None,
        typer.Option("--format", metavar="zarr|netcdf|hdf5", help="Format of the source.", show_default="detected"),
    ] = None,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the transaction. After an interruption, the same command continues."
        ),
    ] = None,
    no_verify: NoVerifyOption = False,
    storage_options: StorageOption = None,
    from_options: Annotated[
        str | None, typer.Option(metavar="JSON", help="The same, for the sources.", show_default=False)
    ] = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import plain Zarr, NetCDF or HDF5 in one commit: all of it or nothing.

    A kerchunk manifest is imported as references: the chunks stay in the files that it names, below --source.
    """
    from txstore.interchange.manifests import is_manifest
    from txstore.interchange.places import FORMATS

    one_of("--format", source_format, FORMATS)
    repo = open_repository(path, storage_options, source=source, create=True)
    options = options_of(from_options, "--from-options")
    if source_format is None and len(sources) == 1 and is_manifest(sources[0]):
        if concat is not None or chunks is not None or exclude or no_verify:
            raise typer.BadParameter("a manifest is imported unchanged: leave out --concat, --chunks, --exclude, ...")
        made = repo.import_references(
            sources[0], into, branch=branch, message=message, name=name, storage_options=options, progress=True
        )
        _print_imported(made, as_json=as_json)
        return
    made = repo.import_from(
        sources,
        into,
        branch=branch,
        concat=None if concat is None else _dimension(concat),
        chunks=None if chunks is None else _lengths(chunks),
        exclude=exclude or (),
        format=source_format,
        message=message,
        name=name,
        verify=not no_verify,
        storage_options=options,
        progress=True,
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


@command(app)
def export(
    path: PathArgument,
    destination: DestinationArgument,
    at: AtOption = None,
    group: _GroupOption = "",
    no_consolidated: Annotated[bool, typer.Option("--no-consolidated", help="Write no consolidated metadata.")] = False,
    no_verify: NoVerifyOption = False,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    to_options: ToOption = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one commit as plain Zarr, byte for byte. If it is interrupted, run it again."""
    repo = open_repository(path, storage_options, source=source)
    commit = None if at is None else find_commit(repo, at, branch)
    options = options_of(to_options, "--to-options")
    done = repo.export(
        destination, at=commit, branch=branch, path=group, consolidated=not no_consolidated, verify=not no_verify,
        storage_options=options, progress=True,
    )  # fmt: skip
    if as_json:
        print_json(
            {"commit": commit_as_dict(done.commit), "keys": done.keys, "bytes": done.bytes, "written": done.written}
        )
    elif done.is_unchanged:
        tell(f"nothing to do: an earlier export of {done.commit} to {public_place(destination)} is complete")
    else:
        tell(f"exported {done.commit}, {done.keys:,} keys, {done.bytes:,} bytes, to {public_place(destination)}")


@command(app)
def checkout(
    path: PathArgument,
    directory: DirectoryArgument,
    at: AtOption = None,
    group: _GroupOption = "",
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one commit to a directory, for programs that change it; `commit-directory` commits their changes.

    A directory that was checked out before is brought to the commit.
    """
    repo = open_repository(path, storage_options, source=source)
    commit = None if at is None else find_commit(repo, at, branch)
    done = repo.checkout(directory, at=commit, branch=branch, path=group, progress=True)
    if as_json:
        print_json(
            {"commit": commit_as_dict(done.commit), "files": done.files, "bytes": done.bytes, "written": done.written}
        )
    else:
        tell(f"{directory} has {done.commit}: {done.files:,} files, of which {done.written:,} were changed")


@command(app)
def commit_directory(
    repo: Repository,
    directory: DirectoryArgument,
    message: MessageOption = None,
    branch: Annotated[
        str | None, typer.Option(metavar="BRANCH", help="Branch to commit to.", show_default="that of the checkout")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Commit what was changed in a directory since `checkout`, all of it or nothing. Reads only changed files."""
    made = repo.commit_directory(directory, message, branch=branch, progress=True)
    if as_json:
        print_json({"commit": None if made is None else commit_as_dict(made)})
    elif made is None:
        tell(f"nothing to do: no file in {directory} has changed")
    else:
        tell(f"committed {directory} as {made}")


def _dimension(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def _lengths(text: str) -> dict[str | int, int]:
    """Raises `typer.BadParameter`."""
    found: dict[str | int, int] = {}
    for part in text.split(","):
        name, equals, length = part.partition("=")
        if not equals or not length.strip().isdecimal() or int(length) < 1:
            raise typer.BadParameter(f"{part!r} is not a chunk length: give a dimension and a number, such as time=100")
        found[_dimension(name.strip())] = int(length)
    return found


@command(app)
def publish(
    path: PathArgument,
    destination: DestinationArgument,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for new commits and publish each.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="With --follow: stop after this long without a new commit."),
    ] = None,
    no_verify: NoVerifyOption = False,
    full: Annotated[bool, typer.Option("--full", help="Compare every file at the destination.")] = False,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    to_options: ToOption = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Update a plain Zarr copy to the newest commit, for readers without txstore. Run it again after each commit."""

    def tell_of(done: Published) -> None:
        if as_json:  # one line per commit: with --follow the output has no end
            print_json(asdict(done) | {"commit": commit_as_dict(done.commit)}, indent=None)
        elif done.written or done.deleted:
            told = (
                f"{done.commit}: {done.written:,} files written ({readable_size(done.bytes)}), {done.deleted:,} deleted"
            )
            tell(told)
        else:
            tell(f"{done.commit}: nothing to do")

    try:
        # With --follow, the repository may have no commit yet.
        repo = open_repository(path, storage_options, source=source, create=follow)
        repo.publish(
            destination, branch=branch, follow=follow, timeout=timeout, verify=not no_verify, full=full,
            progress=True, published=tell_of, storage_options=options_of(to_options, "--to-options"),
        )  # fmt: skip
    except KeyboardInterrupt:
        if not follow:
            raise


@command(app)
def references(
    path: PathArgument,
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DESTINATION", help="A file x.json or a directory x.parquet, as a path or URL.", show_default=False
        ),
    ],
    tag: Annotated[
        str,
        typer.Option(metavar="TAG", help="Tag of the commit.", show_default=False, autocompletion=complete_tag),
    ],
    create_tag: Annotated[
        bool, typer.Option("--create-tag", help="Create the tag at the newest commit if it does not exist.")
    ] = False,
    no_templates: Annotated[
        bool, typer.Option("--no-templates", help="In JSON: write full URLs, for readers without template support.")
    ] = False,
    storage_options: StorageOption = None,
    to_options: ToOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write where each chunk of a tagged commit is stored, so that fsspec and zarr read it without txstore."""
    done = open_repository(path, storage_options).references(
        destination, tag=tag, create_tag=create_tag, templates=not no_templates,
        storage_options=options_of(to_options, "--to-options"),
    )  # fmt: skip
    if as_json:
        print_json(asdict(done) | {"commit": commit_as_dict(done.commit)})
    else:
        tell(f"references to {done.keys:,} keys of {done.commit} are in {public_place(destination)}")
