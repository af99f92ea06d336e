"""How far a call goes through the code: `make walks` counts the calls, functions, files and hops of the usual ones.

Each walk is one call of the API for one chunk on a warm store, in all threads. A hop is a call from a function of ours
to a function of ours in another file. The fewer files and hops, the less a person reads before changing a call.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import zarr

import txstore
from benchmarks.simulated.s3_stub import S3Stub
from benchmarks.stores import Bucket

_OURS = os.path.dirname(txstore.__file__) + os.sep
_SHOWN = 15


@dataclass
class Walk:
    """The calls of functions of ours."""

    functions: Counter[CodeType] = field(default_factory=Counter)
    hops: Counter[tuple[str, str]] = field(default_factory=Counter)  # from file to file

    def note(self, code: CodeType, _: int) -> object:
        """Count the start of a function: an event of `sys.monitoring`."""
        if not code.co_filename.startswith(_OURS):
            return sys.monitoring.DISABLE
        self.functions[code] += 1
        above = sys._getframe(1).f_back
        caller = "" if above is None else above.f_code.co_filename
        if caller.startswith(_OURS) and caller != code.co_filename:
            self.hops[_short(caller), _short(code.co_filename)] += 1
        return None

    @property
    def files(self) -> Counter[str]:
        """The calls of the functions in each file."""
        found: Counter[str] = Counter()
        for code, calls in self.functions.items():
            found[_short(code.co_filename)] += calls
        return found

    def row(self) -> tuple[int, int, int, int]:
        return self.functions.total(), len(self.functions), len(self.files), self.hops.total()


def _short(path: str) -> str:
    return path.removeprefix(_OURS)


@contextmanager
def walking() -> Iterator[Walk]:
    """Count what is called in the block, in all threads."""
    walk, monitoring = Walk(), sys.monitoring
    monitoring.use_tool_id(monitoring.PROFILER_ID, "walks")
    monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, walk.note)
    monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.PY_START)
    monitoring.restart_events()
    try:
        yield walk
    finally:
        monitoring.set_events(monitoring.PROFILER_ID, 0)
        monitoring.free_tool_id(monitoring.PROFILER_ID)


def _walked(call: Callable[[], object]) -> Walk:
    with walking() as walk:
        call()
    return walk


def walks(url: str, options: Mapping[str, Any]) -> dict[str, Walk]:
    """Walk through a write, a read, a commit and a merge of one chunk each, when each has been done before."""
    repo = txstore.Repository(url, storage_options=options)
    with repo.transaction("create") as store:
        zarr.create_array(store, name="x", data=np.zeros(100), chunks=(10,), compressors=None)
    found: dict[str, Walk] = {}
    for _ in range(2):  # the second time, nothing is made or looked up for the first time
        store = repo.transaction("write")
        array = zarr.open_array(store, path="x")
        array[:10] = 1.0
        found["write"] = _walked(lambda array=array: array.__setitem__(slice(10, 20), 2.0))
        found["commit"] = _walked(store.commit)
        array = zarr.open_array(repo.snapshot(), path="x", mode="r")
        array[:10]
        found["read"] = _walked(lambda array=array: array[10:20])
    for number in range(2):
        name = f"side-{number}"
        repo.branches[name] = repo.head()
        for branch, start in ((name, 30), ("main", 50)):
            with repo.transaction("change", branch=branch) as store:
                zarr.open_array(store, path="x")[start : start + 10] = float(number)
        found["merge"] = _walked(lambda name=name: repo.merge(name))
    return found


def all_walks() -> dict[str, Walk]:
    found: dict[str, Walk] = {}
    with tempfile.TemporaryDirectory(prefix="txstore-walks-") as directory:
        local = walks(str(Path(directory) / "data.tx"), {})
    with S3Stub() as stub:
        bucket = Bucket(stub.port, "walks.tx")
        remote = walks(bucket.url, bucket.options)
    for what in ("write", "read", "commit"):
        found[f"local {what}"], found[f"remote {what}"] = local[what], remote[what]
    found["merge"] = local["merge"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.code.walks", description=__doc__)
    parser.add_argument("--show", metavar="WALK", help="print the files and hops of one walk, too")
    shown = parser.parse_args().show
    found = all_walks()
    print(f"{'':16}{'calls':>8}{'functions':>11}{'files':>7}{'hops':>7}")
    for name, walk in found.items():
        calls, functions, files, hops = walk.row()
        print(f"{name:16}{calls:8}{functions:11}{files:7}{hops:7}")
    if shown is not None:
        for file, calls in found[shown].files.most_common(_SHOWN):
            print(f"{calls:6} calls in {file}")
        for (caller, called), hops in found[shown].hops.most_common(_SHOWN):
            print(f"{hops:6} hops from {caller} to {called}")
    return 0


if __name__ == "__main__":
    if sys.version_info < (3, 12):
        sys.exit("this takes Python 3.12 or newer: it has sys.monitoring")
    sys.exit(main())
