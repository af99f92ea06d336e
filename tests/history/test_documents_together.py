"""Documents on an object store lie beside one another: who opens a group does not ask for each of them."""

import asyncio
import json
import uuid
from typing import Any

import pytest
from zarr.core.buffer import default_buffer_prototype

import txstore
from tests.tools.far_away import Requests
from tests.tools.inside import empty_caches, objects_of

NODES = 80


def document(number: int) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"number": number}}).encode()


def write(store: Any, numbers: range) -> None:
    for number in numbers:
        store[f"a{number:03}/zarr.json"] = document(number)
        store[f"a{number:03}/c/0"] = bytes([number % 250]) * (256 << 10)


def read_documents(url: str, requests: Requests) -> int:
    """Return how many requests it takes, for a process that has read nothing before."""
    snapshot = txstore.Repository(url).mapping()
    empty_caches()
    requests.clear()
    for number in range(NODES):
        assert snapshot[f"a{number:03}/zarr.json"] == document(number)
    return len(requests)


def test_when_the_commit_meets_others(requests: Requests) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    repo = txstore.Repository(url)
    store = repo.transaction()
    write(store.mapping, range(NODES))
    with txstore.Repository(url).transaction() as other:
        other["b/zarr.json"] = document(1)
    store.commit()
    assert read_documents(url, requests) <= 4
    assert repo.snapshot().mapping["b/zarr.json"] == document(1)
    assert repo.verify().ok


def test_of_many_commits_after_optimize(requests: Requests) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    repo = txstore.Repository(url)
    for number in range(NODES):
        with repo.transaction() as store:
            write(store.mapping, range(number, number + 1))
    assert read_documents(url, requests) >= NODES // 2
    repo.optimize()
    assert read_documents(url, requests) <= 4
    assert repo.verify().ok
    assert all(repo.mapping()[f"a{number:03}/c/0"] == bytes([number]) * (256 << 10) for number in range(NODES))


async def members(store: Any) -> dict[str, Any]:
    """Return the documents of a group's members as zarr reads them: it lists the group, then asks for each."""
    names = [name async for name in store.list_dir("")]
    keys = [f"{name}/zarr.json" for name in names if name != "zarr.json"]
    found = await asyncio.gather(*[store.get(key, default_buffer_prototype()) for key in keys])
    return {key: value.to_bytes() for key, value in zip(keys, found, strict=True)}


@pytest.fixture
def many_commits() -> str:
    url = f"memory://{uuid.uuid4().hex}"
    repo = txstore.Repository(url)
    with repo.transaction() as store:
        store["zarr.json"] = document(0)
    for number in range(NODES):
        with repo.transaction() as store:
            write(store, range(number, number + 1))
    empty_caches()
    return url


def test_what_is_wrong_with_a_member_is_told_to_whoever_reads_it(many_commits: str) -> None:
    store = txstore.Repository(many_commits).snapshot()
    found = store.mapping.lookup("a007/zarr.json")
    path = store.mapping.runs.pack_name(found.run, found.pack).path
    objects_of(txstore.Repository(many_commits)).delete([path])

    async def read() -> None:
        assert len([name async for name in store.list_dir("")]) == NODES + 1
        assert await store.get("a008/zarr.json", default_buffer_prototype()) is not None
        with pytest.raises(txstore.CorruptionError, match="missing"):
            await store.get("a007/zarr.json", default_buffer_prototype())

    asyncio.run(read())


def test_a_writer_has_them_at_hand_too(many_commits: str, requests: Requests) -> None:
    with txstore.Repository(many_commits).transaction() as store:

        async def read() -> int:
            names = [name async for name in store.list_dir("")]
            requests.clear()
            for name in names[:NODES]:
                assert await store.get(f"{name}/zarr.json", default_buffer_prototype()) is not None
            return len(requests)

        assert asyncio.run(read()) == 0
        store["a000/zarr.json"] = document(7)
        assert asyncio.run(members(store))["a000/zarr.json"] == document(7)
