"""A writer that gets a signal at one step of its transaction: before the n-th thing it does with the storage."""

import itertools
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import txstore
from tests.tools.faults import Hook, watch
from tests.tools.workers import TIMEOUT


class BeforeEach(dict[str, Hook]):
    """The hooks of a `Watched`: the same one for every call."""

    def __init__(self, hook: Hook) -> None:
        super().__init__()
        self.hook = hook

    def get(self, name: str, default: Any = None) -> Hook:
        return self.hook


class BeforeEachChange(BeforeEach):
    """The same hook before every call but those that only look."""

    def get(self, name: str, default: Any = None) -> Any:
        looks = ("read", "exists", "list", "is_held", "are_held", "map", "file.read", "file.close")
        return (lambda *_: None) if name.startswith(looks) else super().get(name, default)


def commit_with_signal(
    url: str,
    step: int,
    number: int,
    durability: str = "fsync",
    value: bytes = b"1",
    before: type[BeforeEach] = BeforeEach,
) -> None:
    """Make one commit and send oneself a signal before step `step`, counted from 0; none if there are fewer steps."""
    repo = txstore.Repository(url, durability=durability)
    steps = itertools.count()

    def signal_once(*_: object) -> None:
        if next(steps) == step:
            os.kill(os.getpid(), number)

    watch(repo).before = before(signal_once)
    with repo.begin(f"step {step}") as transaction:
        transaction[f"step/{step}"] = value
        transaction["last"] = b"%d" % step


@contextmanager
def forked(function: Callable[..., object], *arguments: Any) -> Iterator[int]:
    """Run a function in a child of this process, which `waitpid` can watch. It is killed at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests left threads; the child uses none of them
        child = os.fork()
    if child == 0:
        status = 1
        try:
            function(*arguments)
            status = 0
        except BaseException:  # noqa: BLE001 - the status says that there was one
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)
    try:
        yield child
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, 9)
            os.waitpid(child, 0)


def status_of(child: int) -> int:
    """Wait until a child was stopped or has ended, and return its status."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WUNTRACED | os.WNOHANG)
        if found:
            return status
        time.sleep(0.001)
    raise TimeoutError(f"process {child} neither stops nor ends")
