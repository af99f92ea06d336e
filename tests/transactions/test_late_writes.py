"""I6: writes that arrive when their operation has failed already, and writes beside a commit."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
import zarr.core.codec_pipeline
from zarr.abc.codec import BytesBytesCodec

import txstore
from tests.tools.arrays import array, commit, create, values
from tests.tools.faults import watch
from tests.tools.waiting import TIMEOUT, wait_until
from txstore import TransactionStateError

CHUNKS = 24
PIPELINES = [name for name in ("BatchedCodecPipeline", "FusedCodecPipeline") if hasattr(zarr.core.codec_pipeline, name)]


@dataclass(frozen=True)
class SlowCodec(BytesBytesCodec):
    """Raises on the chunk of sevens, and takes its time over the others, from when they may go on."""

    is_fixed_size = True
    raises: ClassVar[bool] = False
    go_on: ClassVar[threading.Event] = threading.Event()

    def to_dict(self) -> dict[str, Any]:
        return {"name": "txstore.tests.slow", "configuration": {}}

    def compute_encoded_size(self, length: int, spec: object) -> int:
        return length

    def _encode_sync(self, chunk: Any, spec: object) -> Any:
        if not self.raises:
            return chunk
        if chunk.as_numpy_array()[0] == 7:
            raise ValueError("seven")
        self.go_on.wait(TIMEOUT)
        time.sleep(0.02)
        return chunk

    def _decode_sync(self, chunk: Any, spec: object) -> Any:
        return chunk

    async def _encode_single(self, chunk: Any, spec: object) -> Any:
        return await asyncio.to_thread(self._encode_sync, chunk, spec)

    async def _decode_single(self, chunk: Any, spec: object) -> Any:
        return chunk


@pytest.fixture(params=PIPELINES)
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every codec pipeline of this zarr, with several threads."""
    path = f"zarr.core.codec_pipeline.{request.param}"
    with zarr.config.set({"codec_pipeline.path": path, "threading.max_workers": 4}):
        yield request.param


@pytest.fixture
def store(repo: txstore.Repository, pipeline: str) -> txstore.TxStore:
    return txstore.TxStore(repo)


def sevens_first() -> np.ndarray:
    """A chunk of sevens, and others of ones."""
    data = np.ones((CHUNKS, 1 << 18), "u1")  # so long that each is written at once
    data[0] = 7
    return data


