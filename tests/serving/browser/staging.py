"""Processes that are at work: they stage into a transaction with a name, and hold locks, until they are let go."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import zarr

import txstore


@contextmanager
def staging(url: str, name: str, path: str, lock: str | None = None) -> Iterator[int]:
    """Have a process join a transaction and make an array of 1,600 chunks there; yield its number."""
    command = [sys.executable, "-m", __spec__.name, url, name, path, *([] if lock is None else [lock])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "staged\n"
        yield process.pid
        process.stdin.close()
    assert process.returncode == 0


def main(url: str, name: str, path: str, *locks: str) -> None:
    repo = txstore.Repository(url)
    with ExitStack() as stack:
        store = stack.enter_context(repo.transaction("The last ten years, anew", name=name))
        for each in locks:
            stack.enter_context(store.lock(each))
        zarr.create_array(store, name=path, data=np.random.default_rng(0).random((400, 400)), chunks=(10, 10))
        print("staged", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
