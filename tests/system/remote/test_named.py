"""Transactions with a name on an object store: its processes share nothing but the server."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import txstore
from tests.system.processes.ranks import KEYS, NAME, ranks, value_of
from tests.system.remote import lease_times
from tests.system.remote.repositories import again, assert_tidy, opened
from tests.system.remote.servers import Server
from tests.tools.inside import existing, objects_of, options_of
from tests.tools.workers import QUICK, TIMEOUT, Worker, ended
from txstore.format import names
from txstore.storage import leases

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("short_leases")]


@pytest.fixture
def repo(server_of: Callable[[str], Server]) -> Iterator[txstore.Repository]:
    repo = opened(server_of("s3"))
    yield repo
    assert not repo.exists or repo.verify().faults == []


def content(repo: txstore.Repository) -> list[str]:
    found = dict(again(repo).mapping())
    assert found == {key: value_of(key) for key in found}
    return sorted(found)


def named(repo: txstore.Repository) -> list[str]:
    return [transaction.name for transaction in again(repo).transactions()]


def crew(repo: txstore.Repository, count: int) -> Any:
    return ranks(count, repo, first=lease_times.shorten)


# --- what it is for
def test_ranks_and_a_restart(repo):
    with crew(repo, 3) as all_ranks:
        for number, rank in enumerate(all_ranks):
            rank.do("join")
            rank.do("put", f"{number}/a", f"{number}/b")
        for rank in all_ranks[:2]:
            rank.do("leave")
        all_ranks[2].do("rest")
        all_ranks[2].kill()
        assert named(repo) == [NAME]
        for _ in range(2):
            with pytest.raises(txstore.ParticipantLostError) as lost:
                existing(again(repo), NAME).commit()
            assert lost.value.keys == ("2/a", "2/b")
        assert again(repo).head() is None
        all_ranks[0].do("join")
        all_ranks[0].do("put", "2/a", "2/b")
        all_ranks[0].do("leave")
    existing(again(repo), NAME).commit()
    assert content(repo) == [f"{number}/{key}" for number in range(3) for key in "ab"]
    assert named(repo) == []
    assert_tidy(repo)


# --- races
def join_in_rounds(barrier: Any, url: str, options: dict[str, Any], number: int, rounds: int) -> list[str]:
    lease_times.shorten()
    repo, found = txstore.Repository(url, storage_options=options), []
    for i in range(rounds):
        barrier.wait()
        with repo.transaction(name=f"round-{i}") as store:
            store[f"{i}/{number}"] = value_of(f"{i}/{number}")
            found.append(store.mapping.id)
    return found


def test_several_begin_at_once(repo):
    """One transaction, also when the repository is created by the same race."""
    rounds, count = 6, 3
    barrier = QUICK.Barrier(count, timeout=TIMEOUT)
    workers = [
        Worker(join_in_rounds, barrier, repo.url, options_of(repo), number, rounds, context=QUICK)
        for number in range(count)
    ]
    with ended(*workers):
        found = [worker.result() for worker in workers]
    assert found == [found[0]] * count
    assert len(set(found[0])) == rounds
    assert sorted(named(repo)) == [f"round-{i}" for i in range(rounds)]
    for i in range(rounds):
        existing(again(repo), f"round-{i}").commit()
    assert content(repo) == sorted(f"{i}/{number}" for i in range(rounds) for number in range(count))
    assert_tidy(repo)


@pytest.mark.parametrize("look", ["join", "describe"])
def test_it_ends_between_a_listing_of_its_packs_and_their_reading(repo, look):
    """Whoever was about to join begins anew."""
    with crew(repo, 1) as (rank,):
        ended_id = rank.do("join")
        rank.do("put", "a")
        rank.do("leave")

    late = again(repo)
    objects, rolled_back = objects_of(late), []
    listed = objects.list

    def list_and_roll_back(path: str) -> Any:
        found = listed(path)
        if path.startswith(names.PACKS) and found and not rolled_back:
            rolled_back.append(path)
            existing(again(repo), NAME).rollback()
        return found

    objects.list = list_and_roll_back
    if look == "describe":
        assert late.transactions() == []
    else:
        with late.transaction(name=NAME) as store:
            assert store.mapping.id != ended_id
            store["b"] = value_of("b")
        existing(again(repo), NAME).commit()
        assert content(repo) == ["b"]
    assert rolled_back
    assert_tidy(repo)


# --- who dies while it ends the transaction
#: Every fourth step by default: each is a repository with a transaction of its own.
ALL_STEPS = "TXSTORE_KILL_ROUNDS" in os.environ


class Deadly:
    """Objects of a process that is killed before a certain one of the requests that change anything."""

    def __init__(self, objects: Any, step: int) -> None:
        self.wrapped = objects
        self.left = step

    def __getattr__(self, name: str) -> Any:
        if name in ("put", "create", "delete"):
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
        return getattr(self.wrapped, name)


def end_and_die(url: str, options: dict[str, Any], end: str, step: int) -> None:
    leases.BEAT, leases.TERM = 1000.0, 4000.0  # no renewals, which would be counted, and none is missed here
    repo = txstore.Repository(url, storage_options=options)
    transaction = existing(repo, NAME)
    storage = repo.engine.storage
    storage.objects = storage.leases._objects = Deadly(storage.objects, step)
    getattr(transaction, end)()


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_who_ends_it_is_killed_at_each_step(server_of, end):
    """It was ended, or all of it is still there; whoever comes next goes on."""
    found = []
    for step in range(0, 40, 1 if ALL_STEPS else 4):
        repo = opened(server_of("s3"))
        for key in KEYS:
            with repo.transaction(name=NAME) as store:
                store[key] = value_of(key)
        arguments = (repo.url, options_of(repo), end, step)
        process = QUICK.Process(target=end_and_die, args=arguments, daemon=True)
        process.start()
        process.join(TIMEOUT)
        assert process.exitcode in (0, -signal.SIGKILL)
        found.append((repo, process.exitcode))
        if not process.exitcode:
            break
    assert not process.exitcode
    time.sleep(lease_times.TERM + 2 * lease_times.BEAT)
    outcomes = []
    for number, (repo, _) in enumerate(found):
        is_committed = again(repo).head() is not None
        there = named(repo) == [NAME]
        assert not (is_committed and there)
        outcomes.append(not there)
        with again(repo).transaction(name=NAME) as store:
            assert store.changes()["set"] == (KEYS if there else [])
            store["more"] = value_of("more")
        made = existing(again(repo), NAME)
        if number % 2:
            made.commit()
            assert content(repo) == ([*KEYS, "more"] if there or is_committed else ["more"])
        else:
            made.rollback()
            assert content(repo) == (KEYS if is_committed else [])
        assert named(repo) == []
        leases.KEPT, kept = -1.0, leases.KEPT
        try:
            again(repo).vacuum()
        finally:
            leases.KEPT = kept
        if again(repo).head() is not None:
            assert_tidy(repo)
            assert again(repo).verify().faults == []
    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) > 0
    assert outcomes.count(True) > 1


def test_who_could_not_hold_the_record_for_long_does_not_commit(repo, monkeypatch):
    """Another may be ending the transaction by now."""
    with repo.transaction(name=NAME) as store:
        store["a"] = value_of("a")
    transaction = existing(repo, NAME)
    shared = transaction.staging.members.shared
    seal = shared.seal

    def seal_and_sleep() -> None:
        seal()
        with shared._held._closing:  # or it may be renewed at this moment
            shared._held._renewed -= leases.TERM  # as if it had slept

    monkeypatch.setattr(shared, "seal", seal_and_sleep)
    with pytest.raises(OSError, match="another process may have taken over"):
        transaction.commit()
    assert again(repo).head() is None
    monkeypatch.undo()
    existing(again(repo), NAME).commit()
    assert content(repo) == ["a"]
