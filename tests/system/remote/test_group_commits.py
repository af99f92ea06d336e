"""Processes that make commits together, and are killed while they do, at whatever step they are.

TXSTORE_TRAIN_COMMITS is how many commits each of those makes that are not killed.
"""

import os
from pathlib import Path

import pytest

import txstore
from tests.system.remote.conftest import with_engine
from tests.system.remote.killing import acknowledged, kill_in_turn
from tests.system.remote.proxy import Faults, Proxy
from tests.tools.inside import stored_commit
from tests.tools.workers import QUICK, Worker, ended
from txstore.history import branches_in_objects, group_commits

pytestmark = pytest.mark.long

COMMITS = int(os.environ.get("TXSTORE_GROUP_COMMIT_COMMITS", 8))
WRITERS, KILLED = 6, 3


def write(url: str, options: dict[str, object], writer: int, commits: int, acknowledged: str) -> None:
    """Make commits; a line of a file says of each that it was acknowledged."""
    group_commits._PATIENCE_SECONDS = branches_in_objects._PATIENCE = 0.3
    repo = txstore.Repository(url, storage_options=options)
    with Path(acknowledged).open("ab", buffering=0) as told:
        for number in range(commits):
            with repo.transaction(f"{writer}/{number}") as store:
                store[f"{writer}/c/{number}"] = f"{writer}/{number}".encode()
            told.write(f"{writer}/{number}\n".encode())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("faults", [{}, {"lost": 0.1, "delayed": 0.3, "delay": 0.03}], ids=["well", "lost"])
def test_writers_are_killed(server_of, tmp_path, faults):
    server = with_engine(server_of("s3"), "obstore")
    with Proxy(server.port) as proxy:
        through = server.with_options(endpoint_url=proxy.url)
        url, options = through.url(), through.storage_options
        with txstore.Repository(url, storage_options=options).begin("first") as mapping:
            mapping["a"] = b"0"
        proxy.faults = Faults(seed=3, methods=frozenset({"PUT", "GET"}), **faults)
        files = [tmp_path / f"{writer}" for writer in range(WRITERS)]

        workers = [
            Worker(write, url, options, writer, 1000 if writer < KILLED else COMMITS, str(files[writer]), context=QUICK)
            for writer in range(WRITERS)
        ]
        with ended(*workers):
            kill_in_turn(workers[:KILLED], files, COMMITS)
            for worker in workers[KILLED:]:
                worker.result()
        proxy.faults = Faults()

    repo = txstore.Repository(url, storage_options=server.storage_options)
    log = list(repo.log())
    made = [commit.message for commit in log if commit.message != "first"]
    assert [commit.version for commit in log] == list(range(len(log)))[::-1]
    assert len(made) == len(set(made)), "a commit was made twice"
    told = acknowledged(files)
    assert set(told) <= set(made), "a commit that was acknowledged is lost"
    assert len(set(made) - set(told)) <= KILLED, "of each that was killed, one commit at most is not acknowledged"
    assert {key.replace("/c/", "/") for key in repo.mapping() if key != "a"} == set(made)
    stored = [stored_commit(repo, version) for version in range(len(log))]
    assert any(each.header.group_commit for each in stored), "nobody has met anybody"
    assert repo.verify().faults == []
