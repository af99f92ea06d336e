"""Stores staged keys that are too many for a dictionary, in sorted runs like those of commits, in files without names.

An entry names the frame that staged a key. Its seq is the frame's number plus one. Its pack number stands for the
remaining small fields: the participant, the kind of frame, and what the frame's writer had seen. Newer runs come first.
The newest runs are merged, as on a branch, so that there are few.

It has only keys that a single process wrote, as whole values, without knowing of another process's frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from txstore._native import index
from txstore.errors import CorruptionError
from txstore.format import names, packfile
from txstore.format.keys import after_prefix
from txstore.segments.compaction import together
from txstore.storage.interface import Mapped, Storage, spooled

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
