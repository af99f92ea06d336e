"""Checkout: programs that know nothing of TxStore change a directory; what they change is one commit, or none."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import txstore
from tests.interchange.test_export import files
from txstore.format.consolidated import plain_document
from txstore.interchange import checkout
from txstore.interchange.destinations import in_parallel
from txstore.views import Coarsen


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction("first") as store:
        group = zarr.open_group(store, attributes={"title": "κ"})
        group.create_array("a/x", data=np.arange(10), chunks=(4,), dimension_names=["row"])
        group.create_array("y", data=np.arange(4), chunks=(2,))
    return repo


def has(directory: Path, repo: txstore.Repository, path: str = "") -> bool:
    """Whether a directory has the values of the head, and nothing else."""
    head = repo.mapping()
    values = {key: bytes(head.get_view(key) or b"") for key in head.keys_below(path) if not key.endswith(".zmetadata")}
    prefix = f"{path}/" if path else ""
    return files(directory) == {key.removeprefix(prefix): plain_document(key, values[key]) for key in values}


def read(node: Any, path: str) -> list[int]:
    return zarr.open_group(node, mode="r", use_consolidated=False)[path][:].tolist()  # type: ignore[index, union-attr, return-value]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_a_program_sets_adds_and_deletes_is_one_commit(repo, tmp_path, zarr_format):
    with repo.transaction("first") as store:
        group = zarr.open_group(store, zarr_format=zarr_format)
        for name in ("changed", "deleted", "kept", "below/all", "below/too"):
            group.create_array(name, data=np.arange(10), chunks=(4,), fill_value=0)
    out = tmp_path / "out.zarr"
    done = repo.checkout(out)
    assert (done.commit, done.files, done.written) == (repo.head(), len(files(out)), len(files(out)))
    assert has(out, repo)
    assert repo.commit_directory(out) is None

    group = zarr.open_group(out)
    group["changed"][2:6] = 7  # type: ignore[index]
    group["kept"].attrs["unit"] = "K"  # type: ignore[union-attr]
    del group["deleted"], group["below"]
    group.create_array("added/new", data=np.arange(3))
    made = repo.commit_directory(out, "by a program", properties={"run": 7})
    assert made == repo.head()
    assert made is not None
    assert (made.message, made.properties, made.version) == ("by a program", {"run": 7}, 1)
    assert made.statistics["prefixes_deleted"] == 2
    assert has(out, repo)
    head = repo.snapshot()
    assert read(head, "changed") == [0, 1, 7, 7, 7, 7, 6, 7, 8, 9]
    assert read(head, "added/new") == [0, 1, 2]
    assert sorted(name for name, _ in zarr.open_group(head, mode="r").members()) == ["added", "changed", "kept"]
    assert repo.commit_directory(out) is None


def test_what_others_have_committed_is_merged_and_comes_to_the_directory(filled, tmp_path):
    out = tmp_path / "out.zarr"
    filled.checkout(out)
    zarr.open_group(out)["a/x"][0] = 70  # type: ignore[index]
    with filled.transaction("others") as store:
        group = zarr.open_group(store)
        group["a/x"][3] = 73  # type: ignore[index]
        group["a"].attrs["by"] = "others"
        group.create_array("theirs", data=np.arange(2))
        del group["y"]
    made = filled.commit_directory(out)
    assert made is not None
    assert made.version == 2
    assert read(filled.snapshot(), "a/x")[:4] == [70, 1, 2, 73] == read(out, "a/x")[:4]
    assert has(out, filled)
    assert not (out / "y").exists()
    zarr.open_group(out)["a/x"][1] = 71  # type: ignore[index]
    filled.commit_directory(out)
    assert read(filled.snapshot(), "a/x")[:4] == [70, 71, 2, 73]


def test_a_conflict_changes_nothing_and_a_branch_takes_it(filled: txstore.Repository, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    base = filled.checkout(out).commit
    zarr.open_group(out)["a/x"][0] = 70  # type: ignore[index]
    with filled.transaction("others") as store:
        zarr.open_array(store, path="a/x")[0] = 71
    before = files(out)
    filled.branches["others"] = filled.head()  # type: ignore[assignment]
    for branch in (None, "others"):
        with pytest.raises(txstore.ConflictError):
            filled.commit_directory(out, branch=branch)
        assert files(out) == before
    state = checkout.read_state(str(out))
    assert state is not None
    assert (state.branch, state.pending) == ("main", {})
    filled.branches["mine"] = base
    filled.commit_directory(out, branch="mine")
    assert read(filled.snapshot(branch="mine"), "a/x")[0] == 70
    filled.merge("mine", resolve={"a/x": "theirs"})
    assert read(filled.snapshot(), "a/x")[0] == 70
    zarr.open_group(out)["a/x"][1] = 72  # type: ignore[index]
    made = filled.commit_directory(out)
    assert made is not None
    assert made.branch == "mine"


def test_what_was_deleted_here_and_changed_there_is_a_conflict(filled: txstore.Repository, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    filled.checkout(out)
    del zarr.open_group(out)["a"]
    with filled.transaction("others") as store:
        zarr.open_array(store, path="a/x")[0] = 71
    with pytest.raises(txstore.ConflictError):
        filled.commit_directory(out)


def test_a_checkout_goes_to_other_commits_but_not_over_changes(filled: txstore.Repository, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    filled.checkout(out)
    filled.branches["dev"] = filled.head()
    with filled.transaction("dev", branch="dev") as store:
        group = zarr.open_group(store)
        group["y"][0] = 9  # type: ignore[index]
        del group["a"]
        group.create_array("z", data=np.arange(2))
    with filled.transaction("main") as store:
        zarr.open_array(store, path="a/x")[0] = 5
    done = filled.checkout(out, branch="dev")
    assert done.commit == filled.head("dev")
    assert files(out).keys() == set(filled.mapping(branch="dev"))
    assert read(out, "y")[0] == 9
    filled.checkout(out)
    assert has(out, filled)
    assert filled.checkout(out).written == 0
    filled.checkout(out, at=0)
    assert read(out, "a/x")[0] == 0
    zarr.open_group(out)["y"][1] = 8  # type: ignore[index]
    with pytest.raises(txstore.CheckoutError, match=r"y/c/0"):
        filled.checkout(out)
    assert filled.commit_directory(out) == filled.head()
    assert (read(filled.snapshot(), "a/x")[0], read(filled.snapshot(), "y")[1]) == (5, 8)


def test_names_of_debris_are_data_if_the_checkout_wrote_them(filled: txstore.Repository, tmp_path: Path) -> None:
    names = [".DS_Store/zarr.json", "a/.DS_Store", f"a/x.{'0' * 32}.partial", ".txstore-publishing/x/c/0"]
    with filled.transaction("odd names") as store:
        for name in names:
            store[name] = b"{}"
    directory = tmp_path / "out"
    filled.checkout(directory)
    left = [directory / "y/.DS_Store", directory / f"y.{'0' * 32}.partial"]
    for path in left:
        path.write_bytes(b"of a program that was killed")
    assert filled.commit_directory(directory) is None
    (directory / names[1]).write_bytes(b"[]")
    (directory / names[3]).unlink()
    assert filled.commit_directory(directory) is not None
    found = filled.mapping()
    assert [found.get(name) for name in names] == [b"{}", b"[]", b"{}", None]
    assert not any(str(path.relative_to(directory)) in found for path in left)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_an_output_of_a_view_is_brought_back(filled: txstore.Repository, tmp_path: Path, is_deleted: bool) -> None:
    with filled.transaction("a view") as store:
        zarr.create_array(store, name="x", data=np.arange(4.0), chunks=(4,), dimension_names=["t"])
        store.views["half"] = Coarsen("x", "x{level}", (2,))
    directory = tmp_path / "out"
    filled.checkout(directory)
    (chunk,) = (directory / "x1/c").iterdir()
    if is_deleted:
        chunk.unlink()
    else:
        zarr.open_array(directory, path="x1")[:] = 7
    assert filled.commit_directory(directory) is not None
    assert has(directory, filled)
    assert filled.commit_directory(directory) is None


def test_an_edit_of_rows_that_were_moved_meanwhile_is_a_conflict(filled: txstore.Repository, tmp_path: Path) -> None:
    """Rows like the old ones are prepended: by position, the edit would come to lie on them."""
    with filled.transaction("rows") as store:
        zarr.create_array(store, name="t", data=np.arange(4), chunks=(2,), dimension_names=["t"])
        zarr.create_array(store, name="x", data=np.ones(4), chunks=(2,), dimension_names=["t"])
    directory = tmp_path / "out"
    filled.checkout(directory)
    with filled.transaction("two more") as store:
        txstore.prepend(xr.Dataset({"x": ("t", np.ones(2))}, {"t": [-2, -1]}), store, dim="t")
    zarr.open_array(directory, path="x")[:2] = 5
    with pytest.raises(txstore.ConflictError):
        filled.commit_directory(directory)
    assert zarr.open_array(filled.snapshot(), path="x", mode="r")[:].tolist() == [1] * 6
    assert zarr.open_array(directory, path="x", mode="r")[:].tolist() == [5, 5, 1, 1]


def test_a_part(filled: txstore.Repository, tmp_path: Path) -> None:
    out = tmp_path / "x.zarr"
    filled.checkout(out, path="a/x")
    assert has(out, filled, "a/x")
    zarr.open_array(out)[0] = 7
    filled.commit_directory(out)
    assert read(filled.snapshot(), "a/x")[0] == 7
    with pytest.raises(txstore.CheckoutError, match="choose a new place"):
        filled.checkout(out)


def test_consolidated_metadata_of_programs_is_never_stored_and_never_stale(filled, tmp_path):
    out = tmp_path / "out.zarr"
    filled.checkout(out)
    zarr.open_group(out).create_array("b", data=np.arange(2))
    zarr.consolidate_metadata(str(out))
    filled.commit_directory(out)
    assert "consolidated" not in (out / "zarr.json").read_text()
    assert b'"consolidated_metadata": null' in bytes(filled.mapping().get_view("zarr.json") or b"")
    assert zarr.open_group(filled.snapshot(), mode="r").metadata.consolidated_metadata is not None
    zarr.consolidate_metadata(str(out))
    assert filled.commit_directory(out) is None  # the repository says so already
    with filled.transaction() as store:
        zarr.open_group(store).create_array("theirs", data=np.arange(2))
    zarr.open_group(out, use_consolidated=False)["b"][0] = 5  # type: ignore[index]
    filled.commit_directory(out)
    assert "consolidated" not in (out / "zarr.json").read_text()
    assert has(out, filled)
    assert b'"consolidated_metadata": null' in bytes(filled.mapping().get_view("zarr.json") or b"")


def test_a_program_that_empties_the_directory_first(filled: txstore.Repository, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    filled.checkout(out)
    group = zarr.open_group(out, mode="w")
    group.create_array("y", data=np.arange(4), chunks=(2,))
    made = filled.commit_directory(out)
    assert made is not None
    assert has(out, filled)
    assert [name for name, _ in zarr.open_group(filled.snapshot(), mode="r").members()] == ["y"]


@pytest.mark.parametrize("size_stays", [True, False])
def test_a_file_that_is_changed_right_after_the_checkout(filled, tmp_path, size_stays):
    out = tmp_path / "out.zarr"
    for n in range(20):
        filled.checkout(out)
        (out / "y/note").write_bytes(b"%02d" % (2 * n) if size_stays else bytes(2 * n))
        assert filled.commit_directory(out) is not None
        (out / "y/note").write_bytes(b"%02d" % (2 * n + 1) if size_stays else bytes(2 * n + 1))
        assert filled.commit_directory(out) is not None, n
    assert bytes(filled.mapping()["y/note"]) == (b"39" if size_stays else bytes(39))


def test_bad_places(filled: txstore.Repository, tmp_path: Path, open_repo: Callable[..., txstore.Repository]) -> None:
    out = tmp_path / "out.zarr"
    with pytest.raises(txstore.CheckoutError, match="nothing was checked out here"):
        filled.commit_directory(out)
    with pytest.raises(ValueError, match="no local directory"):
        filled.checkout("memory://out.zarr")
    with pytest.raises(txstore.CheckoutError, match="choose a place outside"):
        filled.checkout(Path(filled.url) / "out")
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(txstore.CheckoutError, match="it holds something else"):
        filled.checkout(out)
    assert files(out) == {"mine.txt": b"mine"}
    (out / "mine.txt").unlink()
    filled.checkout(out)
    other = open_repo("other.tx")
    with other.transaction("other") as store:
        zarr.open_group(store)
    for call in (other.checkout, other.commit_directory):
        with pytest.raises(txstore.CheckoutError, match="another repository"):
            call(out)
    (out / "y/link").symlink_to("/etc/passwd")
    with pytest.raises(txstore.CheckoutError, match="y/link"):
        filled.commit_directory(out)
    (out / "y/link").unlink()
    os.chmod(checkout.state_path(str(out)), 0o666)
    with pytest.raises(txstore.CheckoutError, match="only you"):
        filled.commit_directory(out)
    os.chmod(checkout.state_path(str(out)), 0o600)
    for key in files(out):
        (out / key).unlink()
    with pytest.raises(txstore.CheckoutError, match="it is empty"):
        filled.commit_directory(out)
    filled.checkout(out)
    assert has(out, filled)
    Path(checkout.state_path(str(out))).write_text("{")
    with pytest.raises(txstore.CheckoutError, match="can't be read"):
        filled.commit_directory(out)


#: Kills each call of `commit_directory`, or of `checkout`, before it renames or deletes a file for the n-th time.
_KILLED = """
import os, sys
import numpy as np, zarr
import txstore
from txstore import _native
from txstore.interchange import checkout, destinations

