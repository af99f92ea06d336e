"""Taking a version on an object store: what a commit asks for, alone and when others have been faster."""

import time
import uuid

import pytest

import txstore
from tests.tools.far_away import Requests
from txstore.format import names
from txstore.history import branches_in_objects, object_head_caches
from txstore.history import new_commit as versions_of_history
from txstore.transactions.transaction import Transaction


@pytest.fixture
def url(far: None) -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def requests(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> Requests:
    monkeypatch.setattr(object_head_caches, "HEAD_CACHE_PERIOD", 1000.0)  # no head caches, which would be counted
    return requests


def commit(repo: txstore.Repository, key: str, value: bytes) -> None:
    with repo.transaction(key) as store:
        store[key] = value


def versions(requests: Requests) -> list[int]:
    """Return the versions that were asked for or proposed to, one after the other."""
    found = [names.parse_commit_path(path) for path in requests]
    return [each[1] for each in found if each is not None]


def test_who_is_alone_takes_the_version_without_another_look(url: str, requests: Requests) -> None:
    repo = txstore.Repository(url)
    for number in range(3):
        commit(repo, "a", b"%d" % number)
    transaction = repo.begin()
    transaction["a"] = b"3"
    requests.clear()
    transaction.commit()
    assert [path for path in requests if not path.startswith("heads/")] == [names.commit_path("main", 3)]


def test_who_has_seen_the_head_long_ago_looks_again(url, requests, monkeypatch):
    repo = txstore.Repository(url)
    commit(repo, "a", b"0")
    transaction = repo.begin()
    transaction["a"] = b"1"
    monkeypatch.setattr(object_head_caches, "STAYS", 60.0)
    later = time.time() + 120  # as after a machine was suspended
    monkeypatch.setattr(time, "time", lambda: later)
    requests.clear()
    transaction.commit()
    assert names.commits_directory("main") in requests


def test_who_has_lost_a_version_goes_on_to_the_first_that_is_free(url: str, requests: Requests) -> None:
    repo, other = txstore.Repository(url), txstore.Repository(url)
    commit(repo, "a", b"0")
    transaction = repo.begin()
    transaction["mine"] = b"1"
    for number in range(3):
        commit(other, f"theirs{number}", b"%d" % number)
    requests.clear()
    transaction.commit()
    # Refused, then four are looked at together, then the free one is taken: for others, too, if any had proposed.
    assert (versions(requests)[0], sorted(versions(requests)[1:5]), versions(requests)[5:]) == (1, [1, 2, 3, 4], [4])
    assert requests.count(names.commits_directory("main")) == 1
    assert [each.version for each in repo.log()] == [4, 3, 2, 1, 0]
    assert sorted(repo.mapping()) == ["a", "mine", "theirs0", "theirs1", "theirs2"]


def test_who_has_lost_a_version_by_far_looks_for_the_head(url: str) -> None:
    """A commit tries no longer than it was asked to, and says so if that was long."""
    other = txstore.Repository(url)
    commit(other, "a", b"0")
    repo = txstore.Repository(url, commit_timeout=0)
    transaction = repo.begin()
    transaction["mine"] = b"1"
    for number in range(10):
        commit(other, f"theirs{number}", b"%d" % number)
    with pytest.raises(txstore.CommitTimeoutError, match="1 versions went to others"):
        transaction.commit()
    transaction.commit()  # what was staged is still there, and nobody is faster now
    assert [each.version for each in repo.log()] == list(range(12))[::-1]


def passed_by_a_vacuum(url: str) -> tuple[txstore.Repository, Transaction]:
    """Return a transaction, with its repository, whose base a vacuum has given up since."""
    repo, other = txstore.Repository(url), txstore.Repository(url)
    commit(repo, "a", b"0")
    repo.tags["v1"] = 0
    transaction = repo.begin()
    transaction["a"] = b"mine"
    for number in range(2):
        commit(other, "a", b"%d" % number)
        other.optimize()
        other.vacuum(keep=1)
    return repo, transaction


def test_a_writer_whose_base_a_vacuum_has_passed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version above its base is free again, when it has last seen the head longer ago than what a vacuum waits."""
    repo, transaction = passed_by_a_vacuum(url)
    monkeypatch.setattr(object_head_caches, "STAYS", 0.0)
    with pytest.raises(txstore.SnapshotExpiredError):
        transaction.commit()
    transaction.rollback()
    assert repo.mapping()["a"] == b"1"
    repo.run(lambda store: store.mapping.update({"a": b"again"}))
    assert repo.mapping()["a"] == b"again"
    assert repo.verify().ok


def test_who_sleeps_before_it_takes_the_version_looks_for_the_oldest_kept(url, monkeypatch):
    """It has seen the head so long ago that a vacuum may have freed the version since."""
    repo, transaction = passed_by_a_vacuum(url)
    monkeypatch.setattr(branches_in_objects, "TRUSTED", -1.0)
    with pytest.raises(txstore.CommitUnknownError) as caught:
        transaction.commit()
    assert repo.resolve(caught.value.commit_id) is None
    assert txstore.Repository(url).mapping()["a"] == b"1"
    repo.vacuum(keep=1)  # deletes what lies outside of history
    assert txstore.Repository(url).verify().ok


def test_a_vacuum_lets_commits_stand_as_long_as_looks_count(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches_in_objects, "_STANDS", 10.0)
    slept: list[float] = []
    monkeypatch.setattr(branches_in_objects.time, "sleep", slept.append)
    repo = txstore.Repository(url)
    for number in range(3):
        commit(repo, "a", b"%d" % number)
    repo.vacuum()
    assert not [each for each in slept if each > 1]
    repo.optimize()
    repo.vacuum(keep=1)
    waits = [each for each in slept if each > 1]
    assert len(waits) == 1
    assert branches_in_objects.TRUSTED < waits[0] <= 11


def test_a_commit_that_has_tried_for_long_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions_of_history, "WARN_AFTER", 0.0)
    repo, other = txstore.Repository(url), txstore.Repository(url)
    commit(repo, "a", b"0")
    transaction = repo.begin()
    transaction["mine"] = b"1"
    commit(other, "theirs", b"1")
    with pytest.warns(txstore.CommitWaitWarning, match="others were first once, and an attempt took"):
        transaction.commit()


def test_who_sleeps_and_loses_a_version_below_one_that_was_freed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version that it has lost is tagged; the next one is free, and outside of history."""
    repo, other = txstore.Repository(url), txstore.Repository(url)
    commit(repo, "a", b"0")
    transaction = repo.begin()
    transaction["mine"] = b"1"
    for number in range(3):
        commit(other, "a", b"%d" % number)
    other.tags["v1"] = 1
    other.optimize()
    other.vacuum(keep=1)
    monkeypatch.setattr(branches_in_objects, "TRUSTED", -1.0)
    with pytest.raises(txstore.SnapshotExpiredError):
        transaction.commit()
    transaction.rollback()
    assert "mine" not in txstore.Repository(url).mapping()
    assert txstore.Repository(url).verify().ok
