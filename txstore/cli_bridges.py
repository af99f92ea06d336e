"""`txstore publish` and `references`: repositories for readers that do not know TxStore."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from txstore.cli_output import (
    JsonOption,
    PathArgument,
    SourceOption,
    commit_as_dict,
    print_json,
    printable,
    reporting_errors,
    showing_progress,
    sources_of,
)
from txstore.cli_space import readable_size
from txstore.repository import Repository

if TYPE_CHECKING:
    from txstore.bridges.publish import Published


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
    source: SourceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a plain Zarr hierarchy at the newest commit, for readers that have no txstore. Run again, it goes on."""

    def tell(done: Published) -> None:
        if as_json:  # one line each: with --follow there is no end
            typer.echo(json.dumps(asdict(done) | {"commit": commit_as_dict(done.commit)}))
        elif done.written or done.deleted:
            told = (
                f"{done.commit}: {done.written:,} files written ({readable_size(done.bytes)}), {done.deleted:,} deleted"
            )
            typer.echo(told)
        else:
            typer.echo(f"{done.commit}: nothing to do")

    try:
        with showing_progress("publish") as progress:
            Repository(path, sources=sources_of(source)).publish(
                destination, follow=follow, timeout=timeout, verify=not no_verify, full=full, progress=progress,
                published=tell,
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
    as_json: JsonOption = False,
) -> None:
    """Write where each chunk of a tagged commit lies: fsspec and zarr read the repository by that, without txstore."""
    done = Repository(path).references(destination, tag=tag, create_tag=create_tag)
    if as_json:
        print_json(asdict(done) | {"commit": commit_as_dict(done.commit)})
    else:
        typer.echo(f"references to {done.keys:,} keys of {done.commit} are in {printable(destination)}")
