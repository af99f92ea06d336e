"""TxStore as zarr and people hold it: dict syntax, buffers, byte ranges, views, read-only copies."""

import asyncio
import gc
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.storage import MemoryStore

import txstore
from tests.tools.lock_clients import descriptors_of
from txstore._native import local
from txstore.store import TxStore

PROTOTYPE = default_buffer_prototype()
LARGE = bytes(range(256)) * 20

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


@pytest.fixture
def store(repo: txstore.Repository) -> Any:
    """A transaction, rolled back at the end."""
    store = repo.transaction()
    yield store
    store.rollback()


def commit(repo: txstore.Repository, **values: bytes) -> txstore.Commit:
    with repo.begin() as transaction:
        transaction.update(values)
    head = repo.head()
    assert head is not None
    return head


# --- dict syntax
def test_items_are_iterated_in_the_order_of_their_bytes(repo: txstore.Repository, store: TxStore) -> None:
    keys = ["a", "a-b", "a/c", "a0", "z", "ä", "\ue000", "\U00010000"]
    for number, key in enumerate(reversed(keys)):
        store[key] = b""
        if number == 3:
            store.commit()
    assert list(store) == sorted(keys, key=str.encode) == keys
    assert len(store) == len(keys)


def test_a_store_without_keys_is_true(repo: txstore.Repository, store: TxStore) -> None:
    assert len(store) == 0
    assert store
    assert store.mapping
    store.commit()
    with repo.begin() as transaction:
        transaction["a"] = b"1"
        transaction.clear()
    assert repo.mapping()


@pytest.mark.parametrize("key", ["", "a", "a/b", "a/b/c", "none", "none/c"])
@pytest.mark.parametrize("committed", [False, True])
def test_it_answers_as_a_store_of_zarr(repo: txstore.Repository, store: TxStore, key: str, committed: bool) -> None:
    async def answers(of: Store) -> list[Any]:
        found = await of.get(key, PROTOTYPE)
        told = [found and found.to_bytes(), await of.exists(key), await of.is_empty(key)]
        if key not in values:  # whose own length counts in newer versions of zarr alone
            told.append(await of.getsize_prefix(key))
        told.append(sorted([name async for name in of.list_dir(key)]))
        try:
            told.append(await of.getsize(key))
        except FileNotFoundError:
            told.append(None)
        if not of.read_only:
            await of.delete(key)
            told.append(sorted([name async for name in of.list()]))
        return told

    values = {"a/b": b"123", "c": b"4"}
    plain = MemoryStore({name: cpu.Buffer.from_bytes(value) for name, value in values.items()}, read_only=committed)
    for name, value in values.items():
        store[name] = value
    if committed:
        store.commit()
    assert asyncio.run(answers(repo.snapshot() if committed else store)) == asyncio.run(answers(plain))


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a" * 4097, "\ud800"])
def test_an_impossible_key_is_refused_and_spoils_nothing(repo: txstore.Repository, store: TxStore, key: str) -> None:
    with pytest.raises(txstore.KeyFormatError):
        store[key] = b"1"
    store["a"] = b"1"
    store.commit()
    assert list(repo.snapshot()) == ["a"]


def test_a_store_and_its_mapping_are_dicts(store: TxStore) -> None:
    mapping = store.mapping
    assert isinstance(mapping, MutableMapping)
    mapping.update({"a": b"1", "b": b"2", "c/d": b"3"})
    store["f"] = b"5"
    assert (store["a"], mapping["f"], "a" in store) == (b"1", b"5", True)
    del store["f"]
    for each in (store, mapping):
        assert "f" not in each
        assert 1 not in each
        with pytest.raises(KeyError):
            del each["f"]
        with pytest.raises(KeyError):
            each["f"]
    assert mapping.pop("a") == b"1"
    assert mapping.pop("a", None) is None
    assert mapping.setdefault("b", b"x") == b"2"
    assert mapping.setdefault("e", b"4") == b"4"
    assert dict(mapping) == {"b": b"2", "c/d": b"3", "e": b"4"}
    assert mapping.popitem()[0] not in mapping
    mapping.clear()
    assert dict(mapping) == {}


@pytest.mark.parametrize(
    "value",
    [bytearray(4), memoryview(b"abcd"), np.arange(6, dtype="i4").reshape(2, 3), *map(np.empty, [(0,), (5, 0), (0, 5)])],
)
def test_the_mapping_takes_every_buffer(store: TxStore, value: Any) -> None:
    store.mapping["a"] = value
    assert store.mapping["a"] == memoryview(value).tobytes()


def test_a_snapshot_is_a_mapping_that_nobody_can_write(repo: txstore.Repository) -> None:
    commit(repo, a=b"1", b=b"2")
    snapshot = repo.mapping()
    assert isinstance(snapshot, Mapping)
    assert not isinstance(snapshot, MutableMapping)
    assert dict(snapshot) == {"a": b"1", "b": b"2"}
    with pytest.raises(TypeError, match="read-only"):
        snapshot["a"] = b"2"
    with pytest.raises(TypeError, match="read-only"):
        del snapshot["a"]
    assert not any(hasattr(snapshot, name) for name in ("set", "delete", "clear", "update", "pop"))


