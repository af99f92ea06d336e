"""zarr 2 over `repo.begin()` and `repo.mapping()`."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

import txstore
from txstore.zarr2 import MappingStore

Wrap = Callable[[Any], Any]


def fill(repo: txstore.Repository, wrap: Wrap, **arguments: Any) -> np.ndarray:
    """Commit an array "a" of 25 numbers in chunks of 10; return its content."""
    data = np.arange(25.0)
    with repo.begin("fill") as transaction:
        zarr.open_group(wrap(transaction)).create_dataset("a", data=data, chunks=10, **arguments)
    return data


def names_called(mapping: Any, names: list[str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Note which methods of a mapping are called from now on."""
    called: set[str] = set()

    def watch(name: str) -> None:
        method = getattr(mapping, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return method(*args, **kwargs)

        monkeypatch.setattr(mapping, name, watched)

    for name in names:
        watch(name)
    return called


# -- without zarr 3 ----------------------------------------------------------------------------------------------------


def test_txstore_is_imported_without_zarr() -> None:
    code = "import sys, txstore; repo = txstore.Repository('nowhere'); print('zarr' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_a_store_of_zarr_3_is_refused(repo: txstore.Repository) -> None:
    with pytest.raises(ImportError):
        repo.transaction()


# -- arrays and groups -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"compressor": None},
        {"compressor": numcodecs.Zstd(3)},
        {"compressor": numcodecs.Blosc("lz4", shuffle=numcodecs.Blosc.BITSHUFFLE)},
        {"filters": [numcodecs.Delta("f8")]},
        {"compressor": None, "filters": [numcodecs.FixedScaleOffset(0, 1, "f8", "i2")]},
        {"dimension_separator": "/"},
        {"order": "F"},
    ],
    ids=repr,
)
def test_an_array_is_read_as_it_was_written(repo: txstore.Repository, wrap: Wrap, arguments: dict[str, Any]) -> None:
    data = np.arange(35.0).reshape(5, 7)
    transaction = repo.begin()
    array = zarr.open_array(wrap(transaction), mode="w", shape=data.shape, chunks=(2, 3), dtype="f8", **arguments)
    array[:] = data
    array[1:3, 2] = -1
    np.testing.assert_array_equal(array[:, 2], [2, -1, -1, 23, 30])  # what is staged is seen
    assert not repo.exists or repo.head() is None  # by nobody else
    transaction.commit()
    data[1:3, 2] = -1
    read = zarr.open(wrap(repo.mapping()), mode="r")
    np.testing.assert_array_equal(read[:], data)
    np.testing.assert_array_equal(read[::2, 6], data[::2, 6])
    if "dimension_separator" not in arguments:  # with "/", zarr 2 counts the names in the first directory
        assert read.nchunks_initialized == 9


def test_values_of_any_kind(repo: txstore.Repository, wrap: Wrap) -> None:
    words = np.array(["a", "bb", "ç" * 3], dtype=object)
    records = np.array([(1, 2.5), (3, 4.5)], dtype=[("n", "i4"), ("x", "f8")])
    with repo.begin() as transaction:
        group = zarr.open_group(wrap(transaction))
        group.create_dataset("words", data=words, object_codec=numcodecs.VLenUTF8())
        group.create_dataset("records", data=records)
        group.create_dataset("scalar", data=7)
        group.create_dataset("empty", shape=(0, 3), dtype="i1")
    group = zarr.open_group(wrap(repo.mapping()), mode="r")
    assert list(group["words"][:]) == list(words)
    np.testing.assert_array_equal(group["records"][:], records)
    assert group["scalar"][()] == 7
    assert group["empty"].shape == (0, 3)


def test_nested_groups(repo: txstore.Repository, wrap: Wrap) -> None:
    with repo.begin() as transaction:
        root = zarr.open_group(wrap(transaction))
        root.create_group("x/y").attrs["depth"] = 2
        root["x/y"].create_dataset("z", data=np.arange(3))
        root["x"].create_dataset("w", data=np.arange(4))
        assert sorted(root.groups()) == [("x", root["x"])]
    root = zarr.open(wrap(repo.mapping()), mode="r")
    assert list(root) == ["x"]
    assert list(root["x"].array_keys()) == ["w"]
    assert list(root["x"].group_keys()) == ["y"]
    assert dict(root["x/y"].attrs) == {"depth": 2}
    seen: list[str] = []
    root.visit(seen.append)
    assert seen == ["x", "x/w", "x/y", "x/y/z"]
    assert "x/y/z" in root
    assert "x/q" not in root
    assert str(root.tree())


