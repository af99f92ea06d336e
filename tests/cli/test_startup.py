"""What is imported for an answer: what a command does not need, it does not wait for. Modules, never seconds."""

import json
import subprocess
import sys

import pytest

import txstore

#: What takes longest to import, and what is under all that reads a repository.
HEAVY = {"asyncio", "fsspec", "numcodecs", "numpy", "rich", "ssl", "xarray", "zarr"}
ENGINE = {"txstore.engine", "txstore.history.commits", "txstore.repository", "txstore.storage.local"}

COMMAND = """
import json, sys
from txstore.cli.main import app
try:
    app(sys.argv[1:])
finally:
    print(json.dumps(list(sys.modules)), file=sys.stderr)
"""


def imported(code: str, *arguments: str) -> set[str]:
    """Return the modules that a new process has imported when it ends."""
    ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stderr.splitlines()[-1]))


def test_the_version_needs_nothing() -> None:
    assert not imported(COMMAND, "--version") & (HEAVY | ENGINE)


@pytest.mark.parametrize("arguments", [["--help"], ["tag", "--help"], ["log", "--help"]], ids=" ".join)
def test_help_needs_what_draws_it(arguments: list[str]) -> None:
    assert not imported(COMMAND, *arguments) & (HEAVY - {"rich"} | ENGINE)


@pytest.mark.parametrize(
    "arguments",
    [["log"], ["show"], ["tag", "list"], ["branch", "list"], ["tx", "list"], ["du"], ["verify"]],
    ids=" ".join,
)
def test_history_needs_no_zarr(arguments: list[str], repo: txstore.Repository) -> None:
    with repo.begin("one") as transaction:
        transaction["a"] = b"1"
    assert not imported(COMMAND, *arguments, repo.url) & {"zarr", "numcodecs", "xarray"}


def test_json_needs_no_tables(repo: txstore.Repository) -> None:
    with repo.begin("one") as transaction:
        transaction["a"] = b"1"
    assert "rich" not in imported(COMMAND, "log", repo.url, "--json")


def test_the_package_needs_nothing() -> None:
    code = "import json, sys, txstore; print(json.dumps(list(sys.modules)), file=sys.stderr)"
    assert not imported(code) & (HEAVY | ENGINE | {"typer"})


def test_the_store_adds_zarr_alone() -> None:
    """What zarr itself imports is the most of it: no extra, and nothing that draws."""
    code = "import json, sys, txstore.store; print(json.dumps(list(sys.modules)), file=sys.stderr)"
    assert not imported(code) & {"rich", "typer", "xarray", "dask", "h5py", "pandas", "starlette", "s3fs", "obstore"}
