"""Opens a repository of 10,000 commits, 1,000 arrays and a million chunks over HTTP, and reads one chunk.

    python -m tests.reader_js.scale [--commits 10000] [--delay 0.03]

Its head cache is one of an object store; that of a directory takes one request more. Each answer comes after a delay.
Prints requests, time and bytes of the reader in JavaScript: the median of several processes that have read nothing
before. The exit status is 1 on a miss.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import txstore
from tests.reader_js.node import Node, served
from txstore.history.object_head_caches import TAIL

ARRAYS = 1000
ROUNDS = 5
REQUESTS, MILLISECONDS, BYTES = 6, 300, 400_000


def filled(path: Path, commits: int) -> int:
    """Give each array a chunk for ten commits, a hundred keys in a commit; return the length of the chunk to read."""
    repo = txstore.Repository(path, durability="none")
    for number in range(commits):
        with repo.begin(f"{number}") as transaction:
            for each in range(100):
                array = (number * 100 + each) % ARRAYS
                transaction[f"group/{array:04}/c/{number // 10}"] = bytes([number % 256] * 16)
    repo.optimize()
    with repo.begin("last") as transaction:
        transaction["group/0000/c/0"] = b"last"
    head = repo.engine.commits.head("main")
    assert head is not None
    with open(path / "heads/main", "ab") as file:  # as on an object store
        file.write((path / head.path).read_bytes()[-TAIL:])
    return len(repo.mapping()["group/0500/c/7"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--delay", type=float, default=0.03, help="seconds before each answer")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        expected = filled(Path(folder) / "data.tx", given.commits)
        samples = []
        with served(Path(folder), delay=given.delay) as base:
            for _ in range(ROUNDS):
                node = Node()
                length, _ = node.ask("get", f"{base}/data.tx", at="main", key="group/0500/c/7")
                assert length == expected
                samples.append((node.requests["count"], node.milliseconds, node.requests["bytes"]))
                node.end()
    requests, milliseconds, size = (statistics.median(column) for column in zip(*samples, strict=True))
    print(
        f"{given.commits:,} commits, {given.commits * 100:,} chunks, {given.delay * 1e3:.0f} ms a request: open at main"
    )
    print(f"and read one chunk: {requests:.0f} requests, {milliseconds:.0f} ms, {size / 1e3:.0f} KB")
    print(f"must be at most:    {REQUESTS} requests, {MILLISECONDS} ms, {BYTES / 1e3:.0f} KB")
    return 0 if requests <= REQUESTS and milliseconds <= MILLISECONDS and size <= BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
