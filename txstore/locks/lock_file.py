"""The file `locks/chunks`: the kind of chunk-key locks that a repository uses now, and the member processes.

A process that uses the locks holds the LIVE lock of its member number as long as it lives. A process changes the header
only under the INIT lock, and only if no member lives. So two kinds of lock are never in use at the same time. The top
of `_native/_locktable.c` draws the layout and the numbers of the locks. Of the words of a table, which follow the
members, it only tells who holds them (`find_holders`). It never makes the file shorter, because another process may
have mapped it.

A client of a network file system sees the writes of other clients after it has locked and unlocked INIT.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from txstore import processes
from txstore.errors import LocksUnavailableError
from txstore.locks.kernel_locks import ByteLocks, LockFiles, NumberedLocks, poll, set_mode
from txstore.locks.slot_hash import SlotHash
from txstore.storage import commit_lock
from txstore.storage.tree import Tree

NAME = "chunks"
MAGIC = b"TXSLOCKS"
_UNFINISHED = b"TXSLOCK-"  # the magic of a file that a process is creating or resetting
VERSION = 2
KINDS = {1: "table", 2: "ranges", 3: "files"}
KIND_NUMBERS = {kind: number for number, kind in KINDS.items()}

SLOTS = 1 << 20  # of a new file; no file has more
SEED = 0x5458534C4F434B53
_LEAST_SLOTS = 1 << 6

MEMBERS = 2047
LOCK_BASE = 1 << 40  # offset of the lock bytes: INIT, then LIVE of members 1, 2, ...
INIT = 0

MEMBERS_OFFSET = 4096
MEMBER = struct.Struct("=IIQ48x")  # in use, pid, incarnation; the rest is used by a table only
_LENGTH = MEMBERS_OFFSET + (MEMBERS + 1) * MEMBER.size

_INIT_PATIENCE = 10.0  # seconds: a process holds INIT for milliseconds, unless it was stopped


class LockHeader(NamedTuple):
    magic: bytes = MAGIC
    version: int = VERSION
    kind: int = 0
    slots: int = SLOTS
    reserved: int = 0
    seed: int = SEED
    epoch: int = 0
    device: int = 0
    inode: int = 0
    boot: bytes = b""


HEADER = struct.Struct("=8sIIIIQQQQ40s")


def are_possible(slots: int) -> bool:
    """Tell whether a file may have this number of slots: the header comes from whoever may write the repository."""
    return slots.bit_count() == 1 and _LEAST_SLOTS <= slots <= SLOTS


class KindInUseError(Exception):
    """Living members use another kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def recorded_kind(tree: Tree) -> str | None:
    """Return the kind that the file names now, if any: another process may be about to change it."""
    with tree.open(NAME) as descriptor:
        header = LockHeader(*HEADER.unpack(os.read(descriptor, HEADER.size).ljust(HEADER.size, b"\0")))
    return KINDS.get(header.kind) if header.magic == MAGIC and header.version == VERSION else None


