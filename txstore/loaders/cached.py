"""Reads samples by number: it reads whole blocks, and caches the most recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import index
from typing import Any

from txstore import processes
from txstore.loaders.order import MixedWindow
from txstore.loaders.reading import read_window
from txstore.loaders.samples import Sample, Samples
from txstore.sessions.calling_thread import result_of

#: Bytes of decoded blocks in the cache of a process.
CACHE = 64 << 20


class CachedSamples:
    """The samples of one process. A pickle has the source of the samples, but not the cache."""

    def __init__(self, samples: Samples, size: int = CACHE) -> None:
        self._samples = samples
        self._size = size
        self._block = samples.block_length(size)
        self._kept: OrderedDict[int, Sample] = OrderedDict()
        self._lock = processes.new_lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedSamples, (self._samples, self._size)

    def take(self, indices: Sequence[int]) -> list[Sample]:
        """Return samples in the order of `indices`. Negative numbers count from the end. Raises `IndexError`."""
        total = len(self._samples)
        numbers = [index(number) for number in indices]
        outside = [number for number in numbers if not -total <= number < total]
        if outside:
            raise IndexError(f"there is no sample {outside[0]}: there are {total}")
        places = [divmod(number % total, self._block) for number in numbers]
        found: dict[int, Sample] = {}
        taken: list[Sample | None] = [None] * len(places)
        for place in sorted(range(len(places)), key=lambda place: places[place]):  # each block once
            number, row = places[place]
            if number not in found:
                found = {number: self._block_at(number)}
            taken[place] = {name: values[row].copy() for name, values in found[number].items()}
        return [sample for sample in taken if sample is not None]

    def _block_at(self, number: int) -> Sample:
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number]
        start, stop = number * self._block, min((number + 1) * self._block, len(self._samples))
        block = MixedWindow(((start, stop),), (slice(0, stop - start),), stop - start)
        read = result_of(read_window(self._samples.arrays, block))
        with self._lock:
            self._kept[number] = read
            most = max(1, self._size // (self._block * self._samples.sample_bytes))
            while len(self._kept) > most:
                self._kept.popitem(last=False)
        return read
