"""PyTorch's faces of samples: an `IterableDataset` for training, a map-style `Dataset` for looking things up."""

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

from txstore.loaders.cached import CACHE, CachedSamples
from txstore.loaders.samples import Sample, Samples
from txstore.loaders.stream import WINDOW, SampleStream

#: What the processes of one `DataLoader` share: the epoch; whether any worker has begun to iterate; how many states
#: were loaded; whether the epoch that was resumed is iterated over again, from its beginning.
_EPOCH, _STARTED, _LOADS, _AGAIN = range(4)
#: Of more arrays, workers send the bytes of tensors. In shared memory, PyTorch takes a descriptor for each tensor that
#: is under way, or asks another process for each; where that fails, batches are lost without an error.
_SENT_IN_SHARED_MEMORY = 16


class TorchIterableDataset(IterableDataset[Sample]):
    """A `SampleStream` for a `DataLoader`: each worker of each rank reads a shard of its own, at the same commit.

    Parameters
    ----------
    samples : Samples
    batch_size : int, optional
        Let items be batches, which costs least: give the loader `batch_size=None` then.
    shuffle, seed, window
        As of `SampleStream`.
    num_shards, shard_index : int, optional
        How many ranks there are, and which one this is: by default what `torch.distributed` says, if it is initialized,
        or `torchrun` (`WORLD_SIZE` and `RANK`), or one. The workers of the loader divide the shard of their rank among
        themselves.
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
        # Workers may outlive an epoch (`persistent_workers`), and have a copy of this object.
        self._shared = torch.zeros(4, dtype=torch.int64).share_memory_()
        self._loads = 0
        self._finished: torch.Tensor | None = None  # which workers have come to the end of the epoch that was resumed

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has workers of its own. In a worker that was spawned, memory is that of the parent."""
        self.__dict__.update(state)
        for shared in (self._shared, self._finished):
            if shared is not None and not shared.is_shared():
                shared.share_memory_()

    @property
    def samples(self) -> Samples:
        return self.stream.samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, in all workers: to be called before each but the first."""
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
        # A generator also for what it raises: from `__iter__` itself, that would end a worker without a word.
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
            stream.forget_loaded()  # what this worker itself was given
        elif epoch == int(self._shared[_EPOCH]):
            self._finished[worker] = True

    def state_dict(self) -> dict[str, Any]:
        """Return where this process stands. `torchdata`'s `StatefulDataLoader` asks each worker.

        A `DataLoader` with workers does not: there it is `state_after`.
        """
        if get_worker_info() is None and self._shared[_STARTED]:
            raise ValueError(
                "it is workers who read: ask for state_after(loader, batches), which knows how far they are"
            )
        return self.stream.state_dict()

    def state_after(self, loader: DataLoader[Any], batches: int) -> dict[str, Any]:
        """Return where this rank stands when its loader has handed out `batches` batches.

        They are counted from where the epoch began, or was resumed. What workers have read ahead does not count.
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
        """Go on where a state was taken: to be called before the loader is iterated over.

        Raises `ValueError` if it is of another commit, order or rank. Workers that persist from before do so, too.
        """
        self.stream.load_state_dict(state)
        self._shared[_EPOCH] = self.stream.epoch
        if get_worker_info() is not None:  # `StatefulDataLoader` gives each worker what is its own
            self._finished = None
            return
        self._loads += 1
        self._shared[_LOADS] = self._loads
        self._shared[_AGAIN] = 0
        workers = len(state["positions"])
        self._finished = torch.zeros(workers, dtype=torch.bool).share_memory_() if workers else None


def _ranks() -> tuple[int, int]:
    """Return how many ranks there are, and which one this process is."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    if ("WORLD_SIZE" in os.environ) != ("RANK" in os.environ):
        raise ValueError("of WORLD_SIZE and RANK only one is set: give num_shards= and shard_index=")
    return int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


def _send_bytes(samples: Samples) -> None:
    """Let this worker send tensors as bytes, if there are many."""
    if len(samples.arrays) > _SENT_IN_SHARED_MEMORY:
        ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
        # Collating makes them in shared memory all the same: without a descriptor for each. What fails there is raised.
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
    """Return how many batches came from each worker: a loader asks them in turn, and skips finished workers."""
    if taken < 0:
        raise ValueError(f"batches is {taken}: it has to be how many the loader has handed out")
    if taken > sum(having):
        raise ValueError(f"{taken} batches are more than the {sum(having)} that are left of the epoch")
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
    """Samples by their number: for samplers of one's own, for validation, for looking at one.

    Whole chunks are read, and the last ones kept: up to `cache` bytes in each process. Shuffling a large data set with
    this reads a chunk for nearly each sample; `TorchIterableDataset` reads each once.
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
