"""Tiles that know nothing of chunks, written through zarr by threads, processes and transactions: is anything lost?

python -m tests.pipeline [--rounds 1000] [--thread-rounds 64]; the exit status is 1 if our pipeline loses an element.
"""

import argparse
import sys

from tests.pipeline.tiles import PROCESSES, THREADS, by_processes, by_threads
from tests.threads.harness import PIPELINES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--thread-rounds", type=int, default=64)
    arguments = parser.parse_args()
    ours = 0
    for pipeline in PIPELINES:
        lost = by_threads(pipeline, arguments.thread_rounds)
        ours += lost if pipeline == "txstore" else 0
        print(
            f"{THREADS} threads, pipeline {pipeline}, {arguments.thread_rounds} rounds: {lost} elements lost",
            flush=True,
        )
    shared, apart, wrong, refused = by_processes(arguments.rounds)
    print(f"{PROCESSES} processes of one transaction, {arguments.rounds} rounds: {shared} elements lost")
    print(f"{PROCESSES} transactions at once, {arguments.rounds} rounds: {apart} elements lost, no conflict")
    print(f"overlapping increments, {arguments.rounds} rounds: {wrong} miscounted, {refused} refused and tried again")
    return 1 if ours or shared or apart or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
