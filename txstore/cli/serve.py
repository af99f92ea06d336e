"""`txstore serve` and `page`: show a repository in the browser, from a server or from its files."""

from __future__ import annotations

import contextlib
import html
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from txstore.cli.options import (
    JsonOption,
    PathArgument,
    SourceOption,
    StorageOption,
    ToOption,
    open_repository,
    options_of,
)
from txstore.cli.output import (
    app,
    command,
    log_printer,
    print_outcome,
)


@command(app)
def serve(
    path: PathArgument,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="The port; 0 chooses a free one.")] = 0,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    no_token: Annotated[
        bool,
        typer.Option(
            "--no-token",
            help="Need no token: any user who can reach the port may read, and all users of this machine can.",
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another host name of this server. Can be repeated.", show_default=False),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Let pages of this origin read, such as https://neuroglancer-demo.appspot.com. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(min=1, max=256, metavar="N", help="Processes that answer. For many readers: one per processor."),
    ] = 1,
    source: SourceOption = None,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a repository in the browser, and serve its commits as plain Zarr. Read-only; Ctrl-C stops it."""
    repo = open_repository(path, storage_options, source=source)
    try:
        from txstore.serving.entrance import listen
        from txstore.serving.server import Server, Workers  # late: no other command needs it
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        raise ModuleNotFoundError(f"{missing} is not installed: pip install 'txstore[serve]'", name=missing) from error
    print_log = log_printer()
    print_log()
    entrance = listen(
        host, port, has_token=not no_token, hosts=allow_host or (), origins=allow_origin or (), workers=workers
    )
    server = Server(repo, entrance) if workers == 1 else Workers(repo, entrance, print_log)
    print_outcome(
        {"url": entrance.address, "zarr": f"{entrance.base}at/main/", "token": entrance.token},
        f"{entrance.address} shows {repo.url}; Ctrl-C stops it",
        as_json=as_json,
    )
    with contextlib.ExitStack() as until_the_end:
        if open_page:
            import webbrowser

            webbrowser.open(until_the_end.enter_context(redirecting_to(entrance.address)).as_uri())
        server.serve_here()


@command(app)
def page(
    path: PathArgument,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="DESTINATION",
            help="Put the page there, and not beside the repository. It then shows what ?repository=URL names.",
            show_default=False,
        ),
    ] = None,
    to_options: ToOption = None,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a page beside a repository that shows it in the browser without a server: from a bucket, say."""
    from txstore.serving.files import put_page  # late: no other command needs it

    open_repository(path, storage_options)  # raises if there is none
    if to is None:
        written = put_page(path, options=options_of(storage_options, "--storage-options"))
    else:
        written = put_page(to, options=options_of(to_options, "--to-options"), repository="")
    print_outcome({"url": written}, f"{written}: open it by the address that its host gives it", as_json=as_json)


@contextlib.contextmanager
def redirecting_to(address: str) -> Iterator[Path]:
    """Yield a file that only this user can read, which sends a browser to an address.

    All users see the browser's command line, so the token must not be part of it.
    """
    with (
        _ended_as_by_ctrl_c(),
        tempfile.NamedTemporaryFile("w", prefix="txstore-", suffix=".html", encoding="ascii") as file,
    ):
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(address)}">\n')
        file.flush()
        yield Path(file.name)


@contextlib.contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM raise `KeyboardInterrupt` while the block runs, so that what it has made is deleted.

    SIGHUP sends SIGTERM: a server that runs has a handler for that which raises nothing. What a handler raises while
    an object is deleted, Python drops.
    """
    handlers = {
        signal.SIGTERM: signal.default_int_handler,
        signal.SIGHUP: lambda *_: signal.raise_signal(signal.SIGTERM),
    }
    before = {each: signal.signal(each, handler) for each, handler in handlers.items()}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
