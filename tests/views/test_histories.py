"""Processes change sources of views; outputs are what numpy makes of them. `make histories WHAT=views` makes more."""

import os

import pytest

from tests.views.histories import histories


@pytest.mark.long
def test_histories() -> None:
    count = int(os.environ.get("TXSTORE_VIEW_HISTORIES", "30"))
    counts = histories(count, 10_000)
    assert counts["compared"] > 10 * count
    assert counts["current"] > 0
    assert counts["behind"] > 0
