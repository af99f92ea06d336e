"""Several processes in one transaction on an object store: what they stage is stored, found, counted, and deleted."""

import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import zarr

import txstore
from tests.system.remote import lease_times
from tests.system.remote.conftest import SEVERAL_WRITERS, STORES, with_engine
from tests.system.remote.repositories import assert_tidy, opened, packs, paths, referred
from tests.system.remote.servers import Server
from tests.tools.inside import objects_of, options_of
from tests.tools.members import committed, enter, fill_chunk, fill_region, members
from tests.tools.workers import QUICK, TIMEOUT
from txstore.format import names
from txstore.storage import leases
from txstore.store import TxStore

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("short_leases")]


@pytest.fixture
def repo(server_of: Callable[[str], Server]) -> Iterator[txstore.Repository]:
    """A repository on S3; verified when the test ends."""
    repo = opened(server_of("s3"))
    yield repo
    assert repo.verify().faults == []


@pytest.fixture(params=SEVERAL_WRITERS)
def repo_anywhere(request: pytest.FixtureRequest, server_of: Callable[[str], Server]) -> Iterator[txstore.Repository]:
    """A repository on one of several servers."""
    name, engine = STORES[request.param]
    repo = opened(with_engine(server_of(name), engine))
    yield repo
    assert repo.verify().faults == []


def begin(repo: txstore.Repository) -> TxStore:
    """Return a transaction over an array "x" of 8 chunks of 4 zeros."""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.zeros(32, "i8"), chunks=(4,))
    return repo.transaction()


@pytest.fixture
def store(repo: txstore.Repository) -> Iterator[TxStore]:
    store = begin(repo)
    yield store
    store.rollback()


