"""A protected repository lies beside its path, and a link leads there: what deletes trees refuses to follow it."""

import os
import shutil
from pathlib import Path

import pytest

import txstore
from tests.tools.disk import run_python, tree
from txstore.maintenance.protect import protect

OVERWRITE = {
    "zarr": "import zarr; zarr.open_group(path, mode='w')",
    "an array": "import zarr; zarr.create_array(path, shape=(2,), dtype='i4', overwrite=True)",
    "a URL": "import zarr; zarr.open_group('file://' + path, mode='w')",
    "a slash": "import zarr; zarr.open_group(path + '/', mode='w')",
    "clear": "import asyncio, zarr; asyncio.run(zarr.storage.LocalStore(path).clear())",
    "from above": "import os, zarr; zarr.open_group(os.path.dirname(path), path=os.path.basename(path), mode='w')",
    "xarray": "import xarray; xarray.Dataset({'t': ('x', [1.0])}).to_zarr(path, mode='w', consolidated=False)",
    "rmtree": "import shutil; shutil.rmtree(path)",
}


def commit(path: Path, content: bytes) -> txstore.Repository:
    repo = txstore.Repository(path)
    with repo.transaction() as store:
        store["a"] = content
    return repo


@pytest.mark.parametrize("call", OVERWRITE)
def test_nothing_overwrites_it(tmp_path, call):
    commit(tmp_path / "data.tx", b"1")
    made = protect(tmp_path / "data.tx")
    assert (made.link, made.directory, made.aside) == (f"{tmp_path}/data.tx", f"{tmp_path}/data.tx.d", None)
    before = tree(tmp_path / "data.tx.d")
    done = run_python(f"import sys; path = sys.argv[1]; {OVERWRITE[call]}", made.link)
    if os.path.lexists(made.link):
        assert "Cannot call rmtree on a symbolic link" in done.stderr
    else:  # fsspec under zarr 3.1 deletes the link, and no more
        assert call == "a URL"
        assert protect(tmp_path / "data.tx").link == made.link
    assert tree(tmp_path / "data.tx.d") == before
    repo = commit(tmp_path / "data.tx", b"2")
    assert repo.verify().ok
    assert [bytes(repo.snapshot(at=version)["a"]) for version in (0, 1)] == [b"1", b"2"]


def test_the_link_is_relative(tmp_path):
    (tmp_path / "here").mkdir()
    commit(tmp_path / "here/data.tx", b"1")
    protect(tmp_path / "here/data.tx")
    (tmp_path / "here").rename(tmp_path / "there")
    assert bytes(txstore.Repository(tmp_path / "there/data.tx").snapshot()["a"]) == b"1"


def test_without_the_link_it_is_put_back(tmp_path):
    commit(tmp_path / "data.tx", b"1")
    protect(tmp_path / "data.tx")
    os.unlink(tmp_path / "data.tx")  # as `rm -rf data.tx` does
    assert protect(tmp_path / "data.tx").aside is None
    assert bytes(txstore.Repository(tmp_path / "data.tx").snapshot()["a"]) == b"1"


def test_what_was_written_in_its_place_is_moved_aside(tmp_path):
    commit(tmp_path / "data.tx", b"1")
    protect(tmp_path / "data.tx")
    os.unlink(tmp_path / "data.tx")
    run_python(f"import sys; path = sys.argv[1]; {OVERWRITE['xarray']}", tmp_path / "data.tx")
    written = tree(tmp_path / "data.tx")
    assert written
    aside = protect(tmp_path / "data.tx").aside
    assert aside is not None
    assert os.path.dirname(aside) == str(tmp_path)
    assert tree(Path(aside)) == written
    assert bytes(txstore.Repository(tmp_path / "data.tx").snapshot()["a"]) == b"1"


def test_again_changes_nothing(tmp_path):
    commit(tmp_path / "data.tx", b"1")
    before = protect(tmp_path / "data.tx"), tree(tmp_path)
    assert (protect(tmp_path / "data.tx"), tree(tmp_path)) == before


