"""A thousand arrays in ten thousand packs, under a low limit of open files, while another process keeps committing."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import txstore
from tests.loaders.training_data import committing
from tests.system.processes import test_descriptors
from tests.system.processes.test_descriptors import AT_MOST, LIMIT, PACKS, held
from tests.tools.workers import SPAWN, TIMEOUT, Worker, ended
from txstore.loaders import Samples, SampleStream

pytestmark = [*test_descriptors.pytestmark, pytest.mark.long]

NAMES = [f"feature{n:04}" for n in range(1000)]
BLOCK = 4  # samples in a chunk
BLOCKS = PACKS // len(NAMES)
COUNT = BLOCK * BLOCKS
#: Bytes: one block of all arrays, so that each shard of two blocks has two windows.
WINDOW = BLOCK * 4 * len(NAMES)
#: Packs of the first commit that lie beside it, each staged by a participant of its own.
PARTS = 50
#: Of open files for a whole process where a framework has some: less than there are arrays, or packs.
FRAMEWORK_LIMIT = 2 * LIMIT
RANKS, WORKERS, REPLICAS = 2, 4, 8


def document(samples: int) -> bytes:
    return json.dumps({
        "zarr_format": 3, "node_type": "array", "shape": [samples], "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [BLOCK]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "attributes": {},
    }).encode()  # fmt: skip


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Where such a repository is, and the commit whose every chunk is in another pack."""
    repo = txstore.Repository(tmp_path_factory.mktemp("wide") / "data.tx", durability="none")
    with repo.transaction("create") as store:
        for name in NAMES:
            store[f"{name}/zarr.json"] = document(COUNT)
    chunks = [(number, block) for block in range(BLOCKS) for number in range(len(NAMES))]
    values = {
        f"{NAMES[number]}/c/{block}": (np.arange(block * BLOCK, (block + 1) * BLOCK) + 1000 * number).astype("<i4")
        for number, block in chunks
    }
    keys = list(values)
    for key in keys[:PARTS]:
        with repo.transaction(name="parts") as part:
            part[key] = values[key].tobytes()
    repo.transaction(name="parts").commit()
    for key in keys[PARTS:]:
        with repo.begin() as transaction:
            transaction[key] = values[key].tobytes()
    assert sum(len(files) for _, _, files in os.walk(f"{repo.url}/packs")) >= PARTS  # more by those of merged runs
    yield repo.url, repo.head().id
    assert repo.verify().faults == []


def commit_again_and_again(begun: Any, stop: Any, path: Path) -> int:
    """Overwrite a chunk of each array, and make all longer, in commit after commit, until told to stop."""
    repo = txstore.Repository(path, durability="none")
    made = 0
    while not stop.wait(0.2) or not made:
        with repo.begin() as transaction:
            for name in NAMES:
                transaction[f"{name}/c/{made % BLOCKS}"] = np.full(BLOCK, -1, "<i4").tobytes()
                transaction[f"{name}/zarr.json"] = document(COUNT + BLOCK * (made + 1))
        made += 1
        begun.set()
    return made


def numbers_of(batches: Any) -> list[int]:
    """The numbers of the samples; what is torn, or of another commit, is an error."""
    found: list[int] = []
    for batch in batches:
        rows = np.stack([np.asarray(batch[name]) for name in NAMES])
        np.testing.assert_array_equal(rows, rows[0] + 1000 * np.arange(len(NAMES))[:, None])
        found += rows[0].tolist()
    return found


def keep_watching(url: str, most: Any, place: int = 0) -> Callable[[], None]:
    """Keep noting the most that this process holds of the repository, from a thread, until it ends.

    Returns what notes it once. The thread may not get its turn while there is something to see.
    """

    def look() -> None:
        most[place] = max(most[place], len(held(url)))

    def watch() -> None:
        while True:
            look()
            time.sleep(0.005)

    threading.Thread(target=watch, daemon=True).start()
    return look


