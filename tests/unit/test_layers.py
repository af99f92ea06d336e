"""Each module imports only from those below it. Read from the syntax trees, so an import inside a function counts."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "txstore"

# Top to bottom. A package under txstore/ is one layer, whatever it holds. "__init__" is txstore/__init__.py, which may
# itself import anything (it only re-exports); what stands below it must not import from `txstore` itself.
LAYERS = [
    "__main__",
    "cli",
    "cli_maintenance",
    "cli_transactions",
    "cli_bridges",
    "cli_import",
    "cli_space",
    "cli_output",
    "demo",
    "demo_scenes",
    "demo_picture",
    "__init__",
    "loaders",
    "bridges",
    "synchronized",
    "repository",
    "tags",
    "zarr2",
    "store",
    "session",
    "lock_blocks",
    "door",
    "statements",
    "backup",
    "repairing",
    "replacing",
    "source_checking",
    "verifying",
    "tracing",
    "rebuilding",
    "checking",
    "faults",
    "engine",
    "retention",
    "vacuuming",
    "optimizing",
    "usage",
    "transaction",
    "beginning",
    "committer",
    "conflicts",
    "named",
    "dropping",
    "late_work",
    "staging",
    "exits",
    "reclaiming",
    "siblings",
    "participants",
    "tails",
    "reads",
    "read_marks",
    "staged",
    "chains",
    "locking",
    "regions",
    "publishing",
    "reachable",
    "snapshot",
    "declarations",
    "constraints",
    "outcome",
    "grids",
    "documents",
    "listing",
    "remote_runs",
    "index",
    "following",
    "finding",
    "opening",
    "remote_commits",
    "object_writing",
    "commits",
    "commit",
    "identity",
    "remote_packs",
    "read_ahead",
    "pack",
    "pins",
    "locks",
    "file_systems",
    "range_locks",
    "file_locks",
    "lock_owners",
    "lock_file",
    "numbered_locks",
    "lock_slots",
    "network_storage",
    "local_storage",
    "remote_storage",
    "leases",
    "request_threads",
    "storage",
    "sources",
    "pack_cache",
    "cache_directory",
    "objects",
    "object_client",
    "obstore_objects",
    "fsspec_objects",
    "azure_objects",
    "gcs_objects",
    "s3_objects",
    "async_objects",
    "sftp_objects",
    "smb_objects",
    "plain_objects",
    "foreign",
    "object_urls",
    "object_errors",
    "object_engines",
    "sharing",
    "tree",
    "turns",
    "forking",
    "records",
    "format",
    "names",
    "encoding",
    "keys",
    "errors",
    "_native",
]


def modules() -> dict[str, Path]:
    """Dotted name below txstore -> file: "pack" -> pack.py, "_native" -> _native/__init__.py."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts if parts[-1] != "__init__" or len(parts) == 1 else parts[:-1])] = path
    return found


def layer_of(module: str) -> str:
    return module.partition(".")[0]


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker sees."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and is_type_checking(child.test):
            for statement in child.orelse:
                yield from running_nodes(statement)
        else:
            yield from running_nodes(child)


def imported_layers(source: str, package: str) -> Iterator[tuple[int, str]]:
    """(line, layer) of each import of ours. `package` is where the module lies: "txstore", "txstore._native"."""
    for node in running_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            root, _, rest = target.partition(".")
            if root == "txstore":
                first = layer_of(rest)
                # `from txstore import Repository`: a name of txstore/__init__.py, not a module
                yield node.lineno, first if first in LAYERS or (PACKAGE / f"{first}.py").exists() else "__init__"


def breaches(layer: str, source: str, package: str = "txstore") -> list[str]:
    return [
        f"line {line}: {layer} imports {imported}, " + ("above it" if imported in LAYERS else "which is in no layer")
        for line, imported in imported_layers(source, package)
        if imported not in LAYERS or LAYERS.index(imported) < LAYERS.index(layer)
    ]


def test_every_module_has_a_layer():
    assert {layer_of(module) for module in modules()} - set(LAYERS) == set()


@pytest.mark.parametrize("module", [module for module in modules() if module != "__init__"])
def test_a_module_imports_only_from_below(module):
    path = modules()[module]
    package = ".".join(["txstore", *path.relative_to(PACKAGE).parent.parts])
    if layer_of(module) in LAYERS:
        assert breaches(layer_of(module), path.read_text(encoding="utf-8"), package) == []


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("from txstore.repository import Repository", "txstore"),
        ("from .repository import Repository", "txstore"),
        ("from . import repository", "txstore"),
        ("import txstore.repository as facade", "txstore"),
        ("from txstore import Repository", "txstore"),
        ("import txstore", "txstore"),
        ("from ..repository import Repository", "txstore._native"),
        ("def late():\n    from .repository import Repository", "txstore"),
        ("if not TYPE_CHECKING:\n    from .repository import Repository", "txstore"),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from .repository import Repository", "txstore"),
        ("from .no_such_layer import x\nimport txstore.repository", "txstore"),
    ],
)
def test_a_breach_is_found(source, package):
    assert len(breaches("pack", source, package)) == 1 + source.count("no_such_layer")


@pytest.mark.parametrize(
    "source",
    [
        "import os, zarr.storage",
        "from .storage import Storage",
        "from . import pack",
        "from txstore._native import local",
        "if TYPE_CHECKING:\n    from .repository import Repository",
        "if typing.TYPE_CHECKING:\n    from .repository import Repository",
    ],
)
def test_what_is_allowed_is_no_breach(source):
    assert breaches("pack", source) == []
