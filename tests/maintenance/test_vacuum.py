"""Vacuum: what nothing kept needs is gone, and nothing else; whoever still wants it is told, and never misled."""

import contextlib
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.faults import watch
from tests.tools.inside import staged
from tests.tools.steps import BeforeEach
from tests.tools.upkeep import content, put, rewrite, tree
from txstore.errors import CommitNotFoundError, CorruptionError, SnapshotExpiredError
from txstore.storage.local import LocalStorage


def versions(repo: txstore.Repository) -> list[int]:
    return sorted(int(path.rpartition("/")[2]) for path in tree(repo) if path.startswith("commits/main/"))


#: Every step is taken where the environment asks for it, else every third.
STRIDE = 1 if "TXSTORE_VACUUM_ROUNDS" in os.environ else 3


class Steps:
    """Copies of a repository, each opened twice; before one more storage operation of the first, something happens."""

    operations = 1  # that one step may stand for

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repo = self.open("data.tx")
        self.step = -STRIDE
        self.count = 0  # operations in the last round
        self.act: Callable[[], object] = self.end

    def __iter__(self) -> Iterator[tuple[txstore.Repository, txstore.Repository]]:
        while self.step < self.count:
            self.step += STRIDE
            name = f"{self.step}.tx"
            self.copy(name)
            watched, other = self.open(name), self.open(name)
            self.count, self.is_over = 0, False
            self.watch(watched)
            yield watched, other
            self.remove(name)

    def open(self, name: str) -> txstore.Repository:
        return txstore.Repository(self.folder / name, durability="none")

    def copy(self, name: str) -> None:
        shutil.copytree(self.repo.url, self.folder / name)

    def remove(self, name: str) -> None:
        shutil.rmtree(self.folder / name)

    def watch(self, repo: txstore.Repository) -> None:
        watch(repo).before = BeforeEach(self.before_each)

    def end(self) -> None:
        self.is_over = True

    def before_each(self, *_: object) -> None:
        if not self.is_over:
            self.count += 1
            if self.count == self.step + 1:
                self.act()


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


def head_cache_of(repo: txstore.Repository) -> bytes:
    return Path(repo.url, "heads/main").read_bytes()


# --- how far


def test_older_than_and_both(open_repo):
    repo = open_repo(durability="none")
    rewrite(repo, 10)
    times = {commit.version: commit.time for commit in repo.log()}
    assert repo.vacuum(older_than=timedelta(days=1), dry_run=True).oldest_kept == 0
    assert repo.vacuum(older_than=times[4], dry_run=True).oldest_kept == 4
    assert repo.vacuum(older_than=times[4] + timedelta(microseconds=1), dry_run=True).oldest_kept == 5
    assert repo.vacuum(older_than=times[4], keep=2, dry_run=True).oldest_kept == 4
    assert repo.vacuum(older_than=times[4], keep=8, dry_run=True).oldest_kept == 2
    now = timedelta(seconds=-2)  # clocks of some servers tell whole seconds
    assert repo.vacuum(older_than=now, dry_run=True).oldest_kept == 9
    assert repo.vacuum(older_than=times[4]).oldest_kept == 4
    assert [commit.version for commit in repo.log()] == [10, 9, 8, 7, 6, 5, 4]


@pytest.mark.parametrize("keep", [0, -1])
def test_bad_options(repo, keep):
    put(repo, {"a": b"1"})
    with pytest.raises(ValueError, match="keep=1 is the least"):
        repo.vacuum(keep=keep)
    with pytest.raises(ValueError, match="has no time zone"):
        repo.vacuum(older_than=datetime(2026, 1, 1))


def test_a_dry_run_changes_nothing_and_says_what_would_be(open_repo, tmp_path):
    repo = open_repo(durability="none")
    rewrite(repo, 30)
    repo.optimize()
    rewrite(repo, 3)
    before = tree(repo)
    head = repo.head()
    told = repo.vacuum(keep=2, dry_run=True)
    assert told.dry_run
    assert tree(repo) == before
    assert repo.head() == head
    assert content(repo, 0)
    for _ in range(3):  # the first deletes no record of an older oldest kept version
        before, told = tree(repo), repo.vacuum(keep=2, dry_run=True)
        done = repo.vacuum(keep=2)
        assert done == replace(told, dry_run=False)
        gone = before.keys() - tree(repo).keys()
        assert len(gone) == done.files
        assert sum(before[path] for path in gone) == done.bytes


