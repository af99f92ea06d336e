"""The memory of a process: what the kernel says, and the peak while it works, as another process sees it.

What counts is memory of the process's own: pages of files that it has mapped are the system's cache, which others share
and which is dropped when memory runs short.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def read_status(process: int) -> dict[str, int]:
    """Return the sizes that the kernel tells of a process, in bytes."""
    with open(f"/proc/{process}/status", encoding="ascii") as status:
        fields = (line.split() for line in status)
        return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields if field[2:] == ["kB"]}


def resident_peak(work: Callable[[], object]) -> int:
    """Return how many bytes the resident memory of this process, mapped files included, goes above what it was."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted from here
    before = read_status(os.getpid())["VmRSS"]
    work()
    return read_status(os.getpid())["VmHWM"] - before


def peak_of(work: Callable[[], object], every: float = 0.0005) -> int:
    """Return how many bytes this process's own memory goes above what it was, looked at every so many seconds."""
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)  # what was freed and kept would hide what is taken now
    before = read_status(os.getpid())["RssAnon"]
    command = [sys.executable, "-m", "benchmarks.memory", str(os.getpid()), str(every)]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert watcher.stdout is not None
    try:
        watcher.stdout.readline()  # it watches
        work()
        own, _ = watcher.communicate(timeout=60)
    finally:
        watcher.kill()
    return int(own) - before


def _watch(process: int, every: float) -> None:
    """Look at a process every so many seconds, until stdin is closed; print the peak of its own memory."""
    peak = 0
    print(flush=True)
    while not select.select([sys.stdin], [], [], every)[0]:
        peak = max(peak, read_status(process)["RssAnon"])
    print(peak, flush=True)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), float(sys.argv[2]))
