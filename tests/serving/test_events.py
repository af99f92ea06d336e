"""Commits as they come: one look at the repository for all who listen."""

from __future__ import annotations

import json
from typing import Any

import zarr

import txstore
from tests.serving.asking import Answer, ask
from tests.serving.client import Connection
from txstore.serving import application
from txstore.serving.server import Server


def told(event: str) -> tuple[str, Any]:
    fields = dict(line.split(": ", 1) for line in event.strip().splitlines())
    return fields["event"], json.loads(fields["data"])


async def next_of(connection: Connection, kind: str) -> Any:
    while True:
        found, data = told(await connection.event())
        if found == kind:
            return data


def commit(repo: txstore.Repository, value: int, branch: str = "main") -> txstore.Commit:
    with repo.transaction(f"set {value}", branch=branch) as store:
        zarr.open_array(store, path="three/plain")[0, 0] = value + 1  # the value that is there is no change
    found = repo.head(branch)
    assert found is not None
    return found


async def test_commits_are_told_in_order_to_all(served: Server, repo: txstore.Repository) -> None:
    head = repo.head()
    assert head is not None
    listening = [await Connection.open(served.port) for _ in range(3)]
    for each in listening:
        await each.ask("/api/events")
        status, headers = await each.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        assert await next_of(each, "heads") == {"main": head.id}
    made = [commit(repo, value) for value in range(20)]
    for each in listening:
        for expected in made:
            assert await next_of(each, "commit") == {"id": expected.id, "branch": "main"}
    repo.branches["dev"] = made[0]
    while (heads := await next_of(listening[0], "heads")) != {"main": made[-1].id, "dev": made[0].id}:
        assert set(heads) == {"main"}
    on_branch = commit(repo, 9, "dev")
    assert await next_of(listening[1], "commit") == {"id": on_branch.id, "branch": "dev"}
    for each in listening:
        await each.close()


async def test_who_leaves_is_forgotten(served: Server) -> None:
    for _ in range(300):  # more than may listen at once
        connection = await Connection.open(served.port)
        await connection.ask("/api/events")
        status, _ = await connection.head()
        assert status == 200
        await connection.close()


def test_head_of_the_stream(repo: txstore.Repository) -> None:
    answer: Answer = ask(application(repo), "/api/events", method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
