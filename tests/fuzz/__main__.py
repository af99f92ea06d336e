"""python -m tests.fuzz --inputs 10000000: the same as the test, for longer, in all cores. Keeps what it finds."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests import reliability
from tests.fuzz.fuzzing import Finding, batch
from tests.fuzz.targets import TARGETS

_BATCH = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000_000, help="in all, over all decoders")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    # Runs take fifty times as long as all others, and get a tenth.
    shares = {target.name: 0.1 if target.name == "run" else 0.9 / (len(TARGETS) - 1) for target in TARGETS}
    context = multiprocessing.get_context("spawn")
    findings: list[Finding] = []
    done = dict.fromkeys(shares, 0)
    # A crash or a hang ends its process, and with it the pool: then the seed that is printed finds it again.
    print(f"seed {arguments.seed}", flush=True)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        jobs = []
        for name, share in shares.items():
            for number, begin in enumerate(range(0, total := max(1, round(arguments.inputs * share)), _BATCH)):
                count = min(_BATCH, total - begin)
                jobs.append((name, count, pool.submit(batch, name, count, arguments.seed + number)))
        for name, count, job in jobs:
            findings.extend(job.result())
            done[name] += count
    reliability.add("fuzz", Counter({"inputs": sum(done.values()), reliability.FAILURES: len(findings)}))
    for finding in findings:
        print(f"{finding.save()}: {finding.what}")
    if arguments.json:
        print(json.dumps({"inputs": sum(done.values()), "findings": len(findings), "by_decoder": done}))
    else:
        print(f"{sum(done.values()):,} inputs, {len(findings)} findings")
    raise SystemExit(bool(findings))


if __name__ == "__main__":
    main()
