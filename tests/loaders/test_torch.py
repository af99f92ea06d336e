"""PyTorch: loaders with workers, ranks, epochs, and what is resumed."""

import copy
import gc
import io
import os
import pickle

import numpy as np
import pytest
import zarr

import txstore
from tests.loaders.training_data import COUNT, WINDOW, committing, numbers_of, write
from tests.tools.workers import Worker, ended
from txstore.loaders import Samples

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

from txstore.loaders import TorchDataset, TorchIterableDataset  # noqa: E402

RANKS, WORKERS = 2, 4

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:This DataLoader will create.*")


def epochs_of_rank(url: str, commit: str, rank: int, method: str, epochs: int) -> list[list[int]]:
    """What one rank gets in each epoch: told by what torchrun sets."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    dataset = TorchIterableDataset(Samples(url, ["x", "y"], at=commit), window=WINDOW)
    next(iter(dataset))  # zarr's threads and ours are there before workers are forked
    loader = DataLoader(
        dataset, batch_size=7, num_workers=WORKERS, multiprocessing_context=method, persistent_workers=True
    )
    found = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        found.append(numbers_of(loader))
    return found


class Rank(Worker):
    """A process that may have workers of its own."""

    daemon = False

    def __init__(self, *arguments: object) -> None:
        super().__init__(epochs_of_rank, *arguments)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_sample_once_an_epoch_of_one_commit_while_others_are_made(samples, repo, method):
    ranks = [Rank(repo.url, samples.commit.id, rank, method, 2) for rank in range(RANKS)]
    with ended(*ranks), committing(repo.url):
        found = [rank.result() for rank in ranks]
    for epoch in range(2):
        both = [rank[epoch] for rank in found]
        assert sorted(both[0] + both[1]) == list(range(COUNT))
    assert found[0][0] != found[0][1]
    assert repo.head().version > samples.commit.version


@pytest.mark.parametrize("workers", [0, 1, 3, 5])
@pytest.mark.parametrize("own_batches", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_resumed_after_any_batch(samples, workers, own_batches, drop_last):
    if own_batches and drop_last:
        pytest.skip("PyTorch drops nothing from batches that the dataset makes")

    def loader(state=None):
        dataset = TorchIterableDataset(
            samples, batch_size=16 if own_batches else None, window=WINDOW, num_shards=2, shard_index=1
        )
        dataset.set_epoch(2)
        if state is not None:
            dataset.load_state_dict(state)
        return DataLoader(dataset, batch_size=None if own_batches else 16, num_workers=workers, drop_last=drop_last)

    whole = [numbers_of([batch]) for batch in loader()]
    for taken in sorted({0, 1, 2, min(workers + 1, len(whole)), len(whole) - 1, len(whole)}):
        interrupted = loader()
        batches = iter(interrupted)
        before = [numbers_of([next(batches)]) for _ in range(taken)]
        saved = io.BytesIO()
        torch.save(interrupted.dataset.state_after(interrupted, taken), saved)
        del batches  # with what its workers have read ahead
        saved.seek(0)
        after = [numbers_of([batch]) for batch in loader(torch.load(saved, weights_only=True))]
        assert before == whole[:taken]
        assert sorted(map(tuple, before + after)) == sorted(map(tuple, whole))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_resumed_epoch_that_is_complete_is_iterated_over_again_from_its_beginning(samples, workers, persistent):
    def loader():
        return DataLoader(
            TorchIterableDataset(samples, window=WINDOW), batch_size=8, num_workers=workers,
            persistent_workers=persistent,
        )  # fmt: skip

    first = loader()
    before = numbers_of(batch for batch, _ in zip(first, range(5), strict=False))
    resumed = loader()
    resumed.dataset.load_state_dict(first.dataset.state_after(first, 5))
    assert sorted(before + numbers_of(resumed)) == list(range(COUNT))
    for _ in range(2):
        assert sorted(numbers_of(resumed)) == list(range(COUNT))
    before = numbers_of(batch for batch, _ in zip(resumed, range(7), strict=False))
    again = loader()
    again.dataset.load_state_dict(resumed.dataset.state_after(resumed, 7))
    assert sorted(before + numbers_of(again)) == list(range(COUNT))


def test_workers_that_persist_do_not_go_on_with_what_they_had_when_a_state_is_loaded(samples):
    dataset = TorchIterableDataset(samples, window=WINDOW)
    loader = DataLoader(dataset, batch_size=8, num_workers=2, persistent_workers=True)
    before = numbers_of(batch for batch, _ in zip(loader, range(5), strict=False))
    dataset.load_state_dict(dataset.state_after(loader, 5))
    with pytest.raises(ValueError, match="make another DataLoader"):
        next(iter(loader))
    another = DataLoader(dataset, batch_size=8, num_workers=2)
    assert sorted(before + numbers_of(another)) == list(range(COUNT))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_workers_of_a_copy_learn_the_epoch(samples, copied):
    dataset = copied(TorchIterableDataset(samples, window=WINDOW))
    loader = DataLoader(dataset, batch_size=8, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    first = numbers_of(loader)
    dataset.set_epoch(1)
    second = numbers_of(loader)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(COUNT))


def test_what_reading_raises_in_a_worker_says_what_it_is(samples, repo):
    pickled = pickle.dumps(TorchIterableDataset(samples, window=WINDOW))
    samples.arrays.clear()  # nobody reads this commit any more
    gc.collect()
    for generation in range(3):
        write(repo, COUNT, generation=generation)
    repo.vacuum(keep=1)
    with pytest.raises(txstore.SnapshotExpiredError, match="is no longer kept"):
        numbers_of(DataLoader(pickle.loads(pickled), batch_size=8, num_workers=2))


def test_what_workers_read_is_not_what_the_parent_stands_at(samples):
    dataset = TorchIterableDataset(samples, window=WINDOW)
    loader = DataLoader(dataset, batch_size=8, num_workers=1)
    next(iter(loader))
    with pytest.raises(ValueError, match="state_after"):
        dataset.state_dict()
    with pytest.raises(ValueError, match="more than the 26"):
        dataset.state_after(loader, 27)
    with pytest.raises(ValueError, match="batches is -1"):
        dataset.state_after(loader, -1)
    both = DataLoader(TorchIterableDataset(samples, batch_size=4), batch_size=4)
    with pytest.raises(ValueError, match="batch_size=None"):
        both.dataset.state_after(both, 1)


def without_shared_memory(worker: int) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("shared memory can't be had")

    torch.UntypedStorage._share_filename_cpu_ = torch.UntypedStorage._share_fd_cpu_ = fail


@pytest.mark.parametrize("own_batches", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_many_arrays_do_not_need_shared_memory(repo, method, own_batches):
    """Where it can't be had in time, PyTorch says so on the screen, and goes on without the batch."""
    names = [f"a{number}" for number in range(20)]
    with repo.transaction() as store:
        for name in names:
            zarr.create_array(store, name=name, data=np.arange(40), chunks=(10,))
    dataset = TorchIterableDataset(Samples(repo, names), batch_size=3 if own_batches else None, window=WINDOW)
    loader = DataLoader(
        dataset, batch_size=None if own_batches else 3, num_workers=2, multiprocessing_context=method,
        worker_init_fn=without_shared_memory,
    )  # fmt: skip
    batches = list(loader)
    for name in names:
        assert sorted(number for batch in batches for number in batch[name].tolist()) == list(range(40))


def test_ranks_are_what_torchrun_says_or_what_is_given(samples, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    told = TorchIterableDataset(samples).stream
    assert (told.shard_index, told.num_shards) == (1, 3)
    given = TorchIterableDataset(samples, num_shards=8, shard_index=7).stream
    assert (given.shard_index, given.num_shards) == (7, 8)
    with pytest.raises(ValueError, match="or neither"):
        TorchIterableDataset(samples, num_shards=8)
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match="only one is set"):
        TorchIterableDataset(samples)


@pytest.mark.parametrize("workers", [0, 2])
def test_by_number(samples, workers):
    dataset = TorchDataset(samples, cache=400)
    assert len(dataset) == COUNT
    assert numbers_of([dataset[5], dataset[-1]]) == [5, COUNT - 1]
    assert sorted(numbers_of(DataLoader(dataset, batch_size=7, shuffle=True, num_workers=workers))) == list(
        range(COUNT)
    )
