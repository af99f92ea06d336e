"""Eight threads over one store, for as long as you like: `python -m tests.threads --seconds 3600 --pipeline both`."""

import argparse
import json
import logging
import signal
import sys
import time
from collections import Counter

from tests.threads.harness import LIMIT, PIPELINES, Outcome, Settings, missing, run

SHOWN = 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.threads", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pipeline", choices=[*PIPELINES, "all"], default="all")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6, help="of the first round")
    parser.add_argument("--no-interrupts", action="store_true")
    parser.add_argument("--leave-out", nargs="*", default=[], help="actions that no thread does, as in workers.ACTIONS")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that any call may take")
    parser.add_argument("--directory", help="where the repositories are made; by default that for temporary files")
    arguments = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # of several chunks that fail, zarr asks for one
    pipelines = list(PIPELINES) if arguments.pipeline == "all" else [arguments.pipeline]
    print(f"seed {arguments.seed}, pipelines {', '.join(pipelines)}", flush=True)
    counts: Counter[str] = Counter()
    longest: Counter[str] = Counter()
    failed = False
    settings = Settings(not arguments.no_interrupts, arguments.limit, arguments.leave_out)
    rounds = run(pipelines, arguments.seconds, arguments.seed, settings, directory=arguments.directory)
    for number, outcome in enumerate(rounds):
        counts += outcome.counts
        longest |= Counter(outcome.longest)
        print(_line(number, outcome), flush=True)
        if outcome.faults:
            failed = True
            _tell(outcome)
    print(json.dumps(dict(sorted(counts.items())), indent=2))
    print("longest, in seconds:", json.dumps({what: round(longest[what], 2) for what in sorted(longest)}))
    left = missing(counts, settings)
    if left and not failed:
        print(f"did not happen once, so nothing was shown: {', '.join(left)}")
    return 1 if failed or left else 0


def _line(number: int, outcome: Outcome) -> str:
    done = sum(count for what, count in outcome.counts.items() if ":" not in what)
    stalled = f", the machine stood still for {outcome.stalled:.1f} s" if outcome.stalled > 1 else ""
    return (
        f"round {number}, {outcome.pipeline}, seed {outcome.seed}: {done} calls, {outcome.counts['commit']} commits, "
        f"{len(outcome.faults)} faults{stalled}"
    )


def _tell(outcome: Outcome) -> None:
    names = Counter(fault.name for fault in outcome.faults)
    print(f"\nFAULTS: {', '.join(f'{count} x {name}' for name, count in names.items())}")
    shown: Counter[str] = Counter()
    for fault in outcome.faults:
        shown[fault.name] += 1
        if shown[fault.name] <= max(3, SHOWN // len(names)):
            print(f"  {fault}")
    print(f"\nThe repository is {outcome.url}. Again, as far as chance decides:")
    print(f"  python -m tests.threads --seed {outcome.seed} --pipeline {outcome.pipeline}\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell has started us in the background
    sys.exit(main())
