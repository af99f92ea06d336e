"""Two sides that have changed a base, as the merge sees them, and what comes of it."""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from zarr.core.buffer import cpu

import txstore
from txstore.format.mapping import Hierarchy
from txstore.history.changes import ref_of
from txstore.merging.merge_conflicts import Answer, Answers
from txstore.merging.merge_side import Side
from txstore.merging.moved_nodes import Renaming, recognised
from txstore.merging.three_way import MergePlan, three_way

Step = Callable[[txstore.TxStore], object]


class Changed(NamedTuple):
    after: bytes | None


def changes(base: Hierarchy, view: Hierarchy) -> dict[str, Changed]:
    """Return what differs, by comparing all."""
    before, after = dict(base), dict(view)
    return {key: Changed(after.get(key)) for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def side(base: Any, view: Any) -> Side:
    """Return one side, with the nodes that it has moved."""

    def places(snapshot: Any, keys: Iterable[str]) -> dict[str, Any]:
        return {key: ref[2:4] for key in keys if (ref := ref_of(snapshot, key)) is not None}

    found = changes(base, view)
    gone = places(base, (key for key, change in found.items() if change.after is None))
    made = places(view, (key for key in found if key not in base))
    return Side(view, found, recognised(base, view, gone, made), lambda was, is_now: base[was] == view[is_now])


class Merged(NamedTuple):
    plan: MergePlan
    content: dict[str, bytes]

    def array(self, path: str = "x") -> Any:
        return zarr.open_array(_memory(self.content), path=path, mode="r")

    def values(self, path: str = "x") -> list[Any]:
        found: list[Any] = np.asarray(self.array(path)[...]).tolist()
        return found


def _memory(content: Mapping[str, bytes]) -> zarr.storage.MemoryStore:
    return zarr.storage.MemoryStore({key: cpu.Buffer.from_bytes(value) for key, value in content.items()})


def merged(
    directory: Path,
    base: Step,
    ours: Step,
    theirs: Step,
    resolve: Mapping[str, Answer] | None = None,
    *,
    is_strict: bool = False,
    concatenates: bool = False,
) -> Merged:
    """Merge what `theirs` makes of a base into what `ours` makes of it."""
    repo = txstore.Repository(tempfile.mkdtemp(dir=directory) + "/data.tx", durability="none")
    with repo.transaction() as store:
        base(store)
    common = repo.mapping()
    other = txstore.Repository(shutil.copytree(repo.url, f"{repo.url}.theirs"), durability="none")
    for each, step in ((repo, ours), (other, theirs)):
        with each.transaction() as store:
            step(store)
    head, there = repo.mapping(), other.mapping()
    plan = three_way(
        common, side(common, head), side(common, there), Answers(resolve),
        is_strict=is_strict, concatenates=concatenates,
    )  # fmt: skip
    place = Renaming(plan.moved)
    moved = {place.of(key): value for key, value in head.items()}
    content = moved | plan.values | {key: there[source] for key, source in plan.taken.items()}
    for key in [*plan.deleted, *(key for path in plan.deleted_below for key in moved if key.startswith(path + "/"))]:
        del content[key]
    return Merged(plan, content)
