"""Defines constraints: conditions that every commit has to keep, whichever process makes it.

A commit declares a constraint under a name. The header of that commit and of every later one holds it, until a commit
drops it. Before a commit is published, the committer checks its changes against the head that it goes on top of.
Everything else was checked by earlier commits. No I/O of its own.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from txstore.errors import NodeNotFoundError
from txstore.format.documents import Described, below, describe, written_by_zarr
from txstore.format.keys import directory_prefix, is_document
from txstore.format.mapping import Hierarchy

if TYPE_CHECKING:
    import numpy.typing as npt

    from txstore.format.commitfile import CommitName
    from txstore.format.grids import Grid
    from txstore.format.labels import Changed, Labels

#: What is wrong, and where: a path or key, and the reason.
Faults = Iterator[tuple[str, str]]


class Outcome(Protocol):
    """The state of the head after a commit on top of it."""

    def __contains__(self, key: str) -> bool: ...

    def after(self, path: str) -> Described | None:
        """Return what will be at a path."""

    def before(self, path: str) -> Described | None:
        """Return what is at a path, at the head."""

    def rewrites(self, path: str) -> bool:
        """Tell whether a document of a node is set or deleted."""

    def remakes(self, path: str) -> bool:
        """Tell whether a node is deleted as a whole, whatever is there afterwards."""

    def clears_below(self, path: str) -> bool:
        """Tell whether all below some prefix is deleted that has to do with a node: it lies above, at or below it."""

    def restructures(self, path: str) -> bool:
        """Tell whether an array is changed in more than shape and attributes."""

    def deleted_below(self, path: str) -> Iterator[str]:
        """Yield the keys below a path that are deleted one by one, missing ones, too."""

    def changed_below(self, path: str) -> Iterator[str]:
        """Yield the keys below a path that are set, by value or by reference, or deleted one by one."""

    def elements(self, array: Described, key: str) -> npt.NDArray[Any]:
        """Return what a chunk will hold, decoded; one that is not stored is all fill value.

        Raises `UnreadableLabelsError` if it can't be decoded.
        """

    def identify(self, keys: Sequence[str]) -> Sequence[Hashable | None]:
        """Return for each key what names its value among all that are ever stored; None if there will be none."""

    def fetch(self, keys: Sequence[str]) -> None:
        """Get ready to return the elements of many chunks."""

    def head(self) -> tuple[bytes, CommitName] | None:
        """Return the id of the repository and the name of the head; None before the first commit."""

    def changed_since(self, commit: CommitName, path: str) -> Sequence[str] | None:
        """Return the keys below a path that commits after another, up to the head, have set or deleted.

        None if that can't be told: the other may be no ancestor of the head.
        """


class Constraint(ABC):
    """A condition that has to hold at every commit."""

    kind: ClassVar[str]
    #: Whether a check may read much. What it depends on lies at or below `path` then.
    may_take_long: ClassVar[bool] = False

    @abstractmethod
    def faults(self, outcome: Outcome, *, is_new: bool) -> Faults:
        """Yield what is wrong with the outcome of a commit. `is_new`: the constraint did not hold for sure before."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return what of the constraint is written, besides its kind: a JSON object."""

    @classmethod
    @abstractmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return what `as_dict` has written."""

    def settled(self, view: Hierarchy) -> Constraint:
        """Return the constraint as it is declared where the arrays are as `view` shows them."""
        return self


@dataclass(frozen=True)
class _OfArray(Constraint):
    """What has to be so of one array, which has to exist."""

    path: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _path(self.path))

    @abstractmethod
    def faults_of(self, array: Described, outcome: Outcome, *, is_new: bool) -> Faults:
        """Yield the faults of the array as the commit leaves it."""

    def is_touched(self, outcome: Outcome) -> bool:
        """Tell whether a commit may break it."""
        return outcome.rewrites(self.path)

    def faults(self, outcome: Outcome, *, is_new: bool) -> Faults:
        if not is_new and not self.is_touched(outcome):
            return
        array = outcome.after(self.path)
        if array is None or array.kind != "array":
            yield self.path, _not_an_array(array)
        else:
            yield from self.faults_of(array, outcome, is_new=is_new)

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(fields["path"])


@dataclass(frozen=True)
class EqualLength(Constraint):
    """These arrays exist, and their first dimensions are equal: they count the same samples.

    Parameters
    ----------
    paths : sequence of str
    """

    kind = "equal length"
    paths: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", _paths(self.paths))
        if len(self.paths) < 2:
            raise ValueError(f"give the paths of two arrays or more, not {self.paths!r}")

    def faults(self, outcome: Outcome, *, is_new: bool) -> Faults:
        if not is_new and not any(outcome.rewrites(path) for path in self.paths):
            return
        lengths: dict[str, int] = {}
        for path in self.paths:
            array = outcome.after(path)
            if array is None or array.kind != "array":
                yield path, _not_an_array(array)
            elif not array.node.shape:
                yield path, "the array is a scalar: it has no first dimension"
            else:
                lengths[path] = array.node.shape[0]
        first = next(iter(lengths), "")
        for path, length in lengths.items():
            if length != lengths[first]:
                yield path, f"its first dimension is {length}, and that of {first!r} {lengths[first]}"

    def as_dict(self) -> dict[str, Any]:
        return {"paths": list(self.paths)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(fields["paths"])


#: Of a document of Zarr 3, and of Zarr 2: what the properties of `Fixed` are called there.
_PROPERTIES = {
    "dtype": (("data_type",), ("dtype",)),
    "codecs": (("codecs",), ("compressor", "filters", "order")),
    "chunks": (("chunk_grid",), ("chunks",)),
}


@dataclass(frozen=True)
class Fixed(_OfArray):
    """The array exists, and has the dtype, codecs or chunk grid that it had when this was declared.

    Parameters
    ----------
    path : str
    properties : sequence of {"dtype", "codecs", "chunks"}
    values : dict, optional
        What they are in the metadata document; filled in from the array when the constraint is declared.
    """

    kind = "fixed"
    properties: Sequence[str] = tuple(_PROPERTIES)
    values: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "properties", _names("properties", self.properties))
        if self.values is not None and set(self.values) != set(self.properties):
            raise ValueError(f"values is a dict that says what each of {list(self.properties)!r} is")
        unknown = [name for name in self.properties if name not in _PROPERTIES]
        if unknown or not self.properties:
            raise ValueError(f"{list(self.properties)!r} can't be fixed: choose from {', '.join(_PROPERTIES)}")

    def settled(self, view: Hierarchy) -> Constraint:
        if self.values is not None:
            return self
        array = describe(view.get_view, self.path)
        if array is None or array.kind != "array":
            raise NodeNotFoundError(self.path, wanted="array", found="absent" if array is None else array.kind)
        return Fixed(self.path, self.properties, {name: _property(array.document, name) for name in self.properties})

    def faults_of(self, array: Described, outcome: Outcome, *, is_new: bool) -> Faults:
        for name, value in (self.values or {}).items():
            found = _property(array.document, name)
            if not _is_same_property(array, name, found, value):
                yield self.path, f"its {name} would be {_shown(found)}, and must be {_shown(value)}"

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, "values": dict(self.values or {})}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(fields["path"], tuple(fields["values"]), fields["values"])


def _keys_of(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return _PROPERTIES[name]["chunk_grid" not in document]


def _property(document: Mapping[str, Any], name: str) -> Any:
    keys = _keys_of(document, name)
    return [document.get(key) for key in keys] if len(keys) > 1 else document.get(keys[0])


def _is_same_property(array: Described, name: str, found: Any, value: Any) -> bool:
    """Compare in zarr's words, too, which it changes documents to whenever it writes them: with all defaults."""
    if as_text(found) == as_text(value):
        return True
    return _in_zarrs_words(array, name, found) == _in_zarrs_words(array, name, value)


