"""Stores on object stores in other processes, forked or handed a pickle; and the memory that a writer needs."""

import os
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.system.remote.conftest import with_engine
from tests.tools.inside import objects_of
from tests.tools.upkeep import tree
from tests.tools.workers import SPAWN, Worker, ended

pytestmark = pytest.mark.long

#: Bytes that the writer writes whose memory is measured; the promise is for 2 GiB.
WRITTEN = int(os.environ.get("TXSTORE_MEMORY_MIB", 512)) << 20
MOST = 512 << 20
CHUNK = 16 << 20


def memory_of_writing(url: str, options: dict[str, object], size: int) -> tuple[int, int]:
    """Write, and return by how many bytes the most that was needed is above the start; and how many were written."""
    repo = txstore.Repository(url, storage_options=options)
    with repo.transaction("warm") as store:
        zarr.create_array(store, name="warm", data=np.arange(8), chunks=(2,))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = status("VmRSS")
    rows = size // CHUNK
    with repo.transaction("large") as store:
        array = zarr.create_array(
            store, name="x", shape=(rows, CHUNK), chunks=(1, CHUNK), dtype="u1", compressors=None, fill_value=0
        )
        for row in range(0, rows, 4):  # as who writes an array larger than memory does
            array[row : row + 4] = np.full((min(4, rows - row), CHUNK), row % 250 + 1, "u1")
    return status("VmHWM") - before, rows * CHUNK


def status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise LookupError(name)


@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the peak can't be measured here")
@pytest.mark.parametrize("engine", ["obstore"] + ["fsspec"] * ("TXSTORE_MEMORY_MIB" in os.environ))
def test_the_memory_of_a_writer_is_bounded(server_of, engine, record_property):
    server = with_engine(server_of("s3"), engine)
    url = server.url()
    worker = Worker(memory_of_writing, url, server.storage_options, WRITTEN, context=SPAWN)
    with ended(worker):
        above, written = worker.result()
    print(f"{engine}: {above >> 20} MiB above the start, while {written >> 20} MiB were written")
    assert above <= MOST
    repo = txstore.Repository(url, storage_options=server.storage_options)
    assert zarr.open_array(repo.snapshot(), path="x", mode="r")[-1, :3].tolist() != [0, 0, 0]
    objects_of(repo).delete(packs(repo))  # moto holds it all in memory


def packs(repo: txstore.Repository) -> list[str]:
    return [path for path in tree(repo) if path.startswith("packs/")]
