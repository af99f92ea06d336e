"""Processes that append to one value, each behind the others in line, and are killed while they do.

TXSTORE_TICKET_APPENDS is how many each of those appends that are not killed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import txstore
from tests.system.processes.workers import QUICK, Worker, ended
from tests.system.remote.conftest import with_engine
from tests.system.remote.killing import acknowledged, kill_in_turn
from tests.system.remote.proxy import Faults, Proxy
from txstore.commit_queue import tickets
from txstore.format import names

pytestmark = pytest.mark.long

APPENDS = int(os.environ.get("TXSTORE_TICKET_APPENDS", 6))
WRITERS, KILLED = 6, 3


def append(url: str, options: dict[str, object], writer: int, appends: int, acknowledged: str) -> None:
    """Append to what is there; a line of a file says of each time that it was acknowledged."""
    tickets._PATIENCE_SECONDS = 0.3
    repo = txstore.Repository(url, storage_options=options)
    with Path(acknowledged).open("ab", buffering=0) as told:
        for number in range(appends):
            said = f"{writer}/{number}"

            def change(store: txstore.TxStore, said: str = said) -> None:
                known = json.loads(bytes(store.mapping["log"]))
                store["log"] = json.dumps([*known, said]).encode()

            repo.run(change, message=said)
            told.write(f"{said}\n".encode())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("faults", [{}, {"lost": 0.1, "delayed": 0.3, "delay": 0.03}], ids=["well", "lost"])
def test_those_in_line_are_killed(server_of, tmp_path, faults):
    server = with_engine(server_of("s3"), "obstore")
    with Proxy(server.port) as proxy:
        through = server.with_options(endpoint_url=proxy.url)
        url, options = through.url(), through.storage_options
        with txstore.Repository(url, storage_options=options).begin("first") as mapping:
            mapping["log"] = b"[]"
        proxy.faults = Faults(seed=3, methods=frozenset({"PUT", "GET", "POST"}), **faults)
        files = [tmp_path / f"{writer}" for writer in range(WRITERS)]

        workers = [
            Worker(
                append, url, options, writer, 1000 if writer < KILLED else APPENDS, str(files[writer]), context=QUICK
            )
            for writer in range(WRITERS)
        ]
        with ended(*workers):
            kill_in_turn(workers[:KILLED], files, APPENDS)
            for worker in workers[KILLED:]:
                worker.result()
        assert any("/wait-" in each.path for each in proxy.log if each.method == "PUT"), "nobody has met anybody"
        proxy.faults = Faults()

    repo = txstore.Repository(url, storage_options=server.storage_options)
    log = list(repo.log())
    made = [commit.message for commit in log if commit.message != "first"][::-1]
    assert [commit.version for commit in log] == list(range(len(log)))[::-1]
    assert json.loads(bytes(repo.mapping()["log"])) == made, "somebody has not seen what was there"
    assert len(made) == len(set(made)), "an append was made twice"
    told = acknowledged(files)
    assert set(told) <= set(made), "an append that was acknowledged is lost"
    assert len(set(made) - set(told)) <= KILLED, "of each that was killed, one at most is not acknowledged"
    assert repo.verify().faults == []
    repo.vacuum()
    left = repo.engine.storage.list(names.commits_directory("main"))
    assert [file for file in left if names.parse_ticket(file) is not None] == []
