"""The page in Chromium: how long until there is something to see, and what is sent until then; from a server of ours,
and from one that knows nothing but files.

Each round is a browser that has never been there: nothing is in its
cache. The server is a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from typing import Any, NamedTuple

from benchmarks.harness import Row, Setting, middle
from benchmarks.own_process import NotOffered
from benchmarks.serving.plain_zarr import serve

COMMITS = 10_000
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


def first_view(setting: Setting) -> list[Row]:
    """Look at a history as `txstore serve` gives it, and as a server of files does."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None or importlib.util.find_spec("playwright") is None:
        raise NotOffered("Chromium or playwright is not installed; on Debian: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    from tests.reader_js.node import served as served_as_files
    from tests.reader_js.scale import filled
    from txstore.serving.files import put_page

    commits = setting.rounds(COMMITS, 500)
    served, files = list[Look](), list[Look]()
    with setting.scratch() as scratch, sync_playwright() as playwright:
        filled(scratch / "long.tx", commits)
        put_page(scratch / "long.tx")
        browser = playwright.chromium.launch(executable_path=executable, args=_CHROMIUM)
        for _ in range(setting.rounds(5, 1)):
            with serve(scratch / "long.tx") as (_, address):  # which knows nothing of the repository yet, either
                served.append(look(browser, address, ".row[role=option]"))
            with served_as_files(scratch, delay=DELAY) as address:
                files.append(look(browser, f"{address}/long.tx/index.html", ".row[role=option]"))
        browser.close()
    rows = []
    long = f"history of {commits:,} commits, {100 * commits:,} chunks"
    for name, where, looks, most in (
        ("page", "", served, 300), ("page from files", f"; from files {DELAY * 1e3:.0f} ms away", files, 500),
    ):  # fmt: skip
        rows.append(middle(name, f"first view: {long}{where}", [each.seconds for each in looks], 1.5, "s"))
        sent = [each.sent / 1000 for each in looks]
        rows.append(middle(f"{name}, bytes", "bytes of it, code and data", sent, most, "KB"))
    return rows


CASES = {"page": first_view}