# --- every way to start a process
def test_workers_of_a_pool_fill_one_array(repo_anywhere):
    store = begin(repo_anywhere)
    with ProcessPoolExecutor(2, mp_context=QUICK, initializer=lease_times.shorten) as pool:
        list(pool.map(fill_region, [store] * 4, range(4), timeout=TIMEOUT))
        assert committed(repo_anywhere) == [0] * 32
        changes = store.changes()
        assert changes["set"] == [f"x/c/{i}" for i in range(8)]
        assert sorted(key for keys in changes["participants"].values() for key in keys) == changes["set"]
        assert all(who.startswith("process ") and "this one" not in who for who in changes["participants"])
        assert zarr.open_array(store, path="x")[:].tolist() == [number // 8 + 1 for number in range(32)]
        store.commit("by workers")
        assert_tidy(repo_anywhere)  # while the workers live
    assert committed(repo_anywhere) == [number // 8 + 1 for number in range(32)]
    assert len(list(repo_anywhere.log())) == 2


# --- two that write one key, and what each sees
def crew(store: TxStore, count: int, *, joined: bool = True):
    return members(store, count, joined=joined, first=lease_times.shorten)


# --- those who die
def test_who_was_killed_is_missed_until_its_work_was_done_again(repo, store):
    with crew(store, 2) as (worker, other):
        other.do(fill_chunk, 5)
        worker.do(enter)
        worker.do(fill_chunk, 0)
        worker.do(fill_chunk, 1)
        worker.do(lease_times.rest)
        worker.kill()  # a moment before the commit: its lease looks like that of one who lives
        pid = worker.process.pid
        with pytest.raises(txstore.ParticipantLostError, match=f"process {pid} .* do that work again") as caught:
            store.commit()
        assert caught.value.keys == ("x/c/0", "x/c/1")
        other.do(fill_chunk, 0)
        with pytest.raises(txstore.ParticipantLostError) as caught:
            store.commit()
        assert caught.value.keys == ("x/c/1",)
        fill_chunk(store, 1)
        store.commit()  # `other` lives, and has not sealed
        assert committed(repo) == [1] * 4 + [2] * 4 + [0] * 12 + [6] * 4 + [0] * 8
        other.leave()
    assert_tidy(repo)


def test_who_is_alive_and_silent_is_not_taken_for_dead(repo, store):
    with crew(store, 3) as members_:
        for number, member in enumerate(members_):
            member.do(fill_chunk, number)
        time.sleep(lease_times.TERM + 2 * lease_times.BEAT)
        store.commit()
    assert committed(repo)[:12] == [1] * 4 + [2] * 4 + [3] * 4


def begin_and_send(url: str, options: dict, pipe) -> None:
    lease_times.shorten()
    store = txstore.Repository(url, storage_options=options).transaction()
    store["key"] = b"1"
    sent = pickle.dumps(store)
    lease_times.rest(store)
    pipe.send(sent)
    pipe.recv()


def test_who_joins_a_transaction_whose_owner_has_died_is_told(repo, store):
    mine, theirs = QUICK.Pipe()
    owner = QUICK.Process(target=begin_and_send, args=(repo.url, options_of(repo), theirs), daemon=True)
    owner.start()
    assert mine.poll(TIMEOUT)
    sent = pickle.loads(mine.recv())
    owner.kill()
    owner.join(TIMEOUT)
    time.sleep(lease_times.TERM + 2 * lease_times.BEAT)
    with pytest.raises(txstore.TransactionStateError, match="the process that began this transaction has died"):
        sent["late"] = b"1"


# --- vacuum
def upload_and_wait(url: str, options: dict, pipe) -> None:
    lease_times.shorten()
    store = txstore.Repository(url, storage_options=options).transaction()
    for i in range(3):
        store[f"large/{i}"] = bytes([i]) * (20 << 20)
    pipe.send("uploaded")
    if pipe.recv():
        store.commit()
    pipe.send("done")


@pytest.fixture
def uploader(repo, store):
    """A process with a transaction of its own that has uploaded a pack."""
    mine, theirs = QUICK.Pipe()
    arguments = (repo.url, options_of(repo), theirs)
    process = QUICK.Process(target=upload_and_wait, args=arguments, daemon=True)
    process.start()
    assert mine.poll(TIMEOUT)
    mine.recv()
    yield process, mine
    process.kill()
    process.join(TIMEOUT)


def test_a_vacuum_leaves_what_the_living_have_staged(repo, store, uploader, monkeypatch):
    monkeypatch.setattr(leases, "KEPT", lease_times.TERM)
    _, pipe = uploader
    with crew(store, 1) as (member,):
        member.do(fill_chunk, 3)
        before = packs(repo)
        time.sleep(lease_times.TERM + 2)  # everything that is not renewed could go
        repo.vacuum(keep=1)
        assert packs(repo) == before
        member.do(fill_chunk, 4)
        member.leave()
    pipe.send(True)
    assert pipe.poll(TIMEOUT)
    store.commit()
    assert committed(repo)[12:20] == [4] * 4 + [5] * 4
    assert all(repo.mapping()[f"large/{i}"] == bytes([i]) * (20 << 20) for i in range(3))


def test_a_vacuum_deletes_what_the_dead_have_staged_when_it_is_old(repo, store, uploader, monkeypatch):
    process, _ = uploader
    objects = objects_of(repo)
    for stray in (f"{'ab' * 16}.held", f"{'cd' * 16}.7.held"):
        objects.put(f"{names.STAGING}/{stray}", [b"0" * 32])
    with crew(store, 1) as (member,):
        member.do(fill_chunk, 3)
    process.kill()
    process.join(TIMEOUT)
    store.rollback()
    assert packs(repo) - referred(repo)
    before = set(paths(repo))
    repo.vacuum()
    assert set(paths(repo)) == before  # not old
    monkeypatch.setattr(leases, "KEPT", 2.0)
    time.sleep(4)
    repo.vacuum()
    assert_tidy(repo)
    assert committed(repo) == [0] * 32


def test_who_could_not_renew_its_lease_for_long_stages_no_more(repo, store):
    """What it has staged may have been deleted."""
    store.mapping.lifecycle.share()
    store["before"] = b"1"
    lease = store.mapping.staging.part.writer._lease
    with lease._closing:  # or it may be renewed at this moment
        lease._renewed -= leases.KEPT  # as if the machine had slept
    with pytest.raises(OSError, match=r"could not be renewed .* begin anew"):
        store["after"] = b"1"
    with pytest.raises(txstore.TransactionStateError, match="rollback"):
        store.commit()
    store.rollback()
    assert "before" not in repo.mapping()
    assert_tidy(repo)
