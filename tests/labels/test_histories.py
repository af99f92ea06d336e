"""Four processes write one table by label and by position; a model explains each commit. `make labels` makes more."""

import os

import pytest

from tests.labels.histories import histories


@pytest.mark.long
def test_histories() -> None:
    count = int(os.environ.get("TXSTORE_LABEL_HISTORIES", "40"))
    counts = histories(count, 10_000)
    assert counts["upsert"] > count
    assert counts["write"] + counts["refused write"] > count // 2
