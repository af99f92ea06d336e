"""What commits changed in arrays and groups, and which wrote what is there: `diff`, `blame`.

`mv`, `cp` and `restore` move, copy and restore arrays and groups by reference. `rechunk`. Each makes one commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstore.cli.options import (
    AtOption,
    BranchOption,
    JsonOption,
    MessageOption,
    NeededAtOption,
    NewArgument,
    NewestArgument,
    NodeArgument,
    OtherArgument,
    PathArgument,
    StorageOption,
    TargetOption,
    commit_or_newest,
    find_commit,
    open_repository,
)
from txstore.cli.output import (
    commit_as_dict,
    local_time,
    print_json,
    print_outcome,
    print_table,
    reporting_errors,
    tell,
)
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.repository import Repository
    from txstore.transactions.transaction import Transaction


@reporting_errors
def diff(
    path: PathArgument,
    a: NewestArgument = None,
    b: OtherArgument = None,
    three_dot: Annotated[
        bool, typer.Option("--three-dot", help="Show what the second commit changed since the two diverged.")
    ] = False,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how two commits, or a commit and its parent, differ: nodes, attributes, regions of elements."""
    repo = open_repository(path, storage_options)
    first = commit_or_newest(repo, a, branch)
    found = repo.diff(first, None if b is None else find_commit(repo, b, branch), three_dot=three_dot)
    if as_json:
        print_json(found.as_dict())
        return
    for line in str(found).splitlines():
        tell(line)


@reporting_errors
def blame(
    path: PathArgument,
    node: NodeArgument,
    at: AtOption = None,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which commits wrote the chunks and metadata documents of an array or group."""
    repo = open_repository(path, storage_options)
    found = repo.blame(node, None if at is None else find_commit(repo, at, branch), branch=branch)
    if as_json:
        print_json(found.as_dict(), indent=None)
        return
    rows = [
        (
            "-" if commit is None else str(commit),
            "-" if commit is None else commit.id[:12],
            "-" if commit is None else local_time(commit.time),
            f"{chunks:,}",
            ", ".join(documents),
            "no longer kept" if commit is None else commit.message.partition("\n")[0],
        )
        for commit, chunks, documents in found.rows()
    ]
    print_table(["commit", "id", "time", "chunks>", "documents~", "message~"], rows)


@reporting_errors
def mv(
    path: PathArgument,
    node: NodeArgument,
    new: NewArgument,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move an array or group in one commit, without copying its values."""
    told = f"move {node} to {new}"
    _commit(path, storage_options, branch, message, told, lambda _, tx: tx.nodes.move(node, new), as_json)


@reporting_errors
def cp(
    path: PathArgument,
    node: NodeArgument,
    new: NewArgument,
    at: AtOption = None,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy an array or group in one commit, by reference: its values are not copied."""

    def copy(repo: Repository, tx: Transaction) -> None:
        tx.nodes.copy(node, new, None if at is None else repo.mapping(find_commit(repo, at, branch)))

    told = f"copy {node} to {new}" + (f", as at {at}" if at else "")
    _commit(path, storage_options, branch, message, told, copy, as_json)


@reporting_errors
def restore(
    path: PathArgument,
    node: NodeArgument,
    at: NeededAtOption,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore an array or group to its state at a commit. If it did not exist then, it is deleted."""

    def back(repo: Repository, tx: Transaction) -> None:
        tx.nodes.restore(node, repo.mapping(find_commit(repo, at, branch)))

    _commit(path, storage_options, branch, message, f"restore {node}, as at {at}", back, as_json)


def _commit(
    path: str,
    storage_options: str | None,
    branch: str,
    message: str | None,
    told: str,
    change: Callable[[Repository, Transaction], None],
    as_json: bool,
) -> None:
    """Commit a change, if it changes anything, with the user's message or a description of the change."""
    repo = open_repository(path, storage_options)
    with repo.begin(message or told, branch=branch) as transaction:
        transaction.lifecycle.needs_change = not message
        change(repo, transaction)
        made = transaction.commit()
    commit = None if made is None else made.commit
    if commit is None:
        print_outcome(None, "nothing has changed, so there is no commit", as_json=as_json)
    else:
        print_outcome(commit_as_dict(commit), f"{commit} {commit.id[:12]} {commit.message}", as_json=as_json)


@reporting_errors
def rechunk(
    path: PathArgument,
    node: NodeArgument,
    chunks: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Lengths of a chunk, in elements: 64,64.", show_default="as they are"),
    ] = None,
    shards: Annotated[
        str | None, typer.Option(metavar="N,...", help="Lengths of a shard: of whole chunks.", show_default="none")
    ] = None,
    compressor: Annotated[
        str | None,
        typer.Option(metavar="NAME:LEVEL", help="Such as zstd:5, gzip, blosc or none.", show_default="as it is"),
    ] = None,
    max_memory: Annotated[str, typer.Option(metavar="BYTES", help="Memory to use, about.")] = "256MiB",
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Pieces to copy at once.", show_default="2")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of this job. After an interruption, the same command continues.",
            show_default="a hash of NODE",
        ),
    ] = None,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give an array other chunks, shards or a compressor in one commit, while others read and write it.

    The copy is made on a branch. If it is interrupted, run it again; to drop what was copied, delete that branch.
    """
    repo = open_repository(path, storage_options)
    if chunks is None and shards is None and compressor is None:
        raise ValueError("say what is to change: --chunks, --shards or --compressor")
    options: dict[str, Any] = {} if compressor is None else {"compressors": _compressor(repo, node, branch, compressor)}
    made = repo.rechunk(
        node,
        chunks=None if chunks is None else _lengths("--chunks", chunks),
        shards=None if shards is None else _lengths("--shards", shards),
        max_memory=max_memory,
        workers=workers,
        name=name,
        branch=branch,
        message=message,
        progress=True,
        **options,
    )
    if made is None:
        print_outcome(None, f"nothing to do: {node} is in this form already", as_json=as_json)
    else:
        print_outcome(commit_as_dict(made), f"{made} {made.id[:12]} {made.message}", as_json=as_json)


def _lengths(option: str, text: str) -> tuple[int, ...]:
    """Raises `typer.BadParameter`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{option} takes a length for each axis, such as 64,64, not {text!r}")
    return tuple(map(int, parts))


def _compressor(repo: Repository, node: str, branch: str, text: str) -> Any:
    """Return a compressor for the format of an array. Raises `typer.BadParameter`."""
    import numcodecs
    import zarr

    from txstore.pipeline import open_own

    array = open_own(repo.snapshot(branch=branch), node, mode="r")
    name, _, level = text.partition(":")
    known = {
        "zstd": ("level", zarr.codecs.ZstdCodec, numcodecs.Zstd),
        "gzip": ("level", zarr.codecs.GzipCodec, numcodecs.GZip),
        "blosc": ("clevel", zarr.codecs.BloscCodec, numcodecs.Blosc),
    }
    if text == "none":
        return None
    if name not in known or not (not level or level.isdecimal()):
        raise typer.BadParameter(f"--compressor takes {', '.join(known)} or none, and a level, as zstd:5, not {text!r}")
    called, codec, codec_2 = known[name]
    return (codec if array.metadata.zarr_format == 3 else codec_2)(**({called: int(level)} if level else {}))


def register(app: typer.Typer) -> None:
    app.command()(diff)
    app.command()(blame)
    app.command()(mv)
    app.command()(rechunk)
    app.command()(cp)
    app.command()(restore)
