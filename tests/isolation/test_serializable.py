"""What a serializable transaction reads, by every face of the store and in every process; what conflicts with it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import pytest
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype

import txstore
from tests.tools.arrays import array, both, commit, create, group, put
from tests.tools.members import Member, get, members
from tests.tools.members import put as put_key
from tests.tools.steps import forked, status_of
from txstore import ConflictError, TransactionStateError
from txstore.store import TxStore

PROTOTYPE = default_buffer_prototype()
PAIR = both(group(), create("g/a", n=4), create("g/b", n=4))


@pytest.fixture
def repo(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    """A repository with the keys `a`, `d/x`, `d/y/z`."""
    repo = open_repo(durability="none")
    with repo.begin() as mapping:
        for key in ("a", "d/x", "d/y/z"):
            mapping[key] = b"base"
    return repo


def change(repo: txstore.Repository, key: str, value: bytes | None = b"new") -> None:
    with repo.begin() as mapping:
        if value is None:
            del mapping[key]
        else:
            mapping[key] = value


def conflicts(store: Any) -> Sequence[str]:
    """Return the keys of the conflict that a commit raises, none if it is made."""
    try:
        store.commit()
    except ConflictError as error:
        keys = error.keys
        store.rollback()
        return keys
    return ()


# --- zarr's face
async def everything(names: AsyncIterator[str]) -> list[str]:
    return [name async for name in names]


Read = Callable[[TxStore], Any]
READS: dict[str, tuple[Read, str, bytes | None]] = {
    "get": (lambda s: s.get("a", PROTOTYPE), "a", b"new"),
    "get, absent": (lambda s: s.get("new", PROTOTYPE), "new", b"new"),
    "get, deleted since": (lambda s: s.get("a", PROTOTYPE), "a", None),
    "get, a part": (lambda s: s.get("a", PROTOTYPE, RangeByteRequest(0, 2)), "a", b"new"),
    "get_partial_values": (lambda s: s.get_partial_values(PROTOTYPE, [("a", RangeByteRequest(0, 2))]), "a", b"new"),
    "exists": (lambda s: s.exists("a"), "a", None),
    "exists, absent": (lambda s: s.exists("new"), "new", b"new"),
    "set_if_not_exists": (
        lambda s: s.set_if_not_exists("a", PROTOTYPE.buffer.from_bytes(b"mine")), "a", None),
    "list": (lambda s: everything(s.list()), "d/y/new", b"new"),
    "list_prefix": (lambda s: everything(s.list_prefix("d")), "d/y/new", b"new"),
    "list_dir": (lambda s: everything(s.list_dir("d")), "d/new/c/0", b"new"),
    "list_dir, deleted since": (lambda s: everything(s.list_dir("d")), "d/y/z", None),
    "list_dir of the root": (lambda s: everything(s.list_dir("")), "new", b"new"),
    "getsize": (lambda s: s.getsize("a"), "a", b"longer"),
    "getsize_prefix": (lambda s: s.getsize_prefix("d"), "d/x", b"longer"),
    "getsize_prefix, one more": (lambda s: s.getsize_prefix("d"), "d/new", b"new"),
    "is_empty": (lambda s: s.is_empty("e"), "e/f/new", b"new"),
}  # fmt: skip


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
@pytest.mark.parametrize(("read", "key", "value"), READS.values(), ids=list(READS))
def test_what_zarr_reads(repo: txstore.Repository, read: Read, key: str, value: bytes | None, isolation: str) -> None:
    store = repo.transaction(isolation=isolation)
    asyncio.run(read(store))
    store["mine"] = b"1"
    change(repo, key, value)
    found = conflicts(store)
    assert len(found) == (isolation == "serializable")
    assert all((key + "/").startswith(name + "/") for name in found)  # of a listing, it is the child


MISSES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "another key": (lambda m: m["a"], lambda m: m.__setitem__("b", b"1")),
    "deeper than the listing": (lambda m: list(m.list_dir("d")), lambda m: m.__setitem__("d/y/new", b"1")),
    "a value of what was listed": (lambda m: list(m.list_dir("d")), lambda m: m.__setitem__("d/x", b"1")),
    "a value of what was walked": (lambda m: list(m.keys_below("d")), lambda m: m.__setitem__("d/x", b"1")),
    "one of several names": (lambda m: m.has_keys_below("d"), lambda m: m.__delitem__("d/x")),
    "one more where there are some": (lambda m: m.has_keys_below("d"), lambda m: m.__setitem__("d/new", b"1")),
    "whether there are any, where some were staged": (
        lambda m: (m.__setitem__("e/own", b"1"), m.has_keys_below("e")), lambda m: m.__setitem__("e/new", b"1")),
    "a listing beside": (lambda m: list(m.list_dir("d")), lambda m: m.__setitem__("d2/new", b"1")),
    "absent, and deleted": (lambda m: m.get("d/new"), lambda m: m.delete_dir("d")),
    "a child that is replaced": (
        lambda m: list(m.list_dir("d")), lambda m: (m.delete_dir("d/y"), m.__setitem__("d/y/other", b"1"))),
    "what was staged before it was read": (
        lambda m: (m.__setitem__("own", b"1"), m["own"]), lambda m: m.__setitem__("b", b"1")),
    "what was cleared before it was read": (
        lambda m: (m.delete_dir("d"), list(m.list_dir("d")), m.get("d/x")), lambda m: m.__setitem__("b", b"1")),
}  # fmt: skip


@pytest.mark.parametrize(("read", "other"), MISSES.values(), ids=list(MISSES))
def test_what_is_no_conflict(repo: txstore.Repository, read: Any, other: Any) -> None:
    mapping = repo.begin(isolation="serializable")
    read(mapping)
    mapping["mine"] = b"1"
    with repo.begin() as foreign:
        other(foreign)
    assert conflicts(mapping) == ()


@pytest.mark.parametrize("path", ["", "d", "d/y"])
def test_a_prefix_that_others_delete(repo: txstore.Repository, path: str) -> None:
    for read in (lambda m: list(m.list_dir("d")), list, lambda m: m["d/y/z"], lambda m: m.has_keys_below("d/y")):
        mapping = repo.begin(isolation="serializable")
        read(mapping)
        mapping["mine"] = os.urandom(4)
        with repo.begin() as foreign:
            foreign.delete_dir(path)
        assert conflicts(mapping) != ()
        with repo.begin() as again:
            for key in ("a", "d/x", "d/y/z"):
                again[key] = os.urandom(4)


def test_what_was_written_as_it_was_is_relied_on(repo: txstore.Repository) -> None:
    """A write of the very bytes of the base is none; but it must not be overtaken either."""
    for isolation, expected in (("snapshot", ()), ("serializable", ("a",))):
        mapping = repo.begin(isolation=isolation)
        mapping["a"] = repo.mapping()["a"]
        mapping["mine"] = isolation.encode()
        change(repo, "a", isolation.encode())
        assert conflicts(mapping) == expected


def test_readers_always_succeed(repo: txstore.Repository) -> None:
    store = repo.transaction(isolation="serializable")
    assert sorted(store.mapping) == ["a", "d/x", "d/y/z"]
    change(repo, "a")
    assert bytes(store["a"]) == b"base"
    assert store.commit() is None


def test_an_unknown_level(repo: txstore.Repository) -> None:
    for begin in (repo.transaction, repo.begin):
        with pytest.raises(ValueError, match="isolation is one of"):
            begin(isolation="read committed")


# --- arrays
def skew(repo: txstore.Repository, isolation: str) -> list[int]:
    """Two that each append to one of two arrays of one length, if the other has not grown; return the lengths."""
    commit(repo, PAIR)
    one, other = (repo.transaction(isolation=isolation) for _ in range(2))
    for store, mine, theirs in ((one, "g/a", "g/b"), (other, "g/b", "g/a")):
        if array(store, theirs).shape == (4,):
            array(store, mine).append(np.array([7], "i4"))
    one.commit()
    try:
        other.commit()
    except ConflictError:
        other.rollback()
    return [array(repo.snapshot(), path, mode="r").shape[0] for path in ("g/a", "g/b")]


def test_write_skew(open_repo: Callable[..., txstore.Repository]) -> None:
    assert skew(open_repo("snapshot.tx"), "snapshot") == [5, 5]
    assert skew(open_repo("serializable.tx"), "serializable") == [5, 4]


def test_run_tries_again(repo: txstore.Repository) -> None:
    commit(repo, create())
    tries = []

    def total(store: TxStore) -> int:
        tries.append(1)
        found = int(array(store)[:].sum())
        if len(tries) == 1:
            commit(repo, put(0, 10))
        store["total"] = b"%d" % found
        return found

    assert repo.run(total, isolation="serializable") == 17
    assert (len(tries), repo.mapping()["total"]) == (2, b"17")


# --- several processes
def test_what_a_sent_store_reads_counts(repo: txstore.Repository) -> None:
    store = repo.transaction(isolation="serializable")
    store["mine"] = b"1"
    with members(store, 2, joined=False) as (one, other):
        assert one.do(get, "a") == b"base"
        other.do(put_key, "theirs", b"1")
        change(repo, "a")
        with pytest.raises(ConflictError, match=r"read here \(main@1 by .*\): 'a'"):
            store.commit()  # while the reader lives, and has not said that it is done
        store.rollback()


def test_a_reader_that_dies_loses_nothing_but_has_read(repo: txstore.Repository) -> None:
    for key, expected in (("b", ()), ("a", ("a",))):
        store = repo.transaction(isolation="serializable")
        store["mine"] = key.encode()
        with members(store, 1, joined=False) as (reader,):
            assert reader.do(get, "a") in (b"base", b"new")
            reader.kill()
        change(repo, key)
        assert conflicts(store) == expected


def names_of(store: TxStore, path: str) -> list[str]:
    return sorted(store.mapping.list_dir(path))


def test_what_participants_list_counts(repo: txstore.Repository) -> None:
    store = repo.transaction(isolation="serializable")
    store["d/mine"] = b"1"
    with members(store, 1, joined=False) as (member,):
        assert member.do(names_of, "d") == ["mine", "x", "y"]
    change(repo, "d/new")
    assert conflicts(store) == ("d/new",)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_what_a_forked_child_reads_counts(repo: txstore.Repository) -> None:
    for staged in (True, False):
        mapping = repo.begin(isolation="serializable")
        if staged:
            mapping["early"] = b"1"
        with forked(lambda mapping=mapping: mapping["a"]) as child:
            assert status_of(child) == 0
        mapping["mine"] = os.urandom(4)
        change(repo, "a", os.urandom(4))
        assert conflicts(mapping) == ("a",)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_whose_reads_could_not_be_told_is_refused(open_repo: Callable[..., txstore.Repository]) -> None:
    """Before the first write there is no repository that a transaction could be shared in."""
    mapping = open_repo("empty.tx").begin(isolation="serializable")

    def read() -> None:
        with pytest.raises(TransactionStateError, match="before you fork"):
            mapping.get("a")

    with forked(read) as child:
        assert status_of(child) == 0
    mapping.rollback()


def test_names(repo: txstore.Repository) -> None:
    """Whoever commits a transaction with a name does so for what all have read."""
    with repo.transaction(name="n", isolation="serializable") as one:
        assert get(one, "a") == b"base"
        one["one"] = b"1"
    with repo.transaction(name="n") as other:  # who asks for less gets what there is
        assert other.mapping.isolation == "serializable"  # type: ignore[union-attr]
        other["other"] = b"1"
    change(repo, "a")
    last = repo.transaction(name="n")
    with pytest.raises(ConflictError, match=r"read here \(main@1 by .*\): 'a'"):
        last.commit()
    last.rollback()


def test_a_name_with_less_isolation(repo: txstore.Repository) -> None:
    with repo.transaction(name="n") as store:
        store["one"] = b"1"
    with pytest.raises(TransactionStateError, match="isolation='snapshot'"):
        repo.transaction(name="n", isolation="serializable")
    repo.transaction(name="n").commit()
    assert repo.mapping()["one"] == b"1"


def read_all_the_time(store: TxStore, count: int) -> int:
    return sum(len(get(store, f"m/{number}") or b"") for number in range(count))


def test_reads_are_in_the_pack_before_they_are_handed_out(repo: txstore.Repository) -> None:
    """A reader is killed right after it answered: what it has answered from counts."""
    with repo.begin() as mapping:
        for number in range(50):
            mapping[f"m/{number}"] = b"1"
    store = repo.transaction(isolation="serializable")
    store["mine"] = b"1"
    member = Member(store)
    assert member.do(read_all_the_time, 50) == 50
    member.kill()
    change(repo, "m/49", b"2")
    assert conflicts(store) == ("m/49",)
