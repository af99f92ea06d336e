"""Tools that take a string write: into a transaction that the URL names, or a file that is committed when closed."""

import errno
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import txstore
from txstore.fsspec_filesystem import TxStoreFileSystem

xr = pytest.importorskip("xarray")


@pytest.fixture(autouse=True)
def known() -> None:
    """The entry point does this where txstore is installed."""
    fsspec.register_implementation("txstore", TxStoreFileSystem, clobber=True)


def messages(repo: txstore.Repository, branch: str = "main") -> list[str]:
    return [commit.message for commit in repo.log(branch)]


def keys(repo: txstore.Repository, branch: str = "main") -> list[str]:
    return list(repo.mapping(branch=branch))


DATASET = xr.Dataset({"t": ("x", np.arange(5.0))})


# --- the URL of a transaction
def test_what_is_written_by_the_url_of_a_transaction_is_in_it(filled: txstore.Repository) -> None:
    with filled.transaction("by tools") as store:
        url = store.share()
        DATASET.to_zarr(url, group="below", consolidated=False)
        DATASET.to_zarr(url, group="below", append_dim="x", consolidated=False)
        zarr.open_group(url, mode="a").create_array("y", data=np.arange(7))
        with fsspec.open(url.replace("?", "/notes.txt?"), "w") as file:
            file.write("by fsspec")
        assert zarr.open_array(store, path="y", mode="r")[:].tolist() == list(range(7))
        zarr.open_array(store, path="y")[0] = 9
        assert zarr.open_array(url, path="y", mode="r")[0] == 9
        assert xr.open_zarr(url, group="below", consolidated=False).t.sizes["x"] == 10
        assert messages(filled) == ["first"]
    assert messages(filled) == ["by tools", "first"]
    assert xr.open_zarr(filled.snapshot(), group="below").t.values.tolist() == [*range(5), *range(5)]
    assert filled.snapshot()["notes.txt"] == b"by fsspec"


def test_another_process_writes_by_the_url(repo: txstore.Repository, run_installed: Callable[..., str]) -> None:
    code = """
import sys, numpy as np, xarray as xr, zarr
xr.Dataset({"t": ("x", np.arange(3.))}).to_zarr(sys.argv[1], group="theirs", consolidated=False)
zarr.open_array(sys.argv[1] + "/mine", mode="r+")[:2] = 7
print(zarr.open_group(sys.argv[1], mode="r")["mine"][:].tolist())
"""
    with repo.transaction("together") as store:  # the first transaction, which makes the repository
        zarr.create_array(store, name="mine", data=np.arange(4), chunks=(2,))
        assert run_installed(code, store.share()) == "[7, 7, 2, 3]\n"
    assert messages(repo) == ["together"]
    assert zarr.open_array(repo.snapshot(), path="mine", mode="r")[:].tolist() == [7, 7, 2, 3]
    assert xr.open_zarr(repo.snapshot(), group="theirs").t.values.tolist() == [0, 1, 2]


def test_the_url_ends_with_the_transaction(filled: txstore.Repository) -> None:
    with filled.transaction("first block") as store:
        url = store.share()
        group = zarr.open_group(url, mode="a")
        group.create_group("a")
        store.commit()
        with pytest.raises(txstore.TransactionStateError, match="has ended"):
            zarr.open_group(url, mode="a")
    with pytest.raises(txstore.TransactionStateError):
        group.create_group("b")
    with pytest.raises(txstore.TransactionStateError):
        zarr.open_group(url, mode="a")
    with pytest.raises(txstore.TransactionStateError):
        store.share()
    with pytest.raises(ValueError, match="read-only"):
        filled.snapshot().share()


def test_a_named_transaction(repo: txstore.Repository, run_installed: Callable[..., str]) -> None:
    with repo.transaction("first") as store:
        store["a"] = b"1"
    repo.branches["dev"] = repo.head()
    code = """
import sys, xarray as xr
dataset = xr.Dataset({"t": ("x", [1.0, 2.0])})
dataset.to_zarr(f"txstore::{sys.argv[1]}?transaction=run-17&branch=dev", group="one", consolidated=False)
dataset.to_zarr(f"txstore://{sys.argv[1]}?transaction=run-17", group="two", consolidated=False)
"""
    run_installed(code, repo.url)
    assert [each.name for each in repo.transactions()] == ["run-17"]
    fs = file_system(repo, "?transaction=run-17")
    assert fs.exists("two/t/zarr.json")
    fs.pipe_file("b", b"2")
    with pytest.raises(txstore.TransactionStateError, match="may still stage into it"):
        repo.transaction(name="run-17").commit()
    del fs
    gc.collect()
    repo.transaction(name="run-17").commit("run 17")
    assert messages(repo, "dev") == ["run 17", "first"]
    assert {"a", "b", "one/t/zarr.json", "two/t/zarr.json"} < set(keys(repo, "dev"))


