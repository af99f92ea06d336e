"""Documents on an object store lie beside one another: who opens a group does not ask for each of them."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

import txstore
from tests.history.conftest import Requests
from txstore.history import object_writer
from txstore.storage import pack_cache

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
    pack_cache._shared._empty()
    requests.clear()
    for number in range(NODES):
        assert snapshot[f"a{number:03}/zarr.json"] == document(number)
    return len(requests)


def test_of_one_commit(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_writer, "OBJECT_SIZE", 4 << 20)
    url = f"memory://{uuid.uuid4().hex}"
    repo = txstore.Repository(url)
    with repo.transaction() as store:
        write(store.mapping, range(NODES))
    assert read_documents(url, requests) <= 4
    assert repo.verify().ok
    assert repo.snapshot().mapping["a007/c/0"] == bytes([7]) * (256 << 10)


def test_the_last_of_several_is_laid_there(requests: Requests) -> None:
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