def limit_files(limit: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def check(processes: Sequence[Worker]) -> None:
    """What they got is all samples, each once; none held more than a few descriptors, but each held some."""
    for process in processes:
        process.answered(TIMEOUT)  # twice as long as others: workers of two ranks import a framework each
    found = [process.result() for process in processes]
    assert sorted(number for numbers, _ in found for number in numbers) == list(range(COUNT))
    for _, most in found:
        assert all(1 <= one <= AT_MOST for one in most), most


def replica(url: str, commit: str, index: int, count: int) -> tuple[list[int], list[int]]:
    limit_files(LIMIT)
    most = [0]
    look = keep_watching(url, most)
    samples = Samples(url, NAMES, at=commit)
    stream = SampleStream(samples, batch_size=3, window=WINDOW, num_shards=count, shard_index=index)
    numbers = numbers_of(stream)
    look()
    return numbers, most


@pytest.mark.parametrize("replicas", [1, REPLICAS])
def test_replicas(wide, replicas):
    url, commit = wide
    with committing(url, commit_again_and_again):
        readers = [Worker(replica, url, commit, index, replicas) for index in range(replicas)]
        with ended(*readers):
            check(readers)


class Rank(Worker):
    """A process that may have workers of its own."""

    daemon = False


def watch_worker(url: str, most: Any, worker: int) -> None:
    from torch.utils.data import get_worker_info

    look = keep_watching(url, most, worker)
    stream = get_worker_info().dataset.stream
    shard = stream.shard

    def watched(*arguments: Any) -> Iterator[Any]:
        for item in shard(*arguments):
            look()
            yield item

    stream.shard = watched


def torch_rank(url: str, commit: str, rank: int, method: str, own_batches: bool) -> tuple[list[int], list[int]]:
    from torch.utils.data import DataLoader

    from txstore.loaders import TorchIterableDataset

    limit_files(FRAMEWORK_LIMIT)
    # Without a lock, which a worker that ends could leave locked for the others: each has a place of its own.
    mine, theirs = [0], SPAWN.Array("i", WORKERS, lock=False)
    look = keep_watching(url, mine)
    samples = Samples(url, NAMES, at=commit)
    dataset = TorchIterableDataset(
        samples, batch_size=3 if own_batches else None, window=WINDOW, num_shards=RANKS, shard_index=rank
    )
    numbers_of([next(iter(SampleStream(samples, batch_size=2)))])  # threads and packs are there before a fork
    loader = DataLoader(
        dataset, batch_size=None if own_batches else 3, num_workers=WORKERS, multiprocessing_context=method,
        worker_init_fn=partial(watch_worker, url, theirs),
    )  # fmt: skip
    numbers = numbers_of(loader)
    look()
    return numbers, [*mine, *theirs]


@pytest.mark.parametrize(("method", "own_batches"), [("fork", False), ("spawn", True)])
def test_torch_workers_of_ranks(wide, method, own_batches):
    pytest.importorskip("torch")
    url, commit = wide
    with committing(url, commit_again_and_again):
        ranks = [Rank(torch_rank, url, commit, rank, method, own_batches) for rank in range(RANKS)]
        with ended(*ranks):
            check(ranks)


def tensorflow_rank(url: str, commit: str, rank: int) -> tuple[list[int], list[int]]:
    from txstore.loaders import tensorflow_dataset

    limit_files(FRAMEWORK_LIMIT)
    most = [0]
    look = keep_watching(url, most)
    dataset = tensorflow_dataset(
        Samples(url, NAMES, at=commit), batch_size=3, window=WINDOW, num_shards=RANKS, shard_index=rank,
        parallel=WORKERS, deterministic=False,
    )  # fmt: skip
    numbers = numbers_of(dataset.prefetch(2).as_numpy_iterator())
    look()
    return numbers, most


def test_tensorflow_interleaves_parts_in_parallel(wide):
    pytest.importorskip("tensorflow")
    url, commit = wide
    with committing(url, commit_again_and_again):
        ranks = [Worker(tensorflow_rank, url, commit, rank) for rank in range(RANKS)]
        with ended(*ranks):
            check(ranks)
