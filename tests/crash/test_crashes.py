"""The power is lost after every step of every workload: what was acknowledged is there, and the repository goes on.

TXSTORE_CRASH_IMAGES says how many images are looked at, about; where it is not given, a sample that takes some seconds.
"""

import os
import random
import sys

import pytest

from tests import reliability
from tests.crash.follow_ups import FOLLOW_UPS
from tests.crash.harness import Counts, after_kill, explore, record
from tests.crash.system import simulated
from tests.crash.workloads import WORKLOADS

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="the simulated system is a Linux")]

IMAGES = int(os.environ.get("TXSTORE_CRASH_IMAGES", "1000"))
_EACH = IMAGES // 2 // len(WORKLOADS)
_EACH_FOLLOWED = IMAGES // 2 // len(WORKLOADS)
_KILLS = 3  # at so many steps, at least, each with one of the follow-ups


@pytest.mark.parametrize("name", WORKLOADS)
def test_power_is_lost(name: str) -> None:
    with simulated(), reliability.counting("power lost") as counted:
        counts = explore(record(WORKLOADS[name]), about=_EACH)
        counted.update(counts.as_numbers())
    assert counts.looked > _EACH // 5


@pytest.mark.parametrize("name", WORKLOADS)
def test_programs_are_killed_and_then_power_is_lost(name: str) -> None:
    """Who goes on in the same boot finds what is not durable, and builds on it."""
    counts = Counts()
    chance = random.Random(name)
    with simulated(), reliability.counting("killed, then power lost") as counted:
        recording = record(WORKLOADS[name])
        steps = range(recording.first + 1, len(recording.disk.steps) + 1)
        kills = [(step, follow_up) for step in steps for follow_up in FOLLOW_UPS]
        kills = chance.sample(kills, min(len(kills), max(_KILLS, _EACH_FOLLOWED // 20)))
        for step, follow_up in kills:
            followed = after_kill(recording, step, FOLLOW_UPS[follow_up], WORKLOADS[name])
            counts.add(explore(followed, about=max(1, _EACH_FOLLOWED // len(kills)), seed=step))
        counted.update(counts.as_numbers())
