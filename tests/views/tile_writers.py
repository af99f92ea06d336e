"""Processes that write tiles of an image, each in a commit, as long as a test looks at it."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Semaphore

import numpy as np
import zarr

import txstore

SIDE, TILE = 512, 128
_SPAWN = multiprocessing.get_context("spawn")


def _write(url: str, seed: int, has_written: Semaphore) -> None:
    """Commit tiles until killed."""
    repo, random = txstore.Repository(url), np.random.default_rng(seed)

    def step(store: txstore.TxStore) -> None:
        row, column = random.integers(0, SIDE - TILE, 2)
        pixels = zarr.open_array(store, path="0")
        pixels[0, row : row + TILE, column : column + TILE] = random.integers(0, 1000, (TILE, TILE))

    while True:
        repo.run(step)
        has_written.release()


@contextmanager
def writers(repo: txstore.Repository, count: int = 2) -> Iterator[None]:
    """Let processes write until the block ends; it begins when there are commits of theirs."""
    has_written = _SPAWN.Semaphore(0)
    processes = [
        _SPAWN.Process(target=_write, args=(repo.url, seed, has_written), daemon=True) for seed in range(count)
    ]
    for process in processes:
        process.start()
    try:
        for _ in range(2 * count):
            assert has_written.acquire(timeout=60)
        yield
        assert all(process.is_alive() for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.join()
