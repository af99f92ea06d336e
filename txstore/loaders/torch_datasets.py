"""Samples for PyTorch: an `IterableDataset` for training, a map-style `Dataset` for random access."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import distributed, multiprocessing
from torch.multiprocessing.reductions import reduce_storage
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from txstore.loaders.reading import CACHE, CachedSamples
from txstore.loaders.samples import Sample, Samples
from txstore.loaders.stream import WINDOW, SampleStream

#: The numbers that the processes of one `DataLoader` share: the epoch; whether any worker has begun to iterate; the
#: number of loaded states; whether a resumed epoch is iterated again, from its beginning.
_EPOCH, _STARTED, _LOADS, _AGAIN = range(4)
#: With more arrays than this, workers send the bytes of tensors. With shared memory, PyTorch needs a descriptor, or a
#: request to another process, for each tensor in flight; if that fails, batches are lost without an error.
_SENT_IN_SHARED_MEMORY = 16


class TorchIterableDataset(IterableDataset[Sample]):
    """A `SampleStream` for a `DataLoader`: each worker of each rank reads a shard of its own, at the same commit.

    Parameters
    ----------
    samples : Samples
    batch_size : int, optional
        Make each item a batch, which is fastest: then give the loader `batch_size=None`.
    shuffle, seed, window
        As for `SampleStream`.
    num_shards, shard_index : int, optional
        The number of ranks, and the index of this one. By default from `torch.distributed`, if it is initialized, or
        from `torchrun` (`WORLD_SIZE` and `RANK`), or one rank. The workers of the loader divide the shard of their rank
        among themselves.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        batch_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        window: int = WINDOW,
        num_shards: int | None = None,
        shard_index: int | None = None,
    ) -> None:
        if (num_shards is None) != (shard_index is None):
            raise ValueError("give num_shards= and shard_index=, or neither")
        if num_shards is None or shard_index is None:
            num_shards, shard_index = _ranks()
        self.stream = SampleStream(
            samples, batch_size=batch_size, shuffle=shuffle, seed=seed, window=window, num_shards=num_shards,
            shard_index=shard_index,
        )  # fmt: skip
        # Workers may outlive an epoch (`persistent_workers`), and each has a copy of this object.
        self._shared = torch.zeros(4, dtype=torch.int64).share_memory_()
        self._loads = 0
        self._finished: torch.Tensor | None = None  # the workers that have reached the end of the resumed epoch

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has its own workers. A spawned worker shares the memory of its parent."""
        self.__dict__.update(state)
        for shared in (self._shared, self._finished):
            if shared is not None and not shared.is_shared():
                shared.share_memory_()

    @property
    def samples(self) -> Samples:
        return self.stream.samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, in all workers. Call it before each epoch but the first."""
        if epoch != self.stream.epoch:
            self._finished = None
            self._shared[_AGAIN] = 0
        self.stream.set_epoch(epoch)
        self._shared[_EPOCH] = epoch

    def __iter__(self) -> Iterator[Sample]:
        stream, worker = self.stream, get_worker_info()
        stream.set_epoch(int(self._shared[_EPOCH]))
        if worker is None:
            return iter(stream)
        return self._of_worker(worker.id, worker.num_workers)

    def _of_worker(self, worker: int, workers: int) -> Iterator[Sample]:
        # A generator, so that its errors are reported: an error of `__iter__` itself would end a worker silently.
        stream, epoch = self.stream, self.stream.epoch
        if self._loads != self._shared[_LOADS]:
            raise ValueError(
                "a state was loaded after these workers had started: make another DataLoader, they persist in this one"
            )
        self._shared[_STARTED] = 1
        if self._finished is not None and self._finished.all():
            self._shared[_AGAIN] = 1
            stream.forget_loaded()
        _send_bytes(self.samples)
        yield from stream.shard(stream.shard_index * workers + worker, stream.num_shards * workers)
        if self._finished is None:
            stream.forget_loaded()  # the state that this worker itself was given
        elif epoch == int(self._shared[_EPOCH]):
            self._finished[worker] = True

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this process. `torchdata`'s `StatefulDataLoader` calls this in each worker.

        A `DataLoader` with workers does not: use `state_after` there.
        """
        if get_worker_info() is None and self._shared[_STARTED]:
            raise ValueError(
                "the workers read, not this process: call state_after(loader, batches), which knows their positions"
            )
        return self.stream.state_dict()

    def state_after(self, loader: DataLoader[Any], batches: int) -> dict[str, Any]:
        """Return the position of this rank when its loader has handed out `batches` batches.

        The count starts where the epoch began or was resumed. Batches that workers have read ahead do not count.
        """
        if loader.batch_size is not None and self.stream.batch_size is not None:
            raise ValueError("this dataset makes batches itself: give the loader batch_size=None")
        if not getattr(loader, "in_order", True):
            raise ValueError("a loader with in_order=False does not say which batches it has handed out")
        stream, workers = self.stream, max(1, loader.num_workers)
        epoch, count = int(self._shared[_EPOCH]), stream.num_shards * workers
        stream.set_epoch(epoch)
        if self._shared[_AGAIN]:
            stream.forget_loaded()
        shards = range(stream.shard_index * workers, (stream.shard_index + 1) * workers)
        size = loader.batch_size or stream.batch_size or 1
        begins = [stream.begin_of(shard, count) for shard in shards]
        lengths = [stream.order.length(epoch, shard, count) for shard in shards]
        left = [length - begin for length, begin in zip(lengths, begins, strict=True)]
        having = [amount // size if loader.drop_last else -(-amount // size) for amount in left]
        taken = _dealt(having, batches)
        reached = {
            shard: min(begin + took * size, length)
            for shard, begin, took, length in zip(shards, begins, taken, lengths, strict=True)
        }
        return stream.state_of(reached, count)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a state. Call it before iterating over the loader.

        Raises `ValueError` if it is of another commit, order or rank. Persistent workers that started earlier raise
        too.
        """
        self.stream.load_state_dict(state)
        self._shared[_EPOCH] = self.stream.epoch
        if get_worker_info() is not None:  # `StatefulDataLoader` gives each worker its own state
            self._finished = None
            return
        self._loads += 1
        self._shared[_LOADS] = self._loads
        self._shared[_AGAIN] = 0
        workers = len(state["positions"])
        self._finished = torch.zeros(workers, dtype=torch.bool).share_memory_() if workers else None


