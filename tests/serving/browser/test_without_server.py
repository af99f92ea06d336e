"""The page where nothing but a host of files answers: what differs there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.reader_js.node import served
from tests.serving.browser.conftest import FILES, Looking
from txstore.serving.files import put_page

pytestmark = [pytest.mark.long, FILES]

playwright_api = pytest.importorskip("playwright.sync_api")
expect = playwright_api.expect

Look = Callable[..., Looking]


def test_what_needs_a_server_says_so(look: Look, weather: txstore.Repository) -> None:
    page = look(weather, "#/work").page
    expect(page.get_by_text("Open transactions are not in the files")).to_be_visible()
    expect(page.get_by_text("Locks are not in the files")).to_be_visible()
    expect(page.locator("#live")).to_have_text("from files")


def test_a_page_elsewhere(browser: Any, look: Look, weather: txstore.Repository, tmp_path: Path) -> None:
    """It shows what its address names, from another host, which allows it by CORS, and lists no names."""
    put_page(tmp_path, repository="")
    context = browser.new_context()
    with served(tmp_path) as host, served(Path(weather.url).parent) as data:
        looking = Looking(context, host)
        looking.page.remove_listener("request", looking._see)
        looking.page.goto(f"{host}/index.html?repository={data}/{Path(weather.url).name}")
        expect(looking.page.locator(".row[role=option]").first).to_be_visible()
        expect(looking.page.get_by_text("lists no names")).to_be_visible()
        assert looking.faults == []
        context.close()


def test_a_name_of_digits_is_a_name(look: Look, tmp_path: Path) -> None:
    repo = txstore.Repository(tmp_path / "data.tx")
    for value in (b"one", b"two", b"three"):
        with repo.begin(value.decode()) as mapping:
            mapping["a"] = value
    for name, commit in {"0": repo.head(), repo.commit(1).id[:8]: repo.commit(0)}.items():
        repo.tags[name] = commit
        expect(look(repo, f"#/history/{name}").page.locator(".detail h2")).to_have_text(commit.message)
