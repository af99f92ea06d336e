"""Reads and writes the file beside a checkout: the commit that its directory has, and the status of each of its files.

The file lies beside the directory, not in it, because programs empty a directory before they write an array into it. As
git's index does, it holds what tells a changed file from an unchanged one without reading it: length, times and inode.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from txstore.errors import CheckoutError

_VERSION = 1

#: A file may be changed again within one tick of the clock of its file system, and then has the same status.
_TICK, _COARSE_TICK, _SECOND = 20_000_000, 2_000_000_000, 1_000_000_000  # nanoseconds

#: Length, time of the last change of content and of status in nanoseconds, and inode.
Status: TypeAlias = tuple[int, int, int, int]


def status_of(found: os.stat_result) -> Status:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


@dataclass
class CheckoutState:
    """The state of a checkout."""

    repository: str
    branch: str
    path: str
    commit: str | None
    """The id of the commit whose values `files` are of. None: no file was written yet."""
    files: dict[str, Status | None] = field(default_factory=dict)
    """Key -> status of the file when it had the commit's value. None: it has to be read."""
    to: str | None = None
    """The id of the commit to which the files are being updated."""
    pending: dict[str, dict[str, Status | None]] = field(default_factory=dict)
    """Id of each commit that was begun -> the files that it takes, and those that it deletes (None)."""
    erasures: list[str] = field(default_factory=list)
    """The ids of the erasures that had ended before the files were read. Others may have erased what is in them."""
    written: int = 0  # when this was written, by the clock of the file system, in nanoseconds

    def is_unchanged(self, key: str, found: Status) -> bool:
        """Tell whether a file has the commit's value, as far as its status tells; if in doubt, say no."""
        known = self.files.get(key)
        if known is None or tuple(known) != found:
            return False
        return max(found[1], found[2]) + _tick(found) < self.written

    def take(self, commit: str) -> None:
        """Note that a pending commit was made: its files are as they are there."""
        for key, status in self.pending[commit].items():
            if status is None:
                self.files.pop(key, None)
            else:
                self.files[key] = status


def _tick(status: Status) -> int:
    return _COARSE_TICK if status[1] % _SECOND == status[2] % _SECOND == 0 else _TICK


def until_settled(statuses: Iterable[Status]) -> float:
    """Return in how many seconds a change of any of these files would show in its status; 0: it would now."""
    newest = max((max(status[1], status[2]) + _tick(status) for status in statuses), default=0)
    wait = newest - time.time_ns()
    return wait / _SECOND if 0 < wait <= _COARSE_TICK else 0  # a later time is no clock's of this machine


def path_of(directory: str) -> str:
    """Return where the state of a checkout lies."""
    above, name = os.path.split(directory)
    return os.path.join(above, f".{name}.txstore-checkout")


def write(directory: str, state: CheckoutState) -> None:
    """Replace the state in one step."""
    path = path_of(directory)
    temporary = f"{path}.{os.urandom(8).hex()}"
    told = {name: value for name, value in asdict(state).items() if name != "written"}
    content = json.dumps({"about": f"the checkout {directory}", "version": _VERSION, **told})
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w") as file:
            file.write(content)
            file.flush()
            state.written = os.fstat(descriptor).st_mtime_ns
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def read(directory: str) -> CheckoutState | None:
    """Return the state of a checkout; None if there is none. Raises `CheckoutError`."""
    path = path_of(directory)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(descriptor) as file:
        status = os.fstat(descriptor)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            reason = f"{path} is no file that only you could have written: check out to a new place"
            raise CheckoutError(directory, reason)
        state = _decoded(file.read())
    if state is None:
        raise CheckoutError(directory, f"{path} can't be read: check out to a new place, and copy your changes there")
    state.written = status.st_mtime_ns
    return state


def forget(directory: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path_of(directory))


def _decoded(content: str) -> CheckoutState | None:
    try:
        told = json.loads(content)
        if told.pop("version") != _VERSION:
            return None
        del told["about"]
        told["files"] = _statuses(told["files"])
        told["pending"] = {commit: _statuses(files) for commit, files in told["pending"].items()}
        return CheckoutState(**told)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _statuses(told: dict[str, Any]) -> dict[str, Status | None]:
    found: dict[str, Status | None] = {}
    for key, status in told.items():
        if status is None:
            found[key] = None
        else:
            size, modified, changed, inode = status
            found[key] = int(size), int(modified), int(changed), int(inode)
    return found
