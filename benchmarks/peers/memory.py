"""How far memory goes above what it was, and above the array itself, while all of an array is written or read.

What counts is memory of the process's own: pages of files that it has mapped are the system's cache, which others share
and which is dropped when memory runs short. They are shown beside it, as "resident".
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.fresh import Values, ask
from benchmarks.peers.peer import Peer
from benchmarks.peers.roster import PEERS
from benchmarks.peers.sampling import begin, compare
from benchmarks.peers.works import WORKS, Work

#: The works that it is measured with: many small chunks, and large ones, of which each thread holds some.
MEASURED = ("4096 × 16 KiB, zstd", "512 × 1 MiB, raw", "512 × 1 MiB, zstd", "32 × 16 MiB, zstd")
_RESIDENT = ", resident"


@dataclass(frozen=True)
class Memory:
    roster: ClassVar[Mapping[str, type[Peer]]] = PEERS

    work: Work
    peers: Sequence[str]
    rounds: int | None = 1
    units: dict[str, str] = field(
        default_factory=lambda: dict.fromkeys(("write", "read", f"write{_RESIDENT}", f"read{_RESIDENT}"), "MiB")
    )

    @property
    def name(self) -> str:
        return f"peak memory, {self.work.name}"

    def measure(self, peer: str, place: Path) -> Values:
        order = {"peer": peer, "path": str(place), "work": self.work.name}
        found = ask(of_a_write, **order)
        if not PEERS[peer].only_writes:
            found |= ask(of_a_read, **order)
        return found


# --- in a process of its own


def of_a_write(peer: str, path: str, work: str) -> Values:
    chosen = WORKS[work]
    store, data = begin(PEERS[peer], path, Work("small", 8, 64, chosen.codec)), chosen.data()
    store.prepare()
    return _named("write", _peak_above(lambda: store.write(chosen, data)))


def of_a_read(peer: str, path: str, work: str) -> Values:
    chosen = WORKS[work]
    store, data = begin(PEERS[peer], path, Work("small", 8, 64, chosen.codec)), chosen.data()
    if store.volatile:
        store.prepare()
        store.write(chosen, data)
    found: list[np.ndarray] = []

    def read() -> None:
        array = store.open()
        found.append(store.read(array, np.s_[:, :]))
        store.close(array)

    above = _peak_above(read)
    compare(found[0], data)
    return _named("read", tuple(peak - data.nbytes for peak in above))


def _named(task: str, above: tuple[int, ...]) -> Values:
    own, resident = (max(peak, 0) / (1 << 20) for peak in above)
    return {task: own, f"{task}{_RESIDENT}": resident}


def _peak_above(work: Callable[[], object]) -> tuple[int, int]:
    """Return how many bytes this process's own memory, and its resident memory, have gone above what they were."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the resident peak is counted from here
    before = read_status(os.getpid())["VmRSS"]
    own = peak_of(work)
    return own, read_status(os.getpid())["VmHWM"] - before


def peak_of(work: Callable[[], object], every: float = 0.0005) -> int:
    """Return how many bytes this process's own memory has gone above what it was, looked at every so many seconds."""
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)  # what was freed and kept would hide what is taken now
    before = read_status(os.getpid())["RssAnon"]
    watcher = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, str(os.getpid()), str(every)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        _readable(watcher).readline()  # it watches
        work()
        own, _ = watcher.communicate(timeout=60)
    finally:
        watcher.kill()
    return int(own) - before


def _readable(process: subprocess.Popen[bytes]) -> Any:
    return process.stdout


def read_status(process: int) -> dict[str, int]:
    """Return the sizes that the kernel tells of a process, in bytes."""
    with open(f"/proc/{process}/status", encoding="ascii") as status:
        fields = (line.split() for line in status)
        return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields if field[2:] == ["kB"]}


def watch(process: int, every: float) -> None:
    """Look at a process every so many seconds, until stdin is closed; print the peak of its own memory."""
    import select

    peak = 0
    print(flush=True)
    while not select.select([sys.stdin], [], [], every)[0]:
        peak = max(peak, read_status(process)["RssAnon"])
    print(peak, flush=True)


if __name__ == "__main__":
    watch(int(sys.argv[1]), float(sys.argv[2]))
