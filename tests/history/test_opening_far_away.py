"""Opening a repository on an object store: what does not wait for another answer is asked for beside it."""

import asyncio
import gc
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator

import fsspec
import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import txstore
from tests.tools.waiting import TIMEOUT
from txstore.format import names
from txstore.storage.objects.client import ObjectClient
from txstore.storage.request_threads import in_background


@pytest.fixture
def url() -> str:
    url, others = f"memory://{uuid.uuid4().hex}", set(threading.enumerate())
    with txstore.Repository(url).transaction() as store:
        zarr.create_array(store, name="x", shape=(4,), chunks=(2,), dtype="u1")[:] = np.arange(4)
    for thread in set(threading.enumerate()) - others:
        if thread.name == "txstore head cache":
            thread.join(TIMEOUT)
    return url


def test_nobody_reads_or_writes_an_older_state_where_the_newest_commit_is_gone(url: str) -> None:
    files = fsspec.filesystem("memory")
    files.rm(f"{url}/{names.commit_path('main', 0)}")
    for use in (txstore.Repository.head, lambda repo: repo.begin()):
        with pytest.raises(txstore.CorruptionError, match="was durable in this version and is not there"):
            use(txstore.Repository(url))
    assert [fault.part for fault in txstore.Repository(url).verify().faults] == ["missing"]
    assert len(txstore.Repository(url).verify(repair=True).faults) == 1
    assert txstore.Repository(url).head() is None


def test_the_head_cache_is_asked_for_beside_what_the_repository_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=TIMEOUT)
    asked: list[str] = []
    get = ObjectClient.get

    def meet(objects: ObjectClient, path: str) -> bytes:
        asked.append(path)
        together.wait()
        return get(objects, path)

    monkeypatch.setattr(ObjectClient, "get", meet)
    snapshot = txstore.Repository(url).snapshot()
    assert sorted(asked) == sorted([names.FORMAT, names.head_cache_path("main")])
    assert list(zarr.open_array(snapshot, path="x", mode="r")[:]) == [0, 1, 2, 3]


def test_a_head_cache_that_was_asked_for_long_ago_is_asked_for_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    get = ObjectClient.get
    monkeypatch.setattr(ObjectClient, "get", lambda objects, path: asked.append(path) or get(objects, path))
    repo = txstore.Repository(url)
    assert repo.engine.exists()
    expected = repo.engine.commits.store.head_caches._expected
    expected.content.result(TIMEOUT)
    repo.engine.commits.store.head_caches._expected = expected._replace(asked=expected.asked - 60)
    assert zarr.open_array(repo.snapshot(), path="x", mode="r")[3] == 3
    assert asked.count(names.head_cache_path("main")) == 2


def test_what_is_at_hand_takes_no_thread(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = txstore.Repository(url).snapshot()
    first = zarr.open_array(store, path="x", mode="r")[:]

    async def in_no_thread(*_: object) -> None:
        raise AssertionError("it is in memory")

    monkeypatch.setattr(txstore.zarr_interface, "in_thread", in_no_thread)
    found = asyncio.run(store.get("x/zarr.json", default_buffer_prototype()))
    assert found.to_bytes() == store["x/zarr.json"]
    assert list(first) == [0, 1, 2, 3]


def test_what_is_at_hand_and_damaged_is_read_anew(url: str) -> None:
    store = txstore.Repository(url).snapshot()
    stored = store["x/zarr.json"]
    runs = store.mapping.runs
    found = runs.lookup(b"x/zarr.json")
    pack = runs.open_pack(found.run, found.pack)
    pack.reader.forget()
    pack.reader._cache.keep(pack.reader._id, found.offset, bytes(found.length))
    assert store.mapping.at_hand("x/zarr.json") is None
    read = asyncio.run(store.get("x/zarr.json", default_buffer_prototype()))
    assert read.to_bytes() == stored


class Held:
    """What somebody has who asks: a snapshot, say, which keeps a vacuum from what it needs."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def held_after(ask: Callable[[], object]) -> Held | None:
    """Return what a caller still holds when its question was answered."""
    held = Held()
    reference = weakref.ref(held)

    def call(held: Held) -> Held:
        ask()
        return held

    call(held)
    del held
    return reference()


def test_a_head_cache_that_is_not_there_lets_go_of_who_has_asked(no_collector: None) -> None:
    commits = txstore.Repository(f"memory://{uuid.uuid4().hex}").engine.commits
    commits.store.head_caches.expect()
    assert isinstance(commits.store.head_caches._expected.content.exception(TIMEOUT), FileNotFoundError)
    assert held_after(lambda: commits.store.head_caches.commit("main", commits.files)) is None


def test_an_error_in_the_background_lets_go_of_who_has_asked(no_collector: None) -> None:
    def ask() -> None:
        answer = in_background(int, "no number")
        with pytest.raises(ValueError, match="no number"):
            answer()

    assert held_after(ask) is None
