"""The page that reads a repository's files by itself: it answers as the server does, and shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
import pytest
import zarr

import txstore
from tests.reader_js.node import listed, served
from tests.serving.browser import sample
from tests.serving.browser.conftest import Looking
from txstore.serving.page_files import put_page

pytestmark = pytest.mark.long

playwright_api = pytest.importorskip("playwright.sync_api")
expect = playwright_api.expect

#: These need more than files, or are another thing without a server.
OTHERS = {
    "url",
    "origins",
    "format",
    "next",
    "constraints",
    "views",
    "moved_from",
    "regions",
    "children",
    "truncated",
    "lists",
}


class Files(Looking):
    """A look at a page without a server: that a file is missing is an answer."""

    def __init__(self, context: Any, address: str) -> None:
        super().__init__(context, address)
        self.host = re.sub(r"(?<=\d)/.*", "/", address)

    def _see(self, request: Any) -> None:
        if not request.url.startswith(self.host):
            super()._see(request)

    def _hear(self, message: Any) -> None:
        if "404" not in message.text:
            super()._hear(message)


@pytest.fixture(scope="module", params=["sample", "format 2"])
def repository(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> txstore.Repository:
    folder = tmp_path_factory.mktemp("files")
    if request.param == "sample":
        return sample.make(folder / "data.tx")
    return sample.make_format_2(folder / "data.tx")


@pytest.fixture(scope="module")
def files(repository: txstore.Repository) -> Iterator[str]:
    """Where a plain server of files has the page. Nothing of txstore answers there."""
    assert put_page(repository.url).endswith("data.tx/index.html")
    with listed(Path(repository.url).parent) as base:
        yield f"{base}/data.tx/"


@pytest.fixture
def page(browser: Any, files: str) -> Iterator[Files]:
    context = browser.new_context(viewport={"width": 1360, "height": 850})
    looking = Files(context, files)
    yield looking
    context.close()
    assert looking.faults == []


def plain(told: Any) -> Any:
    """An answer without what differs by its nature."""
    if isinstance(told, dict):
        return {name: plain(each) for name, each in told.items() if name not in OTHERS and each is not None}
    if isinstance(told, list):
        return [plain(each) for each in told]
    if isinstance(told, str):  # JavaScript knows milliseconds
        return re.sub(r"(T\d\d:\d\d:\d\d)\.?(\d{0,3})\d*(Z|\+00:00)$", lambda found: found[1], told)
    return told


def test_it_answers_as_the_server_does(
    page: Files, repository: txstore.Repository, address_of: Callable[[txstore.Repository], str]
) -> None:
    shown = page.go("index.html")
    expect(shown.locator(".row[role=option]").first).to_be_visible()
    base = address_of(repository)

    def same(question: str, address: str, *parameters: Any, of: Callable[[Any], Any] = plain) -> Any:
        api = "import(new URL('page/api.js', document.baseURI).href)"
        ask = f"([question, parameters]) => {api}.then(({{ api }}) => api[question](...parameters))"
        found = shown.evaluate(ask, [question, list(parameters)])
        with urlopen(f"{base}api/{address}") as answer:
            expected = json.load(answer)
        assert of(found) == of(expected), (question, parameters)
        return expected

    same("repository", "repository")
    log = same("commits", "commits?limit=25", {"limit": 25})["commits"]
    for commit in log:
        same("commit", f"commit/{commit['id']}", commit["id"])
    for one, other in [(log[-1], log[0]), (log[0], log[-1]), (log[len(log) // 2], log[len(log) // 4])]:
        same("diff", f"diff/{one['id']}/{other['id']}", one["id"], other["id"])
    paths, arrays = [""], []
    for path in paths:
        for node in same("tree", f"tree/main?path={quote(path)}", "main", {"path": path})["nodes"]:
            (arrays if node["kind"] == "array" else paths).append(node["path"])
    assert arrays
    for path in [*paths, *arrays]:
        same("node", f"node/main/{quote(path)}?stored=no", "main", path)
        same("measured", f"node/main/{quote(path)}", "main", path, of=measured)
    for path in arrays:
        same("chunks", f"chunks/main/{quote(path)}", "main", path, {})


def measured(told: dict[str, Any]) -> dict[str, Any]:
    return {name: told.get(name) for name in ("stored_bytes", "keys", "chunks_stored")}


def test_it_shows_values(page: Files, repository: txstore.Repository) -> None:
    group = zarr.open_group(repository.snapshot(), mode="r")
    name = next(name for name, each in group.members(max_depth=None) if isinstance(each, zarr.Array) and each.ndim == 2)
    shown = page.go(f"index.html#/tree/main/{name}")
    expect(shown.locator(".status[data-by=browser]")).to_be_visible()
    expect(shown.locator("#live")).to_have_text("from files")


def test_what_needs_a_server_says_so(page: Files) -> None:
    shown = page.go("index.html#/work")
    expect(shown.get_by_text("Open transactions are not in the files")).to_be_visible()
    shown = page.go("index.html#/usage/main")
    expect(shown.get_by_text("`txstore serve` shows them")).to_be_visible()


def test_a_page_elsewhere(browser: Any, repository: txstore.Repository, tmp_path: Path) -> None:
    """It shows what its address names, from another host, which allows it by CORS, and lists no names."""
    put_page(tmp_path, repository="")
    context = browser.new_context()
    with served(tmp_path) as host, served(Path(repository.url).parent) as data:
        looking = Files(context, "http://127.0.0.1")
        looking.page.goto(f"{host}/index.html?repository={data}/data.tx")
        expect(looking.page.locator(".row[role=option]").first).to_be_visible()
        expect(looking.page.get_by_text("lists no names")).to_be_visible()
        assert looking.faults == []
        context.close()


Ask = Callable[..., Any]


@pytest.fixture
def ask_files(browser: Any, tmp_path: Path) -> Iterator[Callable[[txstore.Repository], Ask]]:
    """Open the page beside a repository; return what asks it, as its views do."""
    context = browser.new_context()
    with listed(tmp_path) as base:

        def opened(repo: txstore.Repository) -> Ask:
            put_page(repo.url)
            shown = Files(context, f"{base}/{Path(repo.url).name}/").go("index.html")
            expect(shown.locator(".row[role=option]").first).to_be_visible()
            api = "import(new URL('page/api.js', document.baseURI).href)"
            question = f"([question, parameters]) => {api}.then(({{ api }}) => api[question](...parameters))"
            return lambda name, *parameters: shown.evaluate(question, [name, list(parameters)])

        yield opened
    context.close()


def test_a_name_of_digits_is_a_name(ask_files: Callable[..., Ask], tmp_path: Path) -> None:
    repo = txstore.Repository(tmp_path / "data.tx")
    for value in (b"one", b"two", b"three"):
        with repo.begin() as mapping:
            mapping["a"] = value
    repo.tags["0"] = repo.head()
    assert ask_files(repo)("commit", "0")["commit"]["id"] == str(repo.head().id)


def test_rows_that_were_erased_in_both_commits(ask_files: Callable[..., Ask], tmp_path: Path) -> None:
    """Then neither of the two values has its checksum in an entry."""
    repo = txstore.Repository(tmp_path / "data.tx")
    commits = []
    for first in (1, 2):
        with repo.transaction() as store:
            if first == 1:
                zarr.create_group(store)
                zarr.create_array(store, name="x", data=np.array([10, 20, 30, 40]), chunks=(4,), dimension_names=["x"])
                zarr.create_array(
                    store, name="v", shape=4, dtype="i4", chunks=(4,), compressors=None, dimension_names=["x"]
                )
            zarr.open_array(store, path="v")[:] = [first, 0, 0, 9]
        commits.append(repo.head())
    repo.erase("v", {"x": 40})
    one, two = (str(each.id) for each in commits)
    repo = txstore.Repository(repo.url)
    assert [(node.path, node.chunks_changed) for node in repo.diff(one, two).nodes] == [("v", 1)]
    assert [(node["path"], node["chunks"]["changed"]) for node in ask_files(repo)("diff", one, two)["nodes"]] == [
        ("v", 1)
    ]
