"""Which arrays and groups there are, what commits changed in them, and which wrote them: `ls`, `diff`, `blame`.

`mv`, `cp` and `restore` move, copy and restore arrays and groups by reference. `rechunk`. Each makes one commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    TargetOption,
    commit_or_newest,
    find_commit,
)
from txstore.cli.output import (
    app,
    command,
    commit_as_dict,
    local_time,
    print_json,
    print_outcome,
    print_table,
    tell,
)
from txstore.errors import CorruptionError, ErasedError, TxStoreError
from txstore.format.display import readable_size
from txstore.format.keys import ancestors, encode_key, is_document, node_of_document
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.commit import Commit
    from txstore.format.mapping import Hierarchy
    from txstore.repository import Repository
    from txstore.transactions.transaction import Transaction


@command(app)
def diff(
    repo: Repository,
    a: NewestArgument = None,
    b: OtherArgument = None,
    three_dot: Annotated[
        bool, typer.Option("--three-dot", help="Show what the second commit changed since the two diverged.")
    ] = False,
    branch: BranchOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Show how two commits, or a commit and its parent, differ: nodes, attributes, regions of elements."""
    first = commit_or_newest(repo, a, branch)
    found = repo.diff(first, None if b is None else find_commit(repo, b, branch), three_dot=three_dot)
    if as_json:
        print_json(found.as_dict())
        return
    for line in str(found).splitlines():
        tell(line)


