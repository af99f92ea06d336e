"""Finds the places where the best common ancestors of two commits differ, so that no base of their merge is right.

The base says nothing reliable about such a place, so it counts as changed by both sides: it is in conflict if they
differ, and settled if they are equal. Git does the same: it leaves conflict markers in the base.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from txstore.format.keys import ancestors
from txstore.history.changes import Differing
from txstore.merging.merge_conflicts import Answers, Conflict
from txstore.merging.merge_side import Side

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

#: Masks are kept as bits, compressed a little: there may be one for every chunk.
_LEVEL = 1


@dataclass
class Doubts:
    """The places in doubt of a base."""

    #: Nodes. True: with everything below them. False: only whether they, and nodes below them, exist, and where.
    nodes: dict[str, bool] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)  # with their whole values
    fields: dict[str, set[str]] = field(default_factory=dict)  # by the keys of documents; as `Conflict.fields`
    masks: dict[str, list[bytes]] = field(default_factory=dict)  # by the keys of chunks: which elements

    def __bool__(self) -> bool:
        return bool(self.nodes or self.keys or self.fields or self.masks)

    def add(self, other: Doubts) -> None:
        for path, is_whole in other.nodes.items():
            self.nodes[path] = self.nodes.get(path, False) or is_whole
        self.keys |= other.keys
        for key, names in other.fields.items():
            self.fields.setdefault(key, set()).update(names)
        for key, masks in other.masks.items():
            self.masks.setdefault(key, []).extend(masks)

    def moved(self, place: Callable[[str], str]) -> Doubts:
        """Return the same places after moves of nodes."""
        return Doubts(
            {place(path): is_whole for path, is_whole in self.nodes.items()},
            {place(key) for key in self.keys},
            {place(key): {*names} for key, names in self.fields.items()},
            {place(key): [*masks] for key, masks in self.masks.items()},
        )

    def is_of(self, path: str) -> bool:
        """Tell whether the existence or the place of a node is in doubt."""
        return bool(self.nodes) and any(each in self.nodes for each in chain([path], ancestors(path)))

    def has_all_of(self, path: str) -> bool:
        """Tell whether everything at a node, or at a key, is in doubt."""
        if path in self.keys:
            return True
        return bool(self.nodes) and any(self.nodes.get(each, False) for each in chain([path], ancestors(path)))

    def is_below(self, path: str) -> bool:
        """Tell whether anything at a node or below it is in doubt."""
        prefix = f"{path}/" if path else ""
        return self.is_of(path) or any(
            each.startswith(prefix) for each in chain(self.nodes, self.keys, self.fields, self.masks)
        )

    def fields_of(self, key: str) -> Collection[str]:
        """Return the fields of a document that are in doubt; "" means the whole document."""
        return ("",) if self.has_all_of(key) else self.fields.get(key, ())

    def mask(self, key: str, shape: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
        """Return which elements of a chunk are in doubt; None if none is."""
        import numpy as np  # late: most processes merge nothing

        if self.has_all_of(key):
            return np.ones(shape, bool)
        if key not in self.masks:
            return None
        size, found = math.prod(shape), np.zeros(shape, bool)
        for packed in self.masks[key]:
            bits = np.unpackbits(np.frombuffer(zlib.decompress(packed), np.uint8))
            if len(bits) != -(-size // 8) * 8:
                return np.ones(shape, bool)  # it was a chunk of another shape
            found |= bits[:size].astype(bool).reshape(shape)
        return found

    def masks_of(self, keys: Iterable[str], shape: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
        """Return the masks of many chunks of one shape, stacked; None if no element is in doubt."""
        import numpy as np

        found = [self.mask(key, shape) for key in keys]
        if all(each is None for each in found):
            return None
        return np.stack([np.zeros(shape, bool) if each is None else each for each in found])

    def changed_by_both(self, *sides: Side) -> tuple[Side, ...]:
        """Return both sides as if they had changed every place in doubt."""
        keys = {*self.keys, *self.fields, *self.masks}
        for path, is_whole in self.nodes.items():
            if is_whole:
                keys.update(chain.from_iterable(side.changes_below(path) for side in sides))
        return tuple(_with(side, keys) for side in sides)


def _with(side: Side, keys: Iterable[str]) -> Side:
    more = {key: Differing(key, None, key in side.view or None) for key in keys if key not in side.changes}
    return Side(side.view, {**side.changes, **more}, side.moves, side.is_same, side.moved) if more else side


class Doubting(Answers):
    """Answers the conflicts of a merge that builds a base, and notes the places that are therefore in doubt."""

    def __init__(self) -> None:
        super().__init__(None)
        self.noted = Doubts()
        self.moved: set[str] = set()  # nodes whose places are in doubt, by their path in ours

    def check_alike(self, conflicts: Iterable[Conflict]) -> None:
        """Whatever the sides: all of these nodes are in doubt."""

    def of(self, conflict: Conflict) -> str:
        import numpy as np

        if conflict.kind == "moved" and conflict.fields:
            self.moved.add(conflict.fields[0])
        elif conflict.is_of_node:
            self.noted.add(Doubts(nodes={conflict.path: conflict.kind != "deleted"}))
        elif conflict.kind == "elements":
            mask = zlib.compress(np.packbits(conflict.mask_of_chunk()).tobytes(), _LEVEL)
            self.noted.add(Doubts(masks={conflict.key: [mask]}))
        elif conflict.kind == "document":
            self.noted.add(Doubts(fields={conflict.key: {*conflict.fields}}))
        else:
            self.noted.add(Doubts(keys={conflict.key}))
        # A node that one side deleted and the other changed stays, so that later merges can compare with it.
        return "theirs" if conflict.kind == "deleted" and conflict.ours() is None else "ours"
