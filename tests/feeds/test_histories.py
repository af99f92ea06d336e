"""Histories of killed processes, against the copy that a feed keeps. `make histories WHAT=feeds` makes more."""

import os

import pytest

from tests.feeds.histories import histories


@pytest.mark.long
def test_histories() -> None:
    count = int(os.environ.get("TXSTORE_FEED_HISTORIES", "12"))
    counts = histories(count, 10_000)
    assert counts["moves"] >= count
    assert counts["changes"] >= count
    assert counts["shares"] > 0
