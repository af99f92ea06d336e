"""`txstore publish` and `references`: repositories for readers that do not know TxStore."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from txstore.cli.output import (
    BranchOption,
    JsonOption,
    PathArgument,
    SourceOption,
    StorageOption,
    ToOption,
    commit_as_dict,
    open_repository,
    options_of,
    print_json,
    public_place,
    reporting_errors,
    showing_progress,
    tell,
)
from txstore.format.shown import readable_size
from txstore.history.commit import MAIN

if TYPE_CHECKING:
    from txstore.interchange.publish import Published


def register(app: typer.Typer) -> None:
    app.command()(publish)
    app.command()(references)


@reporting_errors
def publish(
    path: PathArgument,
    destination: Annotated[
        str, typer.Argument(help="The directory or URL of the plain copy, outside the repository.", show_default=False)
    ],
    follow: Annotated[bool, typer.Option("--follow", help="Go on, after each commit.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="With --follow: end when no commit came for so long."),
    ] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not read back what is written.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Compare everything with what is there.")] = False,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    to_options: ToOption = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a plain Zarr hierarchy at the newest commit, for readers that have no txstore. Run again, it goes on."""

    def tell_of(done: Published) -> None:
        if as_json:  # one line each: with --follow there is no end
            print_json(asdict(done) | {"commit": commit_as_dict(done.commit)}, indent=None)
        elif done.written or done.deleted:
            told = (
                f"{done.commit}: {done.written:,} files written ({readable_size(done.bytes)}), {done.deleted:,} deleted"
            )
            tell(told)
        else:
            tell(f"{done.commit}: nothing to do")

    try:
        with showing_progress("publish") as progress:
            # Followed may be what is yet to be written.
            repo = open_repository(path, storage_options, source=source, create=follow)
            repo.publish(
                destination, branch=branch, follow=follow, timeout=timeout, verify=not no_verify, full=full,
                progress=progress, published=tell_of, storage_options=options_of(to_options, "--to-options"),
            )  # fmt: skip
    except KeyboardInterrupt:
        if not follow:
            raise


@reporting_errors
def references(
    path: PathArgument,
    destination: Annotated[
        str, typer.Argument(help="The file x.json, or the directory x.parquet; or a URL.", show_default=False)
    ],
    tag: Annotated[str, typer.Option(metavar="NAME", help="Of the commit that is shown.", show_default=False)],
    create_tag: Annotated[
        bool, typer.Option("--create-tag", help="Tag the newest commit, unless there is such a tag.")
    ] = False,
    storage_options: StorageOption = None,
    to_options: ToOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write where each chunk of a tagged commit lies: fsspec and zarr read the repository by that, without txstore."""
    done = open_repository(path, storage_options).references(
        destination, tag=tag, create_tag=create_tag, storage_options=options_of(to_options, "--to-options")
    )
    if as_json:
        print_json(asdict(done) | {"commit": commit_as_dict(done.commit)})
    else:
        tell(f"references to {done.keys:,} keys of {done.commit} are in {public_place(destination)}")