@command(app)
def blame(
    repo: Repository,
    node: NodeArgument,
    at: AtOption = None,
    branch: BranchOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Show which commits wrote the chunks and metadata documents of an array or group."""
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


@command(app)
def ls(
    repo: Repository,
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE",
            help="The array or group to list; with --keys, a prefix of keys.",
            show_default=False,
        ),
    ] = "",
    at: AtOption = None,
    keys: Annotated[bool, typer.Option("--keys", help="List raw keys and their sizes, not arrays and groups.")] = False,
    branch: BranchOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """List the arrays and groups, with their stored sizes."""
    commit = None if at is None else find_commit(repo, at, branch)
    if keys:
        _list_keys(repo.mapping(commit, branch=branch), node, as_json)
        return
    nodes = list(_nodes(repo, commit, branch, node.strip("/")))
    if as_json:
        print_json(nodes)
    else:
        print_table(["name~", "shape~", "chunks~", "dtype", "stored>", "size>"], map(_node_row, nodes))
    if any("fault" in each for each in nodes):
        raise typer.Exit(1)


def _nodes(repo: Repository, commit: Commit | None, branch: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Yield the node at a path and those below it, by name."""
    import zarr

    if prefix:
        encode_key(prefix)
    store = repo.snapshot(commit, branch=branch)
    nodes: dict[str, Any] = {}
    failed: Exception | None = None
    try:
        nodes[prefix] = top = zarr.open(store, path=prefix, mode="r")
        if isinstance(top, zarr.Group):
            nodes |= {node.path: node for _, node in top.members(max_depth=None, use_consolidated_for_children=False)}
    except FileNotFoundError as error:
        raise ValueError(f"no array or group exists at {prefix or '/'!r}: --keys lists raw keys") from error
    except Exception as error:  # zarr raises many kinds for an invalid document, and leaves out others
        if isinstance(error, TxStoreError) and not isinstance(error, CorruptionError | ErasedError):
            raise
        failed = error
    sizes, chunks, others = _measured(store, prefix, nodes)
    if others:  # one odd document hides no other node
        nodes |= _one_by_one(store, others)
        sizes, chunks, _ = _measured(store, prefix, nodes)
    if failed and not any(isinstance(node, zarr.Array | zarr.Group) for node in nodes.values()):
        if isinstance(failed, TxStoreError):
            raise failed
        told = f"zarr can't read the node at {prefix or '/'!r} ({failed!r}): --keys lists raw keys"
        raise ValueError(told) from failed
    for path, node in sorted(nodes.items()):
        is_array, is_odd = isinstance(node, zarr.Array), isinstance(node, Exception)
        yield {
            "name": path,
            "kind": "unknown" if is_odd else "array" if is_array else "group",
            **({"fault": " ".join(str(node).split()) or repr(node)} if is_odd else {}),
            "shape": list(node.shape) if is_array else None,
            "chunks": _chunks(node) if is_array else None,
            "shards": list(node.shards) if is_array and node.shards else None,
            "dtype": str(node.dtype) if is_array else None,
            "chunks_stored": chunks[path] if is_array else None,
            "bytes": sizes[path],
        }


def _measured(store: Any, prefix: str, nodes: Mapping[str, Any]) -> tuple[Counter[str], Counter[str], set[str]]:
    """Return the stored bytes and chunks of each node, and the paths of documents that belong to none of them."""
    import zarr

    sizes, chunks, others = Counter[str](), Counter[str](), set[str]()
    for key in store.mapping.keys_below(prefix):
        size = store.mapping.size_of(key) or 0
        above = [path for path in ancestors(key) if path in nodes]
        sizes.update(dict.fromkeys(above, size))
        if not is_document(key):
            chunks.update(above)
        elif node_of_document(key) not in above and not (above and isinstance(nodes[above[0]], zarr.Array)):
            others.add(node_of_document(key))
    return sizes, chunks, others


def _one_by_one(store: Any, paths: Iterable[str]) -> dict[str, Any]:
    """Return the nodes at these paths, and of each that can't be read the reason."""
    import zarr

    nodes: dict[str, Any] = {}
    for path in paths:
        try:
            nodes[path] = zarr.open(store, path=path, mode="r")
        except FileNotFoundError:
            continue  # attributes of nothing
        except Exception as error:  # noqa: BLE001 - zarr raises many kinds; it is told
            nodes[path] = error
    return nodes


def _chunks(array: Any) -> list[int] | None:
    """Return the lengths of a chunk, in elements; None if chunks differ in length."""
    try:
        return list(array.chunks)
    except NotImplementedError:
        return None


def _node_row(node: Mapping[str, Any]) -> tuple[str, ...]:
    if "fault" in node:
        return node["name"], f"can't be read: {node['fault']}", "", "", "", readable_size(node["bytes"])
    if node["kind"] == "group":
        return f"{node['name']}/", "", "", "", "", readable_size(node["bytes"])
    chunks = "varying" if node["chunks"] is None else _shape(node["chunks"])
    return (
        node["name"],
        _shape(node["shape"]),
        chunks if node["shards"] is None else f"{chunks} in {_shape(node['shards'])}",
        node["dtype"],
        f"{node['chunks_stored']:,}",
        readable_size(node["bytes"]),
    )


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _list_keys(snapshot: Hierarchy, prefix: str, as_json: bool) -> None:
    listed = ((key, snapshot.size_of(key) or 0) for key in _keys_from(snapshot, prefix))
    if as_json:
        print_json([{"key": key, "bytes": size} for key, size in listed])
        return
    for key, size in listed:  # there may be millions: a table would wait for the last
        tell(f"{size:>14,}  {key}")


def _keys_from(snapshot: Hierarchy, prefix: str) -> Iterator[str]:
    for key in snapshot.keys_between(prefix, None):
        if not key.startswith(prefix):
            return
        yield key


@command(app)
def mv(
    repo: Repository,
    node: NodeArgument,
    new: NewArgument,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Move an array or group in one commit, without copying its values."""
    told = f"move {node} to {new}"
    _commit(repo, branch, message, told, lambda _, tx: tx.nodes.move(node, new), as_json)


@command(app)
def cp(
    repo: Repository,
    node: NodeArgument,
    new: NewArgument,
    at: AtOption = None,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Copy an array or group in one commit, by reference: its values are not copied."""

    def copy(repo: Repository, tx: Transaction) -> None:
        tx.nodes.copy(node, new, None if at is None else repo.mapping(find_commit(repo, at, branch)))

    told = f"copy {node} to {new}" + (f", as at {at}" if at else "")
    _commit(repo, branch, message, told, copy, as_json)


@command(app)
def restore(
    repo: Repository,
    node: NodeArgument,
    at: NeededAtOption,
    message: MessageOption = None,
    branch: TargetOption = MAIN,
    as_json: JsonOption = False,
) -> None:
    """Restore an array or group to its state at a commit. If it did not exist then, it is deleted."""

    def back(repo: Repository, tx: Transaction) -> None:
        tx.nodes.restore(node, repo.mapping(find_commit(repo, at, branch)))

    _commit(repo, branch, message, f"restore {node}, as at {at}", back, as_json)


def _commit(
    repo: Repository,
    branch: str,
    message: str | None,
    told: str,
    change: Callable[[Repository, Transaction], None],
    as_json: bool,
) -> None:
    """Commit a change, if it changes anything, with the user's message or a description of the change."""
    with repo.begin(message or told, branch=branch) as transaction:
        transaction.lifecycle.needs_change = not message
        change(repo, transaction)
        made = transaction.commit()
    commit = None if made is None else made.commit
    if commit is None:
        print_outcome(None, "nothing has changed, so there is no commit", as_json=as_json)
    else:
        print_outcome(commit_as_dict(commit), f"{commit} {commit.id[:12]} {commit.message}", as_json=as_json)


@command(app)
def rechunk(
    repo: Repository,
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
    as_json: JsonOption = False,
) -> None:
    """Give an array other chunks, shards or a compressor in one commit, while others read and write it.

    The copy is made on a branch. If it is interrupted, run it again; to drop what was copied, delete that branch.
    """
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
