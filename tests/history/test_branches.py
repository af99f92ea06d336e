"""Branches: names for ids, begun behind a commit; what is committed to one, no other sees."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.faults import always, watch
from tests.tools.upkeep import content, put, tree
from txstore.errors import CommitNotFoundError, CorruptionError, KeyFormatError
from txstore.fsspec_filesystem import TxStoreFileSystem
from txstore.loaders import Samples


def commit(repo: txstore.Repository, values: dict[str, bytes], branch: str = "main") -> txstore.Commit:
    with repo.begin(branch=branch) as transaction:
        transaction.update(values)
    return repo.head(branch)


def on(repo: txstore.Repository, branch: str = "main", at: Any = None) -> dict[str, bytes]:
    return {key: bytes(value) for key, value in repo.mapping(at, branch=branch).items()}


@pytest.fixture
def forked(repo) -> txstore.Repository:
    """Five commits; dev begins behind the third of them."""
    for version in range(5):
        commit(repo, {"a": b"%d" % version})
    repo.branches["dev"] = 2
    return repo


# --- what a branch is


def test_each_branch_has_its_own_commits(forked):
    assert forked.branches["dev"] == forked.head("dev") == forked.commit(2)
    first = commit(forked, {"a": b"dev", "b": b"1"}, "dev")
    second = commit(forked, {"b": b"2"}, "dev")
    assert (first.branch, first.version, first.seq, first.parent) == ("dev", 3, 4, forked.commit(2).id)
    assert (second.version, second.parent, str(second)) == (4, first.id, "dev@4")
    assert (on(forked), on(forked, "dev")) == ({"a": b"4"}, {"a": b"dev", "b": b"2"})
    assert [str(each) for each in forked.log("dev")] == ["dev@4", "dev@3", "main@2", "main@1", "main@0"]
    other = txstore.Repository(forked.url)
    assert list(other.branches) == ["main", "dev"]
    assert other.commit(second.id) == other.commit(second.id[:10]) == other.resolve(second.id) == second


def test_a_branch_begins_where_one_says(forked):
    made = [forked.commit(version) for version in range(5)]
    forked.tags["v1"] = 1
    ways = {"a": made[1], "b": 1, "c": made[1].id, "d": made[1].id[:8], "e": made[1].time, "f": forked.tags["v1"]}
    for name, at in ways.items():
        forked.branches[name] = at
        assert forked.branches[name] == made[1]


def test_dates_before_the_fork_are_those_of_what_it_has_forked_from(forked):
    first = commit(forked, {"b": b"1"}, "dev")
    for version in range(3):
        made = forked.commit(version)
        assert forked.commit(made.time, branch="dev") == made
    assert forked.commit(forked.commit(4).time, branch="dev") == forked.commit(2)
    assert forked.commit(first.time, branch="dev") == first
    with pytest.raises(CommitNotFoundError):
        forked.commit(forked.commit(0).time - timedelta(seconds=1), branch="dev")


@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_a_transaction_with_a_name(open_repo, durability):
    repo = open_repo(durability=durability)
    commit(repo, {"a": b"1"})
    repo.branches["dev"] = repo.head()
    store = repo.transaction(name="job", branch="dev")
    store["b"] = b"2"
    assert repo.transactions()[0].branch == "dev"
    with pytest.raises(ValueError, match="transaction 'job' is open on branch 'dev'"):
        del repo.branches["dev"]
    other = txstore.Repository(repo.url).transaction(name="job")
    assert other["b"] == b"2"
    del other
    store.commit()
    assert on(repo, "dev") == {"a": b"1", "b": b"2"}
    assert on(repo) == {"a": b"1"}


# --- all that takes branch= takes it
def test_stores_and_what_goes_on_from_them(forked):
    reader = forked.snapshot(branch="dev")
    writer = reader.with_read_only(False)
    writer["x"] = b"1"
    assert writer.commit().branch == "dev"  # which had no commits of its own
    assert reader.latest()["x"] == b"1"
    with txstore.TxStore(forked.url, branch="dev") as store:
        store["x"] = b"2"
    assert forked.head("dev").version == 4
    assert txstore.TxStore(forked.url, branch="dev", read_only=True)["x"] == b"2"
    assert forked.run(lambda store: store["x"], branch="dev") == b"2"
    assert on(forked) == {"a": b"4"}


def test_following_a_branch(forked):
    with pytest.raises(CommitNotFoundError):
        forked.follow("other")
    following = forked.follow("dev", timeout=0)
    assert list(following) == []
    following = forked.follow("dev", timeout=10)
    made = [commit(forked, {"x": b"1"}, "dev"), commit(forked, {"x": b"2"}, "dev")]
    commit(forked, {"x": b"3"})
    assert [next(following), next(following)] == made
    assert [str(each) for each in forked.follow("dev", since=-1, timeout=0)] == [
        "main@0", "main@1", "main@2", "dev@3", "dev@4",
    ]  # fmt: skip
    assert list(forked.follow("dev", since=made[0], timeout=0)) == made[1:]
    del forked.branches["dev"]
    with pytest.raises(CommitNotFoundError, match=r"branch 'dev'.*deleted meanwhile"):
        next(following)


def test_ways_in_and_out(forked, tmp_path):
    with forked.transaction(branch="dev") as store:
        zarr.create_array(store, name="x", data=np.arange(6), chunks=(2,))
    head = forked.head("dev")
    assert Samples(forked, "x", branch="dev").commit == head
    assert Samples(forked, "x", at="dev").commit == head
    assert TxStoreFileSystem(forked.url, branch="dev").exists("x/zarr.json")
    assert not TxStoreFileSystem(forked.url).exists("x/zarr.json")
    assert forked.export(tmp_path / "plain", branch="dev").commit == head
    done = forked.publish(tmp_path / "copy", branch="dev")
    assert (done.commit, zarr.open_array(tmp_path / "copy", path="x", mode="r")[5]) == (head, 5)
    with forked.transaction(branch="dev") as store:
        zarr.open_array(store, path="x")[5] = 7
    assert forked.publish(tmp_path / "copy", branch="dev").commit == forked.head("dev")
    assert zarr.open_array(tmp_path / "copy", path="x", mode="r")[5] == 7


# --- names
@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "-x", "ü", "x" * 101, "a b", "con", "NUL.txt", "x.", "0" * 32])
def test_a_name_that_a_file_system_or_an_object_store_can_not_take(forked, name):
    before = tree(forked)
    with pytest.raises(KeyFormatError):
        forked.branches[name] = 0
    with pytest.raises((KeyError, KeyFormatError)):
        forked.branches[name]
    with pytest.raises(CommitNotFoundError):
        forked.begin(branch=name)
    assert name not in forked.branches
    assert tree(forked) == before


@pytest.mark.parametrize("name", ["main", "Main", "dev", "DEV"])
def test_a_name_that_is_given(forked, name):
    before = tree(forked)
    with pytest.raises(ValueError, match="exists" if name.islower() else "differs only in case"):
        forked.branches[name] = 0
    with pytest.raises(ValueError, match="exists" if name.islower() else "differs only in case"):
        forked.branches["more"] = 0
        forked.branches.rename("more", name)
    del forked.branches["more"]
    assert {**tree(forked), **before} == before


def test_the_first_branch_can_not_be_deleted_or_renamed(forked):
    before = tree(forked)
    with pytest.raises(ValueError, match="'main' is the first one"):
        del forked.branches["main"]
    with pytest.raises(ValueError, match="'main' is the first one"):
        forked.branches.rename("main", "other")
    for name in ("other", "Dev"):
        with pytest.raises(KeyError):
            del forked.branches[name]
        with pytest.raises(KeyError):
            forked.branches.rename(name, "more")
    assert tree(forked) == before


def test_a_rename_that_was_interrupted_is_done_again(forked):
    calls = watch(forked)
    calls.before["delete"] = always(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        forked.branches.rename("dev", "later")
    calls.before.clear()
    commit(forked, {"x": b"1"}, "dev")
    assert forked.branches["dev"].id == forked.branches["later"].id
    forked.branches.rename("dev", "later")
    assert list(forked.branches) == ["main", "later"]


def test_a_name_that_another_creates_meanwhile(forked):
    calls = watch(forked)
    rival = txstore.Repository(forked.url)

    def overtake(path: str, *_: object) -> None:
        if path == "branches/raced":
            calls.before.clear()
            rival.branches["raced"] = 1

    calls.before["write_once"] = overtake
    with pytest.raises(ValueError, match="branch 'raced' exists"):
        forked.branches["raced"] = 0
    assert forked.branches["raced"].version == 1


# --- deleting
def test_what_was_staged_on_a_branch_that_is_deleted_is_kept(forked):
    commit(forked, {"y": b"1"}, "dev")
    store = forked.begin(branch="dev")
    store["x"] = b"1"
    txstore.Repository(forked.url).branches.pop("dev")
    for _ in range(2):
        with pytest.raises(CommitNotFoundError, match=r"branch 'dev'.*deleted meanwhile.*can still be read"):
            store.commit()
        assert store["x"] == b"1"
    store.rollback()


def test_a_branch_that_is_deleted_just_before_the_rename(forked):
    """Whoever deletes it waits for the commit: so it is made, or refused."""
    calls, rival, order = watch(forked), txstore.Repository(forked.url, commit_timeout=0), []

    def delete(*_: object) -> None:
        calls.before.clear()
        with pytest.raises(txstore.CommitTimeoutError):
            del rival.branches["dev"]
        order.append("waited")

    calls.before["rename_noreplace"] = delete
    commit(forked, {"x": b"1"}, "dev")
    assert order == ["waited"]
    del rival.branches["dev"]


def test_records_that_are_damaged_or_lie(forked):
    path = Path(forked.url, "branches/dev")
    record = path.read_bytes()
    for at in range(len(record)):
        path.write_bytes(record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :])
        with pytest.raises(CorruptionError):
            txstore.Repository(forked.url).head("dev")
        assert txstore.Repository(forked.url).head() == forked.head()  # it is no business of another branch
    path.write_bytes(record)
    os.link(path, Path(forked.url, "branches/other"))
    with pytest.raises(CorruptionError, match="the record of branch 'dev'"):
        txstore.Repository(forked.url).head("other")
    Path(forked.url, "branches/other").unlink()


def test_what_is_no_record_is_passed_over(forked):
    for name in ("Upper", "x.", ".hidden", "0" * 32, "main"):
        Path(forked.url, "branches", name).write_bytes(b"whatever")
    assert list(txstore.Repository(forked.url).branches) == ["main", "dev"]
    for name in ("Upper", "x.", ".hidden", "0" * 32, "main"):
        Path(forked.url, "branches", name).unlink()


# --- what it costs
def test_one_branch_costs_nothing(repo):
    """Nothing is asked of names of branches, wherever a commit is made, found or read."""
    put(repo, {"a": b"1"})
    calls = watch(repo)
    other = txstore.Repository(repo.url)
    watched = watch(other)
    put(repo, {"a": b"2"})
    repo.head(), content(repo), list(repo.log())
    put(other, {"a": b"3"})
    assert not [call for call in (*calls.calls, *watched.calls) if "branches" in str(call)]
