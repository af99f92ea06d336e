"""Decodes the chunks of the newest commits: a checksum inside of a value may be wrong, though its own is right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from txstore.codecs.chunk_codec import ChunkDecoder, NotMergeableError
from txstore.errors import TxStoreError
from txstore.format import packfile
from txstore.format.documents import Described, below, describe, index_of
from txstore.format.keys import is_document
from txstore.history.opening import open_commits
from txstore.history.snapshot import Snapshot, unpinned
from txstore.maintenance.reachable import living_branches
from txstore.maintenance.report import Fault
from txstore.storage.interface import Storage


def check_chunks(storage: Storage) -> list[Fault]:
    """Return faults for chunks, in the newest commit of each branch, that do not decode.

    Damage below that, and outside values, are skipped: `verify` reports them.
    """
    commits, found = open_commits(storage), {}
    for branch in living_branches(commits):
        with contextlib.suppress(TxStoreError, OSError):
            snapshot = unpinned(commits, commits.head(branch))
            for fault in _faults(snapshot):
                found[fault.path, fault.offset, fault.key] = fault
    return list(found.values())


def _faults(snapshot: Snapshot) -> Iterator[Fault]:
    arrays: dict[str, Described | None] = {}
    for entry in snapshot.runs.scan_all():
        key = entry.key.decode(errors="backslashreplace")
        if entry.kind != packfile.REF_PACK or is_document(key):
            continue
        array = _array_of(snapshot, key, arrays)
        if array is None or index_of(below(array.key, key), len(array.node.shape)) is None:
            continue
        try:
            with contextlib.suppress(TxStoreError, OSError):
                ChunkDecoder.of(array, key).decode(snapshot.get_view(key))
        except NotMergeableError as error:
            pack = snapshot.runs.pack_name(entry.run, entry.pack)
            yield Fault(pack.path, f"the chunk can't be decoded: {error}", entry.offset, key, part="chunk")


def _array_of(snapshot: Snapshot, key: str, arrays: dict[str, Described | None]) -> Described | None:
    """Return the array that a key lies in."""
    path = key
    while path:
        path = path.rpartition("/")[0]
        if path not in arrays:
            arrays[path] = describe(snapshot.get_view, path)
        found = arrays[path]
        if found is not None and found.kind == "array":
            return found
    return None
