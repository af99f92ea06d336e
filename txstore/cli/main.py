"""The command line: each command parses its arguments, asks the repository, and prints; `--json` for scripts.

Exit status: 0 success; 1 the answer is bad (faults or damage, a conflict, a torn read in the demo); 2 there is no
answer: wrong usage, no such repository or commit, no access.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import txstore
from txstore.cli import (
    branches,
    feeds,
    import_export,
    maintenance,
    merging,
    nodes,
    serve,
    transactions,
    views,
)
from txstore.cli.options import (
    AtOption,
    BranchOption,
    JsonOption,
    LimitOption,
    NewestArgument,
    PathArgument,
    StorageOption,
    commit_or_newest,
    find_commit,
    open_repository,
)
from txstore.cli.output import (
    Commands,
    commit_as_dict,
    local_time,
    names_of_commits,
    print_json,
    print_pairs,
    print_table,
    reporting_errors,
    tell,
)
from txstore.errors import CorruptionError, ErasedError, SnapshotExpiredError, TxStoreError
from txstore.format.display import readable_size
from txstore.format.keys import ancestors, encode_key, is_document, node_of_document
from txstore.format.names import MAIN

if TYPE_CHECKING:
    from txstore.commit import Commit
    from txstore.format.constraints import Constraint
    from txstore.format.mapping import Hierarchy
    from txstore.history.operations import LoggedOperation
    from txstore.repository import Repository

app = typer.Typer(
    help="Inspect, check and maintain TxStore repositories.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=Commands,
)
app.add_typer(transactions.app, name="tx")
app.add_typer(branches.branches_app, name="branch")
app.add_typer(branches.tags_app, name="tag")
app.add_typer(views.app, name="views")
app.add_typer(feeds.app, name="feed")
app.command()(maintenance.verify)
app.command()(maintenance.check_format)
app.command()(maintenance.backup)
app.command()(maintenance.protect)
app.command()(serve.serve)
app.command()(serve.page)
maintenance.register(app)
import_export.register(app)
nodes.register(app)
merging.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        tell(f"txstore {txstore.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# --- commands


@app.command()
@reporting_errors
def demo(
    seconds: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long each of the four runs lasts.")
    ] = 4.0,
    directory: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Directory for the scratch data.", show_default="the system's"),
    ] = None,
    picture: Annotated[Path, typer.Option(metavar="PATH", help="PNG, PDF or SVG file to write.")] = Path("demo.png"),
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Draw no picture.")] = False,
    keep: Annotated[
        Path,
        typer.Option(
            metavar="PATH", help="Keep the repository of the demo here, unless something exists at this path."
        ),
    ] = Path("demo.tx"),
    as_json: JsonOption = False,
) -> None:
    """Let one process write while another reads, on plain Zarr and on TxStore, and count torn reads."""
    from rich.console import Console

    from txstore.cli.demo import run

    report = run(seconds, directory, None if no_picture else picture, Console(stderr=as_json), keep)
    if as_json:
        print_json(report)
    if not report["ok"]:
        raise typer.Exit(1)


@app.command()
@reporting_errors
def log(
    path: PathArgument,
    limit: LimitOption = None,
    node: Annotated[
        str | None,
        typer.Option(
            "--path", metavar="NODE", help="Only commits that changed this array or group.", show_default=False
        ),
    ] = None,
    branch: BranchOption = MAIN,
    graph: Annotated[bool, typer.Option("--graph", help="Draw all branches and where they started.")] = False,
    operations: Annotated[
        bool,
        typer.Option(
            "--operations",
            help="List what was done beside commits instead: maintenance, and changes of branches and tags.",
        ),
    ] = False,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the commits, newest first, with the branches whose head they are, and their tags."""
    repo = open_repository(path, storage_options)
    if operations:
        if graph or node is not None or branch != MAIN:
            raise ValueError("--operations lists those of the whole repository: leave out --graph, --path and --branch")
        found = repo.log(operations=True, limit=limit)
        if as_json:
            print_json([each.as_dict() for each in found])
        else:
            print_table(["time", "by?", "operation", "on~", "result~"], map(_operation_row, found))
        return
    if graph:
        lines = [repo.log(each, path=node) for each in dict.fromkeys([branch, *repo.branches])]
        commits = branches.newest_first(lines)[:limit]
    else:
        commits = list(repo.log(branch=branch, limit=limit, path=node))
    called = names_of_commits(repo)
    if as_json:
        print_json([commit_as_dict(commit) | {"names": called.get(commit.id, [])} for commit in commits])
    elif graph:
        for drawn, commit in branches.draw(commits):
            tell(drawn if commit is None else f"{drawn} {_commit_line(commit, called)}")
    else:
        rows = (_commit_row(commit, called, branch) for commit in commits)
        print_table(["version>", "id", "time", "author?", "keys>", "size>", "message~"], rows)


