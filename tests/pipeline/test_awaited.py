"""Few small chunks that are far away are awaited on zarr's loop; threads have what is more than that, or goes wrong."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from txstore.format import names
from txstore.pipeline import codec_pipeline
from txstore.storage import kept
from txstore.storage.objects.backend import AwaitRange
from txstore.storage.objects.plain import MemoryBackend

CHUNK, CHUNKS = 50_000, 12
DATA = np.random.default_rng(1).integers(0, 256, CHUNKS * CHUNK, dtype="u1")
FIFTH = slice(5 * CHUNK, 6 * CHUNK)

Change = Callable[[bytes], bytes]


@pytest.fixture
def threads(before: Callable[..., None]) -> list[str]:
    """What the pipeline has done in a thread."""
    done: list[str] = []
    before(codec_pipeline, "in_thread", lambda function, *_: done.append(function.__name__))
    return done


@pytest.fixture
def repo() -> txstore.Repository:
    repo = txstore.Repository(f"memory://{uuid.uuid4().hex}")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=DATA.shape, chunks=(CHUNK,), dtype="u1", compressors=None)[:] = DATA
    return repo


def awaiting(monkeypatch: pytest.MonkeyPatch, change: Change = lambda content: content) -> list[int]:
    """Let ranges be awaited, and say what comes of each; return the lengths that were asked for."""
    asked: list[int] = []

    def await_range(backend: MemoryBackend) -> AwaitRange:
        async def get(path: str, offset: int, length: int) -> bytes:
            asked.append(length)
            content = await asyncio.to_thread(backend.get_range, path, offset, length)
            return change(content)

        return get

    monkeypatch.setattr(MemoryBackend, "await_range", property(await_range))
    return asked


def fail(_: object) -> bytes:
    raise RuntimeError("what a library may raise")


def opened(repo: txstore.Repository) -> zarr.Array:
    array = zarr.open_array(repo.snapshot(), path="x", mode="r")
    kept._shared._empty()
    return array


def test_few_small_chunks_take_no_thread(repo, threads, monkeypatch):
    asked = awaiting(monkeypatch)
    array = opened(repo)
    for part in (FIFTH, slice(10, 20), slice(8 * CHUNK - 5, 8 * CHUNK + 5)):
        assert np.array_equal(array[part], DATA[part])
    assert threads == []
    assert asked
    requests = len(asked)
    assert np.array_equal(array[FIFTH], DATA[FIFTH])
    assert len(asked) == requests  # it was kept


def test_much_at_once_is_read_in_threads(repo, threads, monkeypatch):
    asked = awaiting(monkeypatch)
    assert np.array_equal(opened(repo)[:], DATA)
    assert threads == ["_fetch"]
    assert asked == []


@pytest.mark.parametrize("change", [fail, lambda content: bytes(len(content)), lambda content: b""])
def test_what_goes_wrong_is_read_anew(repo, threads, monkeypatch, change):
    asked = awaiting(monkeypatch, change)
    assert np.array_equal(opened(repo)[FIFTH], DATA[FIFTH])
    assert asked


def test_a_pack_that_is_missing_is_no_fill_value(repo, before, monkeypatch):
    asked = awaiting(monkeypatch)
    array = opened(repo)

    def missing(_: MemoryBackend, path: str, *_rest: Any) -> None:
        if path != names.FORMAT:
            raise FileNotFoundError(2, "there is no such object", path)

    before(MemoryBackend, "get_range", missing)
    with pytest.raises(txstore.CorruptionError):
        array[FIFTH]
    assert asked


def test_a_writer_reads_what_it_has_staged(repo, monkeypatch):
    awaiting(monkeypatch)
    with repo.transaction() as store:
        array = zarr.open_array(store, path="x")
        array[FIFTH] = 7
        kept._shared._empty()
        assert set(array[FIFTH]) == {7}
        assert np.array_equal(array[:10], DATA[:10])
