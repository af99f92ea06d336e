"""Exclusive creation, proved: two processes with 16 threads each go for the same names, one of them gets each.

TXSTORE_RACE_ROUNDS is the number of names; the promise of docs/how-to/remote.md is for 200.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.system.remote.conftest import STORES
from tests.tools.workers import QUICK
from txstore.storage.objects.interface import ObjectStore, open_objects

pytestmark = pytest.mark.long

ROUNDS = int(os.environ.get("TXSTORE_RACE_ROUNDS", 6))
PROCESSES = 2
THREADS = 16
TIMEOUT = 120


def content_of(process: int, thread: int, round_number: int) -> bytes:
    return f"{process}/{thread}/{round_number}".encode() * 1000


def race(url: str, options: dict[str, Any], process: int, barrier: Any, rounds: int, results: Any) -> None:
    """Every thread of every process creates the same object, in each round a new one."""
    store = open_objects(url, options)
    store.exists("warm")  # connected before the start
    wins: list[tuple[int, int]] = []
    local = threading.Barrier(THREADS, action=lambda: barrier.wait(TIMEOUT))

    def run(thread: int) -> None:
        for number in range(rounds):
            local.wait(TIMEOUT)
            try:
                store.create(f"versions/{number}", [content_of(process, thread, number)])
            except FileExistsError:
                continue
            wins.append((number, thread))

    with ThreadPoolExecutor(THREADS) as threads:
        for each in [threads.submit(run, thread) for thread in range(THREADS)]:
            each.result()
    results.put((process, wins))


def winners(url: str, options: dict[str, Any], rounds: int) -> dict[int, list[tuple[int, int]]]:
    """Return who believes to have created each object."""
    barrier = QUICK.Barrier(PROCESSES)
    results = QUICK.Queue()
    arguments = [(url, options, process, barrier, rounds, results) for process in range(PROCESSES)]
    processes = [QUICK.Process(target=race, args=each, daemon=True) for each in arguments]
    for each in processes:
        each.start()
    try:
        found: dict[int, list[tuple[int, int]]] = {number: [] for number in range(rounds)}
        for _ in processes:
            process, wins = results.get(timeout=TIMEOUT)
            for number, thread in wins:
                found[number].append((process, thread))
        return found
    finally:
        for each in processes:
            each.join(5)
            each.kill()
            each.join()


def check(store: ObjectStore, found: dict[int, list[tuple[int, int]]]) -> None:
    for number, who in found.items():
        assert len(who) == 1, f"round {number} was won by {who}"
        assert store.get(f"versions/{number}") == content_of(*who[0], number)
    assert sorted(int(each.name) for each in store.list("versions")) == sorted(found)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(set(STORES) - {"memory"}))
def test_one_creator_wins(name, server_of):
    kind, engine = STORES[name]
    server = server_of(kind).with_options(txstore_engine=engine)
    url = server.url()
    found = winners(url, server.storage_options, ROUNDS)
    check(open_objects(url, server.storage_options), found)