@pytest.fixture
def z(store: txstore.TxStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[zarr.Array]:
    """An array, committed, whose next operation fails in one chunk while the others are under way, until `go_on`."""
    data = sevens_first()
    z = zarr.create_array(
        store, name="x", shape=data.shape, chunks=(1, data.shape[1]), dtype="u1", compressors=[SlowCodec()]
    )
    store.commit()
    monkeypatch.setattr(SlowCodec, "raises", True)
    monkeypatch.setattr(SlowCodec, "go_on", threading.Event())
    yield z
    SlowCodec.go_on.set()


def nothing_arrives(store: txstore.TxStore) -> bool:
    time.sleep(0.5)
    return store.staged_count == 0


def test_late_writes_are_not_in_the_transaction_after_a_rollback(store: txstore.TxStore, z: zarr.Array) -> None:
    with pytest.raises(ValueError, match="seven"):
        z[:] = sevens_first()
    assert store.staged_count < CHUNKS - 1  # else nothing is late, and nothing tested
    SlowCodec.go_on.set()
    store.rollback()
    assert nothing_arrives(store)


def test_late_writes_are_in_the_commit_that_follows_or_in_none(store: txstore.TxStore, z: zarr.Array) -> None:
    with pytest.raises(ValueError, match="seven"):
        z[:] = sevens_first()
    assert store.staged_count < CHUNKS - 1
    SlowCodec.go_on.set()
    store.commit()
    assert nothing_arrives(store)


def test_late_writes_after_a_failed_write_are_refused(repo, store, pipeline):
    data = sevens_first()
    z = zarr.create_array(store, name="x", shape=data.shape, chunks=(1, data.shape[1]), dtype="u1", compressors=None)
    store.commit()
    storage = watch(repo)

    def slow(offset: int, parts: list[Any]) -> None:
        if any(memoryview(part)[:1] == b"\x07" for part in parts if len(part) > 4096):
            raise OSError("the disk is gone")
        time.sleep(0.02)

    storage.before["file.write"] = slow
    with pytest.raises(OSError, match="the disk is gone"):
        z[:] = data
    with pytest.raises(TransactionStateError, match="the disk is gone"):
        store.commit()
    store.rollback()
    assert nothing_arrives(store)
    assert repo.head().version == 0


def slow_write(repo: txstore.Repository, write: Callable[[], object]) -> tuple[threading.Thread, threading.Event]:
    """Begin a write in a thread, which goes on when the event is set."""
    storage = watch(repo)
    entered, leave = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        entered.set()
        leave.wait(30)

    storage.before["file.write"] = slow
    thread = threading.Thread(target=write)
    thread.start()
    assert entered.wait(30)
    return thread, leave


def test_the_commit_of_a_mapping_beside_a_write_of_another_thread_is_refused(repo: txstore.Repository) -> None:
    mapping = repo.begin()
    thread, leave = slow_write(repo, lambda: mapping.set("key", bytes(1 << 18)))
    try:
        with pytest.raises(TransactionStateError, match="1 writes are in flight"):
            mapping.commit()
    finally:
        leave.set()
        thread.join()
    mapping.commit()
    assert len(repo.mapping()["key"]) == 1 << 18


def test_the_commit_of_a_store_waits_for_a_write_of_another_thread(repo: txstore.Repository) -> None:
    store = txstore.TxStore(repo)
    thread, leave = slow_write(repo, lambda: store.__setitem__("key", bytes(1 << 18)))
    with ThreadPoolExecutor(1) as committer:
        commit = committer.submit(store.commit)
        wait_until(lambda: store._session.gate.is_closed)
        assert not commit.done()
        leave.set()
        commit.result(30)
    thread.join()
    assert len(repo.mapping()["key"]) == 1 << 18


def test_a_rollback_beside_a_write_of_another_thread_waits_for_it(repo: txstore.Repository) -> None:
    store = txstore.TxStore(repo)
    storage = watch(repo)
    entered = threading.Event()

    def slow(*_: object) -> None:
        entered.set()
        time.sleep(0.2)

    storage.before["file.write"] = slow
    thread = threading.Thread(target=lambda: store.__setitem__("key", bytes(1 << 18)))
    thread.start()
    assert entered.wait(30)
    store.rollback()
    thread.join()
    assert store.staged_count == 0
    assert "key" not in store


def test_a_commit_waits_for_a_operation_of_zarr_in_another_thread(repo: txstore.Repository, pipeline: str) -> None:
    store = txstore.TxStore(repo)
    z = zarr.create_array(store, name="x", shape=(8, 1 << 18), chunks=(1, 1 << 18), dtype="u1", compressors=None)
    store.commit()
    storage = watch(repo)
    entered = threading.Event()

    def slow(*_: object) -> None:
        entered.set()
        time.sleep(0.05)

    storage.before["file.write"] = slow
    thread = threading.Thread(target=lambda: z.__setitem__(slice(None), 5))
    thread.start()
    assert entered.wait(30)
    store.commit()
    assert set(np.unique(array(repo.snapshot(), mode="r")[:])) == {5}
    thread.join()
    assert store.staged_count == 0
    assert set(np.unique(array(repo.snapshot(), mode="r")[:])) == {5}


def test_a_commit_is_possible_on_the_loop_of_zarr(repo: txstore.Repository) -> None:
    store = txstore.TxStore(repo)
    create()(store)

    async def commit_there() -> None:
        store.commit()

    zarr.core.sync.sync(commit_there())
    assert values(repo) == [1] * 8


# --- reading beside a commit
def test_a_thread_that_reads_beside_commits_never_goes_back(repo: txstore.Repository) -> None:
    store = txstore.TxStore(repo)
    store["count"] = b"0"
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(int(store["count"]))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        wait_until(lambda: seen)
        for count in range(1, 150):
            store["count"] = str(count).encode()
            store.commit()
    finally:
        done.set()
        thread.join()
    assert seen == sorted(seen)


@pytest.mark.parametrize("inside", [False, True], ids=["commit()", "with"])
def test_a_mapping_that_was_committed_still_shows_what_it_wrote(repo: txstore.Repository, inside: bool) -> None:
    commit(repo, create())
    mapping = repo.begin()
    if inside:
        with mapping:
            mapping["key"] = b"1"
            mapping.delete_dir("x")
    else:
        mapping["key"] = b"1"
        mapping.delete_dir("x")
        mapping.commit()
    assert mapping["key"] == b"1"
    assert "x/zarr.json" not in mapping
    assert sorted(mapping) == ["key", "zarr.json"]
    assert mapping.staged_count == 0
    assert not any(mapping.changes().values())