def child(n, call):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left = n
    def counted(function):
        def call(*arguments, **named):
            nonlocal left
            if not left:
                os._exit(9)
            left -= 1
            return function(*arguments, **named)
        return call
    os.replace, os.rename, os.unlink = counted(os.replace), counted(os.rename), counted(os.unlink)
    call()
    os._exit(0)

def scenario(root, n):
    repo = txstore.Repository(f"{root}/{n}.tx", durability="none")
    out = f"{root}/{n}.zarr"
    with repo.transaction("first") as store:
        group = zarr.open_group(store)
        group.create_array("x", data=np.arange(10), chunks=(4,))
        group.create_array("y", data=np.arange(4), chunks=(2,))
    while (code := child(n, lambda: repo.checkout(out))) == 9 and sys.argv[2] == "checkout":
        n += 3
    if sys.argv[2] == "commit":
        repo.checkout(out)
    group = zarr.open_group(out)
    group["x"][0] = 70
    group.create_array("new", data=np.arange(3))
    with repo.transaction("others") as store:
        theirs = zarr.open_group(store)
        theirs["x"][3] = 73
        theirs["x"].attrs["by"] = "others"
        del theirs["y"]
    code = child(n, lambda: repo.commit_directory(out, "ours")) if sys.argv[2] == "commit" else 0
    if n % 2:
        zarr.open_group(out)["x"][9] = 79  # a change after the kill
    repo.commit_directory(out, "ours")
    if n % 2 and code == 9:
        repo.commit_directory(out, "ours")
    log = [commit.message for commit in repo.log()]
    assert log.count("ours") <= 2 if n % 2 else log.count("ours") == 1, (n, log)
    for node in (repo.snapshot(), out):
        found = zarr.open_group(node, mode="r")
        assert sorted(name for name, _ in found.members()) == ["new", "x"], (n, node)
        expected = [70, 1, 2, 73, 4, 5, 6, 7, 8, 79 if n % 2 else 9]
        assert found["x"][:].tolist() == expected, (n, node, found["x"][:])
        assert found["x"].attrs["by"] == "others"
    assert repo.commit_directory(out) is None
    assert repo.verify().ok
    return code

