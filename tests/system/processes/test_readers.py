"""Readers beside writers: each snapshot is one commit, whole, and a later snapshot is never an older commit."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import txstore
from tests.tools.workers import SPAWN, TIMEOUT, Worker, ended, in_time

pytestmark = pytest.mark.long

KEYS = [f"chunk/{i}" for i in range(8)]
READERS = 2


def write_generations(barrier, moved, path, generations: int, durability: str) -> int:
    repo = txstore.Repository(path, durability=durability)
    barrier.wait()
    for generation in range(1, generations):
        if generation == generations - 1:
            wait_for_readers(moved)
        tx = repo.begin()
        for i, key in enumerate(KEYS):
            tx[key] = b"%d" % generation * (1 + generation * i % 300)  # of various lengths, aligned and not
        tx.commit()
    return generations


def wait_for_readers(moved) -> None:
    """Before the last commit: each reader has seen the first one, and one in the middle, however slow it is."""
    for _ in range(READERS):
        assert moved.acquire(timeout=TIMEOUT), "a reader sees nothing new"


def note(generation: int, seen: set[int], barrier, moved) -> None:
    """Note a commit that a reader sees. The writer begins at the first one, and ends after another one."""
    if generation not in seen:
        seen.add(generation)
        if len(seen) == 1:
            barrier.wait()
        elif len(seen) == 2:
            moved.release()


def read_generations(barrier, moved, path, done) -> tuple[int, int]:
    """Read until the writer is done. Returns how often, and how many commits were seen."""
    repo = txstore.Repository(path)
    last, rounds = 0, 0
    seen: set[int] = set()
    while not done.is_set() or not rounds:
        snapshot = repo.snapshot() if rounds % 2 else txstore.Repository(path).snapshot()
        generation = snapshot.base.version
        assert generation >= last, f"version {generation} after version {last}"
        for i, key in enumerate(KEYS):
            expected = b"%d" % generation * (1 + generation * i % 300)
            assert snapshot[key] == expected, f"{key} is not of commit {generation}"
        assert list(snapshot) == sorted(KEYS)
        note(generation, seen, barrier, moved)
        last, rounds = generation, rounds + 1
    return rounds, len(seen)


@pytest.mark.parametrize(("generations", "durability"), [(2000, "none"), (150, "fsync")])
def test_what_is_read_is_one_commit(repo, generations, durability):
    with repo.transaction() as store:
        for key in KEYS:
            store[key] = b"0"
    done = SPAWN.Event()
    barrier, moved = SPAWN.Barrier(1 + READERS, timeout=TIMEOUT), SPAWN.Semaphore(0)
    readers = [Worker(read_generations, barrier, moved, repo.url, done) for _ in range(READERS)]
    writer = Worker(write_generations, barrier, moved, repo.url, generations, durability)
    with ended(writer, *readers):
        try:
            while durability == "fsync" and not writer.answered():
                assert repo.verify().faults == []  # what is committed meanwhile is no fault
            writer.result()
        finally:
            done.set()
        for reader in readers:
            rounds, seen = reader.result()
            assert rounds >= seen > 1
    assert repo.head().version == generations - 1


def test_threads_that_share_a_repository(open_repo):
    """A search for the head that was overtaken by another thread's is not a head that went backwards."""
    repo = open_repo(durability="none")
    with repo.transaction() as store:
        store["a"] = b"0"
    done = threading.Event()

    def read() -> int:
        last = rounds = 0
        while not done.is_set() or not rounds:
            snapshot = repo.snapshot()
            assert snapshot["a"] == b"%d" % snapshot.base.version
            assert snapshot.base.version >= last
            last, rounds = snapshot.base.version, rounds + 1
        return rounds

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            for i in range(1, 300):
                with repo.transaction() as store:
                    store["a"] = b"%d" % i
        finally:
            done.set()
        assert all(reader.result() > 0 for reader in readers)


# --- a committer that stands still while it holds the lock
def commit_and_hang(path, hanging) -> None:
    """Commit, and stop between the rename and the release of the lock."""
    repo = txstore.Repository(path)

    def write_head_cache(*_, **__):
        hanging.set()
        time.sleep(3600)

    repo.engine.commits.store.head_caches.write = write_head_cache
    with repo.transaction("hung") as store:
        store["a"] = b"2"


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP here")
def test_a_stopped_committer_blocks_no_reader(repo):
    with repo.transaction("first") as store:
        store["a"] = b"1"
    old = repo.snapshot()
    hanging = SPAWN.Event()
    hung = Worker(commit_and_hang, repo.url, hanging)
    with ended(hung):
        assert hanging.wait(60)
        os.kill(hung.process.pid, signal.SIGSTOP)

        def read() -> None:
            for _ in range(20):
                assert txstore.Repository(repo.url).snapshot()["a"] == b"2"
                assert repo.snapshot()["a"] == b"2"
                assert old["a"] == b"1"
                assert [commit.message for commit in repo.log()] == ["hung", "first"]
            assert repo.verify().faults == []

        in_time(read)
        # Another committer waits, and goes on as soon as the stopped one is gone.
        tx = repo.begin()
        tx["b"] = b"3"
        waiting = threading.Thread(target=tx.commit)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        hung.process.kill()
        waiting.join(60)
        assert not waiting.is_alive()
    assert dict(repo.mapping()) == {"a": b"2", "b": b"3"}
