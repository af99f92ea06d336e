"""Other stores in a process that has imported txstore: the same codec pipeline as without it, and the same time."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.harness import timed
from benchmarks.peers.fresh import Values, ask
from benchmarks.peers.peer import Peer

WITHOUT, BESIDE = "without txstore", "txstore imported"
STORES = ("LocalStore", "MemoryStore", "ObjectStore")
CHANGED = "pipelines that have changed"
_SHAPE, _CHUNK, _SHARD = (64 * 64, 64), (64, 64), (32 * 64, 64)
_TIMES, _PROCESSES = 40, 3


@dataclass(frozen=True)
class Bystanders:
    roster: ClassVar[Mapping[str, type[Peer]]] = {}

    name: str = "other stores in the process"
    peers: Sequence[str] = (WITHOUT, BESIDE)
    rounds: int | None = None
    units: dict[str, str] = field(default_factory=lambda: {CHANGED: ""})

    def measure(self, peer: str, place: Path) -> Values:
        """Return the best times, which tell of what has to be done, not of what else went on."""
        found = [ask(bystanders, path=f"{place}-{number}", beside=peer == BESIDE) for number in range(_PROCESSES)]
        best = {task: min(one[task] for one in found) for task in found[0]}
        return best | {CHANGED: max(one[CHANGED] for one in found)}


# --- in a process of its own


def bystanders(path: str, beside: bool) -> Values:
    without = {name: pipelines_of(_array(_store(name, f"{path}-before"))) for name in STORES}
    if beside:
        import txstore.store  # noqa: F401
    elif "txstore" in sys.modules:
        raise AssertionError("somebody has imported txstore")
    data = np.random.default_rng(0).standard_normal(_SHAPE, dtype=np.float32).round(2)
    found: dict[str, float] = {CHANGED: 0}
    for name in STORES:
        array = _array(_store(name, f"{path}-after"))
        found[CHANGED] += pipelines_of(array) != without[name]
        for task in ("write", "read"):
            found[f"{task}, {name}"] = min(_time(array, task, data) for _ in range(_TIMES))
    return found


def _store(name: str, path: str) -> Any:
    import obstore
    import zarr.storage

    Path(f"{path}-{name}").mkdir()
    if name == "LocalStore":
        return zarr.storage.LocalStore(f"{path}-{name}")
    if name == "MemoryStore":
        return zarr.storage.MemoryStore()
    return zarr.storage.ObjectStore(obstore.store.LocalStore(f"{path}-{name}"))


def _array(store: Any) -> Any:
    """Sharded, since a shard has a pipeline of its own for its chunks."""
    import zarr

    return zarr.create_array(store, name="x", shape=_SHAPE, chunks=_CHUNK, shards=_SHARD, dtype="f4")


def pipelines_of(array: Any) -> list[str]:
    """Return the classes of an array's pipeline and of those below it."""
    outer = array._async_array.codec_pipeline
    inner = [codec.codec_pipeline for codec in outer if hasattr(codec, "codec_pipeline")]
    return [f"{type(one).__module__}.{type(one).__qualname__}" for one in (outer, *inner)]


def _time(array: Any, task: str, data: np.ndarray) -> float:
    with timed() as seconds:
        if task == "write":
            array[:] = data
        else:
            array[:]
    return seconds()
