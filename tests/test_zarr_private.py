"""Without any one of the private names of zarr, TxStore goes on, or says which versions of zarr it works with."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[1] / "txstore"
MODULE = PACKAGE / "zarr_private.py"
PRIVATE = re.compile(r"\bzarr\.core\b|\bzarr(\.\w+)*\._[a-z]")
NODES = list(ast.walk(ast.parse(MODULE.read_text())))
NEEDED = [
    (node.module, alias.name)
    for node in NODES
    if isinstance(node, ast.ImportFrom) and node.module and PRIVATE.match(node.module) and node.module != "zarr.core"
    for alias in node.names
]
#: What is asked for by name.
SLOWER = sorted({
    (f"zarr.core.{ast.unparse(node.args[0])}", ast.literal_eval(node.args[1]))
    for node in NODES
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr")
})  # fmt: skip
#: Runs the tests that are its other arguments, in a process where TxStore does not find a name.
TESTS_WITHOUT = """
import sys, pytest, zarr
from tests.test_zarr_private import Without
assert "txstore" not in sys.modules
module, name, *tests = sys.argv[1:]
real, last = sys.modules[module], module.rpartition(".")[2]
sys.modules[module] = without = Without(module, name)
setattr(zarr.core, last, without)
import txstore.zarr_private
sys.modules[module] = real
setattr(zarr.core, last, real)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", "not callers_thread", *tests]))
"""


class Without(ModuleType):
    """A module without one name."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__(module)
        self.real, self._name = import_module(module), name

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            raise AttributeError(name)
        return getattr(self.real, name)


def test_one_module_uses_private_names():
    assert [path for path in PACKAGE.rglob("*.py") if PRIVATE.search(path.read_text())] == [MODULE]
    assert len(NEEDED) == 7
    assert {name for _, name in SLOWER} == {"sync", "FusedCodecPipeline", "_pool"}


@pytest.mark.parametrize(("module", "name"), NEEDED)
def test_without_a_name_that_it_needs_it_says_which_zarr_it_works_with(module, name, monkeypatch):
    monkeypatch.setitem(sys.modules, module, Without(module, name))
    with pytest.raises(ImportError, match=rf"works with zarr 3\.1\.6 to .*{name}.*: install"):
        runpy.run_path(str(MODULE))


@pytest.mark.long
@pytest.mark.parametrize(("module", "name"), SLOWER)
def test_without_any_other_name_it_goes_on(module, name):
    tests = ["tests/store/test_zarr.py", "tests/transactions/test_late_writes.py"]
    command = [sys.executable, "-c", TESTS_WITHOUT, module, name, *tests]
    run = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr
