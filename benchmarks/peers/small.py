"""A small array of ten chunks, read again and again from one array object: what an operation costs by itself."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from benchmarks.harness import timed
from benchmarks.peers.fresh import Values, ask
from benchmarks.peers.peer import Peer
from benchmarks.peers.roster import PEERS
from benchmarks.peers.sampling import begin, compare
from benchmarks.peers.works import Work

_WARM, _READS = 30, 200


@dataclass(frozen=True)
class SmallArray:
    roster: ClassVar[Mapping[str, type[Peer]]] = PEERS

    codec: str
    peers: Sequence[str] = (
        "TxStore", "TxStore, batched", "TxStore, fused", "MemoryStore, batched", "MemoryStore, fused",
        "LocalStore, batched", "LocalStore, fused", "LocalStore, zarrs", "TensorStore ocdbt", "HDF5",
    )  # fmt: skip
    rounds: int | None = None
    units: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"10 × 16 KiB, {self.codec}"

    def measure(self, peer: str, place: Path) -> Values:
        return ask(small, peer=peer, path=str(place), codec=self.codec)


def small(peer: str, path: str, codec: str) -> Values:
    work = Work("small", 10, 64, codec)
    store, data = begin(PEERS[peer], path, work), work.data()
    store.prepare()
    store.write(work, data)
    array = store.open()
    samples = []
    for _ in range(_WARM + _READS):
        with timed() as seconds:
            found = store.read(array, np.s_[:, :])
        samples.append(seconds())
    compare(found, data)
    store.close(array)
    return {"read": statistics.median(samples[_WARM:])}
