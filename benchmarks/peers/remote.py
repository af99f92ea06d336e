"""An array on S3, where each request takes its time: how long reading takes, and how many requests.

The server is `s3_stub.py`, in a process of its own, new for each sample. Writing is not timed, nor is it late.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

_ROOT = Path(__file__).parents[2]
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
        with _serving() as port:
            order = {"peer": peer, "path": f"{port}/{place.name}", "chunks": self.chunks}
            ask(write, **order)
            return ask(read, **order)


@contextmanager
def _serving() -> Iterator[int]:
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers.s3_stub"], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with server:
        if server.stdout is None:
            raise AssertionError("it was started with a pipe")
        yield int(server.stdout.readline())


# --- in a process of its own


def write(peer: str, path: str, chunks: int) -> Values:
    work, store = _work(chunks), REMOTE[peer](Path(path))
    store.prepare()
    store.write(work, work.data())
    return {}


def read(peer: str, path: str, chunks: int) -> Values:
    data, store = _work(chunks).data(), begin(REMOTE[peer], path, _work(chunks))
    port = port_of(Path(path))
    _post(port, f"/-/late?ms={LATE}")
    with timed() as seconds:
        array = store.open()
        found = store.read(array, np.s_[:, :])
    requests = _post(port, "/-/count")
    compare(found, data)
    return {"read": seconds(), REQUESTS: requests}


def _post(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path)
    return int(json.loads(connection.getresponse().read()))
