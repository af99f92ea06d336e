"""Processes that commit beside the threads: into the chunks that these write, and into others."""

import multiprocessing
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import zarr

import txstore
from tests.isolation.histories import Op
from tests.threads import layout
from tests.threads.layout import LIST_KEYS, ROW, THREADS, element_of_neighbour
from tests.threads.watchdog import Watchdog

#: Seconds between two transactions, at most: of one that shares chunks with the threads, and of others.
PAUSE_SHARED, PAUSE = 0.15, 0.03


class Told(NamedTuple):
    """A transaction that was acknowledged; its commit has the message."""

    message: str
    base: int
    ops: tuple[Op, ...]


class _Neighbour:
    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.chance = random.Random(seed * 1000 + 100 + number)
        self.count = 0
        self.ops: list[Op] = []
        self.base = 0

    def begin(self, store: txstore.TxStore) -> None:
        """Forget what an earlier try has done."""
        self.ops, self.base = [], store.base.seq

    def share(self, store: txstore.TxStore) -> None:
        """Increment an element of a chunk that others write, and append to a list."""
        self.begin(store)
        elements = zarr.open_array(store, path="e", mode="r+")
        self.increment(elements, f"r/e/{element_of_neighbour(self.number)}", np.s_[element_of_neighbour(self.number)])
        key = self.chance.choice(LIST_KEYS)
        lists, number = zarr.open_array(store, path="l", mode="r+"), int(key[-1])
        row = lists[number]
        there = tuple(row[row != 0].tolist())
        self.ops.append(Op("read", key, there))
        if len(there) < ROW:
            element = 10**9 * (self.number + 1) + self.count
            lists[number, len(there)] = element
            self.ops.append(Op("append", key, element))

    def keep_apart(self, store: txstore.TxStore) -> None:
        """Increment rows of its own, and read what the threads have committed."""
        self.begin(store)
        rows = np.s_[4 * self.number : 4 * self.number + 4]
        self.increment(zarr.open_array(store, path="f", mode="r+"), f"r/f/{self.number}", rows)
        number = self.chance.randrange(THREADS)
        self.read(f"r/w/{number}", zarr.open_array(store, path=f"w{number}", mode="r")[:])

    def increment(self, array: Any, key: str, selection: Any) -> None:
        value = self.read(key, array[selection]) + 1
        array[selection] = value
        self.ops.append(Op("write", key, value))

    def read(self, key: str, found: Any) -> int:
        values = layout.distinct(found)
        self.ops.append(Op("read", key, values[0] if len(values) == 1 else values))
        return values[-1]

    def once(self, repo: txstore.Repository) -> Told:
        self.count += 1
        message = f"{self.count} of neighbour {self.number}"
        lock = {"e": np.s_[element_of_neighbour(self.number)]} if self.chance.random() < 0.2 else None
        step = self.keep_apart if self.number else self.share
        repo.run(step, message=message, retries=1000, lock=None if self.number else lock)
        return Told(message, self.base, tuple(self.ops))


def run(number: int, url: str, seed: int, durability: str, limit: float, stop: Any) -> Sequence[Told]:
    """Commit until `stop` is set; return what was acknowledged."""
    neighbour = _Neighbour(number, seed)
    repo = txstore.Repository(url, durability=durability)
    told: list[Told] = []
    parent = multiprocessing.parent_process()
    with Watchdog(limit) as watchdog:
        while (
            parent is not None
            and parent.is_alive()
            and not stop.wait(neighbour.chance.uniform(0, PAUSE if number else PAUSE_SHARED))
        ):
            with watchdog.over("a transaction of another process"):
                told.append(neighbour.once(repo))
    return told
