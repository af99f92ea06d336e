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


def test_what_is_at_hand_takes_no_thread(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = txstore.Repository(url).snapshot()
    first = zarr.open_array(store, path="x", mode="r")[:]

    async def in_no_thread(*_: object) -> None:
        raise AssertionError("it is in memory")

    monkeypatch.setattr(txstore.zarr_interface, "in_thread", in_no_thread)
    found = asyncio.run(store.get("x/zarr.json", default_buffer_prototype()))
    assert found.to_bytes() == store["x/zarr.json"]
    assert list(first) == [0, 1, 2, 3]


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


def test_an_error_in_the_background_lets_go_of_who_has_asked(no_collector: None) -> None:
    def ask() -> None:
        answer = in_background(int, "no number")
        with pytest.raises(ValueError, match="no number"):
            answer()
        assert txstore.Repository(f"memory://{uuid.uuid4().hex}").head() is None  # no head cache is there

    assert held_after(ask) is None
