"""Erasures at once, or killed, beside all that copies values. `make histories WHAT=erasures` makes more."""

import os

import pytest

from tests.erasures.histories import histories


@pytest.mark.long
def test_histories() -> None:
    counts = histories(int(os.environ.get("TXSTORE_ERASURE_HISTORIES", "12")), 10_000)
    assert counts["erased"]
    assert counts["killed"]
