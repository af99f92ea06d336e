"""Lists the processes that hold chunk-key locks, for display: it takes no lock and writes nothing.

The locks change while this module reads them. The words of a table name the holder of each slot. For the kinds without
a table it finds only the processes that use the locks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from txstore.locks.kernel_locks import ByteLocks
from txstore.locks.lock_file import (
    HEADER,
    KINDS,
    LOCK_BASE,
    MAGIC,
    MEMBER,
    MEMBERS,
    MEMBERS_OFFSET,
    NAME,
    LockHeader,
    are_possible,
)
from txstore.locks.slot_hash import SlotHash
from txstore.storage import commit_lock
from txstore.storage.tree import Tree

# A word of the table (`_native/lock_words.h`).
_OWNER, _MEMBER_SHIFT = 0x3FFFFFFF, 19
_WORDS_OFFSET = MEMBERS_OFFSET + (MEMBERS + 1) * MEMBER.size


@dataclass(frozen=True, slots=True)
class Holder:
    """A living process that uses the locks. `slots` are the slots it holds or keeps for siblings; None: unknown."""

    pid: int  # in the process's own namespace
    slots: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class Holders:
    kind: str | None  # None: no process has ever locked anything
    holders: tuple[Holder, ...] = ()
    hashed: SlotHash | None = None


def find_holders(directory: str) -> Holders:
    """Read the lock file below a repository's `locks/`. Raises `OSError` if this process may not read it."""
    try:
        with Tree(directory).open(NAME) as descriptor:
            return _read(descriptor)
    except FileNotFoundError:
        return Holders(None)


def whose_turn(directory: str, name: str) -> str | None:
    """Return the process that holds a file lock below a repository's `locks/`, such as the commit lock, or None."""
    try:
        with Tree(directory).open(name) as descriptor:
            return commit_lock.whose_turn(descriptor)
    except FileNotFoundError:
        return None


def _read(descriptor: int) -> Holders:
    header = LockHeader(*HEADER.unpack(os.pread(descriptor, HEADER.size, 0).ljust(HEADER.size, b"\0")))
    kind = KINDS.get(header.kind)
    if header.magic != MAGIC or kind is None or not are_possible(header.slots):
        return Holders(None)
    pids = _living(descriptor)
    held: Mapping[int, frozenset[int]] = _held(descriptor, header.slots) if kind == "table" else {}
    found = tuple(
        Holder(pid, held.get(member, frozenset()) if kind == "table" else None) for member, pid in pids.items()
    )
    return Holders(kind, found, SlotHash(header.slots, header.seed))


def _living(descriptor: int) -> dict[int, int]:
    """Return the process ids of the living members (their kernel lock is held), by member."""
    if sys.platform != "linux":
        return {}
    locks = ByteLocks(descriptor, LOCK_BASE)
    records = os.pread(descriptor, (MEMBERS + 1) * MEMBER.size, MEMBERS_OFFSET)
    whole = records[: len(records) // MEMBER.size * MEMBER.size]
    return {
        member: pid
        for member, (in_use, pid, _) in enumerate(MEMBER.iter_unpack(whole))
        if member and in_use and locks.are_held_elsewhere(member, 1)
    }


def _held(descriptor: int, slots: int) -> dict[int, frozenset[int]]:
    content = os.pread(descriptor, 4 * slots, _WORDS_OFFSET)
    words = np.frombuffer(content[: len(content) // 4 * 4], np.uint32) & _OWNER
    members = words >> _MEMBER_SHIFT
    taken = np.flatnonzero(members)
    found: dict[int, set[int]] = {}
    for slot, member in zip(taken.tolist(), members[taken].tolist(), strict=True):
        found.setdefault(member, set()).add(slot)
    return {member: frozenset(each) for member, each in found.items()}
