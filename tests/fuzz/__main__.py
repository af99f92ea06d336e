"""python -m tests.fuzz --inputs 10000000 --repositories 1000000: the same as the tests, for longer, in all cores.

Keeps what it finds. `--seed S --only N` tries one repository again.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Any

from tests import reliability
from tests.fuzz import repositories
from tests.fuzz.fuzzing import Finding, batch
from tests.fuzz.targets import TARGETS

_BATCH, _BATCH_OF_REPOSITORIES = 20_000, 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000_000, help="damaged bytes in all, over all decoders")
    parser.add_argument("--repositories", type=int, default=1_000_000, help="that lie, with right checksums")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="try this one of the repositories, and nothing else")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.only is not None:
        found = repositories.batch(arguments.seed, arguments.only, 1)
        print(*found, sep="\n")
        raise SystemExit(bool(found))
    findings: list[Finding | repositories.Finding] = []
    done: Counter[str] = Counter()
    # A crash or a hang ends its process, and with it the pool: then the seed that is printed finds it again.
    print(f"seed {arguments.seed}", flush=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        jobs = dict(_submitted(pool, arguments))
        for job in as_completed(jobs):
            name, count = jobs[job]
            done[name] += count
            for finding in job.result():
                findings.append(finding)
                shown = f"{finding.save()}: {finding.what}" if isinstance(finding, Finding) else str(finding)
                print(shown, flush=True)
            if name == "repository":
                print(f"{done[name]:,} of {arguments.repositories:,} repositories", flush=True)
    reliability.add("fuzz", Counter({"inputs": done.total(), reliability.FAILURES: len(findings)}))
    if arguments.json:
        print(json.dumps({"inputs": done.total(), "findings": len(findings), "by_decoder": done}))
    else:
        print(f"{done.total():,} inputs, {len(findings)} findings")
    raise SystemExit(bool(findings))


def _submitted(
    pool: ProcessPoolExecutor, arguments: argparse.Namespace
) -> Iterator[tuple[Future[Any], tuple[str, int]]]:
    """Hand out the work; yield each job, what it is of, and how many inputs it has."""
    # Runs take fifty times as long as all others, and get a tenth.
    for target in TARGETS if arguments.inputs else ():
        share = 0.1 if target.name == "run" else 0.9 / (len(TARGETS) - 1)
        for number, begin in enumerate(range(0, total := max(1, round(arguments.inputs * share)), _BATCH)):
            count = min(_BATCH, total - begin)
            yield pool.submit(batch, target.name, count, arguments.seed + number), (target.name, count)
    for begin in range(0, arguments.repositories, _BATCH_OF_REPOSITORIES):
        count = min(_BATCH_OF_REPOSITORIES, arguments.repositories - begin)
        yield pool.submit(repositories.batch, arguments.seed, begin, count), ("repository", count)


if __name__ == "__main__":
    main()