def _in_zarrs_words(array: Described, name: str, value: Any) -> str:
    """Return what zarr would write of a property that the array's document says in other words."""
    keys = _keys_of(array.document, name)
    values = value if len(keys) > 1 and isinstance(value, list) else [value]
    document = {**array.document, **dict(zip(keys, values, strict=False))}
    try:
        return as_text(_property(written_by_zarr(array.key, document), name))
    except Exception:  # noqa: BLE001 - zarr does not understand it, and may raise anything then; or it is zarr 2
        return as_text(value)


@dataclass(frozen=True)
class RequiredAttributes(Constraint):
    """The array or group exists, and has these attributes.

    Parameters
    ----------
    path : str
        The root group is "".
    attributes : sequence of str, or dict
        Names of attributes, whatever their values; or the attributes with the values that they must have.
    """

    kind = "attributes"
    path: str
    attributes: Sequence[str] | Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _path(self.path))
        if isinstance(self.attributes, Mapping):
            _names("attributes", tuple(self.attributes))
            object.__setattr__(self, "attributes", dict(self.attributes))
        else:
            object.__setattr__(self, "attributes", _names("attributes", self.attributes))
        if not self.attributes:
            raise ValueError("give the names of the attributes that are required")

    def faults(self, outcome: Outcome, *, is_new: bool) -> Faults:
        if not is_new and not outcome.rewrites(self.path):
            return
        node = outcome.after(self.path)
        if node is None:
            yield self.path, "there is no array or group"
            return
        for name in self.attributes:
            if name not in node.attributes:
                yield self.path, f"attribute {name!r} is missing"
            elif isinstance(self.attributes, Mapping):
                found, wanted = node.attributes[name], self.attributes[name]
                if as_text(found) != as_text(wanted):
                    yield self.path, f"attribute {name!r} would be {_shown(found)}, and must be {_shown(wanted)}"

    def as_dict(self) -> dict[str, Any]:
        if isinstance(self.attributes, Mapping):
            return {"path": self.path, "values": dict(self.attributes)}
        return {"path": self.path, "names": list(self.attributes)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(fields["path"], fields["values"] if "values" in fields else fields["names"])


@dataclass(frozen=True)
class OnlyGrows(_OfArray):
    """The array exists, and none of its dimensions ever becomes smaller. It is not deleted and made anew, either.

    Parameters
    ----------
    path : str
    """

    kind = "only grows"

    def faults_of(self, array: Described, outcome: Outcome, *, is_new: bool) -> Faults:
        before = None if is_new else outcome.before(self.path)
        if before is None:
            return
        if outcome.remakes(self.path) or before.key != array.key:
            yield self.path, "the array would be deleted and made anew"
        old, new = before.node.shape, array.node.shape
        if len(old) != len(new) or any(n < o for o, n in zip(old, new, strict=True)):
            yield self.path, f"its shape would go from {old} to {new}"


@dataclass(frozen=True)
class Complete(_OfArray):
    """The array exists, and each of its chunks (of a sharded array: each shard) is stored.

    Zarr does not store chunks that are all fill value, unless it is told to: with `zarr.config`'s
    `array.write_empty_chunks`, or `config={"write_empty_chunks": True}` of `zarr.create_array`.

    Parameters
    ----------
    path : str
    """

    kind = "complete"
    may_take_long = True

    def is_touched(self, outcome: Outcome) -> bool:
        deleted = next(outcome.deleted_below(self.path), None)
        return deleted is not None or outcome.rewrites(self.path) or outcome.clears_below(self.path)

    def faults_of(self, array: Described, outcome: Outcome, *, is_new: bool) -> Faults:
        grid = _grid_of(array)
        if isinstance(grid, str):
            yield self.path, grid
            return
        missing: set[str] = set()
        for key in grid.keys(grid.everything()) if is_new else self._concerned(outcome, array, grid):
            if key not in outcome and key not in missing:
                missing.add(key)
                yield key, "the chunk is not stored (zarr leaves out what is all fill value: write_empty_chunks)"

    def _concerned(self, outcome: Outcome, array: Described, grid: Grid) -> Iterator[str]:
        """Return the chunks that may be missing after a commit, if none was before it."""
        before = outcome.before(self.path)
        if before is None or outcome.clears_below(self.path) or outcome.restructures(self.path):
            return grid.keys(grid.everything())
        deleted = list(outcome.deleted_below(self.path))
        indices = [array.node.index_of(below(array.key, key)) for key in deleted if not is_document(key)]
        if None in indices:
            return grid.keys(grid.everything())  # no regular grid, or chunks have names of another kind
        chunks = set(grid.keys(index for index in indices if index is not None))
        in_grid = (key for key in deleted if key in chunks and not array.node.drops(below(array.key, key)))
        return chain(in_grid, grid.keys(grid.outside(before.node.shape)))


@dataclass(frozen=True)
class _OfLabels(_OfArray):
    """What has to be so of the elements of an array of one dimension. A chunk that is not stored is all fill value."""

    may_take_long = True

    @abstractmethod
    def fault_in(self, labels: Labels, changed: Changed) -> str | None:
        """Return what is wrong, if these chunks have changed since nothing was."""

    def is_touched(self, outcome: Outcome) -> bool:
        changed = next(outcome.changed_below(self.path), None)
        return changed is not None or outcome.rewrites(self.path) or outcome.clears_below(self.path)

    def faults_of(self, array: Described, outcome: Outcome, *, is_new: bool) -> Faults:
        from txstore.format.labels import Labels, UnreadableLabelsError  # late: it imports numpy

        grid = _grid_of(array)
        if isinstance(grid, str):
            yield self.path, grid
        elif len(grid.shape) != 1:
            yield self.path, f"it has {len(grid.shape)} dimensions: labels have one"
        else:
            labels = Labels(array, grid, outcome)
            changed = labels.everything
            if not (is_new or outcome.clears_below(self.path) or outcome.restructures(self.path)):
                before = outcome.before(self.path)
                length = 0 if before is None else before.node.shape[0]
                changed = labels.changed(outcome.changed_below(self.path), length)
            try:
                fault = self.fault_in(labels, changed)
            except UnreadableLabelsError as error:
                fault = f"its labels can't be compared, since {error}"
            if fault is not None:
                yield self.path, fault


@dataclass(frozen=True)
class Unique(_OfLabels):
    """The array exists, has one dimension, and no two of its elements are equal. None is NaN or NaT.

    Elements are numbers, dates or text. A chunk that is not stored is all fill value.

    Parameters
    ----------
    path : str
    """

    kind = "unique"

    def fault_in(self, labels: Labels, changed: Changed) -> str | None:
        from txstore.format.labels import repeats  # late: it imports numpy

        return repeats(labels, changed)


@dataclass(frozen=True)
class Sorted(_OfLabels):
    """The array exists, has one dimension, and its elements ascend. None is NaN or NaT.

    Elements are numbers, dates or text, which is compared by code points. A chunk that is not stored is all fill value.

    Parameters
    ----------
    path : str
    descending : bool
        They descend instead.
    strict : bool
        No two of them are equal.
    """

    kind = "sorted"
    descending: bool = False
    strict: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.descending, bool) or not isinstance(self.strict, bool):
            raise TypeError(f"descending and strict are True or False, not {self.descending!r} and {self.strict!r}")

    def fault_in(self, labels: Labels, changed: Changed) -> str | None:
        from txstore.format.labels import disorder  # late: it imports numpy

        return disorder(labels, changed, descending=self.descending, strict=self.strict)

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, "descending": self.descending, "strict": self.strict}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(fields["path"], fields["descending"], fields["strict"])