def test_a_link_of_the_users_own_is_one(tmp_path):
    commit(tmp_path / "elsewhere/data.tx", b"1")
    (tmp_path / "data.tx").symlink_to("elsewhere/data.tx")
    made = protect(tmp_path / "data.tx")
    assert (made.link, made.directory) == (f"{tmp_path}/data.tx", f"{tmp_path}/elsewhere/data.tx")


@pytest.mark.parametrize("state", ["moved", "moved, and something is in its place"])
def test_a_death_on_the_way_loses_nothing(tmp_path, state):
    commit(tmp_path / "data.tx", b"1")
    (tmp_path / "data.tx").rename(tmp_path / "data.tx.d")
    if state != "moved":
        (tmp_path / "data.tx").mkdir()
    protect(tmp_path / "data.tx")
    assert bytes(txstore.Repository(tmp_path / "data.tx").snapshot()["a"]) == b"1"


def refused(path: Path, kind: type[Exception], match: str) -> None:
    before = tree(path.parent)
    with pytest.raises(kind, match=match):
        protect(path)
    assert tree(path.parent) == before


def test_what_can_not_be_protected(tmp_path):
    refused(tmp_path / "data.tx", txstore.RepositoryNotFoundError, "there is no TxStore repository here")
    (tmp_path / "data.tx").mkdir()
    refused(tmp_path / "data.tx", txstore.RepositoryNotFoundError, "there is no TxStore repository here")
    commit(tmp_path / "data.tx", b"1")
    (tmp_path / "data.tx.d").mkdir()
    refused(tmp_path / "data.tx", FileExistsError, r"data\.tx\.d")
    with pytest.raises(ValueError, match="a disk"):
        protect("memory://data.tx")


def test_two_repositories_are_never_confused(tmp_path):
    """Somebody has moved another one to where the link was: none of them is moved aside."""
    commit(tmp_path / "data.tx", b"1")
    protect(tmp_path / "data.tx")
    os.unlink(tmp_path / "data.tx")
    commit(tmp_path / "new.tx", b"2")
    (tmp_path / "new.tx").rename(tmp_path / "data.tx")
    refused(tmp_path / "data.tx", FileExistsError, r"data\.tx\.d")


def test_where_there_are_no_links_it_stays_where_it_was(tmp_path, monkeypatch):
    commit(tmp_path / "data.tx", b"1")

    def symlink(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", symlink)
    refused(tmp_path / "data.tx", PermissionError, "not permitted")


def test_what_has_it_open_is_told_to_open_it_again(tmp_path):
    repo = commit(tmp_path / "data.tx", b"1")
    protect(tmp_path / "data.tx")
    with pytest.raises(OSError, match="open it again"):
        repo.head()


def test_a_link_that_leads_to_nothing_makes_no_repository(tmp_path):
    commit(tmp_path / "data.tx", b"1")
    protect(tmp_path / "data.tx")
    shutil.move(tmp_path / "data.tx.d", tmp_path / "moved")
    before = tree(tmp_path)
    for opened in (txstore.Repository, txstore.TxStore):
        with pytest.raises(
            txstore.RepositoryNotFoundError, match=r"a symbolic link to 'data\.tx\.d', which does not exist"
        ):
            opened(tmp_path / "data.tx")
    assert tree(tmp_path) == before


def test_nor_does_a_path_whose_link_is_gone(tmp_path):
    commit(tmp_path / "data.tx", b"1")
    protect(tmp_path / "data.tx")
    os.unlink(tmp_path / "data.tx")
    before = tree(tmp_path)
    for opened in (txstore.Repository, txstore.TxStore):
        with pytest.raises(txstore.RepositoryNotFoundError, match=r"is in '.*/data\.tx\.d'.*`txstore protect "):
            opened(tmp_path / "data.tx")
    assert tree(tmp_path) == before


def test_nor_does_a_backup(tmp_path):
    repo = commit(tmp_path / "data.tx", b"1")
    (tmp_path / "backup.tx").symlink_to("nowhere")
    with pytest.raises(txstore.BackupError, match="it is a symbolic link that leads to nothing"):
        repo.backup(tmp_path / "backup.tx")
    assert not (tmp_path / "nowhere").exists()