def test_orphans_and_what_the_dead_left(open_repo):
    repo = open_repo(durability="none")
    rewrite(repo, 3)
    root = Path(repo.url)
    (root / "packs" / "ab").mkdir()
    (root / "packs" / "ab" / ("ab" * 16)).write_bytes(b"left by a commit that was never made")
    (root / f"commits/main/0000000001.orphan-{'ab' * 16}").write_bytes(b"moved aside")
    (root / ".staging" / ("cd" * 16 + ".0")).write_bytes(b"of a dead process")
    report = repo.vacuum()
    assert report.files == 3
    assert report.staged == len(b"of a dead process")
    assert staged(repo) == []
    assert len(tree(repo)) == 6 + 0 * report.bytes


# --- what is left alone


def test_a_tag_that_comes_too_late(open_repo):
    repo = open_repo(durability="none")
    rewrite(repo, 10)
    repo.tags["v1"] = 4
    commit = repo.commit(2)
    repo.vacuum(keep=1)
    for late in (commit, 2, 3):
        with pytest.raises((SnapshotExpiredError, CommitNotFoundError)):
            repo.tags["late"] = late
    assert list(repo.tags) == ["v1"]


@pytest.mark.long
def test_a_tag_is_written_while_a_vacuum_runs(steps, no_lock):
    """At any step of the vacuum: either it is refused, or its commit stays."""
    rewrite(steps.repo, 6)
    old = content(steps.repo, 2)
    written = refused = 0
    for repo, other in steps:

        def tag_now(other=other):
            with contextlib.suppress(SnapshotExpiredError, CommitNotFoundError):
                other.tags["v1"] = 2

        steps.act = tag_now
        repo.vacuum(keep=1)
        if "v1" in other.tags:
            written += 1
            assert content(other, 2) == old
        else:
            refused += 1
    assert written >= 2
    assert refused >= 1


def test_a_transaction_with_a_name_outlives_its_processes(open_repo):
    repo = open_repo(durability="none")
    rewrite(repo, 5)
    with repo.transaction(name="run") as store:
        store.mapping["mine"] = b"1"
    del store
    rewrite(repo, 5)
    assert repo.vacuum(keep=1).oldest_kept == 4
    assert repo.vacuum(older_than=timedelta(0)).oldest_kept == 4
    repo.transaction(name="run").commit()
    assert content(repo)["mine"] == b"1"
    assert repo.vacuum(keep=1).oldest_kept > 4


# --- those who come too late
@pytest.fixture
def no_pins(monkeypatch):
    """File systems without byte locks: nothing holds a vacuum back."""
    monkeypatch.setattr(LocalStorage, "open_pins", lambda self: None)


@pytest.fixture
def no_lock(monkeypatch):
    """File systems on which the commit lock excludes nobody."""
    monkeypatch.setattr(LocalStorage, "lock", lambda self, path, prepare=None, **_: contextlib.nullcontext())


def test_expired_for_all_who_ask(open_repo):
    repo = open_repo(durability="none")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(20), chunks=(5,))
    since = repo.head()
    sent = pickle.dumps(repo.snapshot(at=0))
    rewrite(repo, 5)
    del store
    before = repo.commit(1).time
    repo.optimize()
    repo.vacuum(keep=1)
    asked = {
        "at a version": lambda: repo.mapping(at=0),
        "through zarr": lambda: zarr.open_array(repo.snapshot(at=1), path="x", mode="r")[:],
        "at a time": lambda: repo.mapping(at=before),
        "pickled": lambda: zarr.open_array(pickle.loads(sent), path="x", mode="r")[:],
        "since": lambda: next(repo.follow(since=1, timeout=0)),
        "since a commit": lambda: next(repo.follow(since=since, timeout=0)),
        "since the first": lambda: next(repo.follow(since=-1, timeout=0)),
    }
    for how, ask in asked.items():
        with pytest.raises(SnapshotExpiredError, match="main"):
            pytest.fail(f"{how}: {ask()}")
    assert zarr.open_array(repo.snapshot(), path="x", mode="r")[:].tolist() == list(range(20))


def test_a_reader_without_a_pin_gets_no_fill_values(open_repo, no_pins):
    """As where there are no byte locks: the file goes while an array is open."""
    repo, reader = open_repo(durability="none"), open_repo(durability="none")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(20,), chunks=(1,), dtype="i4")
    for value in (1, 2):
        for i in range(20):
            with repo.transaction() as store:
                zarr.open_array(store, path="x")[i] = value
    array = zarr.open_array(reader.snapshot(at=20), path="x", mode="r")
    assert array[0] == 1
    repo.optimize()
    repo.vacuum(keep=1)
    with pytest.raises(SnapshotExpiredError, match="main@20"):
        array[:]


