"""How committers of one branch compete: in turn, under the commit lock, or for the version, which one of them takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from txstore.storage.request_threads import executor

#: Committers of one process that look for the head at the same time, each beside its uploads.
_LOOKS = 8


class CommitStrategy(Protocol):
    """What a committer does before its turn, in its turn, or without one."""

    queues: bool
    """Whether a commit may follow one that is on the way to its version."""

    def check_early(self, check: Callable[[], object]) -> None:
        """Look for conflicts before the turn, so that others wait less."""

    def begin_look(self, look: Callable[[], object]) -> Future[object] | None:
        """Begin to look for the head while the committer makes its data durable; None if that saves nothing."""

    def may_join(self, is_simple: Callable[[], bool]) -> bool:
        """Tell whether a commit may take a version together with others."""


class UnderLock:
    """Committers wait for one another under the commit lock."""

    queues = True

    def check_early(self, check: Callable[[], object]) -> None:
        check()

    def begin_look(self, look: Callable[[], object]) -> Future[object] | None:
        return None

    def may_join(self, is_simple: Callable[[], bool]) -> bool:
        return False


class AtVersion:
    """Committers of all processes try to take the version: that itself says who was faster."""

    queues = False

    def check_early(self, check: Callable[[], object]) -> None:
        """No other committer waits for this one."""

    def begin_look(self, look: Callable[[], object]) -> Future[object] | None:
        # Threads of its own: a look may wait for single requests.
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads
            return executor("look for the head", _LOOKS).submit(look)
        return None

    def may_join(self, is_simple: Callable[[], bool]) -> bool:
        return is_simple()
