"""Chromium, and pages of it that may neither complain nor ask anybody else. Without Chromium the tests are skipped."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import txstore
from tests.reader_js.node import hosted
from tests.serving.browser import sample

ROOT = Path(__file__).parents[3]
AXE = ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
#: So many milliseconds may what is waited for take: a bound for what never comes, on a machine that is busy.
PATIENCE = 30_000
CHROMIUM = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip


def unavailable(reason: str) -> None:
    if os.environ.get("TXSTORE_REQUIRE_SERVERS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def axe() -> str:
    if not AXE.exists():
        unavailable("axe-core is missing: npm install --prefix build/axe axe-core")
    return AXE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")  # as long as it is there, an event loop runs in this thread: other tests need theirs
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import expect, sync_playwright
    except ModuleNotFoundError:
        unavailable("playwright is missing")
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        unavailable("Chromium is missing: apt-get install chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def weather(tmp_path_factory: pytest.TempPathFactory) -> txstore.Repository:
    """The sample, which no test changes."""
    return sample.make(tmp_path_factory.mktemp("weather") / "weather.tx")


@pytest.fixture(scope="session")
def address_of(request: pytest.FixtureRequest) -> Iterator[Callable[[txstore.Repository], str]]:
    """Serve repositories, each by a server of its own until the tests end; return where its page is."""
    pytest.importorskip("uvicorn")
    from txstore.serving.server import Server

    running: dict[str, Server] = {}

    def address_of(repo: txstore.Repository) -> str:
        if repo.url not in running:
            running[repo.url] = Server(repo)
            running[repo.url].start()
        return running[repo.url].base

    yield address_of
    for server in running.values():
        server.close()


class Looking:
    """A page of the browser that remembers what must not happen."""

    def __init__(self, context: Any, address: str) -> None:
        self.address = address
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.faults: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._see)

    def _hear(self, message: Any) -> None:
        # A host of files says by 404 that there is none; Chromium reports each such answer.
        of_files = "404" in message.text and not re.search("/(page|api)/", message.location.get("url", ""))
        if message.type in ("error", "warning") and not of_files:
            self.faults.append(f"{message.type}: {message.text}")

    def _see(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.faults.append(f"request: {request.url}")

    def go(self, place: str) -> Any:
        """Open a place anew, as somebody does who was given the link."""
        self.page.goto("about:blank")
        self.page.goto(self.address + place)
        return self.page


@pytest.fixture(scope="session")
def files_of() -> Iterator[Callable[[txstore.Repository], str]]:
    """Put the page beside repositories, where nothing but a host of files answers; return where it is."""
    from txstore.serving.files import put_page

    with ExitStack() as stack:
        hosts: dict[Path, str] = {}

        def files_of(repo: txstore.Repository) -> str:
            put_page(repo.url)
            place = Path(repo.url)
            if place.parent not in hosts:
                hosts[place.parent] = stack.enter_context(hosted(place.parent))
            address = f"{hosts[place.parent]}/{quote(place.name)}/"
            REPOSITORIES[address.rstrip("/")] = repo.url
            return address

        yield files_of


#: Repositories by the addresses at which a page reads their files.
REPOSITORIES: dict[str, str] = {}
SERVED = pytest.mark.parametrize("look", ["served"], indirect=True)
FILES = pytest.mark.parametrize("look", ["files"], indirect=True)


@pytest.fixture(params=["served", "files"])
def look(
    request: pytest.FixtureRequest,
    browser: Any,
    address_of: Callable[[txstore.Repository], str],
    files_of: Callable[[txstore.Repository], str],
) -> Iterator[Callable[..., Looking]]:
    """Open a page on a repository, from a server and from files; options are those of playwright's contexts."""
    opened: list[Looking] = []
    with ExitStack() as stack:

        def look(repo: txstore.Repository, place: str = "", **options: Any) -> Looking:
            context = browser.new_context(**{"viewport": {"width": 1360, "height": 850}, **options})
            stack.callback(context.close)
            opened.append(Looking(context, address_of(repo) if request.param == "served" else files_of(repo)))
            opened[-1].go(place)
            return opened[-1]

        yield look
        assert [fault for each in opened for fault in each.faults] == []
