"""An array on S3, where each request takes its time: how long reading takes, and how many requests.

The server is `s3_stub.py`, in a process of its own, new for each sample. Writing is not timed, nor is it late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from benchmarks.harness import timed
from benchmarks.peers.fresh import Values, ask
from benchmarks.peers.peer import Peer
from benchmarks.peers.remote_peers import port_of
from benchmarks.peers.roster import REMOTE
from benchmarks.peers.sampling import begin, compare
from benchmarks.peers.works import Work
from benchmarks.simulated.s3_stub import S3Stub, move_away, requests_in, take_counts

LATE = 30  # milliseconds
REQUESTS = "requests"


def _work(chunks: int) -> Work:
    return Work("remote", chunks, 64, "zstd")


@dataclass(frozen=True)
class Remote:
    roster: ClassVar[Mapping[str, type[Peer]]] = REMOTE

    chunks: int = 2000
    peers: Sequence[str] = tuple(REMOTE)
    rounds: int | None = 2
    units: dict[str, str] = field(default_factory=lambda: {REQUESTS: ""})

    @property
    def name(self) -> str:
        return f"{self.chunks:,} × 16 KiB on S3, {LATE} ms a request"

    def measure(self, peer: str, place: Path) -> Values:
        with S3Stub() as stub:
            order = {"peer": peer, "path": f"{stub.port}/{place.name}", "chunks": self.chunks}
            ask(write, **order)
            return ask(read, **order)


# --- in a process of its own


def write(peer: str, path: str, chunks: int) -> Values:
    work, store = _work(chunks), REMOTE[peer](Path(path))
    store.prepare()
    store.write(work, work.data())
    return {}


def read(peer: str, path: str, chunks: int) -> Values:
    data, store = _work(chunks).data(), begin(REMOTE[peer], path, _work(chunks))
    port = port_of(Path(path))
    move_away(port, LATE / 1e3)
    with timed() as seconds:
        array = store.open()
        found = store.read(array, np.s_[:, :])
    requests = requests_in(take_counts(port))
    compare(found, data)
    return {"read": seconds(), REQUESTS: requests}
