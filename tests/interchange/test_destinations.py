"""Where plain copies go may be somebody else's place: nothing outside of it is read, written or deleted."""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.interchange.copies import check_copy
from tests.interchange.test_export import files
from tests.system.remote.conftest import server_of  # noqa: F401 - a fixture
from tests.tools.command_line import run
from txstore.interchange.destinations import LocalDestination, ObjectDestination, open_destination
from txstore.interchange.publish import MARKER, STATE
from txstore.serving.files import put_page
from txstore.storage.objects.interface import open_objects

DEAR = b"dear"


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction() as store:
        group = zarr.open_group(store)
        group.create_array("x", data=np.arange(6), chunks=(2,))
        group.create_array("a/y", data=np.arange(4), chunks=(2,))
    repo.tags["v1"] = 0
    return repo


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory with something dear in it, named as a copy's own files are."""
    directory = tmp_path / "outside"
    (directory / "c").mkdir(parents=True)
    for name in ("zarr.json", "c/0", "file"):
        (directory / name).write_bytes(DEAR)
    return directory


def append(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        zarr.open_array(store, path="x").append(np.arange(2))
        zarr.open_array(store, path="a/y")[:] = 7


def assert_untouched(outside: Path) -> None:
    assert files(outside) == dict.fromkeys(("zarr.json", "c/0", "file"), DEAR)


# --- links
@pytest.mark.parametrize("linked", ["x", "a", "a/y", "x/c"])
def test_publish_follows_no_link(filled: txstore.Repository, tmp_path: Path, outside: Path, linked: str) -> None:
    copy = tmp_path / "copy"
    filled.publish(copy)
    shutil.rmtree(copy / linked)
    (copy / linked).symlink_to(outside)
    append(filled)
    for full in (False, True):
        with pytest.raises(txstore.PublishError, match="link"):
            filled.publish(copy, full=full)
        assert_untouched(outside)
    (copy / linked).unlink()
    filled.publish(copy, full=True)
    check_copy(copy, filled)


def test_what_is_deleted_below_a_link_stays(filled: txstore.Repository, tmp_path: Path, outside: Path) -> None:
    copy = tmp_path / "copy"
    filled.publish(copy)
    shutil.rmtree(copy / "x")
    (copy / "x").symlink_to(outside)
    with filled.transaction() as store:
        del zarr.open_group(store)["x"]
    with pytest.raises(txstore.PublishError, match="'x' is a link"):
        filled.publish(copy)
    assert_untouched(outside)


def test_a_file_that_is_a_link_is_replaced(filled: txstore.Repository, tmp_path: Path, outside: Path) -> None:
    copy = tmp_path / "copy"
    filled.publish(copy)
    for name in ("x/c/0", "zarr.json"):
        (copy / name).unlink()
        (copy / name).symlink_to(outside / "file")
    (copy / "more").symlink_to(outside)
    append(filled)
    filled.publish(copy, full=True)
    check_copy(copy, filled)
    assert not (copy / "more").is_symlink()
    assert_untouched(outside)


def test_where_files_are_written_before_they_are_renamed(filled, tmp_path, outside, monkeypatch):
    copy = tmp_path / "copy"
    real = LocalDestination.write_marker

    def linking(self: Any, key: str, content: bytes) -> None:  # as somebody does who is quick
        real(self, key, content)
        shutil.rmtree(copy / ".txstore-publishing", ignore_errors=True)
        (copy / ".txstore-publishing").symlink_to(outside)

    monkeypatch.setattr(LocalDestination, "write_marker", linking)
    with pytest.raises(txstore.PublishError, match="link"):
        filled.publish(copy)
    assert_untouched(outside)
    monkeypatch.undo()
    filled.publish(copy)
    check_copy(copy, filled)
    assert_untouched(outside)


def test_a_pipe_is_not_waited_for(filled: txstore.Repository, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    filled.publish(copy)
    (copy / "x/c/0").unlink()
    os.mkfifo(copy / "x/c/0")
    filled.publish(copy, full=True)
    check_copy(copy, filled)


PLANTED: dict[str, Callable[[Path, Path], None]] = {
    "a link": lambda path, outside: path.symlink_to(outside / "file"),
    "a link to nothing": lambda path, outside: path.symlink_to(outside / "new"),
    "a second name": lambda path, outside: path.hardlink_to(outside / "file"),
    "a pipe": lambda path, outside: os.mkfifo(path),
}


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("planted", PLANTED)
def test_the_page_replaces_what_is_in_its_place(filled, tmp_path, outside, planted, beside):
    place = Path(filled.url) if beside else tmp_path / "page"
    (place / "page").mkdir(parents=True)
    for name in ("index.html", "page/main.js"):
        PLANTED[planted](place / name, outside)
    assert run("page", filled.url, *([] if beside else ["--to", place])).exit_code == 0
    assert b"<html" in (place / "index.html").read_bytes()
    assert [(place / name).lstat().st_nlink for name in ("index.html", "page/main.js")] == [1, 1]
    assert not (place / "index.html").is_symlink()
    assert not (place / ".txstore-publishing").exists()
    assert_untouched(outside)


def test_the_page_goes_through_no_link(filled: txstore.Repository, outside: Path) -> None:
    Path(filled.url, "page").symlink_to(outside)
    told = run("page", filled.url)
    assert told.exit_code == 2
    assert "is a link, or below one" in told.stderr
    assert_untouched(outside)


def test_export_follows_no_link(filled: txstore.Repository, tmp_path: Path, outside: Path) -> None:
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        filled.export(out, consolidated=False, progress=stop)
    shutil.rmtree(out / "x", ignore_errors=True)
    (out / "x").symlink_to(outside)
    with pytest.raises(txstore.ExportError, match="link"):
        filled.export(out)
    assert_untouched(outside)
    (out / "x").unlink()
    filled.export(out, consolidated=False)
    assert files(out) == dict(filled.mapping())


def test_references_replace_a_link(filled: txstore.Repository, tmp_path: Path, outside: Path) -> None:
    out = tmp_path / "x.json"
    out.symlink_to(outside / "file")
    filled.references(out, tag="v1")
    assert not out.is_symlink()
    assert "zarr.json" in json.loads(out.read_bytes())["refs"]
    assert_untouched(outside)


# --- markers
def made(filled: txstore.Repository, tmp_path: Path, what: str) -> tuple[Callable[[Path], object], bytes, str]:
    """What a copy's, or an export's, marker says, which was begun elsewhere."""
    if what == "publish":
        filled.publish(tmp_path / "other")
        return filled.publish, (tmp_path / "other" / STATE).read_bytes(), STATE

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        filled.export(tmp_path / "other", progress=stop)
    return filled.export, (tmp_path / "other" / MARKER).read_bytes(), MARKER


@pytest.mark.parametrize("what", ["publish", "export"])
def test_a_marker_from_elsewhere_makes_no_place_ours(filled, tmp_path, outside, what):
    write, content, name = made(filled, tmp_path, what)
    (outside / name).write_bytes(content)
    with pytest.raises((txstore.PublishError, txstore.ExportError), match=r"another place|a new place"):
        write(outside)
    (outside / name).unlink()
    assert_untouched(outside)


@pytest.mark.parametrize("what", ["publish", "export"])
@pytest.mark.parametrize("how", ["owner", "group", "link", "directory"])
def test_a_marker_that_others_could_have_written(filled, tmp_path, outside, what, how):
    write, content, name = made(filled, tmp_path, what)
    marker = outside / name
    told = json.loads(content)
    told["place"] = {"path": str(outside), "inode": outside.stat().st_ino}
    if how == "link":
        (tmp_path / "file").write_text(json.dumps(told))
        marker.symlink_to(tmp_path / "file")
    elif how == "directory":
        marker.mkdir()
    else:
        marker.write_text(json.dumps(told))
        if how == "group":
            marker.chmod(0o664)
        elif os.geteuid():
            pytest.skip("only root can give files away")
        else:
            os.chown(marker, 12345, -1)
    with pytest.raises((txstore.PublishError, txstore.ExportError), match="only you could have written"):
        write(outside)
    marker.rmdir() if how == "directory" else marker.unlink()
    assert_untouched(outside)


def test_a_copy_goes_on_where_it_was_moved_to(filled: txstore.Repository, tmp_path: Path) -> None:
    filled.publish(tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / "moved")
    append(filled)
    assert filled.publish(tmp_path / "moved").written
    check_copy(tmp_path / "moved", filled)


def test_a_mask_that_lets_the_group_write(filled: txstore.Repository, tmp_path: Path) -> None:
    os.chmod(filled.url, 0o775)
    before = os.umask(0o002)
    try:
        filled.publish(tmp_path / "copy")
        append(filled)
        filled.publish(tmp_path / "copy")
    finally:
        os.umask(before)
    assert (tmp_path / "copy" / "zarr.json").stat().st_mode & 0o777 == 0o664
    check_copy(tmp_path / "copy", filled)


# --- servers
BAD_NAMES = ["..", "../x", "a/../b", "a/./b", "a\0b", "", "a//b"]
OF_SERVERS = ["..\\x", "a\\..\\..\\x", "%2e%2e/x", "a/%2E%2e", "a%2f..%2fb", "a%5c..%5cb", "a%00b"]


@pytest.mark.parametrize("key", BAD_NAMES)
def test_names_that_lead_elsewhere(tmp_path: Path, key: str) -> None:
    for url in (tmp_path / "copy", "memory://destination/copy"):
        target = open_destination(url, None, durable=False, at_most=0o777)
        uses: list[Callable[[], object]] = [
            partial(target.read, key), partial(target.write, key, b"1"), partial(target.delete, [key]),
        ]  # fmt: skip
        if key:
            uses.append(lambda target=target: list(target.list(key)))  # type: ignore[misc]
        for use in uses:
            with pytest.raises(txstore.PublishError, match="name of a file"):
                use()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", [*BAD_NAMES, *OF_SERVERS])
@pytest.mark.parametrize("creation", ["rename", "single writer"])
def test_names_that_lead_elsewhere_on_file_servers(key: str, creation: str) -> None:
    objects = open_objects("memory://destination/files")
    objects.creation = creation
    target = ObjectDestination(objects)
    for use in (target.read, lambda key: target.write(key, b"1"), lambda key: target.delete([key])):
        with pytest.raises(txstore.PublishError, match="name of a file"):
            use(key)


def test_a_file_server(
    filled: txstore.Repository,
    outside: Path,
    server_of: Callable[[str], Any],  # noqa: F811
) -> None:
    """No link on the server is followed, and no key leads out of the destination."""
    server = server_of("sftp")
    url, options = server.url(), server.storage_options
    root = Path("/" + url.partition("://")[2].partition("/")[2])
    filled.publish(url, storage_options=options)
    check_copy(root, filled)
    shutil.rmtree(root / "x")
    (root / "x").symlink_to(outside)
    append(filled)
    with pytest.raises(txstore.PublishError, match="'x' is a link"):
        filled.publish(url, storage_options=options)
    out = f"{url}-out"
    (root.parent / f"{root.name}-out").mkdir()
    (root.parent / f"{root.name}-out" / "x").symlink_to(outside)
    with pytest.raises(txstore.ExportError, match="holds something"):
        filled.export(out, storage_options=options)
    (root.parent / "x.json").symlink_to(outside / "file")
    above = url.rpartition("/")[0]
    filled.references(f"{above}/x.json", tag="v1", storage_options=options)
    assert not (root.parent / "x.json").is_symlink()
    (root.parent / "x.parquet").symlink_to(outside)
    with pytest.raises(txstore.ExportError, match=r"exists already|link"):
        filled.references(f"{above}/x.parquet", tag="v1", storage_options=options)
    assert_untouched(outside)


def test_the_page_on_a_file_server(
    outside: Path,
    server_of: Callable[[str], Any],  # noqa: F811
) -> None:
    """It is put into the repository, where another user may have put links."""
    server = server_of("sftp")
    url, options = server.url(), server.storage_options
    root = Path("/" + url.partition("://")[2].partition("/")[2])
    root.mkdir(parents=True, exist_ok=True)
    (root / "index.html").symlink_to(outside / "file")
    put_page(url, options=options)
    assert not (root / "index.html").is_symlink()
    assert b"txstore" in (root / "index.html").read_bytes()
    shutil.rmtree(root / "page")
    (root / "page").symlink_to(outside)
    with pytest.raises(txstore.PublishError, match="'page' is a link"):
        put_page(url, options=options)
    assert_untouched(outside)