def test_append_resize_and_attributes_over_several_commits(repo: txstore.Repository, wrap: Wrap) -> None:
    data = fill(repo, wrap)
    with repo.begin() as transaction:
        array = zarr.open_group(wrap(transaction))["a"]
        array.append(np.arange(5.0))
        array.attrs["unit"] = "m"
    array = zarr.open_group(wrap(repo.mapping()), mode="r")["a"]
    np.testing.assert_array_equal(array[:], [*data, *range(5)])
    assert array.attrs["unit"] == "m"

    with repo.begin() as transaction:
        zarr.open_group(wrap(transaction))["a"].resize(12)
    snapshot = repo.mapping()
    np.testing.assert_array_equal(zarr.open_group(wrap(snapshot), mode="r")["a"][:], data[:12])
    assert sorted(snapshot) == [".zgroup", "a/.zarray", "a/.zattrs", "a/0", "a/1"]


def test_deletes(repo: txstore.Repository, wrap: Wrap) -> None:
    fill(repo, wrap)
    with repo.begin() as transaction:
        root = zarr.open_group(wrap(transaction))
        root.create_dataset("ab", data=np.arange(2))
        del root["a"]
        assert list(root) == ["ab"]
        root.create_dataset("a", data=np.arange(3))  # again, smaller
    assert sorted(repo.mapping()) == [".zgroup", "a/.zarray", "a/0", "ab/.zarray", "ab/0"]
    with repo.begin() as transaction:
        zarr.open_group(wrap(transaction), mode="w")  # clears all
    assert sorted(repo.mapping()) == [".zgroup"]


def test_overwrite_and_move(repo: txstore.Repository, wrap: Wrap) -> None:
    data = fill(repo, wrap)
    with repo.begin() as transaction:
        root = zarr.open_group(wrap(transaction))
        root.move("a", "b")
        root.create_dataset("b/c", data=data[:2], overwrite=True)  # an array becomes a group
    assert sorted(repo.mapping()) == [".zgroup", "b/.zgroup", "b/c/.zarray", "b/c/0"]


def test_empty_chunks_are_deleted(repo: txstore.Repository, wrap: Wrap) -> None:
    fill(repo, wrap)
    with repo.begin() as transaction:
        array = zarr.open_array(wrap(transaction), path="a", write_empty_chunks=False)
        array[:20] = 0
    assert sorted(repo.mapping()) == [".zgroup", "a/.zarray", "a/2"]


def test_copies_consolidated_metadata_and_a_cache(repo: txstore.Repository, wrap: Wrap) -> None:
    data = fill(repo, wrap)
    snapshot = repo.mapping()
    with repo.begin() as transaction:
        target = wrap(transaction)
        zarr.copy_store(snapshot, target, dest_path="copy")
        zarr.copy(zarr.open_group(wrap(snapshot), mode="r")["a"], zarr.open_group(target), name="b")
        zarr.consolidate_metadata(target)
    np.testing.assert_array_equal(zarr.open_consolidated(wrap(repo.mapping()))["copy/a"][:], data)
    cached = zarr.LRUStoreCache(MappingStore(repo.mapping()), max_size=1 << 20)
    np.testing.assert_array_equal(zarr.open_group(cached, mode="r")["b"][:], data)


def test_a_with_block_of_zarr_does_not_end_the_transaction(repo: txstore.Repository, wrap: Wrap) -> None:
    transaction = repo.begin()
    with zarr.open_group(wrap(transaction)) as group:
        group.create_dataset("a", data=np.arange(3))
    assert transaction.state == "open"
    assert not repo.exists or repo.head() is None
    transaction.commit()
    assert "a/.zarray" in repo.mapping()


def test_a_snapshot_is_read_only(repo: txstore.Repository, wrap: Wrap) -> None:
    data = fill(repo, wrap)
    store = wrap(repo.mapping())
    with pytest.raises(zarr.errors.ReadOnlyError):
        zarr.open_group(store, mode="r")["a"][:] = 0
    writable = zarr.open_group(store, mode="a")  # zarr asks nobody whether that is possible
    for write in (
        lambda: writable["a"].set_basic_selection(slice(None), 0),
        lambda: writable.create_group("g"),
        lambda: writable.__delitem__("a"),
    ):
        with pytest.raises((TypeError, zarr.errors.ReadOnlyError, NotImplementedError)):
            write()
    np.testing.assert_array_equal(zarr.open_group(wrap(repo.mapping()), mode="r")["a"][:], data)


