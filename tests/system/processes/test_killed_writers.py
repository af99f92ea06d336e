"""Writers killed at random moments: every commit that was acknowledged is there, and the next writer goes on."""

import random
import time

import pytest

import txstore
from tests.tools.workers import QUICK

pytestmark = pytest.mark.long

ROUNDS = 12  # in each of the repositories


def value(number: int) -> bytes:
    return b"%d " % number * (1 + number * 37 % 2000)


def write(path, acknowledge, durability: str, first: int) -> None:
    """Commit numbers one after another and tell each when it is committed, until killed."""
    repo = txstore.Repository(path, durability=durability)
    acknowledge.send(first - 1)
    for number in range(first, 1 << 30):
        tx = repo.begin()
        tx[f"number/{number}"] = value(number)
        tx["last"] = b"%d" % number
        tx.commit()
        acknowledge.send(number)


def acknowledged(pipe) -> int:
    last = -1
    try:
        while True:
            last = pipe.recv()
    except EOFError:
        return last


@pytest.mark.parametrize(("durability", "repositories"), [("fsync", 5), ("none", 2)])
def test_kill_at_random_moments(open_repo, durability, repositories):
    chance = random.Random(durability)
    for number in range(repositories):
        repo = open_repo(f"{number}.tx")
        following = 0
        for _ in range(ROUNDS):
            reading, writing = QUICK.Pipe(duplex=False)
            process = QUICK.Process(target=write, args=(repo.url, writing, durability, following), daemon=True)
            process.start()
            writing.close()
            assert reading.recv() == following - 1  # it is up
            time.sleep(chance.uniform(0, 0.03))
            process.kill()
            process.join()
            last = max(acknowledged(reading), following - 1)

            found = dict(txstore.Repository(repo.url).mapping()) if repo.exists else {}
            there = int(found.pop("last", b"-1"))
            assert there in (last, last + 1)  # the last one may have been killed before it could tell
            assert found == {f"number/{n}": value(n) for n in range(there + 1)}
            if repo.exists:
                assert repo.verify().faults == []
                assert len(list(repo.log())) == there + 1
            following = there + 1
        with repo.transaction("and on it goes") as store:
            store["after"] = b"1"
        assert repo.snapshot()["after"] == b"1"