def test_history_is_found_by_time_and_id(open_repo):
    repo = open_repo(durability="none")
    rewrite(repo, 10)
    log = list(repo.log())
    repo.vacuum(keep=4)
    for commit in log[:4]:
        assert repo.commit(commit.time) == commit
        assert repo.commit(commit.id[:8]) == commit
        assert repo.resolve(commit.id) == commit
    assert repo.commit(datetime.now(UTC)) == repo.head()
    assert repo.resolve(log[-1].id) is None


# --- a writer that stands still meanwhile
@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_a_writer_that_sleeps_right_before_its_rename(open_repo, no_lock, no_pins, durability):
    """Its version was taken and deleted meanwhile: the rename succeeds, and is no commit."""
    repo, other = open_repo(durability=durability), open_repo(durability="none")
    rewrite(repo, 3)
    transaction = repo.begin("late")
    transaction["late"] = b"1"
    head_cache = []

    def sleep(source, target):
        if target == "commits/main/0000000003":
            watched.before.clear()
            rewrite(other, 5)
            other.optimize()
            other.vacuum(keep=1)
            assert 3 not in versions(other)
            head_cache.append(head_cache_of(other))

    watched = watch(repo)
    watched.before["rename_noreplace"] = sleep
    with pytest.raises(SnapshotExpiredError):
        transaction.commit()
    assert head_cache == [head_cache_of(other)]
    assert 3 not in versions(other)
    assert "late" not in content(other)
    assert "late" not in content(repo)
    transaction.rollback()
    assert "late" not in [commit.message for commit in repo.log()]
    assert staged(repo) == []


def test_a_writer_whose_base_was_passed(open_repo, no_pins):
    """What was deleted since its base may be forgotten: it can't be told that there is no conflict."""
    repo, other = open_repo(durability="none"), open_repo(durability="none")
    put(repo, {"a": b"1", "b": b"1"})
    repo.tags["v1"] = 0  # it can still be read
    transaction = repo.begin()
    transaction["a"] = b"mine"
    put(other, {"a": None})
    for _ in range(2):
        put(other, {"c": b"1"})
        other.optimize()
        other.vacuum(keep=1)
    with pytest.raises(SnapshotExpiredError, match="main@0"):
        transaction.commit()
    transaction.rollback()
    # Who has all done again, does so at once.
    assert repo.run(lambda store: store.mapping.update({"a": b"mine"})) is None
    assert content(repo) == {"a": b"mine", "b": b"1", "c": b"1"}


def test_run_begins_anew_when_a_vacuum_has_passed_it(open_repo, no_pins):
    repo, other = open_repo(durability="none"), open_repo(durability="none")
    rewrite(repo, 2)
    rounds = []

    def change(store):
        store.mapping["mine"] = b"1"
        rounds.append(store.mapping.base.version)
        if len(rounds) == 1:
            rewrite(other, 2, size=200)
            other.vacuum(keep=1)

    repo.run(change)
    assert len(rounds) == 2
    assert content(repo)["mine"] == b"1"


# --- the search for the head
def test_a_head_cache_that_was_written_late(open_repo):
    """It names a commit that a tag has kept, above which there is a gap."""
    repo = open_repo(durability="none")
    rewrite(repo, 3)
    repo.tags["v1"] = 2
    late = head_cache_of(repo)
    model = rewrite(repo, 5)
    repo.optimize()
    repo.vacuum(keep=1)
    head = repo.head()
    Path(repo.url, "heads/main").write_bytes(late)
    anew = open_repo(durability="none")
    assert anew.head() == head
    assert content(anew) == model
    put(anew, {"z": b"1"})
    assert anew.head().version == head.version + 1


def test_a_search_that_a_vacuum_overtakes(steps, no_lock):
    """At each step: what was below the commit that it looks at goes while it walks down."""
    rewrite(steps.repo, 4)
    Path(steps.repo.url, "heads/main").unlink()
    made = 0
    for searching, other in steps:

        def vacuum_now(other=other):
            rewrite(other, 4, size=200)
            other.optimize()
            other.vacuum(keep=1)
            Path(other.url, "heads/main").unlink()

        steps.act = vacuum_now
        with contextlib.suppress(SnapshotExpiredError):
            with searching.begin("mine") as transaction:
                transaction["mine"] = b"1"  # it must not take version 0 for the first
            made += 1
            assert content(other)["mine"] == b"1"
        assert len(content(other)) == 10 + ("mine" in content(other))
    assert made > 3


