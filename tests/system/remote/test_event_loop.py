"""Nothing holds up an event loop: not a slow server, and not what is dropped there."""

import asyncio
import gc
import threading

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import txstore
from tests.system.remote.proxy import Faults
from tests.tools.inside import objects_of, storage_of
from tests.tools.waiting import wait_until
from txstore.storage import kept

pytestmark = pytest.mark.long

#: Seconds after which a loop has stood still: less than a client waits for an answer, more than a busy machine takes.
STANDS = 20


class Turns:
    """Lets the server hear of a request only when the loop has turned meanwhile: it does not wait for the answer."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.stood: list[str] = []

    def __call__(self, method: str, path: str) -> None:
        turned = threading.Event()
        self.loop.call_soon_threadsafe(turned.set)
        if not self.stood and not turned.wait(STANDS):
            self.stood.append(f"{method} {path}")


async def test_the_loop_goes_on_while_the_server_is_slow(s3, proxy):
    """No request is answered before the loop has gone on."""
    through = s3.with_options(endpoint_url=proxy.url)
    repo = txstore.Repository(through.url(), storage_options=through.storage_options)
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(8), chunks=(1,))
    prototype = default_buffer_prototype()

    def cold() -> txstore.TxStore:
        """Return a reader that has read nothing, so that whatever it is asked takes a request."""
        reader = txstore.Repository(repo.url, storage_options=through.storage_options).snapshot()
        kept._shared._empty()
        return reader

    writer = repo.transaction()
    value = prototype.buffer.from_bytes(bytes(2 << 20))
    await writer.get("x/zarr.json", prototype)
    proxy.log.clear()
    turns = Turns()
    for use in (
        lambda reader: reader.get("x/c/0", prototype),
        read_chunk,
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
        proxy.faults = Faults()
        reader = await asyncio.to_thread(cold)
        proxy.faults = Faults(hold=turns)
        await use(reader)
        assert turns.stood == [], "the loop stood still while this was asked for"
    proxy.faults = Faults()
    await asyncio.to_thread(writer.rollback)
    assert len(proxy.log) >= 16


async def read_chunk(reader):
    array = await zarr.api.asynchronous.open_array(store=reader, path="x", mode="r")
    assert await array.getitem(slice(5, 6)) == [5]


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
    assert await asyncio.to_thread(storage_of(repo).list, ".staging") != []
    proxy.log.clear()
    turns = Turns()
    proxy.faults = Faults(hold=turns)
    held.clear()
    gc.collect()
    objects = objects_of(repo)
    await asyncio.to_thread(wait_until, lambda: not objects.list(".staging") and not objects.list("packs"))
    assert turns.stood == [], "the loop stood still while this was asked for"
