"""Chooses how committers of one branch compete: in turn under the commit lock, or all at once for the next version."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from txstore.observing import carried
from txstore.storage.request_threads import executor

#: Number of committers in one process that look for the head at the same time, each during its uploads.
_LOOKS = 8


class CommitStrategy(Protocol):
    """The steps of a commit that depend on whether committers take turns."""

    queues: bool
    """Whether a commit may follow one that is on the way to its version."""

    def check_early(self, check: Callable[[], object]) -> None:
        """Look for conflicts before the turn, so that other committers wait less."""

    def begin_look(self, look: Callable[[], object]) -> Future[object] | None:
        """Start to look for the head while the committer makes its data durable. None if that saves no time."""

    def may_join(self, is_simple: Callable[[], bool]) -> bool:
        """Tell whether a commit may join a group commit."""


class UnderLock:
    """The strategy where committers take turns under the commit lock."""

    queues = True

    def check_early(self, check: Callable[[], object]) -> None:
        check()

    def begin_look(self, look: Callable[[], object]) -> Future[object] | None:
        return None

    def may_join(self, is_simple: Callable[[], bool]) -> bool:
        return False


class AtVersion:
    """The strategy where all committers try to create the next version. Exactly one succeeds."""

    queues = False

    def check_early(self, check: Callable[[], object]) -> None:
        """No other committer waits for this one."""

    def begin_look(self, look: Callable[[], object]) -> Future[object] | None:
        # These threads are separate from those for single requests: a look may wait for such requests.
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads
            return executor("look for the head", _LOOKS).submit(carried(look))
        return None

    def may_join(self, is_simple: Callable[[], bool]) -> bool:
        return is_simple()
