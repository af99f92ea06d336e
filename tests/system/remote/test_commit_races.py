"""Commits of two processes with 16 threads each at one repository: each that is acknowledged is in the log, once.

TXSTORE_COMMIT_ROUNDS is how often all of them commit at once; the promise of docs/how-to/remote.md is for 200.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import txstore
from tests.system.remote.conftest import SEVERAL_WRITERS, STORES, with_engine
from tests.tools.workers import QUICK, Worker, ended

pytestmark = pytest.mark.long

ROUNDS = int(os.environ.get("TXSTORE_COMMIT_ROUNDS", 1))
STORES_RACED = [
    store
    for store in SEVERAL_WRITERS
    if store in ("s3-obstore", "sftp", "smb") or "TXSTORE_COMMIT_ROUNDS" in os.environ
]
PROCESSES = 2
THREADS = 16
REPOSITORIES = 4  # in each process: threads that share one take turns
TIMEOUT = 300

#: Who, in which round, and the id of the commit; None where the commit was refused for a conflict.
Made = tuple[int, int, int, str | None]


def wanted(thread: int, number: int) -> str:
    """Return the key that a thread writes: every other one wants the same."""
    return f"{number}/all" if thread % 2 else f"{number}/{thread}"


def value_of(process: int, thread: int, number: int) -> bytes:
    return f"{process}/{thread}/{number} ".encode() * 50


def commit_at_once(url: str, options: dict[str, Any], process: int, barrier: Any, rounds: int) -> list[Made]:
    """In each round, every thread begins a transaction, all of them at one base, and then commits."""
    repositories = [txstore.Repository(url, storage_options=options) for _ in range(REPOSITORIES)]
    local = threading.Barrier(THREADS, action=lambda: barrier.wait(TIMEOUT))
    made: list[Made] = []

    def run(thread: int) -> None:
        repo = repositories[thread % REPOSITORIES]
        for number in range(rounds):
            local.wait(TIMEOUT)
            transaction = repo.begin(f"{process}/{thread}/{number}")
            key = wanted(thread, number)
            transaction[key if key.endswith("all") else f"{process}/{key}"] = value_of(process, thread, number)
            local.wait(TIMEOUT)
            try:
                commit = transaction.commit().commit
                made.append((process, thread, number, commit.id))
            except txstore.ConflictError:
                transaction.rollback()
                made.append((process, thread, number, None))

    with ThreadPoolExecutor(THREADS) as threads:
        for each in [threads.submit(run, thread) for thread in range(THREADS)]:
            each.result()
    return made


def check(repo: txstore.Repository, made: list[Made], rounds: int) -> None:
    log = list(repo.log())
    assert [commit.version for commit in log] == list(range(len(log)))[::-1]
    assert len({commit.id for commit in log}) == len(log)
    told = {commit_id: f"{process}/{thread}/{number}" for process, thread, number, commit_id in made if commit_id}
    assert {commit.id: commit.message for commit in log} == told
    head = dict(repo.mapping())
    expected = {}
    for process, thread, number, commit_id in made:
        key = wanted(thread, number)
        if key.endswith("all"):
            if commit_id is not None:
                assert key not in expected, f"{key} was won twice"
                expected[key] = value_of(process, thread, number)
        else:
            assert commit_id is not None, f"{process}/{key}: nobody else has written it"
            expected[f"{process}/{key}"] = value_of(process, thread, number)
    assert head == expected
    assert len(head) == rounds * (PROCESSES * THREADS // 2 + 1)
    some = log[:: max(1, len(log) // 10)]
    for commit in some:
        process, thread, number = map(int, commit.message.split("/"))
        key = wanted(thread, number)
        at = repo.mapping(at=commit.version)
        assert at[key if key.endswith("all") else f"{process}/{key}"] == value_of(process, thread, number)
    assert repo.verify().faults == []


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", STORES_RACED)
def test_every_acknowledged_commit_is_there_once(name, server_of):
    kind, engine = STORES[name]
    server = with_engine(server_of(kind), engine)
    url = server.url()
    barrier = QUICK.Barrier(PROCESSES)
    workers = [
        Worker(commit_at_once, url, server.storage_options, process, barrier, ROUNDS, context=QUICK)
        for process in range(PROCESSES)
    ]
    with ended(*workers):
        made = [each for worker in workers for each in worker.result()]
    check(txstore.Repository(url, storage_options=server.storage_options), made, ROUNDS)
