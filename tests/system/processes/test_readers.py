"""Readers beside writers: each snapshot is one commit, whole, and a later snapshot is never an older commit."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.long


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
