"""What is not a repository: the message says what it is, and nothing is created, changed or lost."""

from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.commits import create_array, set_keys
from tests.tools.disk import run_python, tree


def refused(path: Path, match: str) -> None:
    """Every way in is refused, and leaves the disk as it was."""
    before = tree(path.parent)
    for open_it in (
        lambda: txstore.Repository(path),
        lambda: txstore.Repository(path, create=False),
        lambda: txstore.TxStore(path),
        lambda: txstore.TxStore(path, create=False),
        lambda: txstore.TxStore(path, read_only=True),
    ):
        with pytest.raises(txstore.RepositoryNotFoundError, match=match) as caught:
            open_it()
        assert str(path) in str(caught.value)
    assert tree(path.parent) == before


def test_a_file(tmp_path):
    path = tmp_path / "data.tx"
    path.write_bytes(b"something dear")
    refused(path, "this is a file")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", ["group", "array", "consolidated"])
def test_plain_zarr(tmp_path, zarr_format, kind):
    path = tmp_path / "data.zarr"
    if kind == "array":
        zarr.create_array(path, data=np.arange(4), zarr_format=zarr_format)
    else:
        zarr.open_group(path, mode="w", zarr_format=zarr_format).create_array("x", data=np.arange(4))
        if kind == "consolidated":
            zarr.consolidate_metadata(path)
    refused(path, "plain Zarr.*txstore import")


def test_a_directory_that_holds_something_else(tmp_path):
    path = tmp_path / "photographs"
    path.mkdir()
    (path / "cat.jpg").write_bytes(b"meow")
    refused(path, "something else.*cat.jpg")
    for write in (txstore.Repository, txstore.TxStore):
        with pytest.raises(txstore.RepositoryNotFoundError, match="choose an empty or a new directory"):
            write(path)
    for read in (
        lambda: txstore.Repository(path, create=False),
        lambda: txstore.TxStore(path, create=False),
        lambda: txstore.TxStore(path, read_only=True),
        lambda: txstore.TxStore(path, at=0),
    ):
        with pytest.raises(txstore.RepositoryNotFoundError, match="look at the path"):
            read()


def test_nothing_there_is_an_error_to_who_reads(tmp_path):
    path = tmp_path / "no" / "data.tx"
    repo = txstore.Repository(path)
    assert repo.exists is False
    assert repo.head() is None
    session = txstore.TxStore(path)
    assert "a" not in session  # a writer sees an empty repository
    assert list(session) == []
    for read in (
        repo.snapshot,
        lambda: repo.snapshot(at=0),
        lambda: repo.snapshot(tag="v1"),
        lambda: txstore.TxStore(path, read_only=True),
        lambda: txstore.TxStore(repo, read_only=True),
        lambda: txstore.TxStore(path, at=0),
        lambda: txstore.TxStore(path, create=False),
        lambda: txstore.TxStore(repo, create=False),
        lambda: txstore.Repository(path, create=False),
        repo.mapping,
        lambda: list(repo.log()),
        lambda: repo.commit(0),
        lambda: repo.tags,
        lambda: repo.branches,
        repo.verify,
        lambda: repo.id,
        lambda: repo.resolve("0" * 32),
        repo.erasures,
        lambda: repo.erase("x"),
        lambda: repo.merge("dev"),
        lambda: repo.blame("x"),
        lambda: repo.log(path="x"),
        lambda: repo.bisect(0, 1, lambda store: True),
    ):
        with pytest.raises(txstore.RepositoryNotFoundError, match="look at the path"):
            read()
    assert tree(tmp_path) == {}


def test_a_transaction_without_writes_creates_nothing(tmp_path):
    repo = txstore.Repository(tmp_path / "data.tx")
    with repo.transaction() as store:
        assert store.base is None
    assert store.base is None
    session = txstore.TxStore(tmp_path / "data.tx")
    assert session.commit() is None
    session.rollback()
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("key", {"storage_options": {"key": "never-shown"}}),
        ("cache_dir", {"cache_dir": "cache"}),
        ("single_writer", {"single_writer": True}),
    ],
)
def test_options_that_mean_nothing_for_a_local_path(tmp_path, name, options):
    with pytest.raises(ValueError, match=f"{name}.*leave it out") as caught:
        txstore.Repository(tmp_path / "data.tx", **options)
    assert "never-shown" not in str(caught.value)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("durability", ["fsynk", "", None, True])
def test_a_typo_in_durability(tmp_path, durability):
    for open_it in (txstore.Repository, txstore.TxStore):
        with pytest.raises(ValueError, match=r"durability is one of \('fsync', 'none'\)"):
            open_it(tmp_path / "data.tx", durability=durability)


@pytest.mark.parametrize("path", [None, 5, b"data.tx"])
def test_what_is_not_a_path(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError):
        txstore.Repository(path)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("mode", ["r", "r+", "a"])
def test_zarr_on_the_bare_path_shows_how_to_open_it(repo, mode):
    create_array(repo, "x", data=np.arange(4))
    before = tree(Path(repo.url))
    for read in (zarr.open, zarr.open_group):
        with pytest.raises(Exception, match=r"open it with txstore\.TxStore\(path\)"):
            read(repo.url, mode=mode)
    assert tree(Path(repo.url)) == before


#: In a process that has not imported txstore; others are refused: tests/interchange/test_bare_path.py.
BY_MISTAKE = {
    "open": "zarr.open(path, mode='w')",
    "open_group": "zarr.open_group(path, mode='w')",
    "create_array": "zarr.create_array(path, shape=(2,), dtype='i4', overwrite=True)",
    "to_zarr": "xarray.Dataset({'t': ('x', [1.0, 2.0])}).to_zarr(path, mode='w', consolidated=False)",
}


@pytest.mark.parametrize("call", BY_MISTAKE)
def test_a_link_to_the_repository_can_not_be_overwritten(tmp_path, call):
    """docs/how-to/guards.md. Nothing inside of the repository could prevent it: rmtree comes first."""
    pytest.importorskip("xarray")
    (tmp_path / "data.tx").symlink_to("data.tx.d")
    (tmp_path / "data.tx.d").mkdir()
    repo = txstore.Repository(tmp_path / "data.tx")
    set_keys(repo, {"a": b"1"})
    before = tree(tmp_path / "data.tx.d")
    done = run_python(f"import sys, xarray, zarr; path = sys.argv[1]; {BY_MISTAKE[call]}", repo.url)
    assert "Cannot call rmtree on a symbolic link" in done.stderr
    assert tree(tmp_path / "data.tx.d") == before
    set_keys(repo, {"a": b"2"})
    assert repo.verify().faults == []


def test_the_message_of_an_uncaught_error_is_one_sentence_at_the_end(tmp_path):
    (tmp_path / "data.tx").write_bytes(b"")
    done = run_python("import sys, txstore; txstore.Repository(sys.argv[1])", tmp_path / "data.tx")
    assert done.returncode == 1
    *_, message, causes = done.stderr.splitlines()
    assert message.startswith("txstore.errors.RepositoryNotFoundError: ")
    assert message.endswith("this is a file; a repository is a directory")
    assert causes == "Usual causes: reference/errors#repositorynotfounderror"
