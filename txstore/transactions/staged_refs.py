"""Stores one ref for each staged key: in memory, or sealed in sorted runs in files when there are very many."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Collection, Iterator

from txstore._native import index
from txstore.format import packfile
from txstore.format.keys import after_prefix
from txstore.format.packfile import Predecessor
from txstore.format.regions import WHOLE, Region
from txstore.storage.interface import Storage
from txstore.transactions.participants.chains import Link
from txstore.transactions.sealed_keys import REF, SealedKeys

#: Number of refs in memory at which plain refs are sealed. Without C it is larger, because a look-up of a sealed ref in
#: Python takes longer than staging it.
SEALED_FROM = 1 << 15 if index.IMPLEMENTATION == "c" else 1 << 20


class StagedRefs:
    """The refs of the staged keys, and the order of the keys.

    REQUIRES: the caller holds the lock of the staged keys, but for `find`, `__len__` and `__bool__`.
    """

    def __init__(self, storage: Storage | None) -> None:
        #: Each ref has the fields of a link, then the frame that its writer had seen, if any, then its region, if any.
        self.memory: dict[str, bytes] = {}
        self.sealed: SealedKeys | None = None  # refs of other keys, or older refs of these; none of keys with links
        self.order: list[str] = []  # the keys in memory; sorted, except for those added since the last listing
        self._storage = storage
        self._sorted = 0
        self._sealed_count = 0  # number of keys that are only in `sealed`
        self.seal_at = SEALED_FROM  # number of refs in memory at which plain refs should be sealed

    def __len__(self) -> int:
        return len(self.memory) + self._sealed_count

    def find(self, key: str) -> bytes | None:
        """Return the ref of a key, sealed or not, without the lock.

        A holder of the lock adds refs to `sealed`, or hides keys there, before it removes them from memory. So this
        finds each key.
        """
        while True:
            sealed = self.sealed
            ref = self.memory.get(key)
            if ref is not None or sealed is None:
                return ref
            ref = sealed.get(key)
            if sealed is self.sealed:
                return ref

    def recalled(self, key: str) -> bytes | None:
        """Return the ref of a key, and move it from `sealed` back to memory."""
        ref = self.memory.get(key)
        if ref is None and self.sealed is not None and (ref := self.sealed.get(key)) is not None:
            self.order.append(key)
            self.memory[key] = ref
            self._sealed_count -= 1
        return ref

    def add(self, key: str, ref: bytes) -> None:
        """Add the ref of a key that has none."""
        self.order.append(key)
        self.memory[key] = ref

    def seal(self, linked: Collection[str]) -> None:
        """Seal the plain refs: those without links, seen frames or regions. `linked`: the keys with links."""
        keys, refs = self.range("", None)[0], self.memory
        kept = {key: refs[key] for key in keys if len(refs[key]) != REF.size or key in linked}
        sealed = [key for key in keys if key not in kept] if kept else keys
        self.sealed = (self.sealed or SealedKeys()).adding(sealed, refs, self._storage)
        self._sealed_count += len(sealed)
        self.memory, self.order, self._sorted = kept, list(kept), len(kept)
        self.seal_at = len(kept) + SEALED_FROM

    def range(self, start: str, stop: str | None) -> tuple[list[str], int, int]:
        """Return a sorted list of the keys in memory, and between which of its positions a range lies."""
        if self._sorted < len(self.order):
            # A new list, because others may iterate over the old one. Sorting a nearly sorted list takes linear time.
            self.order = sorted(self.order)
            self._sorted = len(self.order)
        order, end = self.order, self._sorted
        low = bisect_left(order, start, 0, end)
        return order, low, end if stop is None else bisect_left(order, stop, low, end)

    def replace_order(self, order: list[str]) -> None:
        """Set the sorted keys in memory."""
        self.order, self._sorted = order, len(order)

    def between(self, start: str, stop: str | None) -> Iterator[tuple[str, bytes]]:
        """Return an iterator over a range, in the order of the keys. It needs no lock."""
        order, low, high = self.range(start, stop)
        return _merged(order, low, high, self.memory, self.sealed, start, stop)

    def below(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yield the keys and refs below a prefix, in any order."""
        order, low, high = self.range(prefix, after_prefix(prefix))
        refs = self.memory
        yield from ((key, refs[key]) for key in order[low:high])
        if self.sealed is not None:
            yield from ((key, ref) for key, ref in self.sealed.below(prefix) if key not in refs)

    def hide_sealed(self, prefix: str, participant: int, sequence: int) -> None:
        """Hide a participant's earlier sealed keys below a prefix. Move the other keys there back to memory."""
        if self.sealed is None:
            return
        gone, kept, found = 0, [], False
        for key, ref in self.sealed.below(prefix):
            found = True
            if key not in self.memory:
                who, when = place_of(ref)
                if who == participant and when < sequence:
                    gone += 1
                else:
                    kept.append((key, ref))
        if found:
            self.memory.update(kept)
            self.order += [key for key, _ in kept]
            self.sealed = self.sealed.hiding(prefix, self._storage)
            self._sealed_count -= gone + len(kept)

    def clear(self) -> None:
        self.memory, self.order, self._sorted = {}, [], 0
        self.sealed, self._sealed_count, self.seal_at = None, 0, SEALED_FROM


def _merged(
    order: list[str],
    low: int,
    high: int,
    refs: dict[str, bytes],
    sealed: SealedKeys | None,
    start: str,
    stop: str | None,
) -> Iterator[tuple[str, bytes]]:
    # If a key is gone, another thread has just deleted a prefix.
    in_memory = ((key, ref) for i in range(low, high) if (ref := refs.get(key := order[i])) is not None)
    if sealed is None:
        yield from in_memory
        return
    newer = next(in_memory, None)
    for older in sealed.between(start, stop):
        while newer is not None and newer[0] < older[0]:
            yield newer
            newer = next(in_memory, None)
        if newer is None or newer[0] != older[0]:
            yield older
    while newer is not None:
        yield newer
        newer = next(in_memory, None)


def pack(link: Link) -> bytes:
    if isinstance(link.seen, Predecessor):
        packed = REF.pack(*link._replace(seen=packfile.SEEN_FRAME)[:-1]) + packfile.PREDECESSOR.pack(*link.seen)
    else:
        packed = REF.pack(*link[:-1])
    return packed if link.region is WHOLE else packed + link.region.encode()


def unpack(ref: bytes) -> Link:
    link, end = Link(*REF.unpack_from(ref)), REF.size
    if link.seen == packfile.SEEN_FRAME:
        link = link._replace(seen=Predecessor(*packfile.PREDECESSOR.unpack_from(ref, end)))
        end += packfile.PREDECESSOR.size
    return link if len(ref) == end else link._replace(region=Region.decode(ref[end:]))


def place_of(ref: bytes) -> tuple[int, int]:
    """Return the participant and the sequence of a ref's frame."""
    participant, sequence = _PLACE.unpack_from(ref)
    return participant, sequence


_PLACE = struct.Struct("<II")