# --- fsspec's transactions
def file_system(repo: txstore.Repository, query: str = "") -> Any:
    return fsspec.filesystem("txstore", fo=f"{repo.url}{query}")


def test_a_transaction_of_fsspec_is_one_commit(filled: txstore.Repository, tmp_path: Path) -> None:
    (tmp_path / "files/deep").mkdir(parents=True)
    (tmp_path / "files/deep/one").write_text("1")
    (tmp_path / "files/two").write_text("22")
    fs = file_system(filled, "?branch=dev&message=by%20fsspec")
    with fs.transaction:
        fs.pipe({"a": b"1", "b/c": b"22"})
        fs.mkdirs("b/d", exist_ok=True)
        with fs.open("e", "wt") as file:
            file.write("text")
        fs.put(f"{tmp_path}/files", "put", recursive=True)
        fs.copy("a", "copied")
        fs.mv("b/c", "moved")
        fs.touch("touched")
        fs.rm("group", recursive=True)
        DATASET.to_zarr(fs.get_mapper("mapped"), consolidated=False)
        assert fs.cat("e") == b"text"
        assert fs.info("moved")["size"] == 2
        assert "group" not in fs.ls("", detail=False)
        assert xr.open_zarr(fs.get_mapper("mapped"), consolidated=False).t.sizes["x"] == 5
        assert messages(filled, "dev") == ["first"]
    assert messages(filled, "dev") == ["by fsspec", "first"]
    found = {key for key in keys(filled, "dev") if not key.startswith("mapped")}
    assert found == {"a", "copied", "e", "moved", "put/deep/one", "put/two", "touched", "zarr.json"}
    assert fs.cat("put/deep/one") == b"1"  # it reads its own commit afterwards
    assert keys(filled) == list(filled.mapping(at=0))


@pytest.mark.parametrize("query", ["", "?commit=on-close"])
def test_an_exception_drops_a_transaction_of_fsspec(filled: txstore.Repository, query: str) -> None:
    fs = file_system(filled, query)
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fs.pipe_file("a", b"1")
        file = fs.open("b", "wb")
        _ = 1 / 0
    assert not fs.exists("a")
    with pytest.raises(PermissionError, match="has ended"):
        file.close()
    with pytest.raises(PermissionError):
        fs.pipe_file("a", b"1")
    with fs.transaction:
        fs.pipe_file("a", b"2")
    assert messages(filled) == ["", "first"]


def test_a_conflict_ends_the_transaction(filled: txstore.Repository) -> None:
    fs = file_system(filled)
    with pytest.raises(txstore.ConflictError), fs.transaction:
        fs.pipe_file("a", b"1")
        with filled.transaction() as store:
            store["a"] = b"2"
    assert not fs._intrans
    assert filled.snapshot()["a"] == b"2"
    with fs.transaction:
        fs.pipe_file("a", b"3")
    assert filled.snapshot()["a"] == b"3"


def test_a_file_that_is_open_at_the_end_is_not_lost_silently(filled: txstore.Repository) -> None:
    fs = file_system(filled)
    with pytest.raises(ValueError, match="1 files are still open"), fs.transaction:
        fs.pipe_file("a", b"1")
        file = fs.open("b", "w")
        file.write("text")
    assert messages(filled) == ["first"]
    with pytest.raises(PermissionError):
        file.close()


def test_a_file_system_in_a_transaction_begins_no_other(filled: txstore.Repository) -> None:
    with filled.transaction() as store:
        fs, _ = fsspec.url_to_fs(store.share())
        with pytest.raises(PermissionError, match="in a transaction already"), fs.transaction:
            pass


