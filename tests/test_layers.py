"""Wings import downward, and nothing imports in a circle. Late imports and those of type checkers count."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import txstore
import txstore.loaders

PACKAGE = Path(__file__).parents[1] / "txstore"

# Top to bottom: a wing is a folder of modules, or one module at the root. `__init__` holds public names only; nothing
# below it imports from `txstore` itself.
TOWER = [
    "__main__",
    "cli",
    "__init__",
    "constraints",
    "aio",
    "telemetry",
    "synchronized_arrays",
    "xarray_backend",
    "fsspec_filesystem",
    "zarr_url_adapter",
    "loaders",
    "repository",
    "serving",
    "interchange",
    "rechunk",
    "feeds",
    "store",
    "labels",
    "views",
    "zarr_interface",
    "pipeline",
    "sessions",
    "merging",
    "engine",
    "maintenance",
    "zarr2",
    "comparing",
    "transactions",
    "deriving",
    "codecs",
    "history",
    "commit_queue",
    "segments",
    "locks",
    "storage",
    "progress",
    "commit",
    "format",
    "processes",
    "observing",
    "steps",
    "errors",
    "_native",
]

#: The only places where a module is named in a string: public names that are imported when they are asked for, and a
#: module of the user's that `txstore views run` is given.
LATE_NAMES = {"__init__", "loaders", "cli.views"}


def modules() -> dict[str, str]:
    """Dotted name below txstore -> source: "segments.packs", and "history" for history/__init__.py."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts if parts[-1] != "__init__" or len(parts) == 1 else parts[:-1])
        found[name] = path.read_text(encoding="utf-8")
    return found


MODULES = modules()


def wing_of(module: str) -> str:
    return module.partition(".")[0]


def imports(module: str, source: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of each import of ours, wherever it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = ["txstore", *module.split(".")]
                above = above[: len(above) - node.level + is_package]
                base = ".".join([*above, base] if base else above)
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            root, _, rest = target.partition(".")
            if root == "txstore":
                while rest and rest not in MODULES:
                    rest = rest.rpartition(".")[0]  # a name in a module
                yield node.lineno, rest or "__init__"


def is_package(module: str) -> bool:
    return (PACKAGE / module.replace(".", "/") / "__init__.py").exists()


def breaches(module: str, source: str) -> list[str]:
    """Return the imports that point up."""
    height = TOWER.index(wing_of(module))
    return [
        f"line {line}: {module} imports {imported}, above it"
        for line, imported in imports(module, source, is_package=is_package(module))
        if TOWER.index(wing_of(imported)) < height
    ]


def circle(sources: Mapping[str, str]) -> list[str]:
    """Return modules that import one another in a circle."""
    graph = {
        module: {found for _, found in imports(module, source, is_package=is_package(module))} - {module, "__init__"}
        for module, source in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_module_has_its_wing():
    assert {wing_of(module) for module in MODULES} == set(TOWER)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    assert breaches(module, MODULES[module]) == []


def test_no_circle():
    assert circle(MODULES) == []


def test_a_class_name_stands_for_one_class():
    """A reader who searches for the name of a class finds the class that is meant."""
    where = defaultdict(list)
    for module, source in MODULES.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(module)
    assert {name: modules for name, modules in where.items() if len(modules) > 1} == {}


@pytest.mark.parametrize("module", sorted(set(MODULES) - LATE_NAMES))
def test_no_import_in_a_string(module):
    called = [node.func for node in ast.walk(ast.parse(MODULES[module])) if isinstance(node, ast.Call)]
    names = {func.id if isinstance(func, ast.Name) else getattr(func, "attr", "") for func in called}
    assert not names & {"import_module", "__import__"}


@pytest.mark.parametrize("module", [txstore, txstore.loaders], ids=["txstore", "txstore.loaders"])
def test_public_names(module):
    assert set(module._LATE) < set(module.__all__)
    assert [name for name in dir(module) if not name.startswith("__")] == sorted(module.__all__)
    if module is txstore:
        assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("segments.packs", "from txstore.repository import Repository"),
        ("segments.packs", "from ..repository import Repository"),
        ("segments.packs", "from .. import repository"),
        ("segments.packs", "import txstore.repository as facade"),
        ("segments.packs", "from txstore import Repository"),
        ("segments.packs", "import txstore"),
        ("history", "from ..repository import Repository"),
        ("engine", "from .repository import Repository"),
        ("segments.packs", "def late():\n    from txstore.transactions.staging import Staging"),
        ("segments.packs", "if TYPE_CHECKING:\n    from txstore.transactions.staging import Staging"),
        ("format.keys", "from txstore.history import packs"),
    ],
)
def test_a_breach_is_found(module, source):
    assert len(breaches(module, source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import os, zarr.storage",
        "from .storage import local",
        "from txstore.history import packs",
        "from .history import packs",
    ],
)
def test_what_is_allowed_is_no_breach(source):
    assert breaches("engine", source) == []


@pytest.mark.parametrize(
    "back",
    [
        "from txstore.history.snapshot import Snapshot",
        "def late():\n    from ..history.snapshot import Snapshot",
        "if TYPE_CHECKING:\n    from txstore.history import snapshot",
    ],
)
def test_a_circle_is_found(back):
    assert circle({"history.snapshot": "from txstore.segments.packs import Pack", "segments.packs": back})
