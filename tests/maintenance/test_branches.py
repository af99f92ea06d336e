"""Looking after a repository with several branches: what any of them needs stays, and what none needs goes."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest

import txstore
from tests.history.test_branches import branch_id, commit, on
from tests.tools.faults import watch
from tests.tools.members import join_in_this_process
from tests.tools.steps import BeforeEach, status_of
from tests.tools.steps import forked as child_of
from tests.tools.upkeep import tree
from txstore.errors import CorruptionError, SnapshotExpiredError
from txstore.history.branch_names import OldestKept
from txstore.history.new_commit import NewCommit


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


def files(repo: txstore.Repository, name: str) -> list[int]:
    return sorted(repo.engine.commits.files.versions(branch_id(repo, name)))


# --- vacuum


def test_what_only_a_deleted_branch_needs_goes(repo):
    kept = {name: found for name, found in contents(repo).items() if name != "dev"}
    values = files(repo, "dev")
    dev = branch_id(repo)
    del repo.branches["dev"]
    assert repo.vacuum().files > 0
    left = sorted(repo.engine.commits.files.versions(dev))
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
def test_another_vacuum_comes_between_the_commit_and_the_file_of_a_oldest_kept(repo, monkeypatch, is_killed):
    """Until the file says so nothing is given up: somebody may hold it, and the vacuum may never come to the file."""
    for number in range(4):
        write_beside(repo, "dev", bytes([number]) * 1000)
    old = list(repo.log(branch="dev"))[2]
    expected = repo.mapping(at=old)["large"]
    held: list[txstore.Snapshot] = []
    write_oldest_kept = OldestKept.write

    def overtaken(oldest_kept, stored):
        if oldest_kept is repo.engine.commits.oldest_kept:
            other = txstore.Repository(repo.url)
            held.append(other.mapping(at=old))
            other.vacuum()
            other.tags["held"] = old
            if is_killed:
                raise InterruptedError
        return write_oldest_kept(oldest_kept, stored)

    monkeypatch.setattr(OldestKept, "write", overtaken)
    with pytest.raises(InterruptedError) if is_killed else contextlib.nullcontext():
        repo.vacuum(keep=1, branch="dev")
    for _ in range(2):
        assert held[0]["large"] == expected
        assert txstore.Repository(repo.url).mapping(at="held")["large"] == expected
        txstore.Repository(repo.url).vacuum()


def test_a_lost_pack_of_a_tagged_commit_below_the_oldest_kept_is_reported(repo):
    for number in range(3):
        write_beside(repo, "dev", bytes([number]) * 1000)
    old = list(repo.log(branch="dev"))[1]
    repo.tags["held"] = old
    repo.vacuum(keep=1, branch="dev")
    pack = repo.engine.commits.files.read(branch_id(repo, "dev"), old.version).header.packs[0].name.path
    repo.engine.storage.delete(pack)
    assert [(fault.path, fault.part) for fault in repo.verify().faults] == [(pack, "missing")]
    del repo.tags["held"]


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


@pytest.fixture
def merged(repo, monkeypatch) -> txstore.Repository:
    """A commit of main that names dev@4 as its other parent, as a merge will."""
    theirs = repo.engine.commits.files.read(branch_id(repo), 4)
    real = NewCommit.write_header
    monkeypatch.setattr(
        NewCommit, "write_header", lambda self, parent, contents: real(self, parent, replace_merged(contents, theirs))
    )
    commit(repo, {"a": b"merged"})
    monkeypatch.undo()
    return repo


def replace_merged(contents, stored):
    return contents._replace(merged=stored)


def test_a_merge_keeps_what_it_has_merged(merged):
    assert merged.head().merged == merged.commit(4, branch="dev").id
    there = on(merged, "dev", at=4)
    stored = merged.engine.commits.files.read(branch_id(merged), 4)
    del merged.branches["deep"]
    merged.vacuum(keep=1, branch="dev")
    del merged.branches["dev"]
    merged.vacuum()
    other = txstore.Repository(merged.url)
    snapshot = other.engine.snapshots.of(other.engine.commits.files.named(stored.name))
    assert {key: bytes(snapshot[key]) for key in snapshot} == there
    del snapshot, other
    commit(merged, {"b": b"1"})
    merged.vacuum(keep=1)
    merged.vacuum()
    assert merged.engine.commits.files.named(stored.name) is None


def test_a_merge_whose_other_parent_is_lost_is_reported(merged):
    path = Path(merged.url, merged.engine.commits.files.read(branch_id(merged), 4).path)
    content = path.read_bytes()
    path.unlink()
    faults = merged.verify().faults
    assert {fault.part for fault in faults if fault.path == "commits/main/0000000006"} == {"link"}
    path.write_bytes(content)


# --- verify, and repair


def test_verify_looks_at_every_branch(repo):
    everything = repo.verify()
    assert everything.commits == 6 + 5 + 3
    for name in BRANCHES[1:3]:
        version = files(repo, name)[-1]
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
