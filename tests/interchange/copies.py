"""What a plain copy should hold, and a publisher that dies or fails at a chosen step."""

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import txstore
from txstore.interchange.destinations import LocalDestination
from txstore.interchange.publish import STATE

Tree = dict[str, bytes]


def tree_of(directory: Path) -> Tree:
    """All files of a copy but what the publisher keeps for itself; nothing of that may be left but the one file."""
    found = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert found.pop(STATE)
    return found


def chunks_of(repo: txstore.Repository, **which: Any) -> Tree:
    """The keys of a commit that are copied as they are."""
    return {
        key: bytes(value)
        for key, value in repo.mapping(**which).items()
        if key != "zarr.json" and not key.endswith(".zmetadata")
    }


def check_copy(directory: Path, repo: txstore.Repository, **which: Any) -> None:
    """The copy has exactly what the commit has, and consolidated metadata of it."""
    found = tree_of(directory)
    root = json.loads(found.pop("zarr.json"))
    expected = chunks_of(repo, **which)
    assert sorted(found) == sorted(expected)
    assert found == expected
    told = root["consolidated_metadata"]["metadata"]
    for node in told.values():
        node.pop("consolidated_metadata", None)
    assert told == {
        key.removesuffix("/zarr.json"): json.loads(content)
        for key, content in expected.items()
        if key.endswith("/zarr.json")
    }


class Unsteady(LocalDestination):
    """A directory where the process dies before or after a chosen change."""

    def __init__(self, path: Path, die_at: int, die: Callable[[], None], *, after: bool) -> None:
        super().__init__(path, durable=False)
        self.writers = 1
        self.changes = 0
        self.die_at, self.die, self.after = die_at, die, after

    def change(self, change: Callable[[], None]) -> None:
        if self.changes == self.die_at and not self.after:
            self.die()
        change()
        if self.changes == self.die_at and self.after:
            self.die()
        self.changes += 1

    def write(self, key: str, content: Any) -> None:
        self.change(lambda: super(Unsteady, self).write(key, content))

    def write_marker(self, key: str, content: Any) -> None:
        self.change(lambda: super(Unsteady, self).write_marker(key, content))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.change(lambda key=key: super(Unsteady, self).delete([key]))


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def forked(work: Callable[[], None], timeout: float = 30) -> int:
    """Run something in a forked child that may kill itself; return how it has ended."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(timeout))
            work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]
