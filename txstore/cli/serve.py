"""`txstore serve`: a page in the browser, and plain Zarr over HTTP."""

from __future__ import annotations

import logging
import webbrowser
from typing import Annotated

import typer

from txstore.cli.output import (
    JsonOption,
    LogLines,
    PathArgument,
    SourceOption,
    StorageOption,
    open_repository,
    print_outcome,
    reporting_errors,
)


@reporting_errors
def serve(
    path: PathArgument,
    host: Annotated[
        str, typer.Option(help="The address to listen on. If others can reach it, the server asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: one that is free.")] = 0,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name that this server is called by. Can be repeated.", show_default=False),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Pages of this origin may read, such as https://neuroglancer-demo.appspot.com. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    source: SourceOption = None,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a repository in the browser, and serve its commits as plain Zarr. For reading only; ends with Ctrl-C."""
    repo = open_repository(path, storage_options, source=source)
    try:
        from txstore.serving.server import Server  # late: no other command needs it
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is not installed: pip install 'txstore[serve]'", name=error.name
        ) from error
    logging.getLogger().addHandler(LogLines())
    server = Server(repo, host=host, port=port, hosts=allow_host or (), origins=allow_origin or ())
    print_outcome(
        {"url": server.address, "zarr": f"{server.address.partition('?')[0]}at/main/", "token": server.token},
        f"{server.address} shows {repo.url}; Ctrl-C ends it",
        as_json=as_json,
    )
    if open_page:
        webbrowser.open(server.address)
    server.serve_here()
