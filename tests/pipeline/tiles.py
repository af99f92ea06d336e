"""Tiles that know nothing of chunks, written through zarr by threads, processes and transactions: what is lost."""

import random
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import txstore
from tests.threads.harness import PIPELINES
from tests.tools.workers import QUICK

SIZE, PROCESSES, THREADS = 24, 4, 8
Array = np.ndarray[Any, Any]


def tiles(rng: random.Random) -> list[tuple[slice, slice]]:
    """Cut a square in rectangles that know nothing of chunks."""

    def cuts() -> list[int]:
        return [0, *sorted(rng.sample(range(1, SIZE), 5)), SIZE]

    rows, columns = cuts(), cuts()
    found = [
        (slice(top, bottom), slice(left, right)) for top, bottom in pairwise(rows) for left, right in pairwise(columns)
    ]
    rng.shuffle(found)
    return found


def created(folder: str) -> txstore.Repository:
    repo = txstore.Repository(Path(folder) / "data.tx", durability="none")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(SIZE, SIZE), chunks=(8, 8), dtype="i4")
    return repo


def values(seed: int) -> Array:
    return np.random.default_rng(seed).integers(1, 100, (SIZE, SIZE)).astype("i4")


def at_head(repo: txstore.Repository) -> Array:
    return np.asarray(zarr.open_array(repo.snapshot(), path="x", mode="r")[...])


def write(store: txstore.TxStore, seed: int, number: int) -> None:
    """Write a share of the tiles of a round."""
    z, expected = zarr.open_array(store, path="x"), values(seed)
    for tile in tiles(random.Random(seed))[number::PROCESSES]:
        z[tile] = expected[tile]


def write_in_block(store: txstore.TxStore, seed: int, number: int) -> None:
    with store:
        write(store, seed, number)


def commit(url: str, seed: int, number: int) -> None:
    """Commit a share in a transaction of one's own: once, since there must be no conflict."""
    with txstore.Repository(url, durability="none").transaction() as store:
        write(store, seed, number)


def increment(url: str, seed: int, number: int) -> int:
    """Increment tiles that overlap those of others; return how many conflicts there were."""
    tries = []

    def once(store: txstore.TxStore) -> None:
        tries.append(0)
        z = zarr.open_array(store, path="x")
        begin = random.Random(seed * PROCESSES + number).randrange(SIZE - 6)
        z[begin : begin + 6, 3:9] = np.asarray(z[begin : begin + 6, 3:9]) + 1

    txstore.Repository(url, durability="none").run(once, retries=1000)
    return len(tries) - 1


def by_threads(pipeline: str, rounds: int) -> int:
    """Return how many elements threads lose."""
    lost = 0
    with tempfile.TemporaryDirectory() as folder, zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]}):
        store = txstore.TxStore(created(folder))
        z = zarr.open_array(store, path="x")
        for seed in range(rounds):
            expected = values(seed)
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(lambda tile, e=expected: z.__setitem__(tile, e[tile]), tiles(random.Random(seed))))
            lost += int((z[...] != expected).sum())
            store.commit()
    return lost


def by_processes(rounds: int) -> tuple[int, int, int, int]:
    """Return how many elements are lost: in one transaction, in several; of increments; and how many were refused."""
    numbers = range(PROCESSES)
    shared = apart = wrong = refused = 0
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(PROCESSES, QUICK) as pool:
        repo = created(folder)
        for seed in range(rounds):
            with repo.transaction() as store:
                list(pool.map(write_in_block, [store] * PROCESSES, [seed] * PROCESSES, numbers))
            shared += int((at_head(repo) != values(seed)).sum())
            list(pool.map(commit, [repo.url] * PROCESSES, [seed + rounds] * PROCESSES, numbers))
            apart += int((at_head(repo) != values(seed + rounds)).sum())
            before = at_head(repo).sum()
            refused += sum(pool.map(increment, [repo.url] * PROCESSES, [seed] * PROCESSES, numbers))
            wrong += int(at_head(repo).sum() - before) != PROCESSES * 36
    return shared, apart, wrong, refused
