"""The watchdog finds what hangs, and not what waits for a machine that stands still."""

import pytest

from tests.threads import watchdog
from tests.threads.watchdog import BEAT, Watchdog
from tests.tools.waiting import wait_until


def test_a_call_that_does_not_end_is_told() -> None:
    told: list[str] = []
    with Watchdog(3 * BEAT, told.append) as watching, watching.over("a call"):
        wait_until(lambda: told)
    assert "MainThread has been in a call" in told[0]


def test_a_call_that_ends_is_not_told() -> None:
    told: list[str] = []
    with Watchdog(3 * BEAT, told.append) as watching:
        with watching.over("a call"):
            pass
        wait_until(lambda: watching.beats > 10)
    assert told == []


def test_time_in_which_nothing_could_run_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The beats come an hour apart."""

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            self.now += 3600
            return self.now

    monkeypatch.setattr(watchdog, "time", Clock())
    told: list[str] = []
    with Watchdog(5.0, told.append) as watching, watching.over("a call"):
        wait_until(lambda: watching.beats > 3)
    assert told == []
    assert watching.stalled > 3600
    assert watching.longest["a call"] < 5