def test_a_wrong_key_is_refused(repo: txstore.Repository, wrap: Wrap) -> None:
    transaction = repo.begin()
    with pytest.raises(ValueError, match="4096"):
        zarr.open_group(wrap(transaction)).create_group("g" * 5000)
    transaction.rollback()


# -- history and conflicts ---------------------------------------------------------------------------------------------


def test_an_old_commit_is_read(repo: txstore.Repository, wrap: Wrap) -> None:
    data = fill(repo, wrap)
    first = repo.head()
    before = zarr.open_group(wrap(repo.mapping()), mode="r")["a"]
    with repo.begin() as transaction:
        array = zarr.open_group(wrap(transaction))["a"]
        array.append(array[:])
        array[:] = -1
    repo.tags["v1"] = first
    for snapshot in (repo.mapping(at=0), repo.mapping(at=first.id), repo.mapping(tag="v1")):
        np.testing.assert_array_equal(zarr.open_group(wrap(snapshot), mode="r")["a"][:], data)
    np.testing.assert_array_equal(before[:], data)  # nothing that others do changes it
    assert (zarr.open_group(wrap(repo.mapping()), mode="r")["a"][:] == -1).all()


def test_two_transactions_conflict(repo: txstore.Repository, wrap: Wrap) -> None:
    fill(repo, wrap)
    mine, theirs = repo.begin("mine"), repo.begin("theirs")
    zarr.open_group(wrap(mine))["a"].append([1.0])
    zarr.open_group(wrap(theirs))["a"].append([2.0])
    theirs.commit()
    with pytest.raises(txstore.ConflictError) as raised:
        mine.commit()
    assert set(raised.value.keys) == {"a/.zarray", "a/2"}
    mine.rollback()
    assert zarr.open_group(wrap(repo.mapping()), mode="r")["a"][-1] == 2.0


def test_transactions_on_different_chunks_do_not_conflict(repo: txstore.Repository, wrap: Wrap) -> None:
    fill(repo, wrap)
    mine, theirs = repo.begin(), repo.begin()
    zarr.open_group(wrap(mine))["a"][:10] = 1
    zarr.open_group(wrap(theirs))["a"][10:20] = 2
    theirs.commit()
    mine.commit()
    array = zarr.open_group(wrap(repo.mapping()), mode="r")["a"][:]
    assert set(array[:10]) == {1}
    assert set(array[10:20]) == {2}


def test_two_creations_of_one_group_do_not_conflict(repo: txstore.Repository, wrap: Wrap) -> None:
    mine, theirs = repo.begin(), repo.begin()
    zarr.open_group(wrap(mine)).create_dataset("a", data=[1])
    zarr.open_group(wrap(theirs)).create_dataset("b", data=[2])
    theirs.commit()
    mine.commit()
    assert list(zarr.open_group(wrap(repo.mapping()), mode="r")) == ["a", "b"]


def test_a_chunk_cleared_conflicts_with_a_chunk_written(repo: txstore.Repository) -> None:
    """I5: the deletion of an absent key counts. Through KVStore zarr only asks whether the key is there."""
    with repo.begin() as transaction:
        zarr.open_array(MappingStore(transaction), mode="w", shape=20, chunks=10, dtype="f8")
    mine, theirs = repo.begin(), repo.begin()
    zarr.open_array(MappingStore(mine), write_empty_chunks=False)[:10] = 0
    zarr.open_array(MappingStore(theirs))[:10] = 1
    theirs.commit()
    zarr.open_array(MappingStore(mine))[10:] = 5
    with pytest.raises(txstore.ConflictError):
        mine.commit()
    mine.rollback()


# -- what zarr 2 calls -------------------------------------------------------------------------------------------------


WRITERS = ["listdir", "rmdir", "setitems", "getsize"]


