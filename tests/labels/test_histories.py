"""Four processes write a table by label and position, beside a model. `make histories WHAT=labels` makes more."""

import os

import pytest

from tests.labels.histories import histories


@pytest.mark.long
def test_histories() -> None:
    count = int(os.environ.get("TXSTORE_LABEL_HISTORIES", "40"))
    counts = histories(count, 10_000)
    assert counts["upsert"] > count
    assert counts["write"] + counts["refused write"] > count // 2
