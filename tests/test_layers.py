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
    "xarray_datasets",
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
    "interfaces",
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
    "zarr_private",
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


#: What opens arrays, and where that is right: `pipeline.open_own` and `made_own` open those that TxStore itself reads.
OPENERS = {"open", "open_array", "open_group", "open_consolidated", "open_like", "load", "Array", "AsyncArray"}
WALKERS = {"members", "arrays", "array_values", "open_zarr", "open_dataset", "open_datatree", "open_groups"}
OPENED_ELSEWHERE = {
    "pipeline.registration.open_own": "the function itself",
    "cli.nodes._nodes": "lists nodes, and reads no chunk",
    "cli.nodes._one_by_one": "lists nodes beside one that is odd, and reads no chunk",
    "cli.demo": "the demonstration, which reads what it has written",
    "interchange.hdf5_arrays.NetcdfArrays": "files of NetCDF: no codecs of Zarr",
    "interchange.virtual_datasets": "makes groups, and resizes arrays",
    "interchange.zarr_arrays.ZarrArrays.__init__": "then calls `made_own`",
    "labels.groups.LabelledGroup.__init__": "then calls `made_own`",
    "labels.groups.LabelledGroup.check_none_inherit": "reads no chunk",
    "loaders.samples": "then calls `made_own`",
    "synchronized_arrays": "arrays that users open",
    "views.outputs._require_group": "makes a group",
    "xarray_datasets": "what users open",
}


def opened_arrays(module: str, source: str) -> Iterator[str]:
    """Yield the function around each call that opens arrays by zarr or xarray."""
    tree = ast.parse(source)
    of_zarr = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("zarr", "xarray")
        for alias in node.names
    }

    def walk(node: ast.AST, where: str) -> Iterator[str]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            where = f"{where}.{node.name}"
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in of_zarr & (OPENERS | WALKERS):
                yield where
            if isinstance(called, ast.Attribute):
                root = called.value
                while isinstance(root, ast.Attribute):
                    root = root.value
                is_zarr = isinstance(root, ast.Name) and root.id == "zarr"
                if called.attr in WALKERS or (is_zarr and called.attr in OPENERS):
                    yield where
        for child in ast.iter_child_nodes(node):
            yield from walk(child, where)

    return walk(tree, module)


def test_arrays_are_opened_in_one_place():
    """A stranger may have written what TxStore itself reads: codecs are checked, and what they decode is bounded."""
    found = {where for module, source in MODULES.items() for where in opened_arrays(module, source)}
    right = {where for where in found for each in OPENED_ELSEWHERE if f"{where}.".startswith(f"{each}.")}
    assert found - right == set()
    assert [each for each in OPENED_ELSEWHERE if not any(f"{where}.".startswith(f"{each}.") for where in found)] == []


@pytest.mark.parametrize(
    "source",
    [
        "import zarr\ndef f(): return zarr.open_array(s)",
        "def f():\n    import zarr\n    return zarr.Array(zarr.AsyncArray(m, p))",
        "from zarr.api.asynchronous import open_array\ndef f(): return open_array(s)",
        "def f(group): return dict(group.arrays())",
        "import xarray as xr\ndef f(): return xr.open_zarr(s)",
    ],
)
def test_an_array_opened_elsewhere_is_found(source):
    assert set(opened_arrays("views.outputs", source)) == {"views.outputs.f"}
