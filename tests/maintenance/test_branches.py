"""Looking after a repository with several branches: what any of them needs stays, and what none needs goes."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest

import txstore
from tests.history.test_branches import commit, on
from tests.tools.faults import watch
from tests.tools.inside import branch_id
from tests.tools.members import join_in_this_process
from tests.tools.steps import BeforeEach, status_of
from tests.tools.steps import forked as child_of
from tests.tools.upkeep import tree
from txstore.errors import CorruptionError, SnapshotExpiredError


@pytest.fixture
def repo(open_repo) -> txstore.Repository:
    """main with 6 commits; dev behind the third, with 5; deep behind the third of dev, with 3; empty without any."""
    repo = open_repo(durability="none")
    for version in range(6):
        commit(repo, {"a": b"main%d" % version, f"m{version}": b"x" * 500})
    repo.branches["dev"] = 2
    for number in range(5):
        commit(repo, {"a": b"dev%d" % number, f"d{number}": b"y" * 500}, "dev")
    repo.branches["deep"] = repo.commit(5, branch="dev")
    for number in range(3):
        commit(repo, {"a": b"deep%d" % number}, "deep")
    repo.branches["empty"] = repo.head()
    return repo


BRANCHES = ("main", "dev", "deep", "empty")


def contents(repo: txstore.Repository) -> dict[str, dict[str, bytes]]:
    return {name: on(repo, name) for name in repo.branches}


def files(repo: txstore.Repository, branch: str) -> list[int]:
    return sorted(int(name) for name in os.listdir(Path(repo.url, "commits", branch)))


# --- vacuum


def test_what_only_a_deleted_branch_needs_goes(repo):
    kept = {name: found for name, found in contents(repo).items() if name != "dev"}
    dev = branch_id(repo, "dev")
    values = files(repo, dev)
    del repo.branches["dev"]
    assert repo.vacuum().files > 0
    left = files(repo, dev)
    assert left
    assert set(left) < set(values)  # what deep begins behind, and what has values of it
    assert contents(txstore.Repository(repo.url)) == kept
    del repo.branches["deep"]
    repo.vacuum()
    for directory in ("commits", "oldest_kept", "heads"):
        assert os.listdir(Path(repo.url, directory)) == ["main"]
    assert repo.usage().orphan == 0


def test_pins_of_one_branch_are_not_those_of_another(repo):
    """main@3 and dev@3 have one seq: a reader of one keeps nothing of the other."""
    reader = repo.mapping(3)
    other = txstore.Repository(repo.url)
    assert other.vacuum(keep=1, branch="dev").oldest_kept == 7
    assert other.vacuum(keep=1).oldest_kept == 3
    assert bytes(reader["a"]) == b"main3"


@pytest.mark.skipif(sys.platform != "linux", reason="byte locks of open files are Linux's")
def test_a_reader_in_another_process_keeps_its_branch(repo):
    reading, done = (os.pipe() for _ in range(2))

    def read() -> None:
        there = txstore.Repository(repo.url)
        snapshot = there.mapping(branch="dev", at=4)
        os.write(reading[1], b"x")
        os.read(done[0], 1)
        assert bytes(snapshot["a"]) == b"dev1"
        assert {key: bytes(snapshot[key]) for key in snapshot}["d1"] == b"y" * 500

    with child_of(read) as child:
        os.read(reading[0], 1)
        del repo.branches["dev"], repo.branches["deep"]
        repo.vacuum(keep=1)
        os.write(done[1], b"x")
        assert status_of(child) == 0
    for descriptor in (*reading, *done):
        os.close(descriptor)
    repo.vacuum()
    assert os.listdir(Path(repo.url, "commits")) == ["main"]


def test_a_vacuum_at_every_step_of_a_fork(open_repo, tmp_path):
    """Whoever begins a branch has it, whole, or is told; a vacuum that comes meanwhile sees the one or the other."""
    seen, step, count = set(), 0, 1
    while step < count:
        name = f"{step}.tx"
        repo, rival = open_repo(name, durability="none"), open_repo(name, durability="none")
        for version in range(4):
            commit(repo, {"a": b"%d" % version})
        old = repo.commit(1)
        calls, count = watch(repo), 0

        def each(*_: object, step: int = step, rival: txstore.Repository = rival) -> None:
            nonlocal count
            count += 1
            if count == step + 1:
                rival.vacuum(keep=1)

        calls.before = BeforeEach(each)
        try:
            repo.branches["late"] = old
        except SnapshotExpiredError:
            seen.add("refused")
            calls.before = {}
            assert list(repo.branches) == ["main"]
        else:
            seen.add("made")
            calls.before = {}
            rival.vacuum(keep=1)
            assert on(txstore.Repository(repo.url), "late") == {"a": b"1"}
        step += 1
    assert seen == {"made", "refused"}


def write_beside(repo: txstore.Repository, branch: str, value: bytes) -> None:
    """Commit a value that another process has staged, which lies in a pack of its own."""
    transaction = repo.begin(branch=branch)
    transaction.lifecycle.share()
    member = join_in_this_process(repo, transaction.staging.record.id)
    member["large"] = value
    member.lifecycle.seal()
    transaction.commit()


@pytest.mark.parametrize("is_killed", [True, False])
def test_another_vacuum_comes_between_the_commit_and_the_file_of_a_oldest_kept(repo, is_killed):
    """Until the file says so nothing is given up: somebody may hold it, and the vacuum may never come to the file."""
    for number in range(4):
        write_beside(repo, "dev", bytes([number]) * 1000)
    old = list(repo.log(branch="dev"))[2]
    expected = repo.mapping(at=old)["large"]
    held: list[txstore.Snapshot] = []
    watched = watch(repo)

    def overtaken(path: str, *_: object) -> None:
        if path.startswith("oldest_kept/"):
            watched.before.clear()
            other = txstore.Repository(repo.url)
            held.append(other.mapping(at=old))
            other.vacuum()
            other.tags["held"] = old
            if is_killed:
                raise InterruptedError

    watched.before["write_once"] = overtaken
    with pytest.raises(InterruptedError) if is_killed else contextlib.nullcontext():
        repo.vacuum(keep=1, branch="dev")
    for _ in range(2):
        assert held[0]["large"] == expected
        assert txstore.Repository(repo.url).mapping(at="held")["large"] == expected
        txstore.Repository(repo.url).vacuum()


def test_nothing_is_deleted_while_a_record_is_damaged(repo):
    path = Path(repo.url, "branches/dev")
    record = path.read_bytes()
    path.write_bytes(record[:-1] + bytes([record[-1] ^ 1]))
    before = tree(repo)
    with pytest.raises(CorruptionError, match="branches/dev"):
        txstore.Repository(repo.url).vacuum()
    assert tree(repo) == before
    path.write_bytes(record)


# --- what a merge names


# --- verify, and repair


def test_verify_looks_at_every_branch(repo):
    everything = repo.verify()
    assert everything.commits == 6 + 5 + 3
    for name in BRANCHES[1:3]:
        version = files(repo, branch_id(repo, name))[-1]
        path = Path(repo.url, f"commits/{branch_id(repo, name)}/{version:010}")
        content = path.read_bytes()
        at = content.index(b"dev4" if name == "dev" else b"deep2")
        path.write_bytes(content[:at] + b"?" + content[at + 1 :])
        report = repo.verify()
        assert [(fault.part, fault.key) for fault in report.faults] == [("value", "a")]
        assert report.faults[0].commits == (repo.head(name).id,)
        path.write_bytes(content)


def test_what_both_branches_read_touches_both(repo):
    path = Path(repo.url, "commits/main/0000000001")
    content = path.read_bytes()
    at = content.index(b"x" * 500)
    path.write_bytes(content[:at] + b"?" + content[at + 1 :])
    (fault,) = repo.verify().faults
    assert fault.key == "m1"
    assert fault.commit_count == 5 + 5 + 3
    path.write_bytes(content)


def test_a_record_that_is_torn_is_made_anew_from_commits(repo):
    before = contents(repo)
    path = Path(repo.url, "branches/dev")
    record = path.read_bytes()
    path.write_bytes(record[: len(record) // 2])
    assert [fault.part for fault in txstore.Repository(repo.url).verify().faults] == ["branch"]
    assert txstore.Repository(repo.url).verify(repair=True).faults == []
    assert contents(txstore.Repository(repo.url)) == before
    assert path.read_bytes() == record


def test_a_lost_fork_point_is_reported(repo):
    path = Path(repo.url, "commits/main/0000000005")
    content = path.read_bytes()
    path.unlink()
    faults = txstore.Repository(repo.url).verify().faults
    assert "branches/empty" in {fault.path for fault in faults}
    path.write_bytes(content)


# --- optimize, retention, usage


def test_usage_counts_what_any_branch_needs(repo):
    main, dev = repo.usage(), repo.usage(branch="dev")
    assert main.total == dev.total
    assert main.orphan == dev.orphan == 0
    assert (main.live, dev.live) == tuple(sum(map(len, on(repo, name).values())) for name in ("main", "dev"))
    del repo.branches["deep"], repo.branches["dev"]
    freed = repo.usage().orphan
    assert freed > 5 * 500
    assert repo.vacuum().bytes >= freed
    assert repo.usage().orphan == 0
