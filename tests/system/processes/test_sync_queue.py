"""Commits in the queue: synced side by side, each on top of one that is not in its version yet, and may never be."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.tools.commits import set_keys
from tests.tools.faults import always, watch
from tests.tools.waiting import TIMEOUT, wait_until
from tests.tools.workers import QUICK
from txstore.errors import ConflictError
from txstore.locks.lock_file import whose_turn
from txstore.storage import commit_lock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody queues")

OpenRepo = Callable[..., txstore.Repository]


def _commit(pipe: Connection, url: str, changes: dict[str, bytes], options: dict[str, Any]) -> None:
    """Commit; ask before each sync of the commit's file what is to become of it, and tell how it ended."""
    repo = txstore.Repository(url, **options)

    def sync() -> None:
        pipe.send("syncs")
        error = pipe.recv()
        if error:
            raise OSError(error, os.strerror(error))

    watch(repo).before["file.sync"] = sync
    transaction = repo.begin()
    for key, value in changes.items():
        transaction[key] = value
    pipe.send("begun")
    pipe.recv()
    try:
        transaction.commit()
    except Exception as error:  # noqa: BLE001 - it is told
        pipe.send((type(error), str(error)))
    else:
        pipe.send(transaction.id)


class Committer:
    """Another process, with one transaction."""

    def __init__(self, repo: txstore.Repository, changes: dict[str, bytes], **options: Any) -> None:
        self.pipe, theirs = QUICK.Pipe()
        self.process = QUICK.Process(target=_commit, args=(theirs, repo.url, changes, options), daemon=True)
        self.process.start()
        theirs.close()
        self.heard("begun")

    def heard(self, what: str) -> None:
        assert self.hear() == what

    def hear(self) -> Any:
        assert self.pipe.poll(TIMEOUT)
        return self.pipe.recv()

    def stands(self) -> Committer:
        """Return when its commit queues, and is being synced."""
        self.pipe.send(None)
        self.heard("syncs")
        return self

    def synced(self, error: int = 0) -> None:
        self.pipe.send(error)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(TIMEOUT)


@pytest.fixture
def repo(open_repo: OpenRepo) -> txstore.Repository:
    repo = open_repo()
    set_keys(repo, {"first": b"1"})
    return repo


@pytest.fixture
def begin(repo: txstore.Repository) -> Iterator[Callable[..., Committer]]:
    """Another process that has staged something, all on the same base."""
    begun: list[Committer] = []

    def begin(changes: dict[str, bytes], **options: Any) -> Committer:
        begun.append(Committer(repo, changes, **options))
        return begun[-1]

    yield begin
    for each in begun:
        each.kill()


Begin = Callable[..., Committer]


def ids(repo: txstore.Repository) -> list[str]:
    return [commit.id for commit in repo.log()]


def ended(crowd: list[Committer]) -> list[Any]:
    """Let them sync again, whoever has the turn, until all have told how their commits ended."""
    told = []
    under_way = {each.pipe: each for each in crowd}
    while under_way:
        ready = wait(list(under_way), TIMEOUT)
        assert ready
        for pipe in ready:
            committer = under_way[pipe]
            if (answer := committer.hear()) == "syncs":
                committer.synced()
            else:
                told.append(answer)
                del under_way[committer.pipe]
    return told


def whole(repo: txstore.Repository, *keys: str) -> None:
    assert set(repo.mapping()) == {"first", *keys}
    assert repo.verify().faults == []


def test_all_are_synced_at_once_and_seen_in_their_order(repo: txstore.Repository, begin: Begin) -> None:
    crowd = [begin({f"{number}": b"1"}) for number in range(4)]
    for each in crowd:
        each.stands()  # while none of those ahead is done
    assert whose_turn(f"{repo.url}/locks", "commit") is None
    for each in crowd[:0:-1]:
        each.synced()
    assert ids(repo)[0] == repo.commit(0).id  # what stands behind the first one is seen by nobody
    crowd[0].synced()
    made = [each.hear() for each in crowd]
    assert ids(repo)[::-1][1:] == made
    whole(repo, "0", "1", "2", "3")


@pytest.mark.parametrize("who", [0, 1, 2])
@pytest.mark.parametrize("how", [signal.SIGKILL, errno.EIO, errno.ENOSPC])
def test_one_in_the_queue_does_not_arrive(repo: txstore.Repository, begin: Begin, who: int, how: int) -> None:
    crowd = [begin({f"{number}": b"1"}).stands() for number in range(3)]
    lost = crowd.pop(who)
    if how == signal.SIGKILL:
        lost.kill()
    else:
        lost.synced(how)
        assert issubclass(lost.hear()[0], OSError)
    for each in crowd:
        each.synced()
    made = ended(crowd)
    assert sorted(ids(repo)[:-1]) == sorted(made)
    whole(repo, *{"0", "1", "2"} - {str(who)})


