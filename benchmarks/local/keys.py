"""Ten million keys on a local disk: what a writer takes of memory for each, the commit that follows, and `optimize`.

Each is measured in a process of its own (`python -m benchmarks.local.keys WHAT PATH KEYS`). Memory is that of the
process alone, above what it had before: pages of mapped files are the system's, and dropped when memory runs short.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import txstore
from benchmarks.harness import Row, Setting, settle
from benchmarks.peers.memory import peak_of

SIZES = (100_000, 1_000_000, 10_000_000)
#: So many transactions fill the repository that is optimized: each leaves a pack that is small enough to be copied.
TRANSACTIONS = 100
_LATER = 30
_LOOK = 0.005  # seconds between two looks at the memory of a process

#: Of the largest size: bytes of memory for each key, milliseconds, megabytes.
WRITER, FIRST, OPTIMIZE = 150.0, 5.0, 200.0


def _fill(transaction: Any, first: int, stop: int) -> None:
    for number in range(first, stop):
        transaction[f"position/c/{number}"] = number.to_bytes(8, "little")


def _warm(path: Path) -> None:
    """Load what the process needs, so that it is not counted."""
    other = txstore.Repository(path.with_name("warm.tx"))
    for _ in range(3):
        with other.begin("warm") as transaction:
            _fill(transaction, 0, 100)
    other.optimize()


# --- in a process of its own


def write(path: Path, keys: int) -> dict[str, float]:
    """Write all keys in one transaction, then a few later ones."""
    _warm(path)
    seconds: list[float] = []

    def work() -> None:
        began = time.perf_counter()
        repo = txstore.Repository(path)
        with repo.begin("fill") as transaction:
            _fill(transaction, 0, keys)
            seconds.append(time.perf_counter() - began)
        seconds.append(time.perf_counter() - began - seconds[0])

    peak = peak_of(work, _LOOK)
    return {"bytes a key": peak / keys, "staging": seconds[0], "commit": seconds[1], **_small_commits(path, keys)}


def later(path: Path, keys: int) -> dict[str, float]:
    """Make small commits in a process that has not seen the repository."""
    _warm(path)
    return _small_commits(path, keys)


def _small_commits(path: Path, keys: int) -> dict[str, float]:
    """Return the milliseconds of the first small commit, and the median of those that follow."""
    repo = txstore.Repository(path)
    gc.collect()
    taken = []
    for number in range(1 + _LATER):
        began = time.perf_counter()
        with repo.begin("later") as transaction:
            transaction[f"position/c/{number * 997 % keys}"] = os.urandom(8)
        taken.append((time.perf_counter() - began) * 1e3)
    return {"first": taken[0], "later": statistics.median(taken[1:])}


def optimize(path: Path, keys: int) -> dict[str, float]:
    """Fill a repository by many transactions in another process, and optimize it in this one."""
    subprocess.run([sys.executable, "-m", __spec__.name, "fill", str(path), str(keys)], check=True, stdout=sys.stderr)
    _warm(path)
    began = time.perf_counter()
    peak = peak_of(lambda: txstore.Repository(path).optimize(), _LOOK)
    return {"megabytes": peak / 1e6, "bytes a key": peak / keys, "seconds": time.perf_counter() - began}


def fill(path: Path, keys: int) -> dict[str, float]:
    repo = txstore.Repository(path, durability="none")
    for number in range(TRANSACTIONS):
        with repo.begin("fill") as transaction:
            _fill(transaction, keys * number // TRANSACTIONS, keys * (number + 1) // TRANSACTIONS)
    return {}


# --- the rows


def keys(setting: Setting) -> list[Row]:
    figures = []
    for count in SIZES[: setting.rounds(len(SIZES), 1)]:
        with setting.scratch() as scratch:
            written = _elsewhere("write", scratch / "one.tx", count)
            settle(scratch)
            again = _elsewhere("later", scratch / "one.tx", count)
        with setting.scratch() as scratch:
            optimized = _elsewhere("optimize", scratch / "many.tx", count)
        figures.append({"keys": count, "write": written, "later": again, "optimize": optimized})
        _tell(figures[-1])
    last = figures[-1]
    where = f"{last['keys']:,} keys"
    return [
        Row(
            "keys-write",
            f"one transaction of {where}: memory",
            last["write"]["bytes a key"],
            WRITER,
            "B a key",
            figures=figures,
        ),
        Row(
            "keys-first",
            f"first small commit after {where} in the process that wrote them",
            last["write"]["first"],
            FIRST,
            "ms",
        ),
        Row(
            "keys-first-elsewhere",
            f"first small commit after {where} in another process",
            last["later"]["first"],
            FIRST,
            "ms",
        ),
        Row(
            "keys-optimize",
            f"optimize of {where} in {TRANSACTIONS} packs: memory",
            last["optimize"]["megabytes"],
            OPTIMIZE,
            "MB",
        ),
    ]


def _tell(figures: Any) -> None:
    told = (
        f"{what} {name} {value:.4g}" for what in ("write", "later", "optimize") for name, value in figures[what].items()
    )
    print(f"{figures['keys']:>10,} keys: " + ", ".join(told), file=sys.stderr, flush=True)


def _elsewhere(what: str, path: Path, count: int) -> dict[str, float]:
    ran = subprocess.run(
        [sys.executable, "-m", __spec__.name, what, str(path), str(count)], stdout=subprocess.PIPE, check=True
    )
    return json.loads(ran.stdout)


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {"keys": keys}

if __name__ == "__main__":
    print(
        json.dumps(
            {"write": write, "later": later, "optimize": optimize, "fill": fill}[sys.argv[1]](
                Path(sys.argv[2]), int(sys.argv[3])
            )
        )
    )
