"""Stores the staged keys of one transaction: the frame that counts for each key, and the order of the keys.

Frames come from this process and, if several processes share the transaction, from the packs of the others. There may
be millions of keys. While only one process writes a key, this stores a ref of 30 or 42 bytes for it. If several do, it
stores the links of the chain (I7). When there are too many refs, they are sealed in sorted runs in files,
so memory does not grow with the number of keys. Safe in threads.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from txstore import processes
from txstore._native import index
from txstore.errors import CorruptionError
from txstore.format import names, packfile
from txstore.format.keys import after_prefix, covering_prefixes, is_document
from txstore.format.packfile import Predecessor, Seen
from txstore.format.regions import WHOLE, Region
from txstore.segments.compaction import together
from txstore.storage.interface import Mapped, Storage, spooled
from txstore.transactions.participants.chains import (
    Link,
    Prefixes,
    arrange,
    extend,
    is_lost,
    is_repeated,
    is_undone,
    know_of,
    known_to,
    knows_of_all,
    merged,
    newest,
    resolve,
    tombstone,
)

#: A staged key: participant, sequence, seen, kind of frame, offset, length and checksum.
REF = struct.Struct("<IIBBQQI")

_PAGE = 4096  # keys
_SEQ = 1  # the meaning of a stored seq of 0, which only deleted prefixes have
_EVERYTHING = (1 << 64) - 1

_Table: TypeAlias = Sequence[tuple[int, int, int]]  # participant, seen, kind of frame


class SealedKeys:
    """Staged keys, and the deleted prefixes that hide some of them. Immutable."""

    def __init__(self, runs: tuple[index.Run, ...] = (), tables: tuple[_Table, ...] = ()) -> None:
        self._runs = runs
        self._tables = tables

    def get(self, key: str) -> bytes | None:
        """Return the packed `REF` of a key."""
        try:
            found = index.lookup(self._runs, key.encode(errors="surrogatepass"))
        except ValueError as error:
            raise _damaged(error) from error
        if found is None or found[1] == packfile.FOUND_PREFIX:
            return None
        run, _, seq, number, offset, length, checksum = found
        participant, seen, kind = self._tables[run][number - 1]
        return REF.pack(participant, seq - 1, seen, kind, offset, length, checksum)

    def between(self, start: str, stop: str | None) -> Iterator[tuple[str, bytes]]:
        """Yield the keys from `start` on, below `stop`, in the order of their bytes, each with its packed `REF`."""
        position, end = start.encode(), None if stop is None else stop.encode()
        pack, tables = REF.pack, self._tables
        while True:
            try:
                page = index.scan(self._runs, position, end, _PAGE)
            except ValueError as error:
                raise _damaged(error) from error
            for key, run, _, seq, number, offset, length, checksum in page:
                participant, seen, kind = tables[run][number - 1]
                yield key.decode(), pack(participant, seq - 1, seen, kind, offset, length, checksum)
            if len(page) < _PAGE:
                return
            position = page[-1][0] + b"\0"

    def below(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        return self.between(prefix, after_prefix(prefix))

    def adding(self, keys: Sequence[str], refs: Mapping[str, bytes], storage: Storage | None) -> SealedKeys:
        """Return these keys with newer, ascending `keys` added. A large run goes to a file of `storage`."""
        kinds = {
            (participant, seen, kind) for participant, _, seen, kind, *_ in map(REF.unpack, map(refs.__getitem__, keys))
        }
        numbers = {kind: number for number, kind in enumerate(sorted(kinds), 1)}
        packs = [_TABLE.pack(*kind) for kind in numbers]

        def entry(key: str) -> tuple[bytes, int, int, int, int, int, int]:
            participant, sequence, seen, kind, offset, length, checksum = REF.unpack(refs[key])
            number = numbers[participant, seen, kind]
            return key.encode(), packfile.REF_PACK, offset, length, checksum, number, sequence + 1

        return self._with(spooled(storage, lambda sink: index.build(map(entry, keys), (), packs, sink)), storage)

    def hiding(self, prefix: str, storage: Storage | None) -> SealedKeys:
        """Return these keys without those below a prefix."""
        return self._with(index.build((), [prefix.encode()]), storage)

    def _with(self, section: Mapped, storage: Storage | None) -> SealedKeys:
        runs = (index.Run(section, _SEQ), *self._runs)
        count = together(run.entries + len(run.prefixes) for run in runs)
        if count > 1:
            forgotten = _EVERYTHING if count == len(runs) else 0  # if all runs merge, a deleted prefix hides nothing
            newest = runs[:count]
            tables = [[b"", *run.packs] for run in newest]
            try:
                merged = spooled(storage, lambda sink: index.merge(newest, tables, forgotten, False, sink))
            except ValueError as error:
                raise _damaged(error) from error
            runs = (index.Run(merged, _SEQ), *runs[count:])
        return SealedKeys(runs, tuple([[_unpack(entry) for entry in run.packs] for run in runs]))


_TABLE = struct.Struct("<IBB")


def _unpack(entry: bytes) -> tuple[int, int, int]:
    participant, seen, kind = _TABLE.unpack(entry)
    return participant, seen, kind


def _damaged(error: ValueError) -> CorruptionError:
    return CorruptionError(names.STAGING, reason=f"what this process has noted of its staged keys has changed: {error}")


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


class StagedKeys:
    """The staged keys. `me` is this process's participant number. Sealed refs go to files of `storage`, if given."""

    def __init__(self, me: int, storage: Storage | None = None) -> None:
        self.me = me
        self._lock = processes.new_lock()
        self._refs = StagedRefs(storage)
        self._links: dict[str, list[Link]] = {}
        #: By key of a chunk that several processes wrote in part, without a chain: the layers to merge in order.
        self.layered: dict[str, list[Link]] = {}
        self._unarranged: set[str] = set()  # keys with links that do not count yet
        self._prefixes: dict[str, dict[int, tuple[int, Seen]]] = {}  # prefix -> participant -> sequence, seen
        self._outdated: dict[str, Seen] = {}  # the older state that this process saw, if another wrote the key since
        self._read_since: set[str] = set()  # documents below deleted prefixes, read again since the deletion
        self._newest: dict[int, int] = {}  # participant -> sequence of its last added frame
        #: Participant -> last frame that its later partial frames need not repeat: up to its seal. Of the owner: before
        #: it learned of lost work.
        self._closed: dict[int, int] = {}
        self._divided: dict[int, set[str]] = {}  # participant -> keys with links before and after that frame
        self._undone: set[str] = set()  # keys that others wrote again, without all that was lost
        self.may_be_foreign = False  # whether there may be a foreign value
        #: Written documents and deleted prefixes, in the order in which this process learned of them. In the process
        #: that began the transaction, only those of other processes.
        self.news: list[str] = []

    # --- reading

    def __len__(self) -> int:
        """The number of keys and prefixes that are set or deleted."""
        return len(self._refs) + len(self._prefixes)

    def __contains__(self, key: str) -> bool:
        return self._refs.find(key) is not None

    @property
    def version(self) -> tuple[tuple[int, int], ...]:
        """The last sequence of each participant: equal only if no staged key has changed."""
        with self._lock:
            return tuple(sorted(self._newest.items()))

    def get(self, key: str) -> Link | None:
        """Return the frame that counts for a key: a value or a tombstone."""
        ref = self._refs.find(key)
        return None if ref is None else unpack(ref)

    def layers(self, key: str) -> list[Link]:
        """Return the frames of a key if several count, each with its region. Each goes over the ones before."""
        return self.layered.get(key, [])

    def own_region(self, key: str, seen: Seen) -> Region:
        """Return the region of this process's frames on a key to which a new frame with this `seen` adds."""
        link = self.get(key)
        if link is None or isinstance(seen, Predecessor):
            return _NOTHING
        links = self._links.get(key, [link])
        return next((link.region for link in reversed(links) if link.participant == self.me), _NOTHING)

    def ends(self, key: str) -> list[Link]:
        """If a key has layers, return the last frames of other participants that no later writer of the key has seen.

        The region of each is that of all of its process that none has seen.
        """
        if not self.layers(key) or key in self._outdated:
            return []
        with self._lock:
            links = list(self._links.get(key, []))
        seen, ends = {link.seen for link in links}, dict[int, Link]()
        for link in sorted(links, key=lambda link: link.sequence):
            before = ends.pop(link.participant, None)  # whoever has seen a frame knows those before it of its process
            if link.participant != self.me and link.place not in seen:
                ends[link.participant] = link if before is None else link._replace(region=before.region | link.region)
        return list(ends.values())

    def know_of_deletions(self, key: str) -> bool:
        """Tell whether the writers of the remaining frames of a key knew of all deletions of prefixes above it."""
        with self._lock:
            prefixes = self._prefixes_above(key)
            return not prefixes or know_of(self._links.get(key, []), prefixes)

    def present(self, key: str) -> Link | None:
        """Return the frame that counts for a key, which may be a deleted prefix above it. None if the base counts."""
        link = self.get(key)
        if link is None and (above := self._prefixes_above(key)):
            link = tombstone(max(above))
        return link

    def is_set(self, key: str) -> bool:
        link = self.get(key)
        return link is not None and link.kind in packfile.REF_OF_FRAME

    @property
    def prefixes(self) -> list[str]:
        return sorted(self._prefixes)

    def is_below_deleted(self, key: str) -> bool:
        """Tell whether a deleted prefix hides the base's value of a key."""
        return bool(self._prefixes) and any(prefix in self._prefixes for prefix in covering_prefixes(key))

    def hiding_prefix(self, key: str) -> str | None:
        """Return the shortest deleted prefix above a key."""
        if not self._prefixes:
            return None
        return next((prefix for prefix in covering_prefixes(key) if prefix in self._prefixes), None)

    def between(self, start: str, stop: str | None) -> Iterator[str]:
        """Yield the keys from `start` on, below `stop`, in the order of their bytes."""
        with self._lock:  # other threads add newly staged keys after the sorted part
            found = self._refs.between(start, stop)
        return (key for key, _ in found)

    def items(self) -> Iterator[tuple[str, Link]]:
        """Yield all set or deleted keys, in the order of their bytes."""
        with self._lock:
            found = self._refs.between("", None)
        for key, ref in found:
            yield key, unpack(ref)

    # --- the `seen` of a new frame

    @property
    def knows_anything(self) -> bool:
        """Whether `seen` may depend on anything else than `was_read`."""
        return bool(self._refs.memory or self._refs.sealed is not None or self._prefixes or self._outdated)

    def seen(self, key: str, *, was_read: bool, is_part: bool = False) -> Seen:
        """Return the state of a key that this process knows when it writes the key, or a part of the chunk."""
        if (outdated := self._outdated.get(key)) is not None:
            return outdated
        ref = self._refs.memory.get(key)
        if ref is None and self._refs.sealed is not None and (len(self._newest) > 1 or self.me not in self._newest):
            ref = self._refs.find(key)  # else all frames are from this process
        if ref is not None:
            participant, sequence = place_of(ref)
            is_closed = (is_part or not self.me) and sequence <= self._closed.get(self.me, -1)
            if participant != self.me or is_closed:
                return Predecessor(participant, sequence)
        elif self._prefixes:
            above = self._prefixes_above(key)
            others = {place.participant for place in above} - {self.me}
            if others and was_read and is_document(key) and key not in self._read_since:
                return packfile.SEEN_BASE  # an array object may still hold the deleted document
            if others:
                return newest(above, others)
        return packfile.SEEN_BASE if was_read else packfile.SEEN_NOTHING

    def was_read_again(self, key: str) -> None:
        self._outdated.pop(key, None)
        if self._prefixes and is_document(key):
            self._read_since.add(key)

    def outdate(self, key: str, seen: Seen) -> None:
        """Record that an object of this process knows an older state of a key than the staged one."""
        self._outdated.setdefault(key, seen)

    def _prefixes_above(self, key: str) -> Prefixes:
        if not self._prefixes:
            return {}
        return {
            Predecessor(participant, sequence): seen
            for prefix in covering_prefixes(key)
            for participant, (sequence, seen) in self._prefixes.get(prefix, {}).items()
        }

    # --- adding frames

    def add(self, key: str, link: Link, *, was_read: bool = False, later: bool = False, is_again: bool = False) -> None:
        """Add a frame on a key. `was_read`: this process has read the key, which matters for another process's frame.

        `later`: the caller adds more frames, perhaps hundreds on one chunk, and then calls `arrange`. `is_again`: the
        frame was left out.
        """
        with self._lock:
            self.may_be_foreign |= link.kind == packfile.FRAME_FOREIGN
            self._newest[link.participant] = max(link.sequence, self._newest.get(link.participant, 0))
            refs = self._refs
            ref = refs.memory.get(key)
            if ref is None and refs.sealed is not None:
                ref = refs.recalled(key)
            if link.participant != self.me:
                # An array object of this process may also hold a document that this process wrote.
                was_read = was_read or (ref is not None and place_of(ref)[0] == self.me and is_document(key))
                if was_read and not is_again:
                    self._outdated.setdefault(key, self.seen(key, was_read=True))
            if ref is None:
                if self._prefixes and self._is_overtaken(key, link):
                    return
                refs.add(key, pack(link))
                if len(refs.memory) >= refs.seal_at:
                    refs.seal(self._links.keys())
                return
            participant, sequence = place_of(ref)
            links = self._links.get(key)
            if links is None:
                is_closed = isinstance(link.seen, Predecessor) and sequence <= self._closed.get(participant, -1)
                if participant == link.participant and not _is_foreign(link) and not is_closed:
                    if link.sequence > sequence:  # else another thread of this process overtook this one
                        refs.memory[key] = pack(merged(unpack(ref), link))
                    return
                links = self._links[key] = [unpack(ref)]
            if extend(links, link, self._closed.get(link.participant, -1)):
                self._divided.setdefault(link.participant, set()).add(key)
            if later and link.kind == packfile.FRAME_PARTIAL:
                self._unarranged.add(key)
            else:
                self._arrange(key, links)

    def close(self, participant: int, sequence: int) -> None:
        """Note a seal: all that the participant has staged before it counts, even if it loses what comes later."""
        with self._lock:
            self._closed[participant] = sequence
            for key in self._divided.pop(participant, ()):
                links: list[Link] = []
                for link in self._links.pop(key, ()):
                    at = next((at for at, own in enumerate(links) if own.place == link.seen), None)
                    if at is not None and participant == link.participant == links[at].participant:
                        links[at] = merged(links[at], link)
                    else:
                        links.append(link)
                self._set(key, links)

    def arrange(self) -> None:
        """Arrange the frames that were added with `later`, so that they count."""
        if self._unarranged:
            with self._lock:
                for key in self._unarranged:
                    self._arrange(key, self._links[key])
                self._unarranged.clear()

    def add_values(self, kind: int, values: Iterable[tuple[str, int, list[int]]]) -> None:
        """Add values that this process wrote: the key, its `seen`, and (offset, length, checksum, sequence).

        This does the same as `add` for each. For new keys it takes a tenth of the time.
        """
        late: list[tuple[str, Link]] = []
        with self._lock:
            refs, order, me, newest = self._refs.memory, self._refs.order, self.me, self._newest.get(self.me, 0)
            is_simple, sealed = not self._prefixes, self._refs.sealed
            self.may_be_foreign |= kind == packfile.FRAME_FOREIGN
            for key, seen, (offset, length, checksum, sequence) in values:
                if is_simple and key not in refs and (sealed is None or sealed.get(key) is None):
                    order.append(key)
                    refs[key] = REF.pack(me, sequence, seen, kind, offset, length, checksum)
                    newest = max(newest, sequence)
                else:
                    late.append((key, Link(me, sequence, seen, kind, offset, length, checksum)))
            self._newest[me] = newest
            if len(refs) >= self._refs.seal_at:
                self._refs.seal(self._links.keys())
        for key, link in late:
            self.add(key, link)

    def _set(self, key: str, links: list[Link]) -> None:
        """Set the links of a key that has a ref in memory."""
        self._unarranged.discard(key)
        if len(links) > 1:
            self._links[key] = links
            self._arrange(key, links)
        elif links:
            self._refs.memory[key] = pack(links[0])
            self.layered.pop(key, None)

    def _arrange(self, key: str, links: list[Link]) -> None:
        found = arrange(links, self._prefixes_above(key))
        self.layered.pop(key, None)
        if found is None:  # the commit will refuse this key; until then, each process sees its own frame
            own = [link for link in links if link.participant == self.me] or links
            self._refs.memory[key] = pack(own[-1])
        else:
            self._refs.memory[key] = pack(found.links[-1])
            if len(found.layers) > 1:
                self.layered[key] = found.layers

    def _is_overtaken(self, key: str, link: Link) -> bool:
        """Tell whether the frame's process has since deleted a prefix above the key: threads may add out of order."""
        return any(
            place.participant == link.participant and place.sequence > link.sequence
            for place in self._prefixes_above(key)
        )

    def hide(self, prefix: str, participant: int, sequence: int, seen: Seen = packfile.SEEN_NOTHING) -> None:
        """Add the deletion of a prefix. This removes earlier staged keys of the same process below it."""
        with self._lock:
            self._newest[participant] = max(sequence, self._newest.get(participant, 0))
            places = self._prefixes.setdefault(prefix, {})
            if participant not in places or places[participant][0] < sequence:
                places[participant] = sequence, seen
            if participant != self.me:
                self._read_since.difference_update([*filter(lambda key: key.startswith(prefix), self._read_since)])
            refs = self._refs
            refs.hide_sealed(prefix, participant, sequence)
            order, low, high = refs.range(prefix, after_prefix(prefix))
            kept = []
            for key in order[low:high]:
                links, link = self._links.get(key), unpack(refs.memory[key])
                if links is None and link.participant == participant and link.sequence < sequence:
                    if not _is_foreign(link) or link.seen in self._prefixes_above(key):
                        del refs.memory[key]
                        continue
                    links = self._links[key] = [link]
                kept.append(key)
                own = next((link.place for link in reversed(links or ()) if link.participant == participant), None)
                if links is not None and own is not None:
                    # Other processes have seen its frames, or it has seen theirs, which may have been read first.
                    is_apart = not participant and own.sequence <= self._closed.get(participant, -1)  # may repeat work
                    deletion = tombstone(Predecessor(participant, sequence))
                    extend(links, deletion._replace(seen=own) if is_apart else deletion, own.sequence)
                    self._arrange(key, links)
            refs.replace_order(order[:low] + kept + order[high:])
            if participant or self.me:
                self.news.append(prefix)

    def written_by_others(self, prefix: str) -> list[str]:
        """Return the keys below a prefix whose value another participant wrote."""
        with self._lock:
            return [key for key, ref in self._refs.below(prefix) if place_of(ref)[0] != self.me]

    def deleted_by_others(self, prefix: str) -> list[str]:
        """Return the prefixes below a prefix that other participants have deleted."""
        with self._lock:
            below = filter(lambda other: other.startswith(prefix) and other != prefix, self._prefixes)
            return sorted(other for other in below if self._prefixes[other].keys() - {self.me})

    def leave_out(
        self, lost: Mapping[int, int], kept: StagedKeys, keys: Collection[str], built_on: Collection[str]
    ) -> None:
        """Replace the frames of participants that have lost work by the frames of them that still count: `kept`.

        `lost` maps each to its last frame that counts. `keys` are all that they have staged. What this process has
        read of the lost work in `built_on`, it knows until it reads the key again. Its later frames are links of their
        own: they may repeat the work. Other threads see each key change at once.
        """
        with self._lock:
            refs, prefixes = self._refs, dict[str, dict[int, tuple[int, Seen]]]()
            for prefix, places in [*self._prefixes.items(), *kept._prefixes.items()]:
                prefixes.setdefault(prefix, {}).update(
                    (number, place)
                    for number, place in places.items()
                    if not is_lost(Predecessor(number, place[0]), lost)
                )
            self._prefixes = {prefix: places for prefix, places in prefixes.items() if places}
            self._newest = {number: last for number, last in self._newest.items() if number not in lost} | kept._newest
            gone = []
            for key in keys:
                ref = refs.recalled(key)
                shown = self.layers(key) or ([] if ref is None else [unpack(ref)])
                links = self._links.pop(key, None) or shown
                links = [link for link in links if link.participant not in lost] + kept.links(key)
                if links and ref is None:
                    refs.add(key, pack(links[-1]))
                if links:
                    self._set(key, links)
                elif ref is not None:
                    gone.append(key)
                    self.layered.pop(key, None)
                read = next((link.place for link in shown if is_lost(link.place, lost)), None)
                if (known := self._outdated.pop(key, read)) is None:
                    continue
                is_of_lost = isinstance(known, Predecessor) and is_lost(known, lost)
                if key in built_on if is_of_lost else known != self.seen(key, was_read=True):
                    self._outdated[key] = known
            self._closed[self.me] = self._newest.get(self.me, -1)
            if refs.sealed is not None and any(map(refs.sealed.get, gone)):
                refs.hide_sealed("", self.me, 0)
            for key in gone:
                del refs.memory[key]
            if gone:
                refs.replace_order([key for key in refs.range("", None)[0] if key in refs.memory])
            if len(refs.memory) >= refs.seal_at:
                refs.seal(self._links.keys())

    # --- the end

    def settle(
        self,
        lost: Mapping[int, int],
        equal: Callable[[Link, Link], bool],
        given_up: Mapping[int, int] | None = None,
        among: Sequence[str] | None = None,
        whole: Callable[[str], Region] = lambda _: WHOLE,
    ) -> list[str]:
        """Choose the final frame for each key. Return the keys whose frames form no chain (I7).

        `lost` are participants whose part is complete only up to a frame. Those in `given_up` live, and may repeat
        their work: no other participant's work may build on their aborted frames. `among` are the keys that an earlier
        call returned, with fewer lost participants. `whole` returns the box of a whole chunk.
        """
        broken = []
        with self._lock:
            self._unarranged.clear()  # the loop below settles each key
            if among is None:
                self._undone.clear()
            for key in sorted(self._links.keys() | self._below_foreign_prefixes()) if among is None else among:
                ref = self._refs.recalled(key)
                if ref is None:
                    continue
                links = self._links.get(key) or [unpack(ref)]
                prefixes = self._prefixes_above(key)
                if among is not None and (prefixes or any(link.seen != packfile.SEEN_NOTHING for link in links)):
                    broken.append(key)  # no participant repeats a deletion, nor what it may have read
                    continue
                places = [*(link.place for link in links), *prefixes]
                lost_here = {place.participant: lost[place.participant] for place in places if is_lost(place, lost)}
                counts = resolve(links, prefixes, lost_here, equal, partial(whole, key))
                is_on_aborted = any(
                    isinstance(link.seen, Predecessor)
                    and link.seen.participant != link.participant
                    and is_lost(link.seen, given_up or {})
                    and not is_lost(link.place, lost)
                    for link in links
                )
                if (
                    among is None
                    and counts is None
                    and not is_on_aborted
                    and is_undone(links, prefixes, lost_here, equal, partial(whole, key))
                ):
                    self._undone.add(key)
                if counts is None or is_on_aborted:
                    broken.append(key)
                else:
                    self._undone.discard(key)
                    self._refs.memory[key] = pack(counts[-1])
                    self.layered.pop(key, None)
                    if len(counts) > 1:
                        self.layered[key] = counts
        return broken

    def is_repeated(self, key: str, link: Link, lost: Mapping[int, int], whole: Callable[[str], Region]) -> bool:
        """Tell whether others have repeated the write of a key that a lost participant was about to stage."""
        links = self.links(key)
        kept = [each for each in links if not is_lost(each.place, lost)]
        with self._lock:
            return is_repeated(link, [*links, link], kept, self._prefixes_above(key), partial(whole, key))

    def links(self, key: str) -> list[Link]:
        """Return the links of all participants on a key."""
        with self._lock:
            ref = self._refs.find(key)
            return list(self._links.get(key) or ([] if ref is None else [unpack(ref)]))

    def writers(self, key: str) -> set[int]:
        """Return the participants that have staged something on a key."""
        return {link.participant for link in self.links(key)}

    def _below_foreign_prefixes(self) -> set[str]:
        found: set[str] = set()
        for prefix, places in self._prefixes.items():
            found.update(key for key, ref in self._refs.below(prefix) if places.keys() != {place_of(ref)[0]})
        return found

    def lost_keys(
        self,
        lost: Mapping[int, int],
        whole: Callable[[str], Region] = lambda _: WHOLE,
        given_up: Collection[int] = (),
    ) -> list[str]:
        """Return the keys and prefixes whose counting frame comes from a participant with an incomplete part.

        Also those with such frames that no participant has repeated wholly: one that joined later may have built on
        them. `whole` returns the box of a whole chunk. Call `settle` first: it returns what was built on aborted ones,
        those of participants in `given_up`.
        """
        keys = [
            key
            for key, link in self.items()
            if key in self._undone
            or (is_lost(link.place, lost) and not self.layers(key))
            or any(
                is_lost(each.place, lost) and not self.is_repeated(key, each, lost, whole)
                for each in (self.links(key) if lost else ())
                if each.participant not in given_up or self.layers(key)
            )
        ]
        return keys + [
            prefix
            for prefix, places in sorted(self._prefixes.items())
            if any(self._is_lost_prefix(prefix, number, lost) for number in places)
        ]

    def _is_lost_prefix(self, prefix: str, number: int, lost: Mapping[int, int]) -> bool:
        """Tell whether a participant has lost the deletion of a prefix, and nobody has deleted it again."""
        places = self._prefixes[prefix]
        found = {Predecessor(each, sequence): seen for each, (sequence, seen) in places.items()}
        kept = {place.participant for place in found if not is_lost(place, lost)}
        return number not in kept and knows_of_all(places[number][1], found, kept)

    def documents_on_lost(self, lost: Mapping[int, int]) -> Iterator[tuple[str, Link, list[Link], bool]]:
        """Yield the lost links on documents that others have written, each with the kept ones before it.

        And whether others have made newer ones from it. Not if a participant has written the same once more, or has
        deleted a prefix above it.
        """
        for key, link in self.items() if lost else ():
            if not is_document(key) or link.kind == packfile.FRAME_TOMBSTONE:
                continue
            links = self.links(key)
            kept = [each for each in links if not is_lost(each.place, lost)]
            prefixes = self._prefixes_above(key)
            anew = {place.participant for place in prefixes}
            for left in (each for each in links if is_lost(each.place, lost)):
                on = [each for each in kept if _has_seen_lost(each, left, lost)]
                versions = [left, *on]
                contents = [each.content for each in versions]
                is_again = len(set(contents)) < len(contents) or any(
                    each.content in contents for each in kept if each not in on
                )
                if kept and not is_again and anew.isdisjoint(each.participant for each in on or kept):
                    known = known_to(left, links, prefixes) or set()
                    yield key, left, [each for each in kept if each.place in known], bool(on)

    def restart(self, me: int) -> None:
        """Be empty, as another participant."""
        self.clear()
        self.me, self.may_be_foreign, self.news = me, False, []

    def clear(self) -> None:
        with self._lock:
            self._refs.clear()
            self._links, self._prefixes, self._outdated = {}, {}, {}
            self.layered = {}
            self._unarranged, self._undone = set(), set()
            self._read_since = set()
            self._newest, self._closed, self._divided = {}, {}, {}


def _is_foreign(link: Link) -> bool:
    """Tell whether a frame has seen another participant's."""
    return isinstance(link.seen, Predecessor) and link.seen.participant != link.participant


def _has_seen_lost(link: Link, left: Link, lost: Mapping[int, int]) -> bool:
    """Tell whether the writer of a link had seen lost frames of another one."""
    seen = link.seen
    return isinstance(seen, Predecessor) and seen.participant == left.participant and is_lost(seen, lost)


_NOTHING = Region(())
