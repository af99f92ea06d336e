"""The levels of an image, looked at on the page while other processes write to it: each fits, every time."""

from __future__ import annotations

import re

import numpy as np
import pytest
import zarr

import txstore
from tests.serving.browser.conftest import SERVED
from tests.serving.browser.test_views import drawn, shows
from tests.views.tile_writers import SIDE, TILE, writers
from txstore.views import Coarsen

pytestmark = [pytest.mark.long, SERVED]

pytest.importorskip("playwright.sync_api")

_OPENED = 16  # times


def _level(repo: txstore.Repository, commit: str, level: int) -> np.ndarray:
    """Return what numpy makes of the image at a commit."""
    pixels = np.asarray(zarr.open_array(repo.snapshot(commit), path="0", mode="r")[0])
    side = SIDE >> level
    return np.asarray(pixels.reshape(side, 1 << level, side, 1 << level).max(axis=(1, 3)))


def test_levels_fit_while_two_processes_write(look, open_repo):
    repo = open_repo()
    with repo.transaction() as store:
        zarr.create_array(
            store, name="0", shape=(1, SIDE, SIDE), chunks=(1, TILE, TILE), dtype="u2", dimension_names=("z", "y", "x")
        )
        store.views["pyramid"] = Coarsen("0", "{level}", (1, 2, 2), 3, method="max")
    looking = look(repo)
    commits = set()
    with writers(repo):
        for number in range(_OPENED):
            level = number % 4
            page = drawn(looking.go(f"#/tree/main/{level}"))
            figures = page.locator(".figures").inner_text()
            page.get_by_role("tab", name="Details").click()
            commit = re.findall("/at/([0-9a-f]{32})/", page.locator(".panel").inner_text())[0]
            page.get_by_role("tab", name="Preview").click()
            assert drawn(page).locator(".figures").inner_text() == figures
            shows(page, _level(repo, commit, level))
            commits.add(commit)
    assert len(commits) > _OPENED // 2
