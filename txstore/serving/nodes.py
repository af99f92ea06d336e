"""Answers about arrays and groups: the members of a group, one node in full, and the commit that wrote each chunk."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from txstore import processes
from txstore.commit import Commit, Stored
from txstore.deriving.declared import decode
from txstore.errors import CorruptionError, NodeNotFoundError, UnsupportedFormatError
from txstore.format.documents import Described, describe, index_of
from txstore.format.keys import after_prefix, directory_prefix, is_document
from txstore.format.tree import Member, count_members, layout_of, members
from txstore.history.snapshot import Snapshot
from txstore.serving.answers import Failure
from txstore.serving.positions import Positions
from txstore.serving.repository_protocol import Served
from txstore.views.following import is_current

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")

#: Most members of a group in one answer; and the number up to which the members of a member are counted.
_MEMBERS, _COUNTED = 1000, 1000
#: Most cells in a map of chunks, and most chunks that a map covers.
_CELLS, _CHUNKS = 1 << 16, 1 << 24
#: Most nodes, and most maps of chunks, whose figures are cached: each took a walk through all keys of the node.
_NODES, _MAPS = 1024, 4


class Nodes:
    """Answers questions about nodes. Safe in threads."""

    def __init__(self, repository: Served, positions: Positions) -> None:
        self._repository = repository
        self._positions = positions
        self._stored = _Kept[dict[str, Any]](_NODES)
        self._maps = _Kept[_Map](_MAPS)

    def members(self, ref: str, path: str = "", after: str = "", limit: int = _MEMBERS) -> dict[str, Any]:
        """Return at most `limit` members of a group, by name, starting after the name `after`."""
        snapshot = self._positions.snapshot(ref)
        path = path.strip("/")
        described = _existing(snapshot, path)
        if described is not None and described.kind == "array":
            raise NodeNotFoundError(path, "group", "array")
        limit = max(1, min(limit, _MEMBERS))
        rest = (each for each in members(snapshot, path) if each.name > after)
        found = list(islice(rest, limit + 1))
        told = [_told(snapshot, each) for each in found[:limit]]
        return {"commit": _id(snapshot), "nodes": told, "next": found[limit - 1].name if len(found) > limit else None}

    def node(self, ref: str, path: str = "", stored: str = "yes") -> dict[str, Any]:
        """Return all facts about a node. `stored="no"` leaves out facts that need a walk through all of its keys."""
        snapshot = self._positions.snapshot(ref)
        path = path.strip("/")
        described = _existing(snapshot, path)
        measured = (
            {}
            if stored == "no"
            else self._stored.of((_id(snapshot), path), lambda: _measured(snapshot, path, described))
        )
        declared = sorted(snapshot.declared.constraints.items())
        for name, each in declared:
            if not isinstance(each, dict):
                raise CorruptionError(snapshot.url, reason=f"constraint {name!r} of a commit is no object")
        about = [{**each, "name": name} for name, each in declared if _is_about(each, path)]
        return {
            "commit": _id(snapshot),
            **_told(snapshot, Member(path, described)),
            "document": None if described is None else described.document,
            **measured,
            "constraints": about,
            "views": self._views(snapshot, path),
        }

    def _views(self, snapshot: Snapshot, path: str) -> list[dict[str, Any]]:
        """Return the views that read or make a node, or one below it."""
        try:
            found = decode(snapshot.url, snapshot.declared.views)
        except UnsupportedFormatError:  # of a later version: whoever reads needs none of them
            return []
        prefix = directory_prefix(path)
        return [
            {
                "name": name,
                "kind": view.kind,
                "when": view.when,
                "sources": view.sources,
                "outputs": view.outputs,
                "current": is_current(name, snapshot, lambda place: self._positions.snapshot(place.id)),
            }
            for name, view in sorted(found.items())
            if any(each == path or each.startswith(prefix) for each in (*view.sources, *view.outputs))
        ]

    def chunks(self, ref: str, path: str = "", start: str | None = None, shape: str | None = None) -> dict[str, Any]:
        """Return the commit that wrote each chunk in a part of an array's grid.

        If there are too many chunks, a cell covers several: `step` chunks along each axis. The cell then names the last
        commit that wrote one of them. -1: no chunk is stored there.
        """
        import numpy as np  # imported late, to start the command line faster

        stored = self._positions.stored(ref)
        path = path.strip("/")
        found = self._maps.of((stored.header.id.hex(), path), lambda: self._map(stored, path))
        counts = found.chunks.shape
        low = _numbers(start, counts) or [0] * len(counts)
        size = _numbers(shape, counts) or list(counts)
        region = tuple(slice(min(a, n), min(a + m, n)) for a, m, n in zip(low, size, counts, strict=True))
        cells = found.chunks[region]
        step = [1] * cells.ndim
        while math.prod(-(-n // s) for n, s in zip(cells.shape, step, strict=True)) > _CELLS:
            longest = max(range(cells.ndim), key=lambda axis: -(-cells.shape[axis] // step[axis]))
            step[longest] *= 2
        # The newest commit has the lowest number, so "no chunk" must be above all numbers.
        last = np.where(cells < 0, len(found.commits), cells)
        for axis, by in enumerate(step):
            if by > 1:
                last = np.minimum.reduceat(last, np.arange(0, last.shape[axis], by), axis=axis)
        last = np.where(last == len(found.commits), -1, last)
        numbers = [int(each) for each in np.unique(last) if each >= 0]
        there = {each: at for at, each in enumerate(numbers)}
        commits = [found.commits[each] for each in numbers]
        own = [at for at, each in enumerate(commits) if each is not None and each.id == stored.header.id.hex()]
        return {
            "commit": stored.header.id.hex(),
            "grid": list(counts),
            "from": [part.start for part in region],
            "shape": list(last.shape),
            "step": step,
            "commits": [
                None if each is None else {"id": each.id, "message": each.message, "time": each.time}
                for each in commits
            ],
            "cells": [there.get(int(each), -1) for each in last.ravel()],
            "this": own[0] if own else -1,
        }

    def _map(self, stored: Stored, path: str) -> _Map:
        import numpy as np

        described = _existing(self._positions.of(stored), path)
        if described is None or described.kind != "array":
            raise NodeNotFoundError(path, "array", "" if described is None else described.kind)
        try:
            count = math.prod(axis.count for axis in described.grid().axes)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Failure(400, "NoMap", f"the metadata document of {path!r} is invalid: {error}") from error
        if count > _CHUNKS:
            raise Failure(413, "TooLarge", f"{path!r} has {count:,} chunks: a map covers at most {_CHUNKS:,}")
        blame = self._repository.blame(path, stored.commit)
        if blame.chunks is None:
            raise NodeNotFoundError(path, "array", "group")
        return _Map(blame.commits, blame.chunks.astype(np.int32))


class _Map(NamedTuple):
    """The commit that wrote each chunk of an array, like `Blame`, in half the memory."""

    commits: list[Commit | None]
    chunks: npt.NDArray[np.int32]


class _Kept(OrderedDict[tuple[str, str], T]):
    """A cache of facts about nodes at commits, which don't change. It drops the least recently used first."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._lock = processes.new_lock()

    def of(self, place: tuple[str, str], find: Callable[[], T]) -> T:
        with self._lock:
            if place in self:
                self.move_to_end(place)
                return self[place]
        found = find()
        with self._lock:
            self[place] = found
            while len(self) > self._limit:
                self.popitem(last=False)
        return found


