"""What the benchmark asks of each peer, and what it says about one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.works import Work

NAME = "x"  # of the array
#: Bytes of decoded chunks that a caching peer keeps: more than any array has of which parts are read.
CACHED = 256 << 20


#: Appends a block along the first axis, and makes others see it.
Append = Callable[[np.ndarray], object]


class NotOffered(Exception):
    """This peer can't do this work; the message says why."""


class Peer:
    """One store at a path that nobody else uses, through the array interface that is its own."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()  # without which it is skipped
    #: Whether what it has acknowledged survives a loss of power.
    durable: ClassVar[bool]
    #: What several processes that write one array at the same time may do.
    processes: ClassVar[str]
    #: It ends with its process.
    volatile: ClassVar[bool] = False
    #: It shares another peer's files, and adds nothing to reading them.
    only_writes: ClassVar[bool] = False

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def missing(cls) -> list[str]:
        return [package for package in cls.packages if importlib.util.find_spec(package) is None]

    def prepare(self) -> None:
        """Make what an array is put into. Not timed."""

    def write(self, work: Work, data: np.ndarray) -> None:
        """Create the array, write all of it, and make others see it."""
        raise NotImplementedError

    def open(self) -> Any:
        """Open the array anew, to read it."""
        raise NotImplementedError

    def read(self, array: Any, selection: Any) -> np.ndarray:
        return np.asarray(array[selection])

    def close(self, array: Any) -> None:
        """Let go of what `open` has returned."""

    def appending(self, work: Work) -> AbstractContextManager[Append]:
        """Create the array, with no rows yet, to append to."""
        raise NotOffered("it can't append")

    def create(self, work: Work) -> None:
        """Create the array, for several processes to write into."""
        raise NotOffered("one process at a time")

    def write_part(self, data: np.ndarray, part: slice) -> None:
        """Write some of the rows, beside other processes that write others, and make them seen."""
        raise NotOffered("one process at a time")
