"""Directories that the user may not write, or not even read. Root may do everything: a child drops that first."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests.system.bad_input.test_paths import BY_MISTAKE
from tests.tools.commits import set_keys
from tests.tools.disk import NOBODY, in_child, run_python, said, tree

pytestmark = pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
USER = NOBODY if os.name == "posix" and os.getuid() == 0 else None


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others can reach, as they can't pytest's."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    for directory in [path, *(found for found in path.rglob("*") if found.is_dir())]:
        directory.chmod(0o755)
    shutil.rmtree(path)


@pytest.fixture
def repository(folder) -> Path:
    path = folder / "data.tx"
    set_keys(txstore.Repository(path), {"a/b": b"1"}, "first")
    for found in [path, *path.rglob("*")]:
        found.chmod(0o555 if found.is_dir() else 0o444)
    return path


def test_a_read_only_repository_can_be_read(repository):
    def read():
        repo = txstore.Repository(repository)
        faults = repo.verify().faults
        return repo.snapshot()["a/b"], [commit.message for commit in repo.log()], list(repo.tags), faults

    before = tree(repository)
    assert in_child(read, user=USER) == (b"1", ["first"], [], [])
    assert tree(repository) == before


#: Once elsewhere, so that all is imported by the user who may read it.
OVERWRITE = """
import os, sys, xarray, zarr
path = sys.argv[1] + ".plain"
{call}
if os.getuid() == 0:
    os.setgroups([])
    os.setgid({user})
    os.setuid({user})
path = sys.argv[1]
{call}
"""


@pytest.mark.parametrize("call", BY_MISTAKE)
def test_a_repository_of_ones_own_that_is_read_only_can_not_be_overwritten(repository, call):
    """docs/how-to/guards.md."""
    if USER is not None:
        for found in [repository, *repository.rglob("*")]:
            os.chown(found, USER, USER)
    before = tree(repository)
    done = run_python(OVERWRITE.format(call=BY_MISTAKE[call], user=USER), repository)
    assert done.stderr.splitlines()[-1].startswith("PermissionError: "), done.stderr
    assert tree(repository) == before


def test_a_write_to_a_read_only_repository_names_the_file(repository):
    def write():
        try:
            set_keys(txstore.Repository(repository), {"a/b": b"2"})
        except OSError as error:
            return type(error), error.filename

    before = tree(repository)
    kind, name = in_child(write, user=USER)
    assert kind is PermissionError
    assert name.startswith(str(repository))
    assert tree(repository) == before


def test_creating_where_one_may_not(folder):
    folder.chmod(0o555)

    def create():
        set_keys(txstore.Repository(folder / "data.tx"), {"a": b"1"})

    error = in_child(create, user=USER)
    assert isinstance(error, PermissionError)
    assert str(folder) in said(error)
    assert tree(folder) == {}


def test_verify_reports_a_commit_file_that_may_not_be_read(repository):
    with_two = repository.parent / "two.tx"
    repo = txstore.Repository(with_two)
    for value in (b"1", b"2"):
        set_keys(repo, {"a": value})
    (with_two / "commits/main/0000000000").chmod(0)
    faults = in_child(lambda: [fault.path for fault in txstore.Repository(with_two).verify().faults], user=USER)
    assert "commits/main/0000000000" in faults