n = 0
while scenario(sys.argv[1], n) == 9:
    n += 1
print(n)
"""


@pytest.mark.long
@pytest.mark.parametrize("call", ["commit", "checkout"])
def test_kill_9_at_each_step(tmp_path: Path, call: str) -> None:
    run = [sys.executable, "-c", _KILLED, str(tmp_path), call]
    done = subprocess.run(run, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert call == "checkout" or int(done.stdout) > 6


def test_an_edit_while_the_directory_is_brought_to_the_commit_is_kept(filled, tmp_path, monkeypatch):
    out = tmp_path / "out.zarr"
    filled.checkout(out)
    zarr.open_group(out)["a/x"][0] = 70  # type: ignore[index]
    with filled.transaction("others") as store:
        zarr.open_array(store, path="y")[0] = 71

    def late(function: Any, keys: Any, size: Any) -> Any:
        (out / "y/c/0").write_bytes(b"edited meanwhile")
        return in_parallel(function, keys, size)

    real = checkout._Work.update

    def update(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(checkout, "in_parallel", late)
        return real(*arguments, **named)

    monkeypatch.setattr(checkout._Work, "update", update)
    filled.commit_directory(out)
    assert (out / "y/c/0").read_bytes() == b"edited meanwhile"


# --- erasures


@pytest.mark.parametrize("changed", [None, "a/x", "y"])
def test_what_was_erased_since_does_not_come_back(filled, tmp_path, changed):
    out = tmp_path / "out.zarr"
    filled.checkout(out)
    filled.erase("a/x", {"row": 3}, positions=True)
    if changed is not None:
        zarr.open_group(out)[changed][0] = 7  # type: ignore[index]
    head = filled.head()
    for call in (filled.commit_directory, filled.checkout):
        with pytest.raises(txstore.CheckoutError, match=r"erased since.*check out to a new place"):
            call(out)
    assert filled.head() == head
    other = tmp_path / "other.zarr"
    filled.checkout(other)
    zarr.open_group(other)["y"][0] = 7  # type: ignore[index]
    assert filled.commit_directory(other) is not None
    assert read(filled.snapshot(), "a/x") == [0, 1, 2, 0, 4, 5, 6, 7, 8, 9]


def test_what_is_erased_while_it_looks_at_the_files_does_not_come_back(filled, tmp_path, monkeypatch):
    out = tmp_path / "out.zarr"
    filled.checkout(out)
    zarr.open_group(out)["a/x"][0] = 7  # type: ignore[index]
    gc.collect()

    def erase(_: object) -> int:
        monkeypatch.undo()
        txstore.Repository(filled.url).erase("a/x", {"row": 1}, positions=True)
        return 0

    monkeypatch.setattr(checkout, "until_settled", erase)
    with pytest.raises(txstore.CheckoutError, match="erased since"):
        filled.commit_directory(out)
    assert read(filled.snapshot(), "a/x")[:2] == [0, 0]