def _ranks() -> tuple[int, int]:
    """Return the number of ranks, and the index of this process."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    if ("WORLD_SIZE" in os.environ) != ("RANK" in os.environ):
        raise ValueError("of WORLD_SIZE and RANK only one is set: give num_shards= and shard_index=")
    return int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


def _send_bytes(samples: Samples) -> None:
    """Let this worker send tensors as bytes, if there are many."""
    if len(samples.arrays) > _SENT_IN_SHARED_MEMORY:
        ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
        # Collating still makes tensors in shared memory, but without a descriptor for each. Its errors are raised.
        if multiprocessing.get_sharing_strategy() == "file_descriptor":
            multiprocessing.set_sharing_strategy("file_system")


def _reduce_storage(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    if storage.device.type != "cpu":
        reduced: tuple[Any, ...] = reduce_storage(storage)
        return reduced
    return _storage_of, (torch.empty(0, dtype=torch.uint8).set_(storage).numpy(),)


def _storage_of(content: np.ndarray[Any, Any]) -> torch.UntypedStorage:
    return torch.from_numpy(content).untyped_storage()


def _dealt(having: Sequence[int], taken: int) -> list[int]:
    """Return the number of batches from each worker: a loader asks them in turn, and skips workers with none left."""
    if taken < 0:
        raise ValueError(f"batches is {taken}: it must be the number of batches that the loader has handed out")
    if taken > sum(having):
        raise ValueError(f"{taken} batches are more than the {sum(having)} left in the epoch")
    low, high = 0, max(having)
    while low < high:  # the most full rounds
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(min(n, middle) for n in having) <= taken else (low, middle - 1)
    dealt = [min(n, low) for n in having]
    over = taken - sum(dealt)
    for worker, n in enumerate(having):
        if over and n > low:
            dealt[worker] += 1
            over -= 1
    return dealt


class TorchDataset(Dataset[Sample]):
    """Samples by number: for custom samplers, for validation, or to inspect one sample.

    It reads whole chunks, and caches the most recently used: up to `cache` bytes in each process. If a sampler shuffles
    a large data set, it reads a chunk for nearly every sample; `TorchIterableDataset` reads each chunk once.
    """

    def __init__(self, samples: Samples, *, cache: int = CACHE) -> None:
        self.samples = samples
        self._cached = CachedSamples(samples, cache)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        if get_worker_info() is not None:
            _send_bytes(self.samples)
        return self._cached.take(indices)
