"""Hostile and large repositories, each opened in Chromium: none holds up the page, and none fills the memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.reader_js.node import hosted
from tests.serving.browser.hostile_table import Row, hostile, large, made
from txstore.serving.page_files import put_page

pytest.importorskip("playwright.sync_api")

#: What a page shows when it has done what it was asked for, or has said why not.
_SEEN = ":is(.failure, .status[data-shows], .notice, .members tbody tr, .legend li, .detail h2, .panel pre, .panel td)"
_BUSY = "#main.waiting, .stage.waiting, .notice:text-is('Reading …'), .notice:text-is('Measuring …')"
#: Milliseconds of a processor that one task of the main thread may take, and bytes that a page may have had in memory.
_TASK, _MEMORY = 200, 1 << 30
#: Of elements and letters a page shows no more.
_ELEMENTS, _LETTERS = 20_000, 2_000_000


class Seen(NamedTuple):
    task: float  # the longest of the main thread, in milliseconds of a processor
    memory: int  # bytes, at most
    elements: int
    letters: int
    text: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    place = tmp_path_factory.mktemp("hostile")
    put_page(place, repository="")
    with hosted(place) as host:
        yield place, host


def _open(browser: Any, folder: tuple[Path, str], row: Row, number: int, *, measured: bool) -> Seen:
    name = made(row, folder[0], number)
    session = browser.new_browser_cdp_session()
    context = browser.new_context(viewport={"width": 1360, "height": 850})
    page = context.new_page()
    page.set_default_timeout(60_000)
    if measured:
        browser.start_tracing(categories=["toplevel"])
    try:
        page.goto(f"{folder[1]}/index.html?repository={folder[1]}/{name}#/{row.place}")
        page.locator(_SEEN).first.wait_for(state="visible")
        page.wait_for_function(
            "busy => !document.querySelector(busy)",
            arg=_BUSY.replace(":text-is('Reading …')", "[x]").replace(":text-is('Measuring …')", "[x]"),
        )
        assert page.evaluate("new Promise((resolve) => setTimeout(() => requestAnimationFrame(() => resolve(1)), 300))")
        elements, letters = page.evaluate("[document.querySelectorAll('*').length, document.body.textContent.length]")
        text = page.locator("#main").inner_text()[:300]
        memory = max(
            _memory_of(each["id"])
            for each in session.send("SystemInfo.getProcessInfo")["processInfo"]
            if each["type"] == "renderer"
        )
    finally:
        task = _longest(browser.stop_tracing()) if measured else 0.0
        context.close()
        session.detach()
    return Seen(task, memory, elements, letters, text)


def _memory_of(process: int) -> int:
    try:
        told = Path(f"/proc/{process}/status").read_text()
    except OSError:  # it has ended meanwhile
        return 0
    return int(re.findall(r"VmHWM:\s+(\d+) kB", told)[0]) * 1024


def _longest(trace: bytes) -> float:
    """Return the longest task of a page's main thread, in milliseconds of a processor: others may keep the machine busy."""
    events = json.loads(trace)["traceEvents"]
    mains = {(each["pid"], each["tid"]) for each in events if each.get("args", {}).get("name") == "CrRendererMain"}
    return max(
        (
            each.get("tdur", 0) / 1000
            for each in events
            if (each["pid"], each["tid"]) in mains and each["name"].endswith("RunTask")
        ),
        default=0.0,
    )
