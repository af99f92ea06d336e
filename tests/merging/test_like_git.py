"""What merges, reverts and picks make of random histories is what git makes of them, or a model that goes by label.

`make histories WHAT=merges` tries thousands.
"""

from collections import Counter

import pytest

from tests.merging import moved_histories
from tests.merging.histories import play


def test_the_model() -> None:
    counts = Counter[str]()
    for seed in range(20):
        play(seed, counts)
    assert min(counts["of several bases"], counts["conflicts"], counts["reverts"], counts["picks"]) > 20


@pytest.mark.long
@pytest.mark.parametrize("first", range(20, 120, 10))
def test_git_itself(first: int) -> None:
    """It takes git 2.39 or newer."""
    counts = Counter[str]()
    for seed in range(first, first + 10):
        play(seed, counts, asks_git=True)
    assert counts["asked of git itself"] > 100


def test_rows_that_move() -> None:
    counts = Counter[str]()
    for seed in range(4):
        moved_histories.play(seed, counts)
    assert min(counts["conflicts"], counts["without conflicts, rows had moved"], counts["picks"]) > 5