def test_a_oldest_kept_above_all_commits(tmp_path):
    repo = txstore.Repository(tmp_path / "broken.tx", durability="none")
    rewrite(repo, 3)
    Path(repo.url, "oldest_kept/main/0000000009").write_bytes(b"")
    with pytest.raises(CorruptionError, match="oldest_kept/main"):
        repo.head()


# --- interruptions


@pytest.mark.long
def test_two_at_once(steps, no_lock):
    """The second goes further, and deletes what the first is about to look at, at each of its steps."""
    model = rewrite(steps.repo, 8)
    for repo, other in steps:

        def vacuum_too(other=other):
            other.optimize()
            other.vacuum(keep=1)

        steps.act = vacuum_too
        repo.vacuum(keep=4)
        assert content(other) == model
        assert other.verify().faults == []
    assert steps.count > 30 // steps.operations


@pytest.mark.long
def test_a_commit_at_every_step_of_a_vacuum(steps, no_lock):
    """Those of one process and of several: what they have made is not taken for left over."""
    first = rewrite(steps.repo, 5)
    for repo, other in steps:
        model = dict(first)
        open_one = other.begin("open")
        open_one["open"] = b"1"

        def commit_now(other=other, model=model):
            with other.transaction(name="named") as store:
                store.mapping["named"] = b"1"
            other.transaction(name="named").commit()
            model.update(rewrite(other, 2, size=200), named=b"1")

        steps.act = commit_now
        repo.vacuum(keep=1)
        steps.end()
        assert content(other) == model
        open_one.commit()
        assert content(other) == model | {"open": b"1"}
        assert other.verify().faults == []
    assert steps.count > 30 // steps.operations


@pytest.mark.long
def test_a_vacuum_at_every_step_of_a_commit(steps, no_lock):
    """Also of one of several processes, whose packs have names in `packs/` before it is made."""
    first = rewrite(steps.repo, 5)
    for repo, other in steps:
        model = dict(first)
        steps.act = lambda other=other: (put(other, {"z": b"1"}), other.vacuum(keep=1))
        with repo.transaction(name="run") as store:
            store.mapping["mine"] = b"1"
        repo.transaction(name="run").commit()
        if "z" in other.mapping():
            model["z"] = b"1"
        assert content(other) == model | {"mine": b"1"}
        assert other.verify().faults == []
    assert steps.count > 15 // steps.operations


@pytest.mark.long
def test_a_reader_that_comes_at_every_step_of_a_vacuum(steps, no_lock):
    """Either it is told at once, or all that it reads stays."""
    rewrite(steps.repo, 6)
    old = content(steps.repo, 2)
    told = read = 0
    for repo, other in steps:
        readers = []

        def open_one(other=other, readers=readers):
            with contextlib.suppress(SnapshotExpiredError):
                readers.append(other.mapping(at=2))

        steps.act = open_one
        repo.vacuum(keep=1)
        steps.end()
        for reader in readers:
            repo.optimize()
            repo.vacuum(keep=1)
            assert {key: bytes(reader[key]) for key in reader} == old
        read += len(readers)
        told += not readers
    assert read > 3 // steps.operations
    assert told


def test_the_newest_is_found_while_a_vacuum_passes(steps, no_lock):
    """Whoever asks for the head gets one, at whatever step of the search it moves, and what was found goes."""
    rewrite(steps.repo, 4)
    for repo, other in steps:
        steps.act = lambda other=other: (rewrite(other, 4, size=200), other.optimize(), other.vacuum(keep=1))
        assert len(repo.mapping()) == 10
        assert len(repo.begin()) == 10
        assert len(repo.snapshot().mapping) == 10
    assert steps.count > 5 // steps.operations


def test_a_copy_of_the_directory_has_no_locks(open_repo, tmp_path):
    repo = open_repo(durability="none")
    model = rewrite(repo, 5)
    shutil.copytree(repo.url, tmp_path / "copy.tx", ignore=shutil.ignore_patterns("locks"))
    (tmp_path / "copy.tx/locks").mkdir()
    copy = open_repo("copy.tx", durability="none")
    held = copy.mapping()
    copy.vacuum(keep=1)
    assert content(copy) == model == {key: bytes(held[key]) for key in held}
