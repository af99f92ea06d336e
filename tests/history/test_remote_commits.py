"""Taking a slot on an object store: what a commit asks for, alone and when others have been faster."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import txstore
from tests.waiting import TIMEOUT
from txstore.format import names
from txstore.history import remote_commits
from txstore.storage.objects import client


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(remote_commits, "HINT_PERIOD", 1000.0)  # no hints, which would be counted
    found: list[str] = []
    send = client.ObjectClient._request

    def counted(self: Any, path: str, request: Callable[[Any], Any]) -> Any:
        found.append(path)
        return send(self, path, request)

    monkeypatch.setattr(client.ObjectClient, "_request", counted)
    return found


def commit(repo: txstore.Repository, key: str, value: bytes) -> None:
    with repo.transaction(key) as store:
        store[key] = value


def slots(requests: list[str]) -> list[int]:
    return [int(path[-10:]) for path in requests if path.startswith(names.commits_directory("main") + "/")]


def test_who_is_alone_offers_its_file_without_another_look(url: str, requests: list[str]) -> None:
    repo = txstore.Repository(url)
    for number in range(3):
        commit(repo, "a", b"%d" % number)
    transaction = repo.begin()
    transaction["a"] = b"3"
    requests.clear()
    transaction.commit()
    assert slots(requests) == [3]  # the slot is taken
    assert not [path for path in requests if path == names.commits_directory("main")]


def test_who_has_seen_the_head_long_ago_looks_again(
    url: str, requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = txstore.Repository(url)
    commit(repo, "a", b"0")
    transaction = repo.begin()
    transaction["a"] = b"1"
    clock = remote_commits._clocks()
    monkeypatch.setattr(remote_commits.time, "time", lambda: clock[1] + 60)  # as after a machine was suspended
    requests.clear()
    transaction.commit()
    assert names.commits_directory("main") in requests


def test_who_has_lost_a_slot_goes_on_to_the_first_that_is_free(url: str, requests: list[str]) -> None:
    repo, other = txstore.Repository(url), txstore.Repository(url)
    commit(repo, "a", b"0")
    transaction = repo.begin()
    transaction["mine"] = b"1"
    for number in range(3):
        commit(other, f"theirs{number}", b"%d" % number)
    requests.clear()
    transaction.commit()
    # Refused, then four are looked at together, then the free one is taken.
    assert (slots(requests)[0], sorted(slots(requests)[1:5]), slots(requests)[5:]) == (1, [1, 2, 3, 4], [4])
    assert names.commits_directory("main") not in requests
    assert [each.slot for each in repo.log()] == [4, 3, 2, 1, 0]
    assert sorted(repo.mapping()) == ["a", "mine", "theirs0", "theirs1", "theirs2"]


def test_who_has_lost_a_slot_by_far_looks_for_the_head(url: str) -> None:
    repo, other = txstore.Repository(url), txstore.Repository(url)
    commit(repo, "a", b"0")
    transaction = repo.begin()
    transaction["mine"] = b"1"
    for number in range(10):
        commit(other, f"theirs{number}", b"%d" % number)
    transaction.commit()
    assert [each.slot for each in repo.log()] == list(range(12))[::-1]


def test_what_others_have_committed_is_a_conflict_after_a_lost_slot(url: str) -> None:
    repo, other = txstore.Repository(url), txstore.Repository(url)
    commit(repo, "a", b"0")
    transaction = repo.begin()
    transaction["a"] = b"1"
    commit(other, "b", b"0")
    commit(other, "a", b"2")
    with pytest.raises(txstore.ConflictError):
        transaction.commit()
    transaction.rollback()
    assert repo.mapping()["a"] == b"2"


@pytest.mark.parametrize("is_recent", [False, True])
def test_a_writer_whose_base_a_vacuum_has_passed(url: str, monkeypatch: pytest.MonkeyPatch, is_recent: bool) -> None:
    """The slot above its base is free again. Whoever has just seen the head takes it, and then sees the floor."""
    monkeypatch.setattr(remote_commits, "_STAYS", 1000.0 if is_recent else 0.0)
    repo, other = txstore.Repository(url), txstore.Repository(url)
    commit(repo, "a", b"0")
    repo.tags["v1"] = 0
    transaction = repo.begin()
    transaction["a"] = b"mine"
    for number in range(2):
        commit(other, "a", b"%d" % number)
        other.optimize()
        other.vacuum(keep=1)
    with pytest.raises(txstore.CommitUnknownError if is_recent else txstore.SnapshotExpiredError) as caught:
        transaction.commit()
    if is_recent:
        assert repo.resolve(caught.value.commit_id) is None
    else:
        transaction.rollback()
    assert repo.mapping()["a"] == b"1"
    repo.run(lambda store: store.mapping.update({"a": b"again"}))
    assert repo.mapping()["a"] == b"again"
    assert repo.verify().ok
    repo.vacuum(keep=1)  # deletes what lies outside of history


def test_each_commit_that_is_acknowledged_is_made_once(url: str) -> None:
    commit(txstore.Repository(url), "a", b"0")
    together = threading.Barrier(6)

    def work(number: int) -> list[str]:
        repo, made = txstore.Repository(url), []
        together.wait(TIMEOUT)
        for nth in range(8):
            with repo.transaction(f"{number} {nth}") as store:
                store[f"{number}/{nth}"] = b"%d" % nth
            made.append(f"{number} {nth}")
        return made

    with ThreadPoolExecutor(6) as threads:
        made = [message for each in threads.map(work, range(6)) for message in each]
    repo = txstore.Repository(url)
    log = list(repo.log())
    assert sorted(each.message for each in log[:-1]) == sorted(made)
    assert [each.slot for each in log] == list(range(len(log)))[::-1]
    assert len(repo.mapping()) == 1 + len(made)
    assert repo.verify().ok