def test_a_read_only_store_refuses_every_write(repo: txstore.Repository) -> None:
    commit(repo, a=b"1")
    store = repo.snapshot()
    writes = [
        lambda: store.__setitem__("a", b"2"),
        lambda: store.__delitem__("a"),
        lambda: store.set_sync("a", cpu.Buffer.from_bytes(b"2")),
        lambda: store.delete_sync("a"),
        lambda: asyncio.run(store.set("a", cpu.Buffer.from_bytes(b"2"))),
        lambda: asyncio.run(store.set_if_not_exists("b", cpu.Buffer.from_bytes(b"2"))),
        lambda: asyncio.run(store.delete("a")),
        lambda: asyncio.run(store.delete_dir("a")),
        lambda: asyncio.run(store.clear()),
        store.commit,
        store.rollback,
    ]
    for write in writes:
        with pytest.raises(ValueError, match="read-only"):
            write()
    assert dict(store.mapping) == {"a": b"1"}


# --- buffers
def test_a_buffer_with_gaps_is_stored_without_them(repo: txstore.Repository, store: TxStore) -> None:
    store.set_sync("a", cpu.Buffer(np.arange(20, dtype="u1")[::2]))
    store.set_sync("b", cpu.Buffer(np.arange(4, dtype="u1")[::-1]))
    with pytest.raises(TypeError, match="Buffer"):
        store.set_sync("a", b"1")  # type: ignore[arg-type]
    store.commit()
    assert repo.snapshot()["a"] == bytes(range(0, 20, 2))
    assert repo.snapshot()["b"] == b"\3\2\1\0"


@pytest.mark.parametrize("size", [8, 5000, 1 << 20])
def test_a_staged_value_is_a_copy(repo: txstore.Repository, store: TxStore, size: int) -> None:
    array = np.ones(size, "u1")
    store.set_sync("a", cpu.Buffer(array))
    store.mapping["b"] = array
    array[:] = 2
    assert store["a"] == store["b"] == b"\1" * size
    store.commit()
    assert repo.snapshot()["a"] == repo.snapshot()["b"] == b"\1" * size


@pytest.mark.parametrize("where", ["staged", "committed"])
@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (RangeByteRequest(2, 6), LARGE[2:6]),
        (RangeByteRequest(0, 0), b""),
        (RangeByteRequest(5000, 9000), LARGE[5000:]),
        (RangeByteRequest(9000, 9010), b""),
        (OffsetByteRequest(5000), LARGE[5000:]),
        (OffsetByteRequest(9000), b""),
        (SuffixByteRequest(3), LARGE[-3:]),
        (SuffixByteRequest(0), b""),
        (SuffixByteRequest(9000), LARGE),
    ],
    ids=str,
)
def test_a_byte_range_is_a_part_of_the_value(repo, store, where, request_, expected):
    store["a/c/0"] = LARGE
    if where == "committed":
        store.commit()
    found = store.get_sync("a/c/0", prototype=PROTOTYPE, byte_range=request_)
    assert found.to_bytes() == expected
    assert store.get_sync("a", byte_range=request_) is None


async def test_partial_values_come_in_the_order_asked_for(repo: txstore.Repository) -> None:
    commit(repo, a=LARGE, b=b"12345")
    asked = [("b", SuffixByteRequest(2)), ("c", None), ("a", RangeByteRequest(1, 3)), ("b", None)]
    found = await repo.snapshot().get_partial_values(PROTOTYPE, iter(asked))
    assert [None if value is None else value.to_bytes() for value in found] == [b"45", None, b"\1\2", b"12345"]


# --- views
def view_of(store: TxStore, key: str) -> np.ndarray[Any, Any]:
    found = store.get_sync(key, prototype=PROTOTYPE)
    array = found.as_numpy_array()
    assert isinstance(array, np.ndarray)
    return array


def test_a_value_that_is_read_can_not_be_written(repo: txstore.Repository) -> None:
    commit(repo, a=LARGE)
    array = view_of(repo.snapshot(), "a")
    assert not array.flags.writeable
    with pytest.raises(ValueError):
        array[0] = 1
    with pytest.raises(TypeError):
        repo.mapping().get_view("a")[0] = 1  # type: ignore[index]


@pytest.mark.parametrize("size", [10, 5000])
def test_a_value_that_is_read_is_not_copied(repo: txstore.Repository, size: int) -> None:
    commit(repo, a=LARGE[:size])
    snapshot = repo.snapshot()
    assert np.shares_memory(view_of(snapshot, "a"), view_of(snapshot, "a"))
    view = repo.mapping().get_view("a")
    assert isinstance(view.obj, type(local.map_file(repo.url.removeprefix("file://"), "format.json")))