@app.command()
@reporting_errors
def ls(
    path: PathArgument,
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
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the arrays and groups, with their stored sizes."""
    repo = open_repository(path, storage_options)
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


@app.command()
@reporting_errors
def show(
    path: PathArgument,
    commit: NewestArgument = None,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one commit and what it changed."""
    repo = open_repository(path, storage_options)
    found = commit_or_newest(repo, commit, branch)
    told = commit_as_dict(found)
    try:
        changes = repo.diff(found)
    except SnapshotExpiredError:  # its parent is not kept: nothing to compare with
        changes = None
    if as_json:
        print_json(told | {"changes": None if changes is None else changes.as_dict()["nodes"]})
        return
    told["time"] = local_time(found.time, seconds=True)
    print_pairs(_pairs(told))
    tell()
    for line in (
        ["its changes are not known: its parent is no longer kept"] if changes is None else str(changes).splitlines()
    ):
        tell(line)


@app.command()
@reporting_errors
def constraints(
    path: PathArgument,
    at: AtOption = None,
    branch: BranchOption = MAIN,
    storage_options: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the constraints that every commit must satisfy."""
    from txstore.history.declarations import encode_constraint

    repo = open_repository(path, storage_options)
    declared = repo.mapping(None if at is None else find_commit(repo, at, branch), branch=branch).constraints
    if as_json:
        print_json({name: encode_constraint(each) for name, each in sorted(declared.items())})
        return
    print_table(["name~", "kind", "what~"], [_constraint_row(*each) for each in sorted(declared.items())])


# --- queries


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


# --- printing


def _commit_row(commit: Commit, called: Mapping[str, list[str]], branch: str) -> tuple[str, ...]:
    statistics = commit.statistics
    deleted = statistics["keys_deleted"] + statistics["prefixes_deleted"]
    return (
        f"{commit.version}" if commit.branch == branch else str(commit),
        commit.id[:12],
        local_time(commit.time),
        commit.author,
        f"+{statistics['keys_set']:,}" + (f" -{deleted:,}" if deleted else ""),
        readable_size(statistics["bytes_set"]),
        _titled(commit, called),
    )


def _commit_line(commit: Commit, called: Mapping[str, list[str]]) -> str:
    return f"{commit} {commit.id[:12]} {local_time(commit.time)} {_titled(commit, called)}"


def _operation_row(operation: LoggedOperation) -> tuple[str, ...]:
    about = (
        ", ".join(map(str, value)) if isinstance(value, list) else str(value) for value in operation.arguments.values()
    )
    return (local_time(operation.time), operation.by, operation.operation, " ".join(about), operation.outcome)


def _titled(commit: Commit, called: Mapping[str, list[str]]) -> str:
    title = commit.message.partition("\n")[0]
    return f"({', '.join(called[commit.id])}) {title}" if commit.id in called else title


def _node_row(node: Mapping[str, Any]) -> tuple[str, ...]:
    if "fault" in node:
        return node["name"], f"can't be read: {node['fault']}", "", "", "", readable_size(node["bytes"])
    if node["kind"] == "group":
        return f"{node['name']}/", "", "", "", "", readable_size(node["bytes"])
    chunks = "varying" if node["chunks"] is None else _lengths(node["chunks"])
    return (
        node["name"],
        _lengths(node["shape"]),
        chunks if node["shards"] is None else f"{chunks} in {_lengths(node['shards'])}",
        node["dtype"],
        f"{node['chunks_stored']:,}",
        readable_size(node["bytes"]),
    )


def _lengths(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _constraint_row(name: str, constraint: Constraint) -> tuple[str, ...]:
    return (
        name,
        constraint.kind,
        "; ".join(f"{field}: {json.dumps(content)}" for field, content in constraint.as_dict().items()),
    )


def _pairs(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in told.items():
        if isinstance(value, Mapping):
            for inner, content in value.items():
                yield f"{name}.{inner}", f"{content:,}" if name == "statistics" else json.dumps(content)
        else:
            yield name, "-" if value is None else str(value)


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


if __name__ == "__main__":
    sys.exit(app())