def test_the_optional_methods_are_used(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction = repo.begin()
    called = names_called(transaction, WRITERS, monkeypatch)
    store = MappingStore(transaction)
    cleared = names_called(store, ["delitems"], monkeypatch)
    root = zarr.open_group(store)
    root.create_dataset("a", data=np.arange(25.0), chunks=10)
    assert called == {"setitems"}
    assert root["a"].nbytes_stored > 0
    assert list(root) == ["a"]
    assert called == {"setitems", "getsize", "listdir"}
    zarr.open_array(store, path="a", write_empty_chunks=False)[:10] = 0
    assert cleared == {"delitems"}
    del root["a"]
    assert called == set(WRITERS)
    transaction.rollback()


def test_chunks_are_decoded_where_they_lie(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    data = fill(repo, MappingStore)
    snapshot = repo.mapping()
    array = zarr.open_group(MappingStore(snapshot), mode="r")["a"]
    monkeypatch.setattr(type(snapshot), "__getitem__", None)
    np.testing.assert_array_equal(array[:], data)


def test_the_keys_of_one_group_are_listed_without_those_of_others(repo: txstore.Repository) -> None:
    with repo.begin() as transaction:
        transaction.setitems({f"big/{i}": b"x" for i in range(2000)})
        root = zarr.open_group(MappingStore(transaction))
        root.create_dataset("small", data=np.arange(3))
        root.create_group("big")
    snapshot = repo.mapping()
    scans: list[int] = []
    scan = snapshot.runs.scan
    snapshot.runs.scan = lambda *args: scans.append(len(found := scan(*args))) or found  # type: ignore[method-assign]
    assert list(zarr.open_group(MappingStore(snapshot), mode="r")) == ["big", "small"]
    assert sum(scans) < 100  # a page of them, of 2,000


def test_through_kvstore_only_items_are_used(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what is wanted, but what zarr 2 does: this is why there is `MappingStore`."""
    transaction = repo.begin()
    called = names_called(transaction, [*WRITERS, "getitems"], monkeypatch)
    root = zarr.open_group(transaction)
    assert type(root.store) is zarr.storage.KVStore
    root.create_dataset("a", data=np.arange(25.0), chunks=10)
    assert (list(root), root["a"].nbytes_stored > 0, root["a"][3]) == (["a"], True, 3)
    del root["a"]
    assert called == set()
    transaction.rollback()


def test_a_store_says_what_it_can(repo: txstore.Repository) -> None:
    fill(repo, MappingStore)
    transaction = repo.begin()
    writer, reader = MappingStore(transaction), MappingStore(repo.mapping())
    assert (writer.is_writeable(), writer.is_erasable(), reader.is_writeable(), reader.is_erasable()) == (
        True, True, False, False,
    )  # fmt: skip
    assert writer == MappingStore(transaction)
    assert writer != reader
    assert len(reader) == len(list(reader)) == 5
    assert "main@0" in repr(reader)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(reader)
    transaction.rollback()


# -- what zarr 3 will find ---------------------------------------------------------------------------------------------


def test_the_keys_and_documents_are_those_of_format_2(repo: txstore.Repository, wrap: Wrap) -> None:
    """Without zarr 3 here: what its reader of format 2 asks for is compared with the specification."""
    data = np.arange(6, dtype="<i4").reshape(2, 3)
    with repo.begin() as transaction:
        root = zarr.open_group(wrap(transaction))
        root.attrs["title"] = "storms"
        group = root.create_group("g")
        group.create_dataset("flat", data=data, chunks=(1, 2), compressor=None)
        group.create_dataset(
            "nested", data=data, chunks=(2, 2), compressor=numcodecs.Zstd(1), dimension_separator="/", fill_value=None
        )
    snapshot = repo.mapping()
    assert list(snapshot) == [
        ".zattrs", ".zgroup",
        "g/.zgroup",
        "g/flat/.zarray", "g/flat/0.0", "g/flat/0.1", "g/flat/1.0", "g/flat/1.1",
        "g/nested/.zarray", "g/nested/0/0", "g/nested/0/1",
    ]  # fmt: skip
    assert json.loads(snapshot[".zgroup"]) == json.loads(snapshot["g/.zgroup"]) == {"zarr_format": 2}
    assert json.loads(snapshot[".zattrs"]) == {"title": "storms"}
    document = json.loads(snapshot["g/flat/.zarray"])
    assert document.pop("dimension_separator", ".") == "."
    assert document == {
        "zarr_format": 2, "shape": [2, 3], "chunks": [1, 2], "dtype": "<i4", "order": "C",
        "compressor": None, "filters": None, "fill_value": 0,
    }  # fmt: skip
    document = json.loads(snapshot["g/nested/.zarray"])
    assert document["dimension_separator"] == "/"
    assert document["compressor"]["id"] == "zstd"
    assert snapshot["g/flat/1.0"] == data[1, :2].tobytes()
    edge = np.frombuffer(numcodecs.Zstd().decode(snapshot["g/nested/0/1"]), dtype="<i4").reshape(2, 2)
    np.testing.assert_array_equal(edge[:, 0], data[:, 2])