# --- files
def test_each_file_that_is_closed_is_a_commit(filled: txstore.Repository) -> None:
    url = f"txstore://{filled.url}/log.txt?branch=dev&commit=on-close&message=a+line"
    for mode in ("x", "a", "a"):
        with fsspec.open(url, mode) as file:
            file.write("line\n")
    assert messages(filled, "dev") == ["a+line", "a+line", "a+line", "first"]
    assert filled.mapping(branch="dev")["log.txt"] == b"line\n" * 3
    with pytest.raises(FileExistsError):
        fsspec.open(url, "x").open()
    with fsspec.open(url, "wb") as file:
        file.write(b"1")
    fs = file_system(filled, "?commit=on-close&branch=dev")
    with fs.open("log.txt", "wb") as file:
        file.write(b"2")
        assert fs.cat("log.txt") == b"1"
    assert fs.cat("log.txt") == b"2"
    assert "log.txt" not in filled.mapping()


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_an_exception_drops_a_file(filled: txstore.Repository, mode: str) -> None:
    content: Any = "text" if mode == "w" else b"bytes"
    url = f"txstore://{filled.url}/a?commit=on-close"

    def fail() -> None:
        with pytest.raises(ZeroDivisionError), fsspec.open(url, mode) as file:
            file.write(content)
            _ = 1 / 0

    def forget() -> None:
        fsspec.open(url, mode).open().write(content)
        gc.collect()

    with pytest.warns(txstore.UncommittedChangesWarning, match="closed because of ZeroDivisionError"):
        fail()
    with pytest.warns(txstore.UncommittedChangesWarning, match="was not closed"):
        forget()
    assert messages(filled) == ["first"]
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        with fsspec.open(url, mode) as file:  # opened after the exception, which is not why it is closed
            file.write(content)
    assert len(messages(filled)) == 2


def test_what_is_never_closed_is_refused(filled: txstore.Repository) -> None:
    url = f"txstore::{filled.url}?commit=on-close"
    fs = file_system(filled, "?commit=on-close")
    for attempt in (
        lambda: DATASET.to_zarr(url, group="below", consolidated=False),
        lambda: zarr.open_group(url, mode="a").create_group("b"),
        lambda: fs.pipe_file("a", b"1"),
        lambda: fs.rm("zarr.json"),
    ):
        with pytest.raises(PermissionError, match=r"opened and closed.*store\.share\(\)") as raised:
            attempt()
        assert raised.value.errno == errno.EROFS
    assert messages(filled) == ["first"]


# --- what to read
def test_the_url_names_the_commit(filled: txstore.Repository) -> None:
    with filled.transaction("second", branch="dev") as store:
        zarr.open_array(store, path="group/position").append(np.arange(5))
    filled.tags["v1"] = filled.commit(1, branch="dev")

    def length(url: str, **options: Any) -> int:
        found = zarr.open(url, mode="r", **options)
        return int(found.shape[0] if isinstance(found, zarr.Array) else found["group/position"].shape[0])

    for prefix in ("txstore::", "txstore://"):
        url = prefix + filled.url
        assert length(url) == 10
        assert length(f"{url}?branch=dev") == 15
        assert length(f"{url}?branch=dev&at=0") == 10
        assert length(f"{url}?at=dev@1") == 15
        assert length(f"{url}?tag=v1") == 15
        assert length(f"{url}/group/position?tag=v1") == 15
        assert length(f"{url}?tag=v1/group/position") == 15  # as tools append a path
        assert length(f"{url}?branch=dev", storage_options={"at": 0}) == 10
        with pytest.raises(ValueError, match="give one of them"):
            length(f"{url}?branch=dev", storage_options={"branch": "main"})
        with pytest.raises(ValueError, match="no such parameter"):
            length(f"{url}?brunch=dev")


def test_a_pickle_reads_a_commit_of_any_branch(filled: txstore.Repository) -> None:
    with filled.transaction("second", branch="dev") as store:
        store["a"] = b"1"
    filled.tags["v1"] = filled.head("dev")
    pickles = [pickle.dumps(file_system(filled, query)) for query in ("?tag=v1", "?at=dev@1", "?branch=dev")]
    with filled.transaction(branch="dev") as store:
        store["a"] = b"2"
    for each in pickles:
        again = pickle.loads(each)
        assert again.cat("a") == b"1"
        assert pickle.loads(pickle.dumps(again)) == again


def test_the_engine_of_xarray_reads_parameters(filled: txstore.Repository) -> None:
    from txstore.xarray_backend import TxStoreBackendEntrypoint as Engine

    with filled.transaction("second", branch="dev") as store:
        DATASET.to_zarr(store, group="below")
    found = xr.open_dataset(f"txstore://{filled.url}/below?branch=dev", engine=Engine)
    xr.testing.assert_identical(found.load(), DATASET)
    assert xr.open_dataset(f"txstore::{filled.url}?branch=dev&at=-1", engine=Engine, group="below").sizes["x"] == 5
    with pytest.raises(ValueError, match="in the URL, or all of them as arguments"):
        xr.open_dataset(f"txstore::{filled.url}?branch=dev", engine=Engine, at=0)
    with pytest.raises(ValueError, match="reads commits"):
        xr.open_dataset(f"txstore::{filled.url}?commit=on-close", engine=Engine)
