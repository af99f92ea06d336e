"""Hostile and large repositories, each opened in Chromium: none holds up the page, and none fills the memory."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.reader_js.node import hosted
from tests.serving.browser.hostile_table import Row, hostile, large, made
from txstore.serving.files import put_page

pytest.importorskip("playwright.sync_api")

#: What a page shows when it has done what it was asked for, or has said why not.
_SEEN = (
    ":is(.failure, .status[data-shows], .members tbody tr, .legend li, .detail h2, .panel td, .panel .notice, .notice)"
)
_BUSY = "#main.waiting, .stage.waiting"
#: Milliseconds of a processor that one task of the main thread may take, and bytes that a page may have had in memory.
_TASK, _MEMORY = 200, 1 << 30
_PARTS = 16
#: Elements and letters that a page may show.
_ELEMENTS, _LETTERS = 20_000, 500_000


class Seen(NamedTuple):
    task: float  # the longest of the main thread, in milliseconds of a processor
    memory: int  # bytes, at most
    elements: int
    letters: int


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
        page.wait_for_function("busy => !document.querySelector(busy)", arg=_BUSY)
        page.wait_for_timeout(300)  # what follows what is seen counts, too
        elements, letters = page.evaluate("[document.querySelectorAll('*').length, document.body.textContent.length]")
        processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
        memory = max(_memory_of(each["id"]) for each in processes if each["type"] == "renderer")
    finally:
        task = _longest(browser.stop_tracing()) if measured else 0.0
        context.close()
        session.detach()
    return Seen(task, memory, elements, letters)


def _memory_of(process: int) -> int:
    try:
        told = Path(f"/proc/{process}/status").read_text()
    except OSError:  # it has ended meanwhile
        return 0
    return int(re.findall(r"VmHWM:\s+(\d+) kB", told)[0]) * 1024


def _longest(trace: bytes) -> float:
    """Return the longest task of a page's main thread in milliseconds of a processor: others may keep that busy."""
    events = json.loads(trace)["traceEvents"]
    mains = {(each["pid"], each["tid"]) for each in events if each.get("args", {}).get("name") == "CrRendererMain"}
    tasks = (each for each in events if each["name"].endswith("RunTask") and (each["pid"], each["tid"]) in mains)
    return max((each.get("tdur", 0) / 1000 for each in tasks), default=0.0)


def _look_at(browser: Any, folder: tuple[Path, str], rows: list[Row], *, measured: bool) -> None:
    faults = []
    for number, row in enumerate(rows):
        try:
            seen = _open(browser, folder, row, number, measured=measured)
        finally:
            shutil.rmtree(folder[0] / f"{number}.tx", ignore_errors=True)
        print(f"{row.name:50} {seen.task:4.0f} ms {seen.memory >> 20:4} MiB {seen.elements:6} {seen.letters:7}")
        if (
            seen.elements > _ELEMENTS
            or seen.letters > _LETTERS
            or (measured and (seen.task > _TASK or seen.memory > _MEMORY))
        ):
            faults.append((row.name, seen))
    assert faults == []


def test_a_page_shows_a_bounded_part(browser: Any, folder: tuple[Path, str]) -> None:
    _look_at(browser, folder, [*hostile()[::13], *large()[4:12:4]], measured=False)


@pytest.mark.long
@pytest.mark.parametrize("part", range(_PARTS))
def test_none_holds_up_the_page_or_fills_the_memory(browser: Any, folder: tuple[Path, str], part: int) -> None:
    # Where a share of the long tests is drawn, beside others, nothing depends on a measured time.
    measured = "TXSTORE_LONG_SHARE" not in os.environ
    _look_at(browser, folder, [*hostile(), *large()][part::_PARTS], measured=measured)