class LockFile:
    """The open file, with this process as a member until `close`. Safe in threads.

    Raises `KindInUseError`, `LocksUnavailableError` if the process can't use the file, and any other `OSError`.
    `is_network`: other machines may see the file system too.
    """

    def __init__(self, tree: Tree, kind: str, *, url: str, mode: int, is_network: bool) -> None:
        self.tree = tree
        self.is_inherited = False
        self.member = 0
        self._kind = kind
        self._url = url
        self._mode = mode
        self._is_network = is_network
        self._mutex = threading.RLock()
        # Systems without byte locks lock small files. On a network file system, clients of both kinds may meet.
        files = LockFiles(tree, "member", mode)
        self._locks: list[NumberedLocks] = [files]
        self.descriptor = -1
        while not self.member:
            self._open()
            try:
                if sys.platform == "linux":
                    byte_locks = ByteLocks(self.descriptor, LOCK_BASE)
                    self._locks = [byte_locks, files] if is_network else [byte_locks]
                with self._initializing():
                    if self.is_in_place() and self._make_fit():
                        self.member, self._incarnation = self._join()
            finally:
                if not self.member:
                    self._close()

    def _open(self) -> None:
        with processes.opening:
            self.descriptor = self.tree.open(NAME, os.O_RDWR | os.O_CREAT, self._mode).detach()
            self._status = os.fstat(self.descriptor)
            processes.watch(self)

    def _close(self) -> None:
        with processes.opening:
            is_ours = self._is_still_open()
            descriptor, self.descriptor = self.descriptor, -1
            if is_ours:
                os.close(descriptor)

    def after_fork_in_child(self) -> None:
        self._mutex = threading.RLock()  # another thread of the parent may have held the old one
        self.is_inherited = True
        self._close()

    def close(self) -> None:
        """End the membership. Does nothing in a forked child, or on a second call."""
        with self._mutex:
            if self.member and not self.is_inherited and self._is_still_open():
                self._write_record(self.member, (0, 0, self._incarnation))
                for locks in self._locks:
                    locks.unlock(self.member)
            self.member = 0
            self._close()

    def __del__(self) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        return self.descriptor < 0

    def is_intact(self) -> bool:
        """Tell whether other processes open this same file, and this process has been its member all the time."""
        with self._mutex:
            if not self.member or not self._is_still_open() or not self.is_in_place():
                return False
            # Locking it again answers this, and restores a lost lock that no other process has noticed.
            is_locked = all(locks.try_lock(self.member) for locks in self._life_locks())
            in_use, _, incarnation = self._record(self.member)
            return is_locked and bool(in_use) and incarnation == self._incarnation

    def header(self) -> LockHeader:
        """Return the current header. It may be invalid: the caller checks `magic` and `version`."""
        return LockHeader(*HEADER.unpack(self._read(0, HEADER.size).ljust(HEADER.size, b"\0")))

    def is_in_place(self) -> bool:
        """Tell whether other processes open this same file."""
        try:
            return os.path.samestat(self.tree.status(NAME), self._status)
        except FileNotFoundError:
            return False

    # --- members

    def other_pids(self) -> list[int]:
        """Return the process ids of the other living members, each in its own namespace."""
        with self._mutex:
            return list(self._living(but=self.member))

    def _living(self, but: int = 0) -> Iterator[int]:
        records = self._read(MEMBERS_OFFSET, _LENGTH - MEMBERS_OFFSET)
        for member, (in_use, pid, _) in enumerate(MEMBER.iter_unpack(records[: len(records) // 64 * 64])):
            if member and in_use and member != but and (member == self.member or self._is_alive(member)):
                yield pid

    # --- under INIT

    @contextlib.contextmanager
    def _initializing(self) -> Iterator[None]:
        deadline = time.monotonic() + _INIT_PATIENCE
        taken: list[NumberedLocks] = []
        try:
            for locks in self._locks:
                if not locks.try_lock(INIT) and not poll(partial(locks.try_lock, INIT), deadline):
                    raise self._refusal("another process has been opening it for 10 s: check whether it is stopped")
                taken.append(locks)
            yield
        finally:
            for locks in taken:
                locks.unlock(INIT)

    def _make_fit(self) -> bool:
        """Make the header name our kind. False if the file had to be removed: the caller starts over."""
        header = self.header()
        if not self._is_empty_or_ours(header):
            raise self._refusal("this is no lock file, and it is not empty: remove it")
        if self._has_other_names() and not self._is_anybody_alive(header):
            self.tree.delete(NAME)
            return False
        fault = self._fault(header)
        if fault is None and header.kind == KIND_NUMBERS[self._kind]:
            self.slots, self.seed = header.slots, header.seed
            return True
        if self._is_anybody_alive(header):
            if fault is not None:
                raise self._refusal(fault)
            raise KindInUseError(KINDS[header.kind])
        if header.magic == MAGIC and self._is_seen_otherwise(header):
            self.tree.delete(NAME)
            return False
        self._reset(header)
        self.slots, self.seed = SLOTS, SEED
        return True

    def _is_empty_or_ours(self, header: LockHeader) -> bool:
        """Tell whether we may write to the file: another program may have put a different file under its name."""
        is_ours = header.magic in (MAGIC, _UNFINISHED) or header.seed == SEED  # the seed, if the magic is damaged
        return is_ours or os.fstat(self.descriptor).st_size == 0

    def _has_other_names(self) -> bool:
        return os.fstat(self.descriptor).st_nlink > 1

    def _fault(self, header: LockHeader) -> str | None:
        """Return why living members, if any, use the file in a way that this process does not support."""
        if header.magic != MAGIC:
            return "processes use the lock file, but something has overwritten it: end them, and delete it"
        if header.version != VERSION:
            return (
                f"processes use the lock file in version {header.version}, this one knows version {VERSION}: use one "
                "release of txstore, or wait until they have ended"
            )
        if header.kind not in KINDS or header.seed != SEED or not are_possible(header.slots):
            return "processes use the lock file, but its header is damaged: end them, and delete it"
        if self._is_seen_otherwise(header):
            return (
                "processes use the lock file by way of another mount, and an overlay shares memory, but not locks: "
                "use one path to the repository everywhere"
            )
        return None

    def _is_seen_otherwise(self, header: LockHeader) -> bool:
        """Tell whether the header was written to another file of this machine, or to this one through another mount.

        A copy has no users yet. Users behind another mount may exist but be invisible, so a new file replaces this one;
        it is not reset. On a network file system each machine has its own device numbers, and the server keeps locks.
        """
        ours = (self._status.st_dev, self._status.st_ino)
        return not self._is_network and header.boot == boot_id() and (header.device, header.inode) != ours

    def _is_anybody_alive(self, header: LockHeader) -> bool:
        if sys.platform != "linux" and header.magic == MAGIC and header.kind != KIND_NUMBERS["files"]:
            # This system can't see their byte locks. A copy has no users yet.
            if header.inode == self._status.st_ino:
                raise self._refusal(
                    "Linux processes have used it, and this system can't see whether one still does: if none, delete it"
                )
            return False
        return any(locks.are_held_elsewhere(1, MEMBERS) for locks in self._locks)

    def _reset(self, old: LockHeader) -> None:
        if old.magic == bytes(8):
            set_mode(self.descriptor, self._mode)  # this process created it
        records = self._read(MEMBERS_OFFSET, _LENGTH - MEMBERS_OFFSET).ljust(_LENGTH - MEMBERS_OFFSET, b"\0")
        # Incarnations continue from their old values: they only have to differ.
        free = b"".join(MEMBER.pack(0, 0, incarnation) for _, _, incarnation in MEMBER.iter_unpack(records))
        self._write(0, _UNFINISHED.ljust(HEADER.size, b"\0"))  # the valid header is written last
        self._write(MEMBERS_OFFSET, free)
        new = LockHeader(
            kind=KIND_NUMBERS[self._kind],
            epoch=(old.epoch + 1) % (1 << 64),
            device=self._status.st_dev,
            inode=self._status.st_ino,
            boot=boot_id(),
        )
        self._write(0, HEADER.pack(*new))

    def _join(self) -> tuple[int, int]:
        """Become a member with an unused number. Returns its number and incarnation."""
        first = os.getpid() * 0x9E3779B97F4A7C15 >> 32
        for number in range(MEMBERS):
            member = 1 + (first + number) % MEMBERS
            if not self._is_alive(member) and all(locks.try_lock(member) for locks in self._life_locks()):
                incarnation = (self._record(member)[2] + 1) % (1 << 64)
                self._write_record(member, (1, os.getpid() & 0xFFFFFFFF, incarnation))
                return member, incarnation
        raise self._refusal(f"all {MEMBERS} places for processes are taken: wait until some have ended")

    def _life_locks(self) -> list[NumberedLocks]:
        """Return the lock sets with our LIVE lock. Clients of other systems see it only if they share the kind."""
        return self._locks if self._kind == "files" else self._locks[:1]

    def _is_alive(self, member: int) -> bool:
        return any(locks.are_held_elsewhere(member, 1) for locks in self._locks)

    # --- the bytes

    def _record(self, member: int) -> tuple[int, int, int]:
        record = self._read(MEMBERS_OFFSET + member * MEMBER.size, MEMBER.size)
        in_use, pid, incarnation = MEMBER.unpack(record.ljust(MEMBER.size, b"\0"))
        return in_use, pid, incarnation

    def _write_record(self, member: int, record: tuple[int, int, int]) -> None:
        self._write(MEMBERS_OFFSET + member * MEMBER.size, MEMBER.pack(*record))

    def _read(self, offset: int, length: int) -> bytes:
        with self._mutex:
            return os.pread(self.descriptor, length, offset)

    def _write(self, offset: int, content: bytes) -> None:
        with self._mutex:
            while content:
                written = os.pwrite(self.descriptor, content, offset)
                content, offset = content[written:], offset + written

    def _is_still_open(self) -> bool:
        """Check the descriptor: other code may have closed it, and its number may belong to another file now."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), self._status)
        except OSError:
            return False

    def _refusal(self, reason: str) -> LocksUnavailableError:
        return LocksUnavailableError(self._url, f"{self.tree.path(NAME)}: {reason}")


def boot_id() -> bytes:
    """Return the boot id for the header; empty if the system has none: then all boots count as the same."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(36).ljust(40, b"\0")
    except OSError:
        return bytes(40)


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
    """Read the lock file below a repository's `locks/`, for display: it takes no lock, and the locks change meanwhile.

    For the kinds without a table it finds only the processes that use the locks. Raises `OSError` if this process may
    not read it.
    """
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
