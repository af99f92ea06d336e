"""A large commit on an object store that has lost a version: its values are not sent with each further try."""

import os
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import txstore
from tests.tools.inside import objects_of, staged, stored_commit
from tests.tools.upkeep import below
from tests.tools.waiting import wait_for_background_cleanup
from txstore.format import names
from txstore.history.branches_in_objects import BranchesInObjects
from txstore.segments.object_writer import SENT_AGAIN
from txstore.storage.objects import client

#: Returns a transaction, and the repository that is faster.
Overtaken = Callable[..., tuple[Any, txstore.Repository]]

VALUES = {"x/a": os.urandom(50_000), "x/b": os.urandom(60_000), "x/c": b"", "x/d": os.urandom(70_000)}


@pytest.fixture
def url(far: None) -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What was sent: paths, and how many bytes each time."""
    found: list[tuple[str, int]] = []
    for method in ("put", "create"):
        send = getattr(client.ObjectClient, method)

        def counted(self: Any, path: str, parts: Sequence[bytes], send: Any = send) -> None:
            if not path.endswith(names.LEASE) and not path.startswith("head_cache"):
                found.append((path, sum(memoryview(part).nbytes for part in parts)))
            send(self, path, parts)

        monkeypatch.setattr(client.ObjectClient, method, counted)
    return found


@pytest.fixture
def overtaken(url: str, monkeypatch: pytest.MonkeyPatch) -> Overtaken:
    """Begin a transaction; each time that it is about to take a version, another repository takes it first."""

    def begin(values: dict[str, bytes] = VALUES, *, theirs: Sequence[str] = ("theirs",)) -> tuple[Any, Any]:
        repo, other = txstore.Repository(url), txstore.Repository(url)
        commit(repo, "old", b"0")
        transaction = repo.begin()
        for key, value in values.items():
            transaction[key] = value
        take_version, left = BranchesInObjects.take, list(theirs)

        def too_late(self: BranchesInObjects, *arguments: Any, **options: Any) -> Any:
            if left and not is_theirs:
                is_theirs.append(True)
                commit(other, left.pop(0), b"1")
                is_theirs.clear()
            return take_version(self, *arguments, **options)

        is_theirs: list[bool] = []
        monkeypatch.setattr(BranchesInObjects, "take", too_late)
        return transaction, other

    return begin


def commit(repo: txstore.Repository, key: str, value: bytes) -> None:
    with repo.transaction() as store:
        store[key] = value


def test_values_are_sent_with_the_first_try_and_once_more(overtaken: Overtaken, sent: list[tuple[str, int]]) -> None:
    transaction, other = overtaken(theirs=["a", "b", "c"])
    transaction.commit()
    large = [path.rpartition("/")[0] for path, size in sent if size > SENT_AGAIN]
    assert large == [names.commits_directory("main"), names.data_pack_directory(transaction.staging.record.id)]
    assert [each.version for each in other.log()] == [4, 3, 2, 1, 0]
    mapping = other.mapping()
    assert {key: mapping[key] for key in VALUES} == VALUES
    assert other.verify().ok


def test_what_is_little_stays_in_the_commit(overtaken: Overtaken, sent: list[tuple[str, int]]) -> None:
    transaction, other = overtaken({"x": os.urandom(10_000)})
    transaction.commit()
    assert not [path for path, _ in sent if path.startswith(names.PACKS)]
    assert other.verify().ok


def test_nothing_is_left_of_it_but_the_pack(overtaken: Overtaken) -> None:
    transaction, other = overtaken()
    transaction.commit()
    wait_for_background_cleanup()
    assert not staged(other)
    other.vacuum(keep=1)
    assert {key: other.mapping()[key] for key in VALUES} == VALUES


def test_a_transaction_that_is_given_up_then_takes_its_pack_along(overtaken: Overtaken) -> None:
    transaction, other = overtaken(theirs=["a", "x/b"])
    with pytest.raises(txstore.ConflictError):
        transaction.commit()
    assert bytes(transaction["x/a"]) == VALUES["x/a"]
    transaction.rollback()
    assert not [path for path, _ in below(objects_of(other), "packs")]
    assert not staged(other)


def test_its_run_can_be_made_anew(overtaken: Overtaken) -> None:
    transaction, other = overtaken()
    transaction.commit()
    stored, objects = stored_commit(other, 2), objects_of(other)
    content = bytearray(objects.get(stored.path))
    content[stored.header.sections[0].offset + 20] ^= 1
    objects.put(stored.path, [bytes(content)])
    assert txstore.Repository(other.url).verify(repair=True).ok
    content[stored.header.sections[0].offset + 20] ^= 1
    assert objects.get(stored.path) == content


def test_what_comes_after_a_conflict_goes_to_packs_too(overtaken: Overtaken) -> None:
    transaction, _ = overtaken(theirs=["a", "x/a"])
    with pytest.raises(txstore.ConflictError):
        transaction.commit()
    transaction["x/e"] = b"more"
    transaction["x/b"] = b"again"
    assert [bytes(transaction[key]) for key in ("x/a", "x/b", "x/e")] == [VALUES["x/a"], b"again", b"more"]
    transaction.rollback()
