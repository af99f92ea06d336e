"""What a process of its own does for one sample: an order on stdin, what was measured on stdout."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

from benchmarks.peers import appends, bystanders, crowd, keys, memory, remote, small, whole
from benchmarks.peers.fresh import Tasks
from benchmarks.peers.peer import NotOffered

TASKS: Tasks = {
    **appends.TASKS,
    **bystanders.TASKS,
    **crowd.TASKS,
    **keys.TASKS,
    **memory.TASKS,
    **remote.TASKS,
    **small.TASKS,
    **whole.TASKS,
}


def main() -> None:
    warnings.simplefilter("ignore")
    answer, sys.stdout = sys.stdout, sys.stderr  # libraries print, too
    order = json.loads(sys.stdin.readline())
    said: dict[str, Any]
    try:
        said = {"values": TASKS[order.pop("task")](**order)}
    except NotOffered as why:
        said = {"not offered": str(why)}
    json.dump(said, answer)
    answer.flush()
    os._exit(0)  # no time for threads and caches that are of no use any more


if __name__ == "__main__":
    main()
