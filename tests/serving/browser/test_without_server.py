"""The page where nothing but a host of files answers: what differs there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.reader_js.node import served
from tests.serving.browser.conftest import FILES, Looking
from txstore.serving.page_files import put_page

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


def test_rows_that_were_erased_in_both_commits(look: Look, tmp_path: Path) -> None:
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
    node = look(repo, f"#/diff/{one}/{two}").page.locator(".diff summary")
    expect(node).to_have_text(re.compile("changedv1 changed"))