def test_who_conflicts_with_one_that_does_not_arrive_commits(repo: txstore.Repository, begin: Begin) -> None:
    first, second = begin({"a": b"first"}).stands(), begin({"a": b"second"})
    second.pipe.send(None)
    wait_until(lambda: whose_turn(f"{repo.url}/locks", "commit"))  # it waits there until it knows
    first.kill()
    second.heard("syncs")
    second.synced()
    made = second.hear()
    assert ids(repo)[0] == made
    assert repo.snapshot()["a"] == b"second"


@pytest.mark.parametrize("what", ["scratch", "branch", "of a branch"])
def test_who_does_not_queue_waits_until_it_is_empty(repo, open_repo, begin, what):
    repo.branches["dev"] = repo.commit(0)
    first, second = begin({"a": b"1"}).stands(), begin({"b": b"1"}).stands()
    other = open_repo(durability="none" if what == "scratch" else "fsync")

    def act() -> None:
        if what == "branch":
            del other.branches["dev"]
        else:
            set_keys(other, {"c": b"1"}, branch="main" if what == "scratch" else "dev")

    thread = threading.Thread(target=act)
    thread.start()
    wait_until(lambda: whose_turn(f"{repo.url}/locks", "commit"))
    for each in (second, first):
        each.synced()
    made = [first.hear(), second.hear()]
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert [repo.commit(1).id, repo.commit(2).id] == made
    whole(repo, "a", "b", *(["c"] if what == "scratch" else []))
    assert ("dev" in repo.branches) == (what != "branch")


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 40_000, bytes(40_000)], ids=["cut", "ones", "zeros"])
def test_a_line_that_says_nothing_is_waited_for(repo: txstore.Repository, begin: Begin, garbage: bytes) -> None:
    first = begin({"a": b"1"}).stands()
    path = Path(repo.url, "locks", "commit")
    if garbage:
        path.write_bytes(garbage)
    else:
        os.truncate(path, 0)
    second = begin({"b": b"1"})
    second.pipe.send(None)
    wait_until(lambda: whose_turn(f"{repo.url}/locks", "commit"))
    first.synced()
    first.hear()
    second.heard("syncs")
    second.synced()
    made = second.hear()
    assert ids(repo)[0] == made


def test_on_a_full_disk_the_turn_is_kept(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    turn: list[str | None] = []
    watch(repo).before["file.sync"] = lambda: turn.append(whose_turn(f"{repo.url}/locks", "commit"))
    set_keys(repo, {"a": b"1"})
    with monkeypatch.context() as patch:
        patch.setattr(commit_lock.os, "pwrite", always(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        set_keys(repo, {"b": b"1"})
    assert turn[0] is None
    assert turn[1] is not None
    whole(repo, "a", "b")


# --- many, and some of them killed
def _commit_on_and_on(url: str, acknowledge: Connection, number: int, round_: int) -> None:
    chance = random.Random(f"{number} {round_}")
    repo = txstore.Repository(url)
    storage = watch(repo)

    def delay(*_: object) -> None:
        if chance.random() < 0.3:
            time.sleep(chance.uniform(0, 0.004))

    def sync() -> None:
        delay()
        if chance.random() < 0.05:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    storage.before["file.sync"] = sync
    for operation in ("rename_noreplace", "write_in_place", "sync_directory", "read_tail"):
        storage.before[operation] = delay
    acknowledge.send(None)
    for each in range(1 << 30):
        key = f"{round_}/{number}/{each}"
        with contextlib.suppress(ConflictError, OSError):
            transaction = repo.begin()
            try:
                transaction[key] = b"1"
                transaction["counter"] = b"%d" % (int(transaction.get("counter", b"0")) + 1)
                transaction.commit()
            except BaseException:
                transaction.rollback()
                raise
            acknowledge.send(key)


@pytest.mark.long
def test_killed_at_random_moments_while_many_queue(repo: txstore.Repository) -> None:
    """Each acknowledged commit is there, once; what nobody was told of is there as a whole or not at all."""
    chance = random.Random(18)
    told: set[str] = set()
    for round_ in range(4):
        crowd = []
        for number in range(4):
            reading, writing = QUICK.Pipe(duplex=False)
            process = QUICK.Process(target=_commit_on_and_on, args=(repo.url, writing, number, round_), daemon=True)
            process.start()
            writing.close()
            crowd.append((process, reading))
        for _, reading in crowd:
            reading.recv()
        for process, reading in crowd:
            for _ in range(chance.randrange(1, 6)):
                told.add(reading.recv())
            process.kill()
        for process, reading in crowd:
            process.join()
            with contextlib.suppress(EOFError):
                while True:
                    told.add(reading.recv())
        found = dict(repo.mapping())
        there = found.keys() - {"first", "counter"}
        assert told <= there
        assert len(there - told) <= 4 * (round_ + 1)  # those that were killed before they could tell
        assert int(found["counter"]) == len(there) == len(list(repo.log())) - 1
        assert repo.verify().faults == []
    set_keys(repo, {"after": b"1"})
