"""Chunks over HTTP: `txstore serve`; over the exported files `python -m http.server`, and nginx as Debian sets it up.

wrk (Debian's package) asks for 4,096 chunks of 16 KiB in turn over 16 connections. Each round asks all servers, one
after the other, and the best of each counts: what else the machine does only takes away. The processor's time for a
request is that of the server alone. nginx has as many worker processes as there are processors; so has the second
`txstore serve`, and the first one has no workers.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr

import txstore
from benchmarks.harness import Row, Setting
from benchmarks.own_process import NotOffered
from tests.system.remote.servers import answers, free_port

CHUNKS, CONNECTIONS, SECONDS = 4096, 16, 5
#: As many as nginx has.
WORKERS = len(os.sched_getaffinity(0))
#: What must be reached, as times of the others.
GOALS = {"http.server": 2.0, "nginx": 0.35}

SCRIPT = """
local at = 0
request = function()
  at = (at + 1) % {chunks}
  return wrk.format("GET", "{prefix}/x/c/" .. at)
end
done = function(summary)
  io.write(string.format("TOTAL %d %d %d\\n", summary.requests, summary.duration,
    summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.write +
    summary.errors.timeout))
end
"""

#: nginx.conf of Debian's package, but for where it listens, what it shows and who it runs as.
NGINX = """
worker_processes auto;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
daemon off;
events {{ worker_connections 768; }}
http {{
    sendfile on;
    tcp_nopush on;
    types_hash_max_size 2048;
    include /etc/nginx/mime.types;
    default_type application/octet-stream;
    access_log {folder}/access.log;
    gzip on;
    server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


class Measured(NamedTuple):
    rate: float  # chunks of a second
    cost: float  # seconds of a processor for each


class Running(NamedTuple):
    """A server, and how it names what is asked for."""

    pid: int
    port: int
    prefix: str = ""

    def cpu(self) -> float:
        """Return the seconds of a processor that the process and its children have taken."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii").split()
        fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in (self.pid, *children))
        return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def chunks(setting: Setting) -> list[Row]:
    missing = [program for program in ("wrk", "nginx") if _program(program) is None]
    if missing:
        raise NotOffered(f"{' and '.join(missing)}: not installed; on Debian: apt-get install nginx-light wrk")
    with setting.scratch() as folder:
        found = measure(folder, setting.rounds(3, 1))
    ours = found["txstore"].rate
    figures = [
        {"server": name, "chunks/s": rate, "MiB/s": rate / 64, "µs each": cost * 1e6}
        for name, (rate, cost) in found.items()
    ]
    what = f"{CHUNKS:,} chunks of 16 KiB, {CONNECTIONS} connections: chunks a second, of"
    rows = [
        Row(f"serve {name}", f"{what} {name}", ours / found[name].rate, GOALS[name], at_least=True) for name in GOALS
    ]
    return [replace(rows[0], figures=figures), *rows[1:]]


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def measure(folder: Path, rounds: int) -> dict[str, Measured]:
    repo = txstore.Repository(folder / "data.tx", durability="none")
    data = np.random.default_rng(1).integers(0, 255, CHUNKS * 16384, "u1")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=data, chunks=(16384,), compressors=None)
    repo.export(folder / "plain.zarr", verify=False)
    commit = repo.commit(-1).id
    folder.chmod(0o755)
    best: dict[str, Measured] = {}
    with contextlib.ExitStack() as stack:
        servers = {
            "txstore": stack.enter_context(ours(folder, commit)),
            f"txstore, {WORKERS} workers": stack.enter_context(ours(folder, commit, "--workers", f"{WORKERS}")),
            "http.server": stack.enter_context(http_server(folder / "plain.zarr")),
            "nginx": stack.enter_context(nginx(folder)),
        }
        for _ in range(rounds):
            for name, server in servers.items():
                found = asked(folder, server)
                best[name] = max(best.get(name, found), found)
    return best


def asked(folder: Path, server: Running) -> Measured:
    script = folder / "chunks.lua"
    script.write_text(SCRIPT.format(chunks=CHUNKS, prefix=server.prefix))
    command = [
        "wrk", "--threads", "1", "--connections", f"{CONNECTIONS}", "--duration", f"{SECONDS}s",
        "--script", f"{script}", f"http://127.0.0.1:{server.port}/",
    ]  # fmt: skip
    before = server.cpu()
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(r"TOTAL (\d+) (\d+) (\d+)", out)
    assert match is not None, out
    requests, microseconds, errors = map(int, match.groups())
    assert errors == 0, out
    return Measured(requests / microseconds * 1e6, (server.cpu() - before) / requests)


# --- the servers


@contextlib.contextmanager
def running(command: list[str], port: int = 0) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        until = time.monotonic() + 60
        while port and not answers(port) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def serve(path: Path, *options: str) -> Iterator[tuple[int, str]]:
    """Run `txstore serve`; give its process and its address."""
    with running([sys.executable, "-m", "txstore", "serve", "--no-token", str(path), *options]) as process:
        assert process.stdout is not None
        match = re.search(r"http://[\w.]+:\d+/", process.stdout.readline())
        assert match is not None
        yield process.pid, match[0]


@contextlib.contextmanager
def ours(folder: Path, commit: str, *options: str) -> Iterator[Running]:
    with serve(folder / "data.tx", *options) as (pid, address):
        for _ in range(CONNECTIONS):  # until each worker has started
            urllib.request.urlopen(f"{address}api/repository", timeout=60).close()
        yield Running(pid, int(address.rstrip("/").rpartition(":")[2]), f"/at/{commit}")


@contextlib.contextmanager
def http_server(root: Path) -> Iterator[Running]:
    port = free_port()
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(root), f"{port}"]
    with running(command, port) as process:
        yield Running(process.pid, port)


@contextlib.contextmanager
def nginx(folder: Path) -> Iterator[Running]:
    port, place = free_port(), folder / "nginx"
    place.mkdir()
    file = place / "nginx.conf"
    file.write_text(NGINX.format(folder=place, port=port, root=folder / "plain.zarr"))
    with running([_program("nginx") or "nginx", "-p", str(place), "-c", str(file)], port) as process:
        yield Running(process.pid, port)


CASES = {"serve": chunks}
