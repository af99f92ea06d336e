"""Nothing holds up an event loop: not a slow server, and not what is dropped there."""

from __future__ import annotations

import asyncio
import gc
import time

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import txstore
from tests.remote.proxy import Faults
from txstore import pack_cache

EVERYTHING = frozenset({"PUT", "GET", "DELETE", "POST", "HEAD"})
DELAY = 1.5


async def ticks(until: asyncio.Event) -> float:
    """Return the longest time between two turns of the loop."""
    longest, last = 0.0, time.monotonic()
    while not until.is_set():
        await asyncio.sleep(0.005)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return longest


async def test_the_loop_goes_on_while_the_server_is_slow(s3, proxy):
    """Every answer takes longer than the loop was ever away; the machine may be busy, so much longer."""
    through = s3.with_options(endpoint_url=proxy.url)
    repo = txstore.Repository(through.url(), storage_options=through.storage_options)
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(8), chunks=(1,))
    prototype = default_buffer_prototype()

    def cold() -> txstore.TxStore:
        """Return a reader that has read nothing, so that whatever it is asked takes a request."""
        reader = txstore.Repository(repo.url, storage_options=through.storage_options).snapshot()
        pack_cache._shared._empty()
        return reader

    writer = repo.transaction()
    value = prototype.buffer.from_bytes(bytes(2 << 20))
    await writer.get("x/zarr.json", prototype)
    proxy.log.clear()
    proxy.faults = Faults(delayed=1.0, delay=DELAY, methods=EVERYTHING)
    done = asyncio.Event()
    watching = asyncio.create_task(ticks(done))
    turns = 0
    for use in (
        lambda reader: reader.get("x/c/0", prototype),
        lambda reader: reader.exists("x/c/1"),
        lambda reader: reader.getsize("x/c/2"),
        lambda reader: reader.getsize_prefix("x"),
        lambda reader: reader.is_empty("x"),
        lambda reader: collect(reader.list()),
        lambda reader: collect(reader.list_prefix("x")),
        lambda reader: collect(reader.list_dir("x")),
        lambda _: writer.set("x/c/3", value),
        lambda _: writer.set_if_not_exists("x/c/100", value),
        lambda _: writer.delete("x/c/4"),
        lambda _: writer.delete_dir("y"),
    ):
        proxy.faults.delayed = 0.0
        reader = await asyncio.to_thread(cold)
        proxy.faults.delayed = 1.0
        await use(reader)
        turns += 1
    done.set()
    longest = await watching
    proxy.faults = Faults()
    await asyncio.to_thread(writer.rollback)
    assert len(proxy.log) >= 16
    assert turns == 12
    assert longest < DELAY, f"the loop stood still for {longest:.3f} s while each answer took {DELAY} s"


async def collect(names):
    return [name async for name in names]


@pytest.mark.filterwarnings("ignore::txstore.UncommittedChangesWarning")
async def test_what_is_dropped_on_a_loop_is_deleted_elsewhere(s3, proxy):
    """A finalizer may be called in any thread, in that of a loop too, and must not wait there for the server."""
    through = s3.with_options(endpoint_url=proxy.url)
    repo = txstore.Repository(through.url(), storage_options=through.storage_options)

    def stage() -> list[txstore.TxStore]:
        with repo.begin() as mapping:
            mapping["a"] = b"1"
        store = repo.transaction()
        for number in range(5):
            store[f"a/{number}"] = bytes(8 << 20)
        return [store]

    held = await asyncio.to_thread(stage)
    assert await asyncio.to_thread(repo.engine.storage.list, ".staging") != []
    proxy.log.clear()
    proxy.faults = Faults(delayed=1.0, delay=DELAY, methods=EVERYTHING)
    began = time.monotonic()
    held.clear()
    gc.collect()
    took = time.monotonic() - began
    proxy.faults = Faults()
    assert took < DELAY, f"{took:.3f} s"
    deadline = time.monotonic() + 20
    objects = repo.engine.storage.objects
    while time.monotonic() < deadline and (
        await asyncio.to_thread(objects.list, ".staging") or await asyncio.to_thread(objects.list, "packs")
    ):
        await asyncio.sleep(0.05)
    assert await asyncio.to_thread(objects.list, ".staging") == []
    assert await asyncio.to_thread(objects.list, "packs") == []
