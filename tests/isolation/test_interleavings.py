"""Every interleaving of a few transactions that Hypothesis finds: no anomaly, and no conflict without a reason."""

from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.isolation.checker import check
from tests.isolation.interleavings import interleave

T = TypeVar("T")


class Drawn:
    """Chance that consists of given numbers; afterwards, always the first choice is made."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = iter(numbers)

    def choice(self, among: Sequence[T]) -> T:
        return among[next(self.numbers, 0) % len(among)]


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(numbers=st.lists(st.integers(0, 29), min_size=20, max_size=120))
def test_interleavings(isolation: str, numbers: list[int]) -> None:
    history, surprises = interleave(Drawn(numbers), len(numbers) // 2, isolation)
    assert check(history, isolation) == []
    assert surprises == []
