"""The page in Chromium: how long until there is something to see, and what is sent until then; from a server of ours,
and from one that knows nothing but files.

`make bench-page`; the exit status is 1 on a miss. Each round is a browser that has never been there: nothing is in its
cache. The server is a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import zarr
from rich.console import Console
from rich.table import Table

import txstore
from benchmarks.harness import Row
from txstore.serving.page_files import put_page

ARRAYS, CHUNKS, COMMITS = 1_000, 1_000, 10_000
SIDE, CHUNK = 4_096, 64
_BULK = 20  # commits that write most of the chunks
_BRANCHES = ("main", "calibration", "trial")
_PATIENCE = 120_000
DELAY = 0.03  # seconds before each answer of a server that knows nothing but files
_CHROMIUM = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
#: Tells when what is sought is there, and nothing is dimmed because something is still awaited; and counts how many
#: requests for values are under way. (To be told of each by the browser would take longer than the requests do.)
_WATCH = """
  window.most = 0;
  let running = 0;
  const { fetch } = window;
  window.fetch = (address, options) => {
    const asked = fetch(address, options);
    if (!String(address).includes("/at/")) return asked;
    window.most = Math.max(window.most, ++running);
    const ended = () => { running -= 1; };
    return asked.then((response) => {
      const { arrayBuffer } = Response.prototype;
      response.arrayBuffer = () => arrayBuffer.call(response).finally(ended);
      if (!response.ok) ended();
      return response;
    });
  };
  window.seek = (sought) => {
    window.seen = new Promise((resolve) => {
      const look = () => {
        const isThere = document.querySelector(sought) && !document.querySelector(".waiting");
        requestAnimationFrame(isThere ? () => resolve(performance.now()) : look);
      };
      look();
    });
  };
