"""Checks now and then that a server creates objects exclusively. If it does not, commits could replace each other."""

from __future__ import annotations

import math
import operator
import os
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from txstore import processes
from txstore.format import names, records
from txstore.storage.objects.errors import NotExclusiveError
from txstore.storage.objects.interface import ObjectStore, check_creation
from txstore.storage.request_threads import in_background

#: Seconds after which a committing process checks again.
PERIOD = 10.0


class _Proof(NamedTuple):
    """One check."""

    process: int  # that has asked: no thread of the parent's answers in a forked child
    began: float  # by the monotonic clock
    versions_begun: int  # of the store, then
    answer: Callable[[], None]

    @property
    def age(self) -> float:
        return time.monotonic() - self.began


class CreationCheck:
    """What one process knows of one server. Safe in threads."""

    def __init__(self, objects: ObjectStore, *, makes_requests: bool) -> None:
        self._objects = objects
        self._period = PERIOD if makes_requests else math.inf
        self._asked: _Proof | None = None  # whose answer no caller has waited for yet
        self._proved: _Proof | None = None  # the last whose answer was that the server does
        self._lock = processes.new_lock()

    def begin(self) -> None:
        """Ask the server in the background, unless it has been proved."""
        with self._lock:
            if self._proved is None:
                self._asked = self._ask(in_background)

    def _ask(self, begin: Callable[..., Callable[[], None]]) -> _Proof:
        find_out = partial(check_creation, self._objects, names.GUARD, records.encode_guard())  # always the same
        began, versions_begun = time.monotonic(), self._objects.versions_begun
        return _Proof(os.getpid(), began, versions_begun, begin(operator.call, find_out))

    def wait(self) -> None:
        """Raise `NotExclusiveError` if the server lets a second creator of an object through.

        It has to be known at first, since files may have been copied to another server; when something is in doubt; and
        when the server has begun to keep versions, since some ignore conditions in such a bucket. Then an `OSError`
        says why it could not be asked. Otherwise the next caller asks the server again.
        """
        with self._lock:
            begun, asked, self._asked = self._objects.versions_begun, self._asked, None
            has_to = self._proved is None or self._proved.versions_begun != begun
            if asked is None or asked.process != os.getpid() or asked.versions_begun != begun:
                if not has_to:
                    return
                asked = self._ask(partial)
            try:
                asked.answer()
            except NotExclusiveError:
                self._proved = None
                raise
            except OSError:
                if has_to:
                    raise
            else:
                self._proved = asked

    def renew(self) -> None:
        """Begin to ask again, if that was long ago: a caller that creates an object waits for both answers."""
        with self._lock:
            last = self._asked or self._proved
            if self._proved is not None and last is not None and last.age >= self._period:
                self._asked = self._ask(in_background)

    def doubt(self) -> None:
        """Let the next `wait` ask the server again: an object had unexpected content."""
        with self._lock:
            self._asked = self._proved = None
