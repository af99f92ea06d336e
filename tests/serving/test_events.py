"""Commits as they come: one look at the repository for all who listen."""

import asyncio
import json
from typing import Any

import zarr

import txstore
from tests.serving.asking import Answer, ask
from tests.serving.client import Connection
from txstore.serving import application
from txstore.serving.events import client_of
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
    listening = [await Connection.open(served.port) for _ in range(3)]
    for each in listening:
        await each.ask("/api/events")
        status, headers = await each.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "default-src 'none'; sandbox"
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


async def open_many(served: Server, count: int, address: str = "127.0.0.1") -> list[Connection]:
    found = []
    for _ in range(count):
        found.append(await Connection.open(served.port, address))
        await found[-1].ask("/api/events")
    return found


async def test_one_client_does_not_take_the_places_of_all(served: Server) -> None:
    mine = await open_many(served, 40)
    answers = [await each.head() for each in mine]
    taken = [each for each, (status, _) in zip(mine, answers, strict=True) if status == 200]
    refused = [each for each, (status, _) in zip(mine, answers, strict=True) if status == 429]
    assert len(taken) == 16
    assert len(refused) == 24
    about = next(headers for status, headers in answers if status == 429)
    body = await refused[0].reader.readexactly(int(about["content-length"]))
    assert "16 event streams" in json.loads(body)["error"]["message"]
    assert about["retry-after"]
    [other] = await open_many(served, 1, "127.0.0.2")  # which is another machine, to the server
    assert (await other.head())[0] == 200
    await taken[0].close()

    async def again() -> bool:
        [each] = await open_many(served, 1)
        status, _ = await each.head()
        await each.close()
        return status == 200

    while not await again():  # until the server has seen that one has left; the test's time limit bounds it
        await asyncio.sleep(0.01)
    for each in [*mine, other]:
        await each.close()


async def test_all_clients_together_have_a_limit(served: Server) -> None:
    listening = []
    for number in range(16):
        listening += await open_many(served, 16, f"127.0.1.{number + 1}")
    assert {(await each.head())[0] for each in listening} == {200}
    [last] = await open_many(served, 1, "127.0.2.1")
    assert (await last.head())[0] == 503
    for each in [*listening, last]:
        await each.close()


def test_an_ipv6_client_is_its_network() -> None:
    """One machine has all addresses of a /64."""
    one, same, other = (client_of({"client": (host, 1)}) for host in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"))
    assert one == same != other
    assert client_of({"client": ("::ffff:10.0.0.1", 1)}) == client_of({"client": ("10.0.0.1", 1)})
    assert client_of({"client": ("fe80::1%eth0", 1)}) != one
    assert client_of({"client": None}) == client_of({}) == client_of({"client": ("testclient", 1)}) == ""


def test_head_of_the_stream(repo: txstore.Repository) -> None:
    answer: Answer = ask(application(repo), "/api/events", method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
