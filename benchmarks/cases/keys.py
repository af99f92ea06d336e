"""What ten million keys on a local disk take of memory: to be written, and to be optimized.

Memory is that of the process alone, above what it had before: pages of mapped files are the system's, and dropped when
memory runs short.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import txstore
from benchmarks.harness import Row, Setting, fill_keys, timed
from benchmarks.memory import peak_of
from benchmarks.own_process import Values, ask

SIZES = (100_000, 1_000_000, 10_000_000)
#: So many transactions fill the repository that is optimized: each leaves a pack that is small enough to be copied.
TRANSACTIONS = 100
_LOOK = 0.005  # seconds between two looks at the memory of a process
#: Of the largest size: bytes of memory for each key, megabytes.
WRITER, OPTIMIZE = 150.0, 200.0


def _warm(path: Path) -> None:
    """Load what the process needs, so that it is not counted."""
    other = txstore.Repository(path.with_name("warm.tx"))
    fill_keys(other, 300, 100)
    other.optimize()


def write(path: Path, keys: int) -> Values:
    """Write all keys in one transaction."""
    _warm(path)
    seconds: list[float] = []

    def work() -> None:
        with timed() as all_of_it, txstore.Repository(path).begin("fill") as transaction, timed() as staging:
            for number in range(keys):
                transaction[f"position/c/{number}"] = number.to_bytes(8, "little")
        seconds.extend((staging(), all_of_it() - staging()))

    peak = peak_of(work, _LOOK)
    return {"bytes a key": peak / keys, "staging, s": seconds[0], "commit, s": seconds[1]}


def fill(path: Path, keys: int) -> None:
    fill_keys(txstore.Repository(path, durability="none"), keys, keys // TRANSACTIONS)


def optimize(path: Path) -> Values:
    _warm(path)
    with timed() as seconds:
        peak = peak_of(lambda: txstore.Repository(path).optimize(), _LOOK)
    return {"optimize, MB": peak / 1e6, "optimize, s": seconds()}


def keys(setting: Setting) -> list[Row]:
    figures: list[dict[str, Any]] = []
    for count in SIZES[: setting.rounds(len(SIZES), 1)]:
        with setting.scratch() as scratch:
            written = ask(write, path=scratch / "one.tx", keys=count)
            ask(fill, path=scratch / "many.tx", keys=count)
            figures.append({"keys": count, **written, **ask(optimize, path=scratch / "many.tx")})
    last, where = figures[-1], f"{figures[-1]['keys']:,} keys"
    memory = f"optimize of {where} in {TRANSACTIONS} packs: memory"
    what = f"one transaction of {where}: memory"
    return [
        Row("keys-write", what, last["bytes a key"], WRITER, "B a key", figures=figures),
        Row("keys-optimize", memory, last["optimize, MB"], OPTIMIZE, "MB"),
    ]


CASES = {"keys": keys}
