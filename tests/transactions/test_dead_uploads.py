"""What writers that died have uploaded to an object store: the next one that finds it deletes it, and nothing else."""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import txstore
from tests.tools.faults import always
from tests.tools.inside import objects_of
from tests.tools.waiting import TIMEOUT, wait_for_background_cleanup
from txstore.format import names
from txstore.segments import object_writer
from txstore.storage.objects import client
from txstore.storage.objects.interface import Object
from txstore.transactions.participants import reclaim

HOUR = 3600.0


class Server:
    """The clock of a server, which says when each object was written; and what is asked of it."""

    def __init__(self) -> None:
        self.time = 1e9  # years behind that of this machine
        self.written: dict[str, float] = {}
        self.listed: Counter[str] = Counter()
        self.before_delete: Callable[[list[str]], None] = lambda paths: None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server()
    kept = {name: getattr(client.ObjectClient, name) for name in ("create", "put", "list", "delete")}

    def writes(name: str) -> Callable[..., None]:
        def write(self: Any, path: str, parts: Any) -> None:
            kept[name](self, path, parts)
            found.written[path] = found.time

        return write

    def listing(self: Any, directory: str) -> list[Object]:
        found.listed[directory] += 1
        return [
            each._replace(modified=found.written.get(f"{directory}/{each.name}", found.time))
            for each in kept["list"](self, directory)
        ]

    def delete(self: Any, paths: list[str]) -> None:
        found.before_delete(paths)
        kept["delete"](self, paths)

    monkeypatch.setattr(client.ObjectClient, "create", writes("create"))
    monkeypatch.setattr(client.ObjectClient, "put", writes("put"))
    monkeypatch.setattr(client.ObjectClient, "list", listing)
    monkeypatch.setattr(client.ObjectClient, "delete", delete)
    monkeypatch.setattr(client.ObjectClient, "now", lambda self: found.time)
    monkeypatch.setattr(object_writer, "OBJECT_SIZE", 4000)
    monkeypatch.setattr(object_writer, "INLINE_SIZE", 1000)
    return found


@pytest.fixture
def url(server: Server) -> str:
    url = f"memory://{uuid.uuid4().hex}"
    with txstore.Repository(url).transaction("first") as store:
        store["kept"] = b"kept" * 1000
    return url


def upload(url: str) -> txstore.TxStore:
    """Begin a transaction in what stands for another process, and upload 20 packs and more."""
    store = txstore.Repository(url).transaction("never")
    for number in range(60):
        store[f"x/c/{number}"] = bytes([number]) * 2000
    wait_for_uploads(store)
    return store


def wait_for_uploads(store: txstore.TxStore) -> None:
    store.mapping.staging.part.writer._uploads.wait()  # type: ignore[attr-defined]


def kill(store: txstore.TxStore) -> None:
    """Nothing of it is renewed any more, and nothing deleted."""
    store.mapping.lifecycle.end()
    held = store.mapping.staging.storage.leases
    for lease in list(held._held):
        lease._is_closed = True
    held._held.clear()


def write(url: str, *, large: bool = True) -> txstore.Repository:
    repo = txstore.Repository(url)
    commit(repo, large=large)
    return repo


def commit(repo: txstore.Repository, *, large: bool) -> None:
    with repo.transaction() as store:
        store["y/c/0"] = uuid.uuid4().bytes * (300 if large else 1)
    wait_for_looks()


def wait_for_looks() -> None:
    for thread in threading.enumerate():
        if thread.name == "txstore reclaim":
            thread.join(TIMEOUT)


def packs(url: str) -> set[str]:
    objects = objects_of(txstore.Repository(url))
    return {
        f"{names.PACKS}/{folder.name}/{each.name}"
        for folder in objects.list(names.PACKS)
        for each in objects.list(f"{names.PACKS}/{folder.name}")
    }


def staged(url: str) -> set[str]:
    wait_for_background_cleanup()
    return {each.name for each in objects_of(txstore.Repository(url)).list(names.STAGING)}


def of(url: str, store: txstore.TxStore) -> set[str]:
    return of_transaction(url, store.mapping.staging.record.id)


def of_transaction(url: str, transaction: bytes) -> set[str]:
    return {path for path in packs(url) if transaction.hex()[:24] in path}


@pytest.mark.parametrize("ahead", [-30 * HOUR, 0.0, 30 * HOUR])
def test_the_next_large_commit_deletes_what_a_dead_process_has_uploaded(url, server, monkeypatch, ahead):
    dead = upload(url)
    assert len(of(url, dead)) >= 20
    kill(dead)
    local = time.time
    monkeypatch.setattr(time, "time", lambda: local() + ahead)  # the clock of this machine says nothing
    server.time += HOUR - 1
    write(url)
    assert len(of(url, dead)) >= 20
    server.time += 2
    repo = write(url)
    assert not of(url, dead)
    assert not staged(url)
    assert repo.verify().ok
    assert bytes(repo.mapping()["kept"]) == b"kept" * 1000


