"""What a notebook shows of repositories and stores, and the page in a cell."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from txstore.format.tree import tree_lines

SCRIPT = "<script>alert(1)</script>"


def html_of(shown: Any) -> str:
    """What a notebook asks for."""
    return str(shown._repr_html_())


def test_a_repository_shows_history_tree_and_usage(repo: txstore.Repository, open_repo: Any) -> None:
    repo.branches["dev"] = repo.head()
    shown = html_of(repo)
    for part in ("data.tx", "dev", "v1", "second", "first", "three/", "sharded  32×32  uint16", "live"):
        assert part in shown, part
    assert repr(repo) == f"<Repository {repo.url}>"
    none = open_repo("none.tx")
    assert "nothing was written yet" in html_of(none)
    assert not none.exists


def test_a_store_shows_its_tree(repo: txstore.Repository) -> None:
    assert "plain  20×30  float32" in html_of(repo.snapshot())
    with repo.transaction() as store:
        zarr.create_array(store, name="new", data=np.arange(3))
        assert "new  3  int64" in html_of(store)
        assert "NOT COMMITTED" in html_of(store)
    assert "has ended" in html_of(store)  # an error is shown, and not raised


def test_nothing_that_a_repository_holds_is_markup(repo: txstore.Repository) -> None:
    with repo.begin(SCRIPT) as mapping:
        mapping[f"{SCRIPT.replace('/', '')}/zarr.json"] = json.dumps(
            {"zarr_format": 3, "node_type": "array", "shape": [3], "data_type": SCRIPT}
        ).encode()
    for shown in (html_of(repo), html_of(repo.snapshot())):
        assert "<script>" not in shown
        assert "&lt;script&gt;" in shown


def test_long_trees_are_cut(repo: txstore.Repository) -> None:
    with repo.begin() as mapping:
        for number in range(100):
            mapping[f"many/{number}/zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
    lines = [*tree_lines(repo.mapping())]
    assert len(lines) == 41
    assert lines[-1] == "..."


def test_the_page_in_a_cell(repo: txstore.Repository) -> None:
    with repo.show(height=300) as shown:
        root = shown.url.partition("/t/")[0]
        with pytest.raises(urllib.error.HTTPError, match="401"):  # so other users of this machine have no access
            urllib.request.urlopen(f"{root}/api/repository")
        assert f'<iframe src="{shown.url}" width="100%" height="300"' in html_of(shown)
        with urllib.request.urlopen(f"{shown.url}api/repository") as answer:
            assert json.load(answer)["url"] == repo.url
        np.testing.assert_array_equal(zarr.open_array(f"{shown.url}at/main/three/v2keys", mode="r")[:], np.arange(6))
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{shown.url}api/repository")
