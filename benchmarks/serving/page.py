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
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import zarr

import txstore
from benchmarks.cli import show
from benchmarks.harness import Row, middle
from benchmarks.peers.report import promises
from benchmarks.serving.plain_zarr import serve
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
#: Tells when what is sought is there, and nothing is dimmed because something is still awaited.
_WATCH = """
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


class Look(NamedTuple):
    seconds: float
    sent: int  # bytes, headers included


def look(browser: Any, address: str, sought: str) -> Look:
    """Open an address in a browser that was never there; the time is that since the browser began with it."""
    sent: list[int] = []
    context = browser.new_context(viewport={"width": 1360, "height": 850})
    page = context.new_page()
    page.set_default_timeout(_PATIENCE)
    page.add_init_script(f"{_WATCH} window.seek({json.dumps(sought)});")
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: sent.append(event["encodedDataLength"]))
    page.goto(address, wait_until="commit")
    found = Look(page.evaluate("() => window.seen") / 1000, sum(sent))
    context.close()
    return found


def measure(rounds: int, scratch: Path, *, quick: bool) -> list[Row]:
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        raise SystemExit("Chromium is missing: apt-get install chromium")
    sizes = (500, 50, 50) if quick else (COMMITS, ARRAYS, CHUNKS)
    side = SIDE // 2 if quick else SIDE
    build_long(scratch / "long.tx", *sizes)
    build_square(scratch / "square.tx", side)
    put_page(scratch / "long.tx")
    history, tree, files, overview = (list[Look]() for _ in range(4))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=_CHROMIUM)
        for _ in range(rounds):
            with serve(scratch / "long.tx") as (_, address):  # which knows nothing of the repository yet, either
                history.append(look(browser, address, ".row[role=option]"))
                tree.append(look(browser, f"{address}#/tree/main/", ".members tbody tr"))
            with served_as_files(scratch) as address:
                files.append(look(browser, f"{address}/long.tx/index.html", ".row[role=option]"))
            with serve(scratch / "square.tx") as (_, address):
                overview.append(look(browser, f"{address}#/tree/main/square", ".status[data-shows]"))
        browser.close()
    long = f"{sizes[0]:,} commits, {sizes[1]:,} arrays, {sizes[1] * sizes[2]:,} chunks"
    square = f"{side} × {side} in {(side // CHUNK) ** 2:,} chunks"
    rows = []
    for name, of_bytes, what, looks, seconds, most in (
        ("first view", "bytes of the first view", f"history of {long}", history, 1.5, 300),
        ("first view of the data", "bytes of it", f"tree of {long}", tree, 1.5, 2_500),  # the index of each of the runs
        ("first view from files", "bytes of it", f"history of {long}; {DELAY * 1e3:.0f} ms away", files, 1.5, 500),
    ):
        rows.append(middle(name, f"{name}: {what}", [each.seconds for each in looks], seconds, "s"))
        rows.append(middle(of_bytes, f"{of_bytes}, code and data", [each.sent / 1000 for each in looks], most, "KB"))
    return [*rows, middle("preview", f"preview: {square}, a picture", [each.seconds for each in overview], 2.0, "s")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small repositories: tries the benchmark itself")
    parser.add_argument("--directory", type=Path, help="where to write; the default is that of temporary files")
    given = parser.parse_args()
    with TemporaryDirectory(prefix="benchmark-", dir=given.directory) as scratch:
        rows = measure(given.rounds, Path(scratch), quick=given.quick)
    show(promises([row.as_dict() for row in rows]))
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
