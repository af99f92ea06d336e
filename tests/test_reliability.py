"""The table of `make reliability`: what fails, or was not tried, is a miss."""

from collections import Counter

import pytest

from tests import reliability

FINE = {line.name: Counter({line.tried: 5, line.caught or "x": 5}) for line in reliability.LINES}


def test_nothing_is_missed() -> None:
    assert reliability.misses(FINE) == []


@pytest.mark.parametrize("line", reliability.LINES, ids=lambda line: line.name)
def test_each_line_is_needed_and_must_not_fail(line: reliability.Line) -> None:
    assert reliability.misses({**FINE, line.name: Counter()}) == [f"{line.name}: not tried"]
    failed = FINE[line.name] + Counter({reliability.FAILURES: 1})
    assert reliability.misses({**FINE, line.name: failed}) == [f"{line.name}: 1 of 5"]


def test_a_bug_that_nobody_notices_is_a_miss() -> None:
    assert reliability.misses({**FINE, "seeded bugs": Counter(planted=5, caught=4)}) == ["seeded bugs: 1 of 5"]


def test_tests_that_came_to_no_end_are_a_miss() -> None:
    assert reliability.misses({**FINE, "tests: kills": Counter(failures=1)}) == ["tests: kills: 1"]


def test_an_error_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliability, "_counts", {})
    monkeypatch.delenv("TXSTORE_RELIABILITY_JSON", raising=False)
    with pytest.raises(OSError), reliability.counting("fuzz") as counts:
        counts["inputs"] += 1
        raise OSError
    assert reliability.table() == {"fuzz": {"failures": 1, "inputs": 1}}
