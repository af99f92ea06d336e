"""Documents on an object store lie beside one another: who opens a group does not ask for each of them."""

import asyncio
import json
import uuid
from functools import partial
from typing import Any

import pytest
from zarr.core.buffer import default_buffer_prototype

import txstore
from tests.tools.far_away import Requests
from tests.tools.inside import objects_of
from txstore.storage.kept import PackCache
from txstore.storage.objects.client import ObjectClient

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
    PackCache().forget_all()
    requests.clear()
    for number in range(NODES):
        assert snapshot[f"a{number:03}/zarr.json"] == document(number)
    return len(requests)


def test_of_one_commit_the_last_of_several_are_laid_there(requests: Requests) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    repo = txstore.Repository(url)
    with repo.transaction() as store:
        write(store.mapping, range(NODES))
        for number in range(NODES):
            store.mapping[f"a{number:03}/zarr.json"] = document(1000 + number)
            store.mapping[f"a{number:03}/zarr.json"] = document(number)
        del store.mapping["a079/zarr.json"]
        store.mapping["a079/zarr.json"] = document(79)
    assert read_documents(url, requests) <= 4
    assert repo.verify().ok


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
    PackCache().forget_all()
    return url


def test_who_lists_a_group_has_its_members_at_hand(many_commits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = txstore.Repository(many_commits).snapshot()
    in_thread = txstore.zarr_interface.in_thread

    async def to_list(function: Any, *arguments: Any) -> Any:
        assert not isinstance(function, partial), "a document is asked for by itself"
        return await in_thread(function, *arguments)

    monkeypatch.setattr(txstore.zarr_interface, "in_thread", to_list)
    assert asyncio.run(members(store)) == {f"a{number:03}/zarr.json": document(number) for number in range(NODES)}


def test_members_of_many_commits_are_fetched_alone(many_commits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    get_range = ObjectClient.get_range

    def measured(objects: ObjectClient, path: str, offset: int, length: int) -> Any:
        content = get_range(objects, path, offset, length)
        moved.append(len(content))
        return content

    store = txstore.Repository(many_commits).snapshot()
    assert len(store.mapping.runs) < NODES
    monkeypatch.setattr(ObjectClient, "get_range", measured)
    assert len(asyncio.run(members(store))) == NODES
    assert sum(moved) < NODES * 1000  # not the chunks beside them


def test_what_is_wrong_with_a_member_is_told_to_whoever_reads_it(many_commits: str) -> None:
    store = txstore.Repository(many_commits).snapshot()
    found = store.mapping.lookup("a007/zarr.json")
    objects_of(txstore.Repository(many_commits)).delete([store.mapping.runs.pack_name(found.run, found.pack).path])

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
