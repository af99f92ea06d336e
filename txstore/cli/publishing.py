"""`txstore publish` and `references`: copies and references for readers without TxStore."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from txstore.cli.complete import complete_tag
from txstore.cli.options import (
    BranchOption,
    DestinationArgument,
    JsonOption,
    NoVerifyOption,
    PathArgument,
    SourceOption,
    StorageOption,
    ToOption,
    open_repository,
    options_of,
)
from txstore.cli.output import (
    commit_as_dict,
    print_json,
    public_place,
    reporting_errors,
    tell,
)
from txstore.format.display import readable_size
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.interchange.publish import Published


def register(app: typer.Typer) -> None:
    app.command()(publish)
    app.command()(references)


@reporting_errors
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


@reporting_errors
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