@dataclass(frozen=True)
class Frozen(Constraint):
    """Nothing at or below the path is changed any more.

    Parameters
    ----------
    reason : str
        What an error tells those who try.
    path : str
        An array or group. "" is the whole hierarchy.
    """

    kind = "frozen"
    reason: str
    path: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason:
            raise TypeError(f"say why it is frozen, in a string, not {self.reason!r}")
        object.__setattr__(self, "path", _path(self.path))

    def faults(self, outcome: Outcome, *, is_new: bool) -> Faults:
        if is_new:  # what is changed last may come in the same commit
            return
        where = next(outcome.changed_below(self.path), None)
        if where is not None or outcome.clears_below(self.path):
            yield where or self.path, f"it is frozen: {self.reason}"

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, "reason": self.reason}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(fields["reason"], fields["path"])


def _grid_of(array: Described) -> Grid | str:
    """Return the grid of an array, or why there is none."""
    try:
        return array.grid()
    except (ImportError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"its document can't be understood: {error!r}"


def _not_an_array(found: Described | None) -> str:
    return "there is no array" if found is None else f"it is no array: {found.kind}"


def _path(path: str) -> str:
    if not isinstance(path, str):
        raise TypeError(f"a path is a string, not {path!r}")
    return directory_prefix(path).rstrip("/")


def _paths(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_path(path) for path in _names("paths", paths)))


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    found = () if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    if not isinstance(names, Iterable) or isinstance(names, str) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"{what} is a list of strings, not {names!r}")
    return tuple(dict.fromkeys(found))


def as_text(value: Any) -> str:
    """Return JSON to compare by: there 1 is not true, and NaN is NaN."""
    return json.dumps(value, sort_keys=True)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."


KINDS: Mapping[str, type[Constraint]] = {
    cls.kind: cls for cls in (EqualLength, Fixed, RequiredAttributes, OnlyGrows, Complete, Unique, Sorted, Frozen)
}