def test_what_a_living_process_has_uploaded_stays(url: str, server: Server) -> None:
    slow = upload(url)
    for _ in range(5):
        server.time += HOUR / 2 + 60
        for lease in slow.mapping.staging.storage.leases._held:
            lease.renew()
        write(url)
    assert len(of(url, slow)) >= 20
    slow.commit()
    assert bytes(txstore.Repository(url).mapping()["x/c/59"]) == bytes([59]) * 2000
    assert txstore.Repository(url).verify().ok


def test_who_comes_back_after_it_was_taken_for_dead_does_not_commit(url: str, server: Server) -> None:
    slow = upload(url)
    server.time += 2 * HOUR
    write(url)
    assert not of(url, slow)
    slow.mapping.lifecycle.end()
    for lease in slow.mapping.staging.storage.leases._held:  # it has slept for as long
        lease._renewed -= 2 * HOUR
    with pytest.raises(OSError, match="begin anew"):
        slow.commit()
    assert [each.message for each in txstore.Repository(url).log()] == ["", "first"]
    assert txstore.Repository(url).verify().ok


@pytest.mark.parametrize("is_made", [True, False])
def test_who_dies_committing_leaves_it_to_a_vacuum(url, server, monkeypatch, is_made):
    """From the lease alone nobody can tell whether the commit was made."""
    dead = upload(url)
    writer, transaction = dead.mapping.staging.part.writer, dead.mapping.staging.record.id
    dead.mapping.lifecycle.end()
    held = dead.mapping.staging.storage.leases
    if is_made:
        with monkeypatch.context() as patched:
            for name in ("close", "close_between_reads", "release"):
                patched.setattr(type(writer), name, lambda self: None)
            dead.commit()
    else:
        writer.finish(writer.size)
    held._held.clear()
    there = of_transaction(url, transaction)
    assert len(there) >= 20
    server.time += 2 * HOUR
    repo = txstore.Repository(url)
    assert reclaim.reclaim_uploads(repo.engine.commits.storage) == []
    assert of_transaction(url, transaction) == there
    report = repo.vacuum()
    assert of_transaction(url, transaction) == (there if is_made else set())
    assert (report.staged >= 120_000) == (not is_made)
    assert not staged(url)
    assert repo.verify().ok
    assert ("x/c/59" in repo.mapping()) == is_made


def test_of_a_shared_transaction_what_was_never_sealed_goes(url: str, server: Server) -> None:
    dead = upload(url)
    dead.mapping.lifecycle.share()
    kill(dead)
    server.time += 2 * HOUR
    write(url)
    assert not of(url, dead)
    assert not staged(url)


def test_of_a_shared_transaction_what_was_sealed_stays(url: str, server: Server) -> None:
    dead = upload(url)
    dead.mapping.lifecycle.share()
    dead.mapping.staging.members.shared.seal()
    kill(dead)
    server.time += 2 * HOUR
    write(url)
    assert len(of(url, dead)) >= 20


def test_what_has_a_name_stays(url: str, server: Server) -> None:
    named = txstore.Repository(url).transaction(name="run")
    for number in range(5):
        named[f"x/c/{number}"] = bytes([number]) * 3000
    there = of(url, named)
    assert there
    kill(named)
    server.time += 2 * HOUR
    write(url)
    assert of(url, named) == there


def test_the_next_one_goes_on_where_one_was_interrupted(url: str, server: Server) -> None:
    dead = upload(url)
    kill(dead)
    server.time += 2 * HOUR
    commits = txstore.Repository(url).engine.commits
    for failing in range(2):
        calls = 0

        def fail(paths: list[str], failing: int = failing) -> None:
            nonlocal calls
            calls += 1
            if calls > failing:
                raise OSError("the server has gone")

        server.before_delete = fail
        with pytest.raises(OSError, match="has gone"):
            reclaim.reclaim_uploads(commits.storage)
        assert staged(url)  # what tells of them goes last
        if not failing:
            assert len(of(url, dead)) >= 20
    server.before_delete = lambda paths: None
    report = txstore.Repository(url).vacuum()
    assert not of(url, dead)
    assert not staged(url)
    assert report.oldest_kept == 0


def test_a_look_that_fails_fails_nobody(url: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    kill(upload(url))
    monkeypatch.setattr(client.ObjectClient, "now", always(ConnectionError("the server has gone")))
    write(url)


def test_usage_counts_what_was_uploaded_and_a_vacuum_says_what_it_frees(url: str, server: Server) -> None:
    repo = txstore.Repository(url)
    wait_for_background_cleanup()
    before = repo.usage()
    dead = upload(url)
    assert repo.usage().staged >= before.staged + 120_000
    assert repo.usage().orphan == before.orphan
    kill(dead)
    server.time += 2 * HOUR
    planned = repo.vacuum(dry_run=True)
    report = repo.vacuum()
    assert planned.staged == report.staged >= 120_000
    assert (planned.files, planned.bytes) == (report.files, report.bytes)
    assert not of(url, dead)
    assert repo.usage().staged == before.staged
