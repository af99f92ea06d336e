"""Merges, reverts and picks on random histories of two to five branches: is anything other than git makes of them?

python -m tests.merging [--seeds 5000] [--first 0] [--git-every 10]; the exit status is 1 if there is. On every second
history branches are deleted, and vacuums give up commits. Git itself is asked on every tenth, a model of it on all.
For every fifth seed, there is a history in which rows move, beside a model that goes by label.
"""

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.merging import moved_histories
from tests.merging.histories import play
from txstore import TxStoreError

#: A history of rows that move takes about ten times as long: zarr and xarray write it.
MOVED_EVERY = 5


def one(seed: int, git_every: int) -> tuple[int, Counter[str], str]:
    counts = Counter[str]()
    try:
        play(seed, counts, asks_git=not seed % git_every)
        if not seed % MOVED_EVERY:
            moved_histories.play(seed // MOVED_EVERY, counts)
    except (AssertionError, LookupError, TxStoreError, TypeError, ValueError) as error:  # the next ones are tried, too
        return seed, counts, f"{type(error).__name__}: {error}"
    return seed, counts, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--git-every", type=int, default=10)
    parser.add_argument("--processes", type=int)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    counts, failed = Counter[str](), 0
    with ProcessPoolExecutor(arguments.processes) as pool:
        for seed, found, error in pool.map(partial(one, git_every=arguments.git_every), seeds, chunksize=8):
            counts += found
            if not (seed + 1) % 250:
                print(f"... {seed + 1}", flush=True)
            if error:
                failed += 1
                print(f"seed {seed}: {error}", flush=True)
    print(f"{len(seeds)} histories: {failed} in which something is other than in git, or by label")
    for what, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:9,} {what}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
