"""Iterates over one shard of the samples, epoch by epoch, in an order given by a seed; it can resume at any sample."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from txstore.loaders.reading import MixedWindow, Order, windows_read
from txstore.loaders.samples import Sample, Samples

#: Bytes of samples that are shuffled together. Less than 32 MiB: malloc maps larger blocks of memory anew each time.
WINDOW = 24 << 20


class SampleStream:
    """Samples in random order, each once an epoch: an iterable of dicts of numpy arrays, without any framework.

    The stream shuffles in two steps, so that it reads each chunk once. It takes chunks in random order, then shuffles
    the samples of as many chunks as fit in `window` bytes. With chunks of one sample, or a window that holds a whole
    shard, this is a full shuffle.

    At most three windows are in memory, and 8 MiB (or one block) of chunks that are being decoded.

    Parameters
    ----------
    samples : Samples
    batch_size : int, optional
        Number of samples in an item: its arrays have one more dimension. The last item may have fewer. By default an
        item is one sample.
    shuffle : bool
        False: samples come in stored order.
    seed : int
        Determines the order, together with the epoch. From 0 to 2**64 - 1.
    window : int
        Bytes of samples that are shuffled together.
    num_shards, shard_index : int
        The part of the samples to read. The shards of an epoch are disjoint, and together contain every sample.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        batch_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        window: int = WINDOW,
        num_shards: int = 1,
        shard_index: int = 0,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: it has to be at least 1, or None for single samples")
        if window < 1:
            raise ValueError(f"window is {window}: it has to be a number of bytes")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed is {seed}: it has to be from 0 to 2**64 - 1")
        check_shard(shard_index, num_shards)
        self.samples = samples
        self.batch_size = batch_size
        self.num_shards, self.shard_index = num_shards, shard_index
        block = samples.block_length(window)
        blocks = max(1, window // (block * samples.sample_bytes))
        self.order = Order(len(samples), block, blocks, shuffle, seed)
        self._epoch = 0
        self._loaded: dict[int, int] = {}  # shard -> number of samples handed out before the resume
        self._loaded_of = num_shards
        self._reached: dict[int, int] = {}
        self._reached_of = num_shards

    @property
    def epoch(self) -> int:
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Start another epoch at its beginning. Call it before each epoch but the first."""
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}: epochs are counted from 0")
        if epoch != self._epoch:
            self._epoch = epoch
            self._loaded, self._reached = {}, {}

    def __iter__(self) -> Iterator[Sample]:
        return self._completed(self.shard(self.shard_index, self.num_shards), self._epoch)

    def _completed(self, items: Generator[Sample, None, None], epoch: int) -> Generator[Sample, None, None]:
        yield from items
        if epoch == self._epoch:
            self.forget_loaded()

    def forget_loaded(self) -> None:
        """Start the next iteration at the beginning of the epoch: the loaded state has been used."""
        self._loaded = {}

    def shard(self, index: int, count: int) -> Generator[Sample, None, None]:
        """Iterate over one shard of the epoch, each time from the position in the loaded state."""
        check_shard(index, count)
        begin = self.begin_of(index, count)
        if count != self._reached_of:
            self._reached, self._reached_of = {}, count
        self._reached[index] = begin
        return self._items(index, count, begin, self._epoch)

    def begin_of(self, index: int, count: int) -> int:
        """Return the number of samples of a shard handed out before: 0 if no state was loaded."""
        if not self._loaded:
            return 0
        if self._loaded_of == count and index in self._loaded:
            return self._loaded[index]
        of = ", ".join(map(str, sorted(self._loaded)))
        raise ValueError(
            f"the state that was loaded is of shard {of} of {self._loaded_of}, and this is shard {index} of {count}: "
            "resume with as many ranks and workers, each rank with its own state, or begin a new epoch with set_epoch"
        )

    def _items(self, index: int, count: int, begin: int, epoch: int) -> Generator[Sample, None, None]:
        windows, skipped = _from(begin, self.order.windows(epoch, index, count))
        reached = begin
        with closing(windows_read(self.samples.arrays, windows)) as batches:
            for item, length in _cut(batches, skipped, self.batch_size):
                reached += length
                if epoch == self._epoch:
                    self._reached[index] = reached
                yield item

    # --- resuming

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this stream, the number of samples handed out, as a dict that JSON can hold."""
        return self.state_of(self._reached, self._reached_of)

    def state_of(self, reached: Mapping[int, int], count: int) -> dict[str, Any]:
        """Return the state for `count` shards: `reached` has the number of samples that each has handed out."""
        return {
            "commit": self.samples.commit.id,
            "order": self.order.as_dict(),
            "epoch": self._epoch,
            "num_shards": count,
            "positions": sorted([index, position] for index, position in reached.items()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a state. Raises `ValueError` if it is of another commit, order or shard."""
        if state["commit"] != self.samples.commit.id:
            raise ValueError(
                f"the state is of commit {state['commit']}, and these samples of {self.samples.commit.id}: "
                f"open them with at={state['commit']!r}"
            )
        order = self.order.as_dict()
        changed = [f"{name} {state['order'].get(name)} is {value} now" for name, value in order.items()
                   if state["order"].get(name) != value]  # fmt: skip
        if changed:
            raise ValueError(f"the state is of another order: {', '.join(changed)}; use what it was taken with")
        self._epoch = int(state["epoch"])
        self._loaded_of = self._reached_of = int(state["num_shards"])
        self._loaded = {int(index): int(position) for index, position in state["positions"]}
        self._reached = dict(self._loaded)


def check_shard(index: int, count: int) -> None:
    if not 0 <= index < count:
        raise ValueError(f"there is no shard {index} of {count}: shards are counted from 0")


def _from(begin: int, windows: Iterator[MixedWindow]) -> tuple[Iterator[MixedWindow], int]:
    """Return the windows starting with the one that contains sample `begin`, and its place in that window."""
    for window in windows:
        if begin < window.length:
            return itertools.chain([window], windows), begin
        begin -= window.length
    return iter(()), 0


def _cut(windows: Iterator[Sample], skipped: int, batch_size: int | None) -> Iterator[tuple[Sample, int]]:
    """Yield single samples, or batches, from windows, each with its number of samples."""
    kept: Sample | None = None  # the rest of the previous windows
    for window in windows:
        length = len(next(iter(window.values())))
        if batch_size is None:
            for number in range(skipped, length):
                yield {name: values[number] for name, values in window.items()}, 1
            skipped = 0
            continue
        begin, skipped = skipped, 0
        if kept is not None:
            missing = batch_size - _length(kept)
            kept = {name: np.concatenate([values, window[name][:missing]]) for name, values in kept.items()}
            begin = min(missing, length)
            if _length(kept) == batch_size:
                yield kept, batch_size
                kept = None
        while length - begin >= batch_size:
            yield {name: values[begin : begin + batch_size] for name, values in window.items()}, batch_size
            begin += batch_size
        if begin < length:
            kept = {name: values[begin:].copy() for name, values in window.items()}
    if kept is not None:
        yield kept, _length(kept)


def _length(batch: Sample) -> int:
    return len(next(iter(batch.values())))
