"""Conflicts: changes that a merge can't combine, for its caller to look at and to answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from txstore.format.shown import html_table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: What answers a conflict: a side, or a function that returns elements or a document.
Answer: TypeAlias = "str | Callable[[Conflict], Any]"
SIDES = ("ours", "theirs")

#: What can be in conflict, and what it says.
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


#: Conflicts of a merge that are shown.
_SHOWN = 50


@dataclass(frozen=True, repr=False)
class Conflict:
    """Something that both sides of a merge have changed, and that can't be put together.

    What the sides have is read when it is asked for; one that came out of a pickle does not know it.

    Attributes
    ----------
    path : str
        Of the array or group; of a value that is none of Zarr's, its key.
    kind : str
        "elements", "chunk", "document", "value", "append", "structure", "deleted", "moved" or "constraint".
    key : str
        Where it is stored; of what is of a whole node, as "append", "structure", "deleted" and "moved" are, its path.
    region : tuple of slice, optional
        Of "elements": the smallest box of the array that has all of them; `()` of an array without axes.
    fields : tuple of str
        Of "document": those in conflict, such as "attributes.units". Of "moved", where both have moved a node: where
        it is in ours, and in theirs; `path` is where it was.
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
        """Return what both began with: the elements of the region, a document as a dict, a value as bytes; or None.

        Where the two have several best common ancestors that differ there, it is what one of these has.
        """
        return self._side("base")

    def ours(self) -> Any:
        """Return the same at the target of the merge."""
        return self._side("ours")

    def theirs(self) -> Any:
        """Return the same in what is merged."""
        return self._side("theirs")

    def mask(self) -> npt.NDArray[np.bool_] | None:
        """Return which elements of the region are in conflict; None for what has no elements."""
        found: npt.NDArray[np.bool_] | None = self._side("mask")
        return found

    def mask_of_chunk(self) -> npt.NDArray[np.bool_]:
        """Return the same of "elements" as a mask of the whole chunk, as it is stored."""
        found: npt.NDArray[np.bool_] = self._side("mask of chunk")
        return found

    @property
    def is_of_node(self) -> bool:
        """Whether a node as a whole is in conflict: the answer is a side."""
        return self.kind in ("append", "structure", "deleted", "moved")

    def _side(self, name: str) -> Any:
        side = self._sides.get(name)
        return None if side is None else side()

    def __str__(self) -> str:
        place = self.place if self.region is not None or not self.place else f" ({self.place})"
        return f"{self.path or '/'!r}{place}: {KINDS[self.kind]}"

    @property
    def place(self) -> str:
        """Where at the node: the region as `[0:4, 8:12]`, or the fields; "" where it is the node, or the value."""
        if self.region is not None:
            return f"[{', '.join(f'{along.start}:{along.stop}' for along in self.region) or '()'}]"
        return ", ".join(self.fields)

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can say of it: all but what the sides have."""
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
    """What `resolve=` says: a side or a function by path, for all at and below it. The nearest one counts."""

    def __init__(self, resolve: Mapping[str, Answer] | None) -> None:
        """Raises `TypeError` if that is no dictionary by path, `ValueError` for an answer that is none."""
        if resolve is not None and not isinstance(resolve, Mapping):
            raise TypeError(f"resolve= takes a dictionary from path to 'ours', 'theirs' or a function, not {resolve!r}")
        self._answers = {}
        for path, answer in (resolve or {}).items():
            if not isinstance(path, str):
                raise TypeError(f"resolve= takes paths, not {path!r}")
            if not (callable(answer) or answer in SIDES):
                raise ValueError(f"resolve[{path!r}] is 'ours', 'theirs' or a function, not {answer!r}")
            self._answers[path.strip("/")] = answer

    def of(self, conflict: Conflict) -> Answer | None:
        path = conflict.path
        while True:
            if path in self._answers:
                return self._answers[path]
            if not path:
                return None
            path = path.rpartition("/")[0]

    def side_of(self, conflict: Conflict) -> str | None:
        """Return whose a node as a whole is to be. Raises `ValueError` for a function."""
        answer = self.of(conflict)
        if callable(answer):
            raise ValueError(
                f"resolve[{conflict.path!r}]: {conflict}. Only a side can be the answer: 'ours' or 'theirs', as a whole"
            )
        return answer