"""
_CLICK = """([what, sought]) => {
  const begun = performance.now();
  document.querySelector(what).click();
  window.seek(sought);
  return begun;
}"""


# --- repositories


def build_long(path: Path, commits: int, arrays: int, chunks: int) -> None:
    """Make a repository of many commits on three branches, with many arrays of many chunks."""
    repo = txstore.Repository(path, durability="none")
    with repo.transaction("Begin") as store:
        zarr.create_group(store)
        for i in range(arrays):
            zarr.create_array(
                store, name=f"array-{i:04}", shape=(chunks * 8,), chunks=(8,), dtype="u1", compressors=None
            )
    per = -(-arrays // _BULK)
    for begin in range(0, arrays, per):
        with repo.begin(f"Fill arrays {begin} to {min(arrays, begin + per) - 1}") as transaction:
            for i in range(begin, min(arrays, begin + per)):
                for chunk in range(chunks):
                    transaction[f"array-{i:04}/c/{chunk}"] = b"12345678"
    for name in _BRANCHES[1:]:
        repo.branches[name] = repo.head()
    for number in range(commits - len(repo.log())):
        branch = _BRANCHES[number % 7 % len(_BRANCHES)]
        with repo.begin(f"Correct array {number % arrays}", branch=branch) as transaction:
            transaction[f"array-{number % arrays:04}/c/{number % chunks}"] = number.to_bytes(8, "little")


def build_square(path: Path, side: int) -> None:
    """Make a square array that looks like something, in 64 × 64 as many chunks as it has thousands of elements."""
    repo = txstore.Repository(path, durability="none")
    y, x = np.mgrid[0:side, 0:side].astype("f4") / side
    values = np.sin(19 * x + 7 * y * y) * np.cos(13 * y - 4 * x) + np.random.default_rng(0).normal(
        scale=0.05, size=(side, side)
    ).astype("f4")
    with repo.transaction("A square") as store:
        zarr.create_array(store, name="square", data=values.astype("f4"), chunks=(CHUNK, CHUNK))


# --- looking


@contextmanager
def served(path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "txstore", "serve", str(path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = ""
            while not told.rstrip().endswith("}"):
                told += process.stdout.readline()
            yield json.loads(told)["url"]
        finally:
            process.terminate()


@contextmanager
def served_as_files(directory: Path) -> Iterator[str]:
    """Serve a directory with ranges and without lists, each answer after a delay."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.staticfiles import StaticFiles

    files = StaticFiles(directory=directory)

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(DELAY)
        await files(scope, receive, send)

    config = uvicorn.Config(
        Starlette(routes=[Mount("/", late)]), host="127.0.0.1", port=0, log_level="error", access_log=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise SystemExit("the server of files did not start")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@dataclass
class Look:
    seconds: float
    sent: int  # bytes, headers included
    at_once: int  # the most requests for values that were under way together


class Visitor:
    """A browser that was never there before."""

    def __init__(self, browser: Any) -> None:
        self._context = browser.new_context(viewport={"width": 1360, "height": 850})
        self._page = self._context.new_page()
        self._page.set_default_timeout(_PATIENCE)
        self._page.add_init_script(_WATCH)
        self._sent = 0

    def count_bytes(self) -> None:
        session = self._context.new_cdp_session(self._page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", self._count)

    def _count(self, event: Any) -> None:
        self._sent += event["encodedDataLength"]

    def _seen(self, begun: float) -> Look:
        milliseconds = self._page.evaluate("() => window.seen") - begun
        return Look(milliseconds / 1000, self._sent, self._page.evaluate("() => window.most"))

    def open(self, address: str, sought: str) -> Look:
        """Open an address; the time is that since the browser began with it."""
        self._page.add_init_script(f"window.seek({json.dumps(sought)});")
        self._page.goto(address, wait_until="commit")
        return self._seen(begun=0)

    def click(self, what: str, sought: str) -> Look:
        self._page.locator(what).wait_for()
        return self._seen(begun=self._page.evaluate(_CLICK, [what, sought]))

    def close(self) -> None:
        self._context.close()


def measure(rounds: int, scratch: Path, *, quick: bool) -> list[Row]:
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        raise SystemExit("Chromium is missing: apt-get install chromium")
    sizes = (500, 50, 50) if quick else (COMMITS, ARRAYS, CHUNKS)
    side = SIDE // 2 if quick else SIDE
    build_long(scratch / "long.tx", *sizes)
    build_square(scratch / "square.tx", side)
    history, tree, overview, every, files = [], [], [], [], []
    put_page(scratch / "long.tx")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=_CHROMIUM)
        for _ in range(rounds):
            with served(scratch / "long.tx") as address:  # which knows nothing of the repository yet, either
                visitor = Visitor(browser)
                visitor.count_bytes()
                history.append(visitor.open(address, ".row[role=option]"))
                visitor.close()
                visitor = Visitor(browser)
                visitor.count_bytes()
                tree.append(visitor.open(f"{address}#/tree/main/", ".members tbody tr"))
                visitor.close()
            with served_as_files(scratch) as address:
                visitor = Visitor(browser)
                visitor.count_bytes()
                files.append(visitor.open(f"{address}/long.tx/index.html", ".row[role=option]"))
                visitor.close()
            with served(scratch / "square.tx") as address:
                visitor = Visitor(browser)
                overview.append(visitor.open(f"{address}#/tree/main/square", ".status[data-by]"))
                every.append(visitor.click(".status button", ".status[data-by=browser]"))
                visitor.close()
        browser.close()
    long = f"{sizes[0]:,} commits, {sizes[1]:,} arrays, {sizes[1] * sizes[2]:,} chunks"
    square = f"{side} × {side} in {(side // CHUNK) ** 2:,} chunks"
    return [
        _row("first view", f"history of {long}", "s", 1.0, [each.seconds for each in history]),
        _row("bytes of the first view", "the same, code and data", "KB", 300, [each.sent / 1000 for each in history]),
        _row("first view of the data", f"tree of {long}", "s", 1.0, [each.seconds for each in tree]),
        _row("bytes of it", "the same, code and data", "KB", 300, [each.sent / 1000 for each in tree]),
        _row(
            "first view from files",
            f"history of {long}; {DELAY * 1e3:.0f} ms away",
            "s",
            1.5,
            [each.seconds for each in files],
        ),
        _row("bytes of it", "the same, code and data", "KB", 500, [each.sent / 1000 for each in files]),
        _row("preview", f"{square}: a picture", "s", 2.0, [each.seconds for each in overview]),
        _row("preview, every value", f"{square}: read in the browser", "s", 60.0, [each.seconds for each in every]),
        _row("requests at once", "the same", "", 32, [float(max(each.at_once, 0)) for each in overview + every], max),
    ]


def _row(name: str, what: str, unit: str, target: float, samples: list[float], of: Any = statistics.median) -> Row:
    return Row(name, what, of(samples), target, unit, samples={"TxStore": samples})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small repositories: tries the benchmark itself")
    parser.add_argument("--directory", type=Path, help="where to write; the default is that of temporary files")
    given = parser.parse_args()
    with TemporaryDirectory(prefix="benchmark-", dir=given.directory) as scratch:
        rows = measure(given.rounds, Path(scratch), quick=given.quick)
    table = Table("what", "of", "median", "worst", "at most", "")
    for row in rows:
        worst = max(row.samples["TxStore"])
        table.add_row(
            row.name, row.what, f"{row.measured:.3g} {row.unit}", f"{worst:.3g}", f"{row.target:g}",
            "ok" if row.ok else "MISSED",
        )  # fmt: skip
    Console(highlight=False).print(table)
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
