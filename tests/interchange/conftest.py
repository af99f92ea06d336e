"""What the tests of bridges share: how other programs find us, and a Python that does not know us."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore

ROOT = Path(__file__).parents[2]

#: Without txstore, whatever is installed: a finder that refuses it. TXSTORE_PLAIN_PYTHON names an interpreter of an
#: environment that has zarr, fsspec and xarray only.
_REFUSING = """
import sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "txstore":
            raise ModuleNotFoundError("txstore is not installed here")
sys.meta_path.insert(0, Refusing())
"""


@pytest.fixture
def run_plain(tmp_path: Path) -> Callable[..., str]:
    """Run a program in a process without txstore; return what it has printed."""

    def run_plain(code: str, *arguments: object, timeout: float = 60) -> str:
        python = os.environ.get("TXSTORE_PLAIN_PYTHON", sys.executable)
        told = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [python, "-c", _REFUSING + code, *map(str, arguments)],
            cwd=tmp_path, env=told, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_plain


@pytest.fixture
def run_installed(tmp_path: Path) -> Callable[..., str]:
    """Run a program where txstore is installed, entry points and all; return what it has printed."""
    site = tmp_path / "site"
    information = site / "txstore-0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: txstore\nVersion: 0\n")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = []
    for group, points in declared.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (information / "entry_points.txt").write_text("\n".join(lines))

    def run_installed(code: str, *arguments: object, timeout: float = 60) -> str:
        told = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=tmp_path, env=told, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_installed


@pytest.fixture(params=["directory", "memory"])
def filled(repo: txstore.Repository, tmp_path: Path, request: pytest.FixtureRequest) -> txstore.Repository:
    """Return a repository of one array and two branches, for tests of URLs."""
    if request.param == "memory":
        repo = txstore.Repository(f"memory://{tmp_path}/data.tx")
    with repo.transaction("first") as store:
        zarr.create_array(store, name="group/position", data=np.arange(10), chunks=(4,))
    repo.branches["dev"] = repo.head()
    return repo