def _existing(snapshot: Snapshot, path: str) -> Described | None:
    """Return the node at a path; None for a group without a document. Raises `NodeNotFoundError`."""
    described = describe(snapshot.get_view, path)
    if described is None and path and not snapshot.has_keys_below(path):
        raise NodeNotFoundError(path)
    return described


def _told(snapshot: Snapshot, member: Member) -> dict[str, Any]:
    described = member.described
    document = {} if described is None else described.document
    told: dict[str, Any] = {
        "path": member.path,
        "name": member.name,
        "kind": member.kind,
        "zarr_format": document.get("zarr_format"),
        "attributes": {} if described is None else described.attributes,
    }
    if described is None or described.kind != "array":
        return told | {"children": count_members(snapshot, member.path, _COUNTED)}
    layout = layout_of(described)
    return told | {
        "shape": list(described.node.shape),
        "chunks": layout.chunks,
        "shards": layout.shards,
        "dtype": layout.dtype,
        "fill_value": document.get("fill_value"),
        "codecs": layout.codecs,
        "dimension_names": document.get("dimension_names") or described.attributes.get("_ARRAY_DIMENSIONS"),
        "logical_bytes": layout.logical_bytes(described.node.shape),
    }


def _measured(snapshot: Snapshot, path: str, described: Described | None) -> dict[str, Any]:
    """Return the number of bytes and chunks stored at and below a path."""
    prefix = directory_prefix(path)
    stop = after_prefix(prefix)
    is_array = described is not None and described.kind == "array"
    dimensions = len(described.node.shape) if described is not None else 0
    size = keys = present = 0
    for page in snapshot.runs.pages(prefix.encode(), None if stop is None else stop.encode()):
        for key, *_, length, _ in page:
            size += length
            keys += 1
            if is_array:
                suffix = key[len(prefix.encode()) :].decode()
                present += not is_document(suffix) and index_of(suffix, dimensions) is not None
    told: dict[str, Any] = {"stored_bytes": size, "keys": keys}
    if described is None or not is_array:
        return told
    try:
        total = math.prod(axis.count for axis in described.grid().axes)
    except (ValueError, TypeError, KeyError, AttributeError):  # an invalid metadata document
        total = None
    return told | {"chunks_stored": {"present": present, "total": total}}


def _is_about(constraint: Mapping[str, Any], path: str) -> bool:
    """Tell whether a constraint names a node, or a node below it."""
    named = [each for value in constraint.values() for each in (value if isinstance(value, list) else [value])]
    prefix = directory_prefix(path)
    return any(isinstance(each, str) and (each.strip("/") == path or each.startswith(prefix)) for each in named)


def _numbers(text: str | None, like: tuple[int, ...]) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",") if text else []
    if len(parts) != len(like) or not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in parts):
        raise Failure(400, "WrongArgument", f"from= and shape= are {len(like)} numbers with commas between them")
    return [int(part) for part in parts]


def _id(snapshot: Snapshot) -> str:
    return "" if snapshot.commit is None else snapshot.commit.id
