"""Lets committers that have released the commit lock sync side by side: each finishes after the one ahead of it.

So committers sync at the same time, and finish in the order in which they held the lock. A place in the queue is a byte
of the file, locked until its holder leaves or dies. A committer takes its place while it holds the lock: the place
behind the last one, or the first place if the queue is empty.

The file also names the last committer and describes its commit. Readers use this entry only while the byte of that
place is locked. So the entry of a dead process misleads no reader.
"""

from __future__ import annotations

import os
import struct
import sys
from functools import partial

from txstore.format import encoding
from txstore.storage import commit_lock

if sys.platform == "linux":
    import fcntl

#: The byte of the first place, and how many there are.
_FIRST, _MOST = 1 << 32, 1 << 40
#: Offsets: the place that was given last, and the entries of the last places, in a ring of the third number.
_LAST, _ENTRIES, _KEPT = 1024, 2048, 64
_NUMBER = struct.Struct("<Q")
_HEAD = struct.Struct("<IQH")  # checksum of what follows, place, length of what is said
_SAID = 128
_ENTRY = _SAID + commit_lock.ABOUT_SIZE


class SyncQueue:
    """The queue at one file, for a process whose turn it is there. It ends with the turn: `commit_lock.leave`."""

    def __init__(self, descriptor: int, url: str, path: str, timeout: float | None) -> None:
        self._descriptor = descriptor
        self._new_wait = partial(commit_lock.Wait, url, path, timeout, self._first_member)
        self._ahead: int | None = None  # the place that is waited for before this one

    def last(self) -> bytes | None:
        """Return the entry of the last committer in the queue, which `join` will follow; None if the queue is empty.

        Waits for a committer that has written no entry. Raises `CommitTimeoutError`.
        """
        self._ahead = None
        if self._taken(0, _MOST) is None:
            return None
        place = int.from_bytes(os.pread(self._descriptor, _NUMBER.size, _LAST), "little")
        said = self._said(place)
        if said is not None and place < _MOST - 1 and self._taken(place, 1) is not None:
            self._ahead = place
            return said
        self.drain()
        return None

    def drain(self) -> None:
        """Wait until the queue is empty. Raises `CommitTimeoutError`."""
        self._ahead = None
        self._wait_for(0, _MOST)

    def join(self, said: bytes) -> None:
        """Take the last place and release the lock. If the disk is full, keep the lock: others then wait longer."""
        place = 0 if self._ahead is None else self._ahead + 1
        fields = _HEAD.pack(0, place, len(said))[encoding.CHECKSUM.size :] + said
        entry = encoding.CHECKSUM.pack(encoding.crc32c(fields)) + fields
        if not commit_lock.try_lock(self._descriptor, commit_lock.lock_of(fcntl.F_WRLCK, _FIRST + place, 1)):
            return  # by a program that is none of ours
        try:
            os.pwrite(self._descriptor, entry.ljust(_SAID, b"\0") + commit_lock.about(), _offset(place))
            os.pwrite(self._descriptor, _NUMBER.pack(place), _LAST)
        except OSError:
            return
        commit_lock.pass_on(self._descriptor)

    def wait(self) -> None:
        """Wait until the one ahead has left. Raises `CommitTimeoutError`."""
        if self._ahead is not None:
            self._wait_for(self._ahead, 1)

    def _wait_for(self, place: int, length: int) -> None:
        if self._taken(place, length) is None:
            return
        shared = commit_lock.lock_of(fcntl.F_RDLCK, _FIRST + place, length)
        try:
            commit_lock.wait_for_lock(self._descriptor, shared, self._new_wait())
        finally:
            freed = commit_lock.lock_of(fcntl.F_UNLCK, _FIRST + place, length)
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, freed)

    def _taken(self, place: int, length: int) -> int | None:
        """Return one of `length` places that another committer holds, None if there is none."""
        asked = commit_lock.lock_of(fcntl.F_RDLCK, _FIRST + place, length)
        kind, _, start = struct.unpack_from("hhq", fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else max(start - _FIRST, place)

    def _said(self, place: int) -> bytes | None:
        entry = os.pread(self._descriptor, _SAID, _offset(place))
        if len(entry) < _SAID:
            return None
        checksum, number, length = _HEAD.unpack_from(entry)
        end = _HEAD.size + length
        if end > _SAID or number != place or encoding.crc32c(entry[encoding.CHECKSUM.size : end]) != checksum:
            return None
        return entry[_HEAD.size : end]

    def _first_member(self) -> str:
        """Return the first committer in the queue, for which all others wait."""
        place = stop = self._taken(0, _MOST)
        while stop:
            stop = self._taken(0, stop)
            place = place if stop is None else stop
        if place is None:
            return commit_lock.UNKNOWN
        return commit_lock.told(os.pread(self._descriptor, commit_lock.ABOUT_SIZE, _offset(place) + _SAID))


def _offset(place: int) -> int:
    return _ENTRIES + place % _KEPT * _ENTRY
