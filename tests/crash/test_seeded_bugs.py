"""The harness finds every bug that is put into the product: else it would see too little, or it would be no bug."""

import sys
from collections import Counter

import pytest

from tests import reliability
from tests.crash.follow_ups import FOLLOW_UPS
from tests.crash.harness import Recording, after_kill, explore, record
from tests.crash.seeded import EDITS, OMITTED, SUPERFLUOUS, Edit, Omitted, edited
from tests.crash.system import simulated
from tests.crash.workloads import WORKLOADS

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="the simulated system is a Linux")]


def is_found(bug: Omitted | Edit) -> bool:
    try:
        run(bug)
    except (Exception, pytest.fail.Exception) as error:  # whatever it is that shows it, but pytest-timeout
        if str(error).startswith("Timeout"):
            raise
        reliability.add("seeded bugs", Counter({"planted": 1, "caught": 1}))
        return True
    reliability.add("seeded bugs", Counter({"planted": 1}))
    return False


def run(bug: Omitted | Edit) -> None:
    omitted = (bug.site,) if isinstance(bug, Omitted) else ()
    workload = WORKLOADS[bug.workload]
    recording = record(workload, omitted=omitted, sites=True)
    if bug.follow_up is None:
        look_everywhere(recording)
        return
    for number, step in enumerate(recording.disk.steps, 1):
        if step.site.startswith(bug.killed_after):
            look_everywhere(after_kill(recording, number, FOLLOW_UPS[bug.follow_up], workload, omitted))


def look_everywhere(recording: Recording) -> None:
    for seed in range(10):  # most bugs are found soon
        explore(recording, about=40, seed=seed, go_on=0.5)
    explore(recording, most=6, go_on=1.0)


@pytest.mark.parametrize("bug", OMITTED, ids=str)
def test_a_call_that_is_left_out_is_missed(bug: Omitted) -> None:
    with simulated():
        assert is_found(bug)


@pytest.mark.parametrize("bug", EDITS, ids=str)
def test_a_check_that_is_left_out_is_missed(bug: Edit) -> None:
    with simulated(), edited(bug):
        assert is_found(bug)


def test_every_sync_is_one_of_these() -> None:
    """A new sync of the product needs a line in the table, with a workload in which leaving it out does harm."""
    known = tuple(bug.site for bug in OMITTED) + tuple(SUPERFLUOUS)
    with simulated():
        steps = [step for workload in WORKLOADS.values() for step in record(workload, sites=True).disk.steps]
    found = {step.site for step in steps if step.call in ("sync", "sync names")}
    assert sorted(site for site in found if not site.startswith(known)) == []
