"""Describes the changes that a merge can't combine, for its caller to look at and to answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from txstore.format.display import html_table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: An answer to a conflict: a side, or a function that returns elements or a document.
Answer: TypeAlias = "str | Callable[[Conflict], Any]"
SIDES = ("ours", "theirs")

#: The kinds of conflicts, each with its message.
KINDS = {
    "elements": "both have changed elements of a chunk differently",
    "chunk": "both have changed a chunk whose elements can't be told apart",
    "document": "both have changed fields of a metadata document differently",
    "value": "both have changed a value differently",
    "append": "both have appended, or resized it, along one axis",
    "structure": "one has changed what chunks mean or which there are, the other chunks, or that too",
    "deleted": "one has deleted the node, the other has changed what is at it or below it",
    "moved": "both have moved it, to different places, or one to where the other has something else, or into itself",
    "constraint": "both have declared a constraint differently, or one has dropped it",
}


#: At most this many conflicts of a merge are shown.
_SHOWN = 50


@dataclass(frozen=True, repr=False)
class Conflict:
    """A place that both sides of a merge changed, and that the merge can't combine.

    The values of the sides are read on demand; a conflict from a pickle can't read them.

    Attributes
    ----------
    path : str
        Path of the array or group; for a value that is not part of Zarr's hierarchy, its key.
    kind : str
        "elements", "chunk", "document", "value", "append", "structure", "deleted", "moved" or "constraint".
    key : str
        The key in conflict; for kinds that concern a whole node ("append", "structure", "deleted", "moved"), its path.
    region : tuple of slice, optional
        For "elements": the smallest box of the array with all of them; `()` for an array without axes.
    fields : tuple of str
        For "document": the fields in conflict, such as "attributes.units". For "moved", if both moved a node: its path
        in ours, and in theirs; `path` is the old one.
    """

    path: str
    kind: str
    key: str
    region: tuple[slice, ...] | None = None
    fields: tuple[str, ...] = ()
    _sides: Mapping[str, Callable[[], Any]] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Conflict, (self.path, self.kind, self.key, self.region, self.fields)

    def base(self) -> Any:
        """Return the base's value: the elements of the region, a document as a dict, a value as bytes; or None.

        If the sides have several best common ancestors that differ there, it is the value of one of these.
        """
        return self._side("base")

    def ours(self) -> Any:
        """Return the same at the target of the merge."""
        return self._side("ours")

    def theirs(self) -> Any:
        """Return the same in the merged commit."""
        return self._side("theirs")

    def mask(self) -> npt.NDArray[np.bool_] | None:
        """Return which elements of the region are in conflict; None for a conflict without elements."""
        found: npt.NDArray[np.bool_] | None = self._side("mask")
        return found

    def mask_of_chunk(self) -> npt.NDArray[np.bool_]:
        """Return the same for "elements", as a mask of the whole stored chunk."""
        found: npt.NDArray[np.bool_] = self._side("mask of chunk")
        return found

    @property
    def is_of_node(self) -> bool:
        """Whether a whole node is in conflict: then only a side can be the answer."""
        return self.kind in ("append", "structure", "deleted", "moved")

    def _side(self, name: str) -> Any:
        side = self._sides.get(name)
        return None if side is None else side()

    def __str__(self) -> str:
        place = self.place if self.region is not None or not self.place else f" ({self.place})"
        return f"{self.path or '/'!r}{place}: {KINDS[self.kind]}"

    @property
    def place(self) -> str:
        """The place in the node: the region as `[0:4, 8:12]`, or the fields; "" for a whole node or value."""
        if self.region is not None:
            return f"[{', '.join(f'{along.start}:{along.stop}' for along in self.region) or '()'}]"
        return ", ".join(self.fields)

    def as_dict(self) -> dict[str, Any]:
        """Return the conflict for JSON: everything except the sides' values."""
        region = None if self.region is None else [[along.start, along.stop] for along in self.region]
        return {"path": self.path, "kind": self.kind, "key": self.key, "region": region, "fields": list(self.fields)}

    def __repr__(self) -> str:
        return f"<Conflict {self.kind}: {self.path or '/'!r}{self.place and f' {self.place}'}>"

    def _repr_html_(self) -> str:
        return table_of([self])


def table_of(conflicts: list[Conflict]) -> str:
    """Return conflicts as an HTML table."""
    shown = conflicts[:_SHOWN]
    rows = [(each.path or "/", each.place, KINDS[each.kind]) for each in shown]
    return html_table(rows, ("path", "where", "conflict"), left=len(conflicts) - len(shown))


class Answers:
    """The answers of `resolve=`: a side or a function by path, for everything at and below it. The nearest counts."""

    def __init__(self, resolve: Mapping[str, Answer] | None) -> None:
        """Raises `TypeError` unless `resolve` is a dictionary by path, `ValueError` for an invalid answer."""
        if resolve is not None and not isinstance(resolve, Mapping):
            raise TypeError(f"resolve= takes a dictionary from path to 'ours', 'theirs' or a function, not {resolve!r}")
        self.derived: tuple[str, ...] = ()
        """The outputs of views."""
        self._answers: dict[str, Answer] = {}
        for path, answer in (resolve or {}).items():
            if not isinstance(path, str):
                raise TypeError(f"resolve= takes paths, not {path!r}")
            if not (callable(answer) or answer in SIDES):
                raise ValueError(f"resolve[{path!r}] is 'ours', 'theirs' or a function, not {answer!r}")
            self._answers[path.strip("/")] = answer

    def keeping(self, derived: Iterable[str]) -> Answers:
        """Return the same, with "ours" for the outputs of views: the commit derives them anew, whatever they hold."""
        kept = Answers(None)
        kept.derived = tuple(derived)
        kept._answers = {**self._answers, **dict.fromkeys(kept.derived, "ours")}
        return kept

    def of(self, conflict: Conflict) -> Answer | None:
        path = conflict.path
        while True:
            if path in self._answers:
                return self._answers[path]
            if not path:
                return None
            path = path.rpartition("/")[0]

    def check_alike(self, conflicts: Iterable[Conflict]) -> None:
        """Raise `ValueError` unless these nodes are taken from one side. The outputs of views are from none."""
        chosen = [each for each in conflicts if each.path not in self.derived]
        sides = {side: each.path for each in chosen if (side := self.side_of(each)) is not None}
        if len(sides) > 1:
            raise ValueError(
                f"resolve=: {sides['ours']!r} and {sides['theirs']!r} share a dimension whose rows moved, or whose "
                "length changed, and are taken from one side: give both the same answer"
            )

    def side_of(self, conflict: Conflict) -> str | None:
        """Return the side that a whole node is taken from. Raises `ValueError` for a function."""
        answer = self.of(conflict)
        if callable(answer):
            raise ValueError(
                f"resolve[{conflict.path!r}]: {conflict}. Only a side can be the answer: 'ours' or 'theirs', as a whole"
            )
        return answer
