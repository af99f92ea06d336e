"""Erasing while other processes vacuum, optimize, and make and delete branches: it goes on, and nothing returns."""

import os
import random
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.tools.inside import branch_id, finish_head_cache, objects_of
from tests.tools.upkeep import below
from tests.tools.waiting import wait_until
from tests.tools.workers import QUICK, TIMEOUT, Worker, ended
from txstore import Repository
from txstore.format import records
from txstore.maintenance import erase as erasing
from txstore.maintenance import scrub as scrubbing

SECRET = random.Random(5).randbytes(2000)


@pytest.fixture
def filled(repo: Repository) -> Repository:
    for number in range(4):
        change(repo, {"s/c/0": SECRET + b"%d" % number, f"k/{number}": b"kept"})
    repo.branches["dev"] = repo.head()  # type: ignore[assignment]
    change(repo, {"s/c/1": SECRET}, "dev")
    return repo


def change(repo: Repository, values: dict[str, bytes], branch: str = "main") -> None:
    with repo.begin(branch=branch) as mapping:
        mapping.update(values)


def leaks(repo: Repository) -> list[str]:
    files = (path for path in Path(repo.url).rglob("*") if path.is_file())
    return [str(path) for path in files if SECRET[:100] in path.read_bytes()]


def there(function: Callable[..., object], repo: Repository) -> None:
    """Do something in another process, to the end."""
    worker = Worker(function, repo.url, context=QUICK)
    with ended(worker):
        worker.result()


@pytest.mark.parametrize("is_late", [False, True])
def test_what_a_vacuum_deletes_does_not_come_back(filled, monkeypatch, is_late):
    """Before a file is written anew, or just before it gets its name: this erasure's own vacuum finds that one."""
    scrub, rewrite, dev = erasing._Erasing._scrub, scrubbing.rewrite, branch_id(filled, "dev")
    deleted = list[str]()

    def without_branch(self: Any, record: Any) -> Any:
        del filled.branches["dev"]
        return scrub(self, record)

    def overtaken(storage: Any, path: str, *arguments: Any) -> None:
        if dev in path:
            deleted.append(f"{filled.url}/{path}")
            if not is_late:
                os.unlink(deleted[-1])
        rewrite(storage, path, *arguments)

    monkeypatch.setattr(erasing._Erasing, "_scrub", without_branch)
    monkeypatch.setattr(erasing, "rewrite", overtaken)
    filled.erase("s")
    assert deleted
    assert not any(map(os.path.exists, deleted))
    assert leaks(filled) == []
    assert filled.erasures()[0].finished is not None


def test_what_was_committed_while_it_was_waited_for(filled: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimize that is waited for commits its copies behind all that was known to have any of it by then."""
    wait, left = erasing._Erasing._wait, iter([False, True])

    def committed(self: Any, **done: Any) -> None:
        if next(left, False):
            change(filled, {"s/c/0": SECRET})
            change(filled, {"s/c/0": b"other"})
        wait(self, **done)

    monkeypatch.setattr(erasing._Erasing, "_wait", committed)
    filled.erase("s")
    assert next(left, None) is None
    assert leaks(filled) == []


def test_an_erasure_begins_though_a_reader_of_the_newest_commit_is_always_there(filled, monkeypatch):
    """Each reader leaves only when one of a newer commit is there."""
    readers, looks = [filled.snapshot()], list[float]()

    def next_reader(seconds: float) -> None:
        looks.append(seconds)
        assert len(looks) < 10
        change(filled, {"k/0": b"%d" % len(looks)})
        readers.append(filled.snapshot())
        readers.pop(0).close()

    monkeypatch.setattr(erasing.time, "sleep", next_reader)
    filled.erase("s", timeout=None)
    assert looks
    assert leaks(filled) == []


def upkeep(url: str, kind: str, stop: str) -> None:
    repo = txstore.Repository(url, retention=2 if kind == "fold" else None)
    number = 0
    while not os.path.exists(stop):
        number += 1
        try:
            if kind == "vacuum":
                repo.vacuum()
            elif kind == "optimize":
                repo.optimize()
            elif kind == "branch":
                name = f"b{os.getpid()}"
                repo.branches[name] = repo.head()  # type: ignore[assignment]
                change(repo, {"o/1": b"%d" % number}, name)
                del repo.branches[name]
            else:
                repo.run(lambda store: store.__setitem__(f"k/{number % 20}", b"%d" % number))  # noqa: B023
        except (txstore.ConflictError, txstore.SnapshotExpiredError, txstore.CommitNotFoundError):
            continue  # what others have overtaken


def erase(url: str) -> None:
    txstore.Repository(url).erase("s", timeout=None)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_killed", [False, True])
def test_beside_all_of_them(filled: Repository, tmp_path: Path, is_killed: bool) -> None:
    stop = tmp_path / "stop"
    kinds = ("vacuum", "branch", "fold", "optimize")
    others = [Worker(upkeep, filled.url, kind, str(stop), context=QUICK) for kind in kinds]
    version = filled.head().version  # type: ignore[union-attr]
    with ended(*others):
        wait_until(lambda: filled.head().version > version + 3)  # type: ignore[union-attr]
        if is_killed:
            dying = Worker(erase, filled.url, context=QUICK)
            with ended(dying):
                wait_until(lambda: bool(filled.erasures()) or dying.answered())
        there(erase, filled)
        stop.touch()
        for other in others:
            other.result()
    assert leaks(filled) == []
    assert all(erasure.finished is not None for erasure in filled.erasures())


@pytest.mark.parametrize("then", ["stored", "stored, and no answer", "vacuumed"])
def test_a_head_cache_that_a_process_writes_late_has_nothing_of_it(monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """On an object store it holds the end of a commit file, and its process may stand still before it is written."""
    url = f"memory://{uuid.uuid4()}/data.tx"
    writer = txstore.Repository(url)
    objects, goes_on, stands = objects_of(writer), threading.Event(), threading.Event()
    put = objects.put

    def put_late(path: str, parts: list[bytes]) -> None:
        if path.startswith("heads/") and not goes_on.is_set():
            stands.set()
            goes_on.wait(TIMEOUT)
        put(path, parts)
        if path.startswith("heads/") and len(parts[0]) > records.HEAD_CACHE_SIZE and then == "stored, and no answer":
            raise ConnectionError

    monkeypatch.setattr(objects, "put", put_late)
    change(writer, {"s/c/0": SECRET})
    assert stands.wait(TIMEOUT)
    eraser = txstore.Repository(url)
    eraser.erase("s")
    if then == "vacuumed":
        eraser.vacuum(keep=1)
    finish_head_cache(eraser)
    goes_on.set()
    finish_head_cache(writer)
    assert head_cache_of(writer).version == 0  # it was written, and late
    assert [path for path, _ in below(objects) if SECRET[:100] in bytes(objects.get(path))] == []
    assert txstore.Repository(url).head() == eraser.head()


def head_cache_of(repo: Repository) -> records.HeadCache:
    return records.HeadCache.decode(objects_of(repo).get("heads/main")[: records.HEAD_CACHE_SIZE])
