"""Computes the keys to lock for the regions that a transaction will change, from a view of the repository.

| a region                  | keys                                                                           |
|---------------------------|--------------------------------------------------------------------------------|
| a numpy selection         | the chunks that it touches                                                     |
| `Points`, `Blocks`        | the same for `vindex` and `blocks`                                             |
| `APPEND`, `Append(axis)`  | the documents, and the partly filled chunks at the present end                 |
| `Resize(shape)`           | the documents, and the chunks that are outside the shape, wholly or in part    |
| `METADATA`                | the documents                                                                  |
| `Whole`                   | the documents and every chunk; for a group, also those of all nodes below it   |

A process that changes an array's shape locks its documents, so chunks beyond the present end need no own lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from txstore.errors import LockRegionError, NodeNotFoundError
from txstore.format.encoding import json_value
from txstore.format.keys import document_key
from txstore.format.mapping import Hierarchy

if TYPE_CHECKING:
    from txstore.format.grids import Grid

#: Number of keys that one call locks, at most: a document may declare any number of chunks.
MAX_KEYS = 1 << 18

#: The type of `lock=`: paths, each locked with everything below it, or a dictionary from path to region.
Lock = str | Collection[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Append:
    """In `lock=`: the keys that an append along an axis changes. A negative axis counts from the last one.

    Examples
    --------
    >>> import numpy as np, tempfile, txstore, zarr
    >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
    >>> with repo.transaction() as store:
    ...     z = zarr.create_array(store, name="x", data=np.zeros((3, 2)), chunks=(2, 2))
    >>> keys_to_lock(repo.mapping(), {"x": Append(axis=0)})
    ['x/zarr.json', 'x/c/1/0']
    """

    axis: int = 0


APPEND = Append()


@dataclass(frozen=True)
class Metadata:
    """In `lock=`: only the documents of an array or group, which a change of attributes writes."""


METADATA = Metadata()


@dataclass(frozen=True)
class Whole:
    """An array or group with everything below it. If it `may_be_missing` and is missing, no keys."""

    may_be_missing: bool = False


@dataclass(frozen=True)
class Resize:
    """The keys that a resize to this shape changes."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Points:
    """A selection of points for `vindex`: one integer array for each axis, or a boolean mask."""

    selection: Any


@dataclass(frozen=True)
class Blocks:
    """A selection of chunks by their position in the grid, for `blocks`."""

    selection: Any


def keys_to_lock(view: Hierarchy, lock: Lock) -> list[str]:
    """Return the keys that `lock` covers in `view`, each once.

    A list of regions covers the keys of all of them. A slice beyond the end covers no keys.

    Raises `NodeNotFoundError` if there is no node at a path, or a group where an array is needed; `IndexError` for a
    selection outside the array; `TypeError` for an object that is no selection; `LockRegionError` for an invalid
    document, and for more than `MAX_KEYS` keys.
    """
    if isinstance(lock, str):
        lock = [lock]
    if not isinstance(lock, Collection) or not all(isinstance(path, str) for path in lock):
        raise TypeError(f"lock= takes a list of paths, or a dictionary from path to selection, not {lock!r}")
    regions = lock if isinstance(lock, Mapping) else dict.fromkeys(lock, Whole())
    keys: dict[str, None] = {}
    for path, region in regions.items():
        try:
            covered = _covered(view, _Node.at(view, path.strip("/")), region)
            keys.update(dict.fromkeys(islice(covered, MAX_KEYS + 1 - len(keys))))
        except OverflowError as error:
            raise _too_many(path) from error
        if len(keys) > MAX_KEYS:
            raise _too_many(path)
    return list(keys)


def _too_many(path: str) -> LockRegionError:
    return LockRegionError(
        path,
        f"this covers more than the {MAX_KEYS:,} keys that are locked at once. Lock what is written at a time, "
        f"{{{path!r}: np.s_[0:100]}}; or {{{path!r}: txstore.METADATA}}, if all who write it do; or nothing, and try "
        "again where there is a conflict: repo.run(fn)",
    )


def _covered(view: Hierarchy, node: _Node, region: Any) -> Iterator[str]:
    if isinstance(region, Append | Metadata | Resize):
        yield from node.existing().documents
    match region:
        case Metadata():
            pass
        case Whole(may_be_missing):
            yield from _below(view, node if may_be_missing else node.existing())
        case Append(axis):
            yield from node.chunks.keys(node.chunks.partly_filled(axis))
        case Resize(shape):
            yield from node.chunks.keys(node.chunks.outside(shape))
        case Points(selection):
            yield from node.chunks.keys(node.chunks.points(selection))
        case Blocks(selection):
            yield from node.chunks.keys(node.chunks.blocks(selection))
        case list() if not _is_index_array(region):
            for each in region:
                yield from _covered(view, node, each)
        case _:
            yield from node.chunks.keys(node.chunks.touched(region))


def _below(view: Hierarchy, top: _Node) -> Iterator[str]:
    nodes = [iter([top])]  # the remaining nodes at each depth, of which there may be thousands
    while nodes:
        node = next(nodes[-1], None)
        if node is None:
            nodes.pop()
            continue
        yield from node.documents
        if node.grid is not None:
            yield from node.grid.keys(node.grid.everything())
        else:
            nodes.append(_members(view, node))


def _members(view: Hierarchy, node: _Node) -> Iterator[_Node]:
    paths = (document_key(node.path, name) for name in view.list_dir(node.path))
    return (_Node.at(view, path) for path in paths if path not in node.documents)


def _is_index_array(items: list[Any]) -> bool:
    from txstore.format.grids import is_index_array

    return is_index_array(items)


#: The document that defines a node, with its attributes document if that is separate.
_DOCUMENTS = (("zarr.json",), (".zarray", ".zattrs"), (".zgroup", ".zattrs"))


@dataclass(frozen=True)
class _Node:
    """The node at a path: an array, a group, or nothing."""

    path: str
    kind: str  # "array", "group" or "absent"
    documents: tuple[str, ...] = ()
    grid: Grid | None = None  # of an array

    @classmethod
    def at(cls, view: Hierarchy, path: str) -> _Node:
        for names in _DOCUMENTS:
            documents = tuple(document_key(path, name) for name in names)
            content = view.get_view(documents[0])
            if content is not None:
                return cls._described(path, names[0], bytes(content), documents)
        return cls(path, "absent")

    @classmethod
    def _described(cls, path: str, name: str, content: bytes, documents: tuple[str, ...]) -> _Node:
        from txstore.format.grids import Grid  # late: this imports numpy, and most transactions lock nothing

        try:
            document = json_value(content)
            if name == ".zgroup" or document.get("node_type") == "group":
                return cls(path, "group", documents)
            return cls(path, "array", documents, Grid(path, document))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"its document {documents[0]!r} describes no array or group that can be locked: {error!r}"
            raise LockRegionError(path, reason) from error

    def existing(self) -> _Node:
        if self.kind == "absent":
            raise NodeNotFoundError(self.path)
        return self

    @property
    def chunks(self) -> Grid:
        """The grid of the array. Raises `NodeNotFoundError` if the node is no array."""
        if self.grid is None:
            raise NodeNotFoundError(self.path, wanted="array", found=self.kind)
        return self.grid