def test_a_value_from_1_kib_on_is_aligned_for_every_dtype(repo: txstore.Repository) -> None:
    commit(repo, **{"k" * n: bytes(1024) for n in range(1, 30)})
    store = repo.snapshot()
    assert {view_of(store, key).__array_interface__["data"][0] % 64 for key in store} == {0}


def test_a_view_outlives_its_store(repo: txstore.Repository) -> None:
    commit(repo, a=LARGE)
    array = view_of(txstore.TxStore(repo.url, read_only=True), "a")
    gc.collect()
    assert array.tobytes() == LARGE


@linux
@pytest.mark.skipif(
    local.IMPLEMENTATION == "python" and sys.version_info < (3, 13), reason="there, mmap keeps a descriptor"
)
def test_reading_fifty_commits_holds_no_descriptor(repo: txstore.Repository) -> None:
    for number in range(50):
        commit(repo, **{f"x/c/{number}": LARGE, f"y/c/{number}": b"1"})
    reader = txstore.TxStore(repo.url, read_only=True)
    assert view_of(reader, "x/c/0").tobytes() == LARGE  # whatever is opened once and for all
    before = descriptors_of(repo.url)
    views = [view_of(reader, key) for key in reader]
    assert descriptors_of(repo.url) == before
    assert len({view.tobytes() for view in views}) == 2


# --- copies, opening and closing
def test_copies_share_the_transaction(repo: txstore.Repository, store: TxStore) -> None:
    store["a"] = b"1"
    copy = store.with_read_only(True)
    copy.with_read_only(False)["b"] = b"2"
    assert dict(copy.mapping) == {"a": b"1", "b": b"2"}
    assert copy.read_only
    with pytest.raises(ValueError, match="read-only"):
        copy["c"] = b"3"
    store.commit()
    store["c"] = b"3"
    assert list(copy) == ["a", "b", "c"]
    assert list(repo.snapshot()) == ["a", "b"]


def test_closing_a_copy_does_not_end_the_transaction(repo: txstore.Repository, store: TxStore) -> None:
    store["a"] = b"1"
    store.with_read_only(True).close()
    store.with_read_only(False).close()
    with store.with_read_only(True):
        pass
    store["b"] = b"2"
    store.commit()
    assert list(repo.snapshot()) == ["a", "b"]


def test_a_writable_copy_of_a_snapshot_begins_at_its_commit(repo: txstore.Repository) -> None:
    commit(repo, a=b"1")
    snapshot = repo.snapshot()
    commit(repo, b=b"2")
    writer = snapshot.with_read_only(False)
    writer["c"] = b"3"
    assert list(writer) == ["a", "c"]
    writer.commit()
    assert list(repo.snapshot()) == ["a", "b", "c"]
    assert list(snapshot) == ["a"]


async def test_a_store_that_is_not_open_is_used_by_many_at_once(repo: txstore.Repository) -> None:
    commit(repo, **{f"c/{n}": b"%d" % n for n in range(50)})
    store = txstore.TxStore(repo.url, read_only=True)
    found = await asyncio.gather(*(store.get(f"c/{n}", PROTOTYPE) for n in range(50)))
    assert [value.to_bytes() for value in found if value is not None] == [b"%d" % n for n in range(50)]


async def test_a_closed_store_is_used_again(repo: txstore.Repository) -> None:
    store = repo.transaction()
    store["a"] = b"1"
    store.close()
    assert await store.exists("a")
    store.commit()
    assert list(repo.snapshot()) == ["a"]


# --- what is said, and equality
def test_staged_writes_are_named_in_the_repr(repo: txstore.Repository, store: TxStore) -> None:
    assert "NOT COMMITTED" not in repr(store)
    store["a"] = b"1"
    assert "1 staged, NOT COMMITTED" in repr(store)
    store.commit()
    assert "main@0" in repr(store)
    assert "NOT COMMITTED" not in repr(store)


def test_dropping_staged_writes_is_warned_of(repo: txstore.Repository) -> None:
    store = repo.transaction()
    store["a"] = b"1"
    store["b"] = b"2"
    dropped = [store]
    del store
    with pytest.warns(txstore.UncommittedChangesWarning, match="2 staged writes were NOT COMMITTED"):
        dropped.clear()
    assert list(repo.transaction()) == []


def test_what_is_equal(repo: txstore.Repository, store: TxStore) -> None:
    commit(repo, a=b"1")
    first = repo.snapshot()
    assert first == repo.snapshot(0)
    commit(repo, a=b"2")
    assert first != repo.snapshot()
    assert first == repo.snapshot(0)
    other = repo.transaction()
    other["b"] = b"1"
    assert other == other.with_read_only(False) != repo.transaction()
    other.rollback()
    assert store != store.mapping
    assert store != zarr.storage.MemoryStore()
