"""Transaction.modify: a part of a value is changed, and no other thread's write of the key comes in between."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import txstore
from tests.tools.faults import always
from tests.tools.parts import codec_of, create, read_chunk, region_of, write_part
from txstore.transactions.transaction import Transaction


@pytest.fixture
def transaction(tmp_path: Path) -> Transaction:
    with txstore.Repository(tmp_path / "data.tx").transaction() as store:
        store["a/c/0"] = bytes(8)
    return txstore.Repository(tmp_path / "data.tx").begin()


def test_no_other_write_comes_in_between(transaction: Transaction) -> None:
    inside, may_go = threading.Event(), threading.Event()

    def change(value: memoryview | None) -> bytes:
        inside.set()
        may_go.wait(60)
        return b"first" + bytes(value or b"")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(transaction.modify, "a/c/0", change)
        assert inside.wait(60)
        second = pool.submit(transaction.set, "a/c/0", b"second")
        assert not second.done()
        may_go.set()
        first.result(60)
        second.result(60)
    assert transaction["a/c/0"] == b"second"
    transaction.rollback()


def test_other_keys_may_be_written_meanwhile(transaction: Transaction) -> None:
    """Whatever a change waits for, such as a thread that stages another key, comes about."""

    def change(value: memoryview | None) -> bytes:
        with ThreadPoolExecutor(1) as pool:
            for number in range(100):  # of which some share a lock with the key
                pool.submit(transaction.set, f"b/c/{number}", b"other").result(60)
                pool.submit(transaction.modify, f"c/c/{number}", lambda _: b"part").result(60)
            keys = [f"d/c/{number}" for number in range(100)]
            pool.submit(_have_all, transaction, keys).result(60)
        return b"changed"

    transaction.modify("a/c/0", change)
    assert transaction["a/c/0"] == b"changed"
    assert transaction.staged_count == 201
    transaction.rollback()


def _have_all(transaction: Transaction, keys: list[str]) -> None:
    with transaction.staging.turns.at_all(keys):
        pass


def test_a_batch_waits_for_who_changes_one_of_its_keys(transaction: Transaction) -> None:
    inside, may_go = threading.Event(), threading.Event()

    def change(value: memoryview | None) -> bytes:
        inside.set()
        may_go.wait(60)
        return b"changed"

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(transaction.modify, "a/c/0", change)
        assert inside.wait(60)
        batch = pool.submit(_have_all, transaction, ["a/c/1", "a/c/0"])
        assert not batch.done()
        may_go.set()
        first.result(60)
        batch.result(60)
    transaction.rollback()


def test_many_threads_change_parts(transaction: Transaction) -> None:
    def write(at: int) -> None:
        def change(value: memoryview | None) -> bytes:
            content = bytearray(value or b"")
            content[at] = at + 1
            return bytes(content)

        transaction.modify("a/c/0", change)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert transaction["a/c/0"] == bytes(range(1, 9))
    transaction.rollback()


def test_what_fails_stages_nothing(transaction: Transaction) -> None:
    with pytest.raises(ZeroDivisionError):
        transaction.modify("a/c/0", always(ZeroDivisionError))
    assert transaction.staged_count == 0
    transaction.modify("a/c/0", lambda value: None)
    assert "a/c/0" not in transaction
    transaction.rollback()


def test_two_stores_of_one_participant(tmp_path: Path) -> None:
    """Stores that a process has joined with stage as one: their threads must wait for one another."""
    repo = txstore.Repository(tmp_path / "data.tx")
    create(repo)
    owner = repo.begin()
    shared = owner.lifecycle.share()
    assert shared is not None
    engine = txstore.Repository(tmp_path / "data.tx").engine
    first, second = (engine.join(shared, repo.engine.commits.identity.id) for _ in range(2))
    assert first.staging is second.staging
    inside, may_go = threading.Event(), threading.Event()

    def slowly(value: memoryview | None) -> bytes:
        inside.set()
        may_go.wait(60)
        chunk = codec.decode(value)
        chunk[0] = 1
        return codec.encode(chunk) or b""

    codec = codec_of(first, "x/c/0")
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(first.modify, "x/c/0", slowly, region_of(slice(0, 1)))
        assert inside.wait(60)
        other = pool.submit(write_part, second, "x/c/0", slice(1, 2), 2)
        assert not other.done()
        may_go.set()
        slow.result(60)
        other.result(60)
    first.lifecycle.seal()
    for each in (first, second):
        each.lifecycle.end()
    owner.commit()
    assert read_chunk(repo.snapshot().mapping, "x/c/0") == [1, 2, *range(12, 18)]
