"""What the processes of a torture do until they are killed, besides writing under locks (`torture.write`).

Every commit says in a marker of its own what it did, so that what stands at the head can be checked even when a vacuum
has given the log up.
"""

import os
import random
import time
from datetime import timedelta

import txstore
from tests.tools.faults import watch

CHILDREN = 2
LONGEST_PAUSE = 0.02  # seconds


def marker(name: str) -> str:
    return f"done/{name}"


def part(name: str, number: int) -> str:
    return f"parts/{name}/{number}"


def cooperate(url: str, seed: int, tell: int) -> None:
    """Commit, all or nothing, what forked children have written."""
    repo = _delayed(url, seed)
    for number in range(1 << 30):
        name = f"{seed}.{number}"
        with repo.transaction(name) as store:
            children = [_child(store, name, each) for each in range(CHILDREN)]
            for child in children:
                if os.waitpid(child, 0)[1]:
                    raise RuntimeError("a child has failed")
            store[marker(name)] = b"%d" % CHILDREN
            os.write(tell, f"begun {name}\n".encode())
        os.write(tell, f"done {name}\n".encode())


def _child(store: txstore.TxStore, name: str, number: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            with store:
                store[part(name, number)] = name.encode()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def read(url: str, seed: int, tell: int) -> None:
    """Read snapshots that must be whole, and stay so for as long as they are held."""
    repo = _delayed(url, seed)
    chance = random.Random(seed)
    while True:
        try:
            snapshot = repo.snapshot()
        except txstore.SnapshotExpiredError:
            continue  # between being found and being pinned
        first = check(snapshot)
        time.sleep(chance.uniform(0, LONGEST_PAUSE))
        if check(snapshot) != first:
            raise RuntimeError("a snapshot has changed")
        os.write(tell, b"read\n")


def check(store: txstore.TxStore) -> dict[str, int]:
    """Compare the keys of a snapshot with its markers; return the latter. Raises `RuntimeError`."""
    keys = list(store)
    markers = {key.removeprefix("done/"): int(store[key]) for key in keys if key.startswith("done/")}
    parts = {key: bytes(store[key]).decode() for key in keys if key.startswith("parts/")}
    numbers = [int(store[key]) for key in keys if key.startswith("x/c/")]
    cooperative = {name: count for name, count in markers.items() if part(name, 0) in parts}
    if sum(numbers) != sum(count for name, count in markers.items() if name not in cooperative):
        raise RuntimeError("values and markers do not agree")
    if parts != {part(name, each): name for name, count in cooperative.items() for each in range(count)}:
        raise RuntimeError("a cooperative commit is there in part")
    return markers


def follow(url: str, seed: int, tell: int) -> None:
    """Meet every commit once, in order."""
    repo = _delayed(url, seed)
    last = None
    for commit in repo.follow():
        if last is not None and commit.version != last + 1:
            raise RuntimeError(f"version {commit.version} came after {last}")
        last = commit.version
        os.write(tell, b"followed\n")


def optimize(url: str, seed: int, tell: int) -> None:
    repo = _delayed(url, seed)
    chance = random.Random(seed)
    while True:
        os.write(tell, b"looked\n" if repo.optimize() is None else b"optimized\n")
        time.sleep(chance.uniform(0, LONGEST_PAUSE))


def vacuum(url: str, seed: int, tell: int) -> None:
    repo = _delayed(url, seed)
    chance = random.Random(seed)
    while True:
        wanted = chance.choice(({}, {"keep": chance.randint(1, 20)}, {"older_than": timedelta(seconds=0.2)}))
        os.write(tell, b"vacuumed\n" if repo.vacuum(**wanted).files else b"looked\n")
        time.sleep(chance.uniform(0, LONGEST_PAUSE))


def _delayed(url: str, seed: int) -> txstore.Repository:
    repo = txstore.Repository(url, durability="none")
    delay_operations(repo, random.Random(seed))
    return repo


def delay_operations(repo: txstore.Repository, chance: random.Random) -> None:
    """Let operations of the storage, now and then, take their time."""
    storage = watch(repo)

    def delay(*_: object) -> None:
        if chance.random() < DELAYED:
            time.sleep(chance.uniform(0, LONGEST_DELAY))

    for operation in ("create", "file.write", "rename_noreplace", "lock", "write_in_place", "map", "delete", "list"):
        storage.before[operation] = storage.after[operation] = delay


DELAYED = 0.1  # of the operations
LONGEST_DELAY = 0.002  # seconds

ROLES = {"cooperate": cooperate, "read": read, "follow": follow, "optimize": optimize, "vacuum": vacuum}
