"""Finds what other commits have changed in an array: regions whose elements have to be copied again."""

from __future__ import annotations

from collections.abc import Sequence

from txstore.comparing.nodes import compare
from txstore.errors import ConflictError, NodeNotFoundError
from txstore.format.documents import Described, DocumentChange, compare_documents, describe
from txstore.history.changes import changed
from txstore.history.snapshot import Snapshot
from txstore.rechunk.plans import Box


def changed_regions(path: str, before: Snapshot, after: Snapshot, unit: Sequence[int]) -> list[Box]:
    """Return the regions of an array, within its present shape, that may differ between two commits of a branch.

    `unit` is the shape of the new grid's chunks, or shards. Raises `ConflictError` if the array has other chunks,
    codecs or another dtype now, and `NodeNotFoundError` if it is gone.
    """
    old, new = array_at(before, path), array_at(after, path)
    if old.key != new.key or compare_documents(new.key, old.content, new.content) is DocumentChange.STRUCTURE:
        raise ConflictError(
            [new.key],
            reason="another commit gave the array other chunks, codecs or another dtype while it was rechunked, or "
            "put another array in its place",
            advice="Decide which of the two is to be kept. To begin again, delete what was copied: the branch that a "
            "note to this error names",
            base=before.commit,
            head=after.commit,
        )
    found = next((node for node in compare(changed(before, after, path), before, after) if node.path == old.path), None)
    regions = [] if found is None else _within(found.regions, new.node.shape)
    return regions + _grown(old, new, unit)


def array_at(snapshot: Snapshot, path: str) -> Described:
    """Return an array's documents. Raises `NodeNotFoundError`."""
    found = describe(snapshot.get_view, path)
    if found is None or found.kind != "array":
        raise NodeNotFoundError(path, "array", "absent" if found is None else found.kind)
    return found


def _within(regions: Sequence[Box], shape: Sequence[int]) -> list[Box]:
    """Return what of some regions lies within a shape."""
    cut = [tuple(slice(part.start, min(part.stop, n)) for part, n in zip(each, shape, strict=True)) for each in regions]
    return [each for each in cut if all(part.start < part.stop for part in each)]


def _grown(old: Described, new: Described, unit: Sequence[int]) -> list[Box]:
    """Return what lay behind the old ends of an array in chunks of both grids, where the array has grown.

    An array that had shrunk before shows again there what its last chunks still have.
    """
    shape = new.node.shape
    found = []
    for number, (axis, size) in enumerate(zip(old.grid().axes, unit, strict=True)):
        if shape[number] > axis.extent:
            ends = int(axis.start_of(axis.count)), -(-axis.extent // size) * size
            box = [slice(0, length) for length in shape]
            box[number] = slice(axis.extent, min(shape[number], max(ends)))
            found.append(tuple(box))
    return _within(found, shape)
