"""Copies pieces of an array to its new grid, in threads and in bounded memory.

What other commits have changed since is found, and copied again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import zarr

from txstore.commit import Commit
from txstore.comparing.elements import joined
from txstore.comparing.nodes import compare
from txstore.engine import Engine
from txstore.errors import ConflictError, NodeNotFoundError
from txstore.format.documents import Described, DocumentChange, compare_documents, describe
from txstore.format.grids import Grid
from txstore.format.mapping import Hierarchy
from txstore.history.changes import changed
from txstore.history.find import find_commit
from txstore.history.snapshot import Snapshot
from txstore.pipeline import made_own, open_own
from txstore.rechunk.plans import Box, Pieces, size_of
from txstore.store import TxStore


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


@contextmanager
def reading(engine: Engine, commit: Commit) -> Iterator[Snapshot]:
    """Yield a snapshot of a commit. Afterwards it keeps no file mapped, whoever still refers to it."""
    own = engine.snapshots.own(engine.snapshots.of(find_commit(engine.commits, commit)))
    try:
        yield own
    finally:
        own.let_go()


def open_array(store: TxStore, path: str, *, keeps_empty: bool = False) -> zarr.Array[Any]:
    """Open an array to read, or to write in a transaction. `keeps_empty`: store also chunks that are all fill value."""
    found = open_own(store, path, mode="r" if store.read_only else "r+")
    return made_own(found.with_config({"write_empty_chunks": keeps_empty}))


def copy_pieces(
    engine: Engine,
    commit: Commit,
    path: str,
    target: zarr.Array[Any],
    boxes: Sequence[Box],
    *,
    workers: int,
    done: Callable[[Sequence[Box]], object],
) -> None:
    """Copy boxes of an array of a commit, some at once. `done` is called with those that are copied, in order.

    Files that were mapped for some boxes are let go of before the next ones: mapped pages count as memory of the
    process, even if the system may drop them.
    """
    with ThreadPoolExecutor(workers, thread_name_prefix="txstore-rechunk") as pool:
        for start in range(0, len(boxes), workers):
            group = boxes[start : start + workers]
            with reading(engine, commit) as own:
                source, grid = open_array(TxStore.at(engine, own), path), array_at(own, path).grid()
                for _ in pool.map(partial(_copy, source, target, grid, own), group):
                    pass
            done(group)


def _copy(source: zarr.Array[Any], target: zarr.Array[Any], grid: Grid, view: Hierarchy, box: Box) -> None:
    """Copy a box if anything of it is stored."""
    if _is_stored(grid, view, box):
        target[box or ...] = source[box or ...]


def _is_stored(grid: Grid, view: Hierarchy, box: Box) -> bool:
    """Tell whether any chunk of a box is stored. The others are all fill value."""
    return any(key in view for key in grid.keys(grid.touched(box)))


def copy_again(
    source: zarr.Array[Any], target: zarr.Array[Any], regions: Sequence[Box], unit: Sequence[int], piece: Sequence[int]
) -> None:
    """Copy regions of an array to a grid with chunks (or shards) of shape `unit`, each chunk of which is written once.

    At a time, about what a box of shape `piece`, which is a multiple of `unit`, has is in memory.
    """
    for box, parts in _rewritten(target.shape, regions, unit, piece):
        if parts == [box]:
            target[box or ...] = source[box or ...]
            continue
        values: Any = target[box]
        for part in parts:
            inside = tuple(slice(p.start - b.start, p.stop - b.start) for p, b in zip(part, box, strict=True))
            values[inside] = source[part]
        target[box] = values


def _rewritten(
    shape: Sequence[int], regions: Sequence[Box], unit: Sequence[int], piece: Sequence[int]
) -> Iterator[tuple[Box, list[Box]]]:
    """Yield boxes of whole chunks of the new grid, each with the parts of the regions that lie in it."""
    pieces = Pieces(tuple(shape), tuple(piece))
    met: dict[tuple[int, ...], list[Box]] = defaultdict(list)
    for region in regions:
        for place in _places(region, piece):
            met[place].append(_common(region, pieces.box(place)))
    for place in sorted(met):
        for chunks in joined({chunk for part in met[place] for chunk in _places(part, unit)}):
            box = tuple(
                slice(first * size, min(last * size, length))
                for (first, last), size, length in zip(chunks, unit, shape, strict=True)
            )
            yield box, [_common(part, box) for part in met[place] if _meet(part, box)]


def _places(region: Box, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the places, in a regular grid, of the cells that a region meets."""
    return product(
        *(range(part.start // size, -(-part.stop // size)) for part, size in zip(region, sizes, strict=True))
    )


def _common(one: Box, other: Box) -> Box:
    return tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True))


def _meet(one: Box, other: Box) -> bool:
    return all(part.start < part.stop for part in _common(one, other))


def bytes_of(regions: Sequence[Box], itemsize: int) -> int:
    return sum(size_of(region, itemsize) for region in regions)
