"""Lose the power again and again, and say how often that was survived: `python -m tests.crash --images 100000`."""

import argparse
import json
import random
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial

from tests import reliability
from tests.crash.follow_ups import FOLLOW_UPS
from tests.crash.harness import Counts, after_kill, explore, record
from tests.crash.system import simulated
from tests.crash.workloads import WORKLOADS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--images", type=int, default=20_000, help="how many to look at, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workload", choices=list(WORKLOADS), action="append", help="only these")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    arguments = parser.parse_args()
    began = time.perf_counter()
    chosen = arguments.workload or list(WORKLOADS)
    failures = 0
    with simulated():
        for name in chosen:
            each = arguments.images // len(chosen)
            for what, explored in (("power lost", _lose_power), ("killed, then power lost", _kill)):
                failures += not _tried(what, partial(explored, name, each // 2, arguments.seed))
    seconds = time.perf_counter() - began
    if arguments.json:
        json.dump(reliability.table() | {"failures": failures, "seconds": round(seconds, 1)}, sys.stdout, indent=2)
        print()
    else:
        for what, counts in reliability.table().items():
            print(f"{what}: " + ", ".join(f"{number:,} {unit}" for unit, number in counts.items()))
        print(f"{failures} failures, {seconds:.1f} s")
    return 1 if failures else 0


def _tried(what: str, explored: Callable[[], Counts]) -> bool:
    try:
        with reliability.counting(what) as counted:
            counted.update(explored().as_numbers())
    except Exception:  # noqa: BLE001 - the next workload is tried all the same
        traceback.print_exc()
        return False
    return True


def _lose_power(name: str, images: int, seed: int) -> Counts:
    return explore(record(WORKLOADS[name], sites=True), about=images, seed=seed)


def _kill(name: str, images: int, seed: int) -> Counts:
    """Kill the programs after each step in turn, or after some if few images are wanted."""
    counts = Counts()
    recording = record(WORKLOADS[name], sites=True)
    kills = [
        (step, follow_up)
        for step in range(recording.first + 1, len(recording.disk.steps) + 1)
        for follow_up in FOLLOW_UPS
    ]
    kills = random.Random(seed).sample(kills, min(len(kills), max(1, images // 20)))
    for step, follow_up in kills:
        followed = after_kill(recording, step, FOLLOW_UPS[follow_up], WORKLOADS[name])
        counts.add(explore(followed, about=max(1, images // len(kills)), seed=seed + step))
    return counts


if __name__ == "__main__":
    sys.exit(main())
