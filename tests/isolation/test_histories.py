"""Histories of several processes, some of which are killed, checked for anomalies.

TXSTORE_HISTORIES says how many transactions each history has; there is one for each workload and isolation level.
"""

import os
import random
import time
from collections import Counter
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

import txstore
from tests import reliability
from tests.isolation.checker import check
from tests.isolation.clients import WORKLOADS, read_all, run, set_up
from tests.isolation.histories import Txn, merge, optimize
from tests.tools.workers import QUICK, TIMEOUT

pytestmark = pytest.mark.long

TRANSACTIONS = int(os.environ.get("TXSTORE_HISTORIES", "120"))
PROCESSES = 3
OPTIMIZED = 0.02  # of what is heard is followed by an `optimize`
MERGED = 0.02  # and by the merge of a branch
KILLED = 0.02  # of the transactions end with the death of their process


class Running:
    """One client process after the other, each taking up where the one before was killed."""

    def __init__(self, repo: txstore.Repository, number: int, *arguments: str) -> None:
        self.repo = repo
        self.number = number
        self.arguments = arguments  # of `run`: isolation, workload, and a clause to leave out
        self.history: list[Txn] = []
        self.deaths = 0
        self.about: tuple[Txn, str] | None = None
        self.start()

    def start(self) -> None:
        self.pipe, theirs = QUICK.Pipe(duplex=False)
        seed = 1 + self.number + PROCESSES * self.deaths
        left = TRANSACTIONS // PROCESSES - len(self.history)
        arguments = theirs, self.repo.url, self.number, seed, left, *self.arguments
        self.process = QUICK.Process(target=run, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def hear(self) -> bool:
        """Take what the process says; return whether it goes on."""
        try:
            what, said = self.pipe.recv()
        except EOFError as error:
            raise AssertionError("a client has failed: see its traceback above") from error
        if what == "about":
            self.about = said
        elif what == "done":
            self.history.append(said)
            self.about = None
        return what != "end"

    def kill(self) -> bool:
        """Kill the process, find out what it has done, and start another; return whether there is more to do."""
        self.process.kill()
        self.process.join(TIMEOUT)
        try:
            while self.hear():
                pass
        except (AssertionError, OSError):
            pass
        if self.about is not None:
            txn, commit_id = self.about
            commit = self.repo.resolve(commit_id)
            self.history.append(txn._replace(aborted=commit is None, commit=None if commit is None else commit.seq))
            self.about = None
        self.pipe.close()
        self.deaths += 1
        if len(self.history) >= TRANSACTIONS // PROCESSES:
            return False
        self.start()
        return True


def record(repo: txstore.Repository, isolation: str, workload: str, without: str = "") -> tuple[list[Txn], int]:
    """Return a history, and how many of its processes were killed."""
    history = [set_up(repo, workload)]
    optimized: list[Txn] = []
    chance = random.Random(7)
    clients = [Running(repo, number, isolation, workload, without) for number in range(PROCESSES)]
    going: dict[Connection | Any, Running] = {client.pipe: client for client in clients}
    deadline = time.monotonic() + TIMEOUT + TRANSACTIONS
    try:
        while going:
            assert time.monotonic() < deadline, "the clients don't come to an end"
            for pipe in wait(list(going), timeout=TIMEOUT):
                client = going.pop(pipe)
                if chance.random() < OPTIMIZED:
                    optimized += optimize(repo)
                if chance.random() < MERGED:
                    optimized += merge(repo, chance.randrange(5))
                if client.hear():
                    if client.about is None or chance.random() >= KILLED or client.kill():
                        going[client.pipe] = client
                else:
                    client.process.join(TIMEOUT)
    finally:
        for client in clients:
            client.process.kill()
            client.process.join(TIMEOUT)
            client.pipe.close()
    for client in clients:
        history += client.history
    return [*history, *optimized, read_all(repo, workload)], sum(client.deaths for client in clients)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
@pytest.mark.parametrize("workload", list(WORKLOADS))
@pytest.mark.timeout(2 * TIMEOUT + TRANSACTIONS)
def test_histories(repo: txstore.Repository, workload: str, isolation: str, capsys: pytest.CaptureFixture[str]) -> None:
    with reliability.counting("isolation") as counts:
        history, deaths = record(repo, isolation, workload)
        anomalies = check(history, isolation)
        counts.update({"transactions": len(history), "histories": 1, "processes killed": deaths})
        counts[reliability.FAILURES] += len(anomalies)
    ends = Counter("aborted" if txn.aborted else "read only" if txn.commit is None else "committed" for txn in history)
    with capsys.disabled():
        print(
            f"\n1 history of {len(history)} transactions checked ({workload}, {isolation}): "
            + ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
            + f", {deaths} processes killed, {len(anomalies)} anomalies"
        )
    assert anomalies == []
    assert ends["committed"] > TRANSACTIONS // 10, "hardly anything was done"


@pytest.mark.parametrize(
    ("isolation", "workload", "without", "expected"),
    [("snapshot", "lists", "set", "lost update"), ("serializable", "lists", "read", "G2")],
)
@pytest.mark.timeout(4 * TIMEOUT + 4 * TRANSACTIONS)
def test_a_rule_that_does_not_hold(open_repo, isolation, workload, without, expected):
    """The processes leave out one clause: it takes them few transactions to leave an anomaly behind."""
    found: set[str] = set()
    for attempt in range(10):  # the first will do, unless the processes happen to run one after the other
        history, _ = record(open_repo(f"{attempt}.tx", durability="none"), isolation, workload, without)
        found |= {anomaly.name for anomaly in check(history, isolation)}
        if expected in found:
            return
    raise AssertionError(f"nothing but {found}")
