"""Constraints: what has to be so at every commit, whoever makes it.

A constraint is declared in one commit, under a name, and stands in the header of that commit and of all that follow,
until it is dropped. Every commit is checked before it is published, against the head that it goes on top of: of what it
changes, since of all else the commits before it were checked. No I/O of its own.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from txstore.documents import below
from txstore.errors import (
    ConflictError,
    ConstraintError,
    CorruptionError,
    NodeNotFoundError,
    UnsupportedFormatError,
    Violation,
)
from txstore.keys import check_name, directory_prefix
from txstore.listing import Hierarchy
from txstore.outcome import Described, Outcome, describe

if TYPE_CHECKING:
    from txstore.grids import Grid

#: Of each constraint, so many violations are named.
MAX_NAMED = 10
#: Every commit carries all constraints in its header.
MAX_BYTES = 1 << 16

#: What is wrong, and where: a path or key, and the reason.
Faults = Iterator[tuple[str, str]]


class Constraint(ABC):
    """Something that has to be so at every commit."""

    kind: ClassVar[str]

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
        """Yield what is wrong with the array as it will be."""

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
        if self.values is not None and not isinstance(self.values, Mapping):
            raise TypeError(f"values is a dict, not {self.values!r}")
        unknown = [name for name in self.properties if name not in _PROPERTIES]
        if unknown or not self.properties:
            raise ValueError(f"{list(self.properties)!r} can't be fixed: choose from {', '.join(_PROPERTIES)}")

    def settled(self, view: Hierarchy) -> Constraint:
        if self.values is not None:
            return self
        array = describe(view.get_view, self.path)
        if array is None or array.kind != "array":
            raise NodeNotFoundError(self.path, wanted="array", found="absent" if array is None else array.kind)
        return Fixed(self.path, self.properties, {name: _property(array, name) for name in self.properties})

    def faults_of(self, array: Described, outcome: Outcome, *, is_new: bool) -> Faults:
        for name, value in (self.values or {}).items():
            found = _property(array, name)
            if found != value:
                yield self.path, f"its {name} would be {_shown(found)}, and must be {_shown(value)}"

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, "values": dict(self.values or {})}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(fields["path"], tuple(fields["values"]), fields["values"])


def _property(array: Described, name: str) -> Any:
    for keys in _PROPERTIES[name]:
        if keys[0] in array.document:
            return [array.document.get(key) for key in keys] if len(keys) > 1 else array.document[keys[0]]
    return None


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
            # As they will be read again: tuples become lists. Raises `TypeError` for what is not JSON.
            object.__setattr__(self, "attributes", json.loads(json.dumps(dict(self.attributes))))
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
            elif isinstance(self.attributes, Mapping) and node.attributes[name] != self.attributes[name]:
                found, wanted = node.attributes[name], self.attributes[name]
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
        if outcome.remakes(self.path):
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

    def is_touched(self, outcome: Outcome) -> bool:
        return outcome.touches_below(self.path)

    def faults_of(self, array: Described, outcome: Outcome, *, is_new: bool) -> Faults:
        try:
            grid = array.grid()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            yield self.path, f"its document can't be understood: {error!r}"
            return
        for key in grid.keys(grid.everything()) if is_new else self._concerned(outcome, array, grid):
            if key not in outcome:
                yield key, "the chunk is not stored (zarr leaves out what is all fill value: write_empty_chunks)"

    def _concerned(self, outcome: Outcome, array: Described, grid: Grid) -> Iterator[str]:
        """Return the chunks that may be missing after a commit, if none was before it."""
        before = outcome.before(self.path)
        deleted = outcome.deleted_below(self.path)
        if before is None or outcome.clears_below(self.path) or outcome.restructures(self.path):
            return grid.keys(grid.everything())
        if array.node.chunks is None:  # no regular grid
            is_same = before.content == array.content and next(deleted, None) is None
            return iter(()) if is_same else grid.keys(grid.everything())
        in_grid = (key for key in deleted if not array.node.drops(below(array.key, key)))
        return chain(in_grid, grid.keys(grid.outside(before.node.shape)))


def _not_an_array(found: Described | None) -> str:
    return "there is no array" if found is None else f"it is no array: {found.kind}"


def _path(path: str) -> str:
    if not isinstance(path, str):
        raise TypeError(f"a path is a string, not {path!r}")
    return directory_prefix(path).rstrip("/")


def _paths(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_path(path) for path in _names("paths", paths)))


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what} is a list of strings, not {names!r}")
    return tuple(dict.fromkeys(names))


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."


KINDS: Mapping[str, type[Constraint]] = {
    cls.kind: cls for cls in (EqualLength, Fixed, RequiredAttributes, OnlyGrows, Complete)
}

# --- what headers say


def encode(constraints: Mapping[str, Constraint]) -> dict[str, Any]:
    """Return what the header of a commit says. Raises `TypeError` or `ValueError` if it can't be written there."""
    found = {name: {"kind": each.kind, **each.as_dict()} for name, each in sorted(constraints.items())}
    length = len(json.dumps(found).encode())
    if length > MAX_BYTES:
        raise ValueError(
            f"all constraints together have {length} bytes, and every commit carries them: at most {MAX_BYTES} are "
            "possible"
        )
    return found


def decode(url: str, written: Mapping[str, Any]) -> dict[str, Constraint]:
    """Return the constraints of a header.

    Raises `UnsupportedFormatError` for one that this version can't check, `CorruptionError` for what is none.
    """
    found = {}
    for name, fields in written.items():
        try:
            kind = KINDS.get(fields["kind"])
            if kind is not None:
                found[name] = kind.from_dict(fields)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptionError(url, reason=f"constraint {name!r} of a commit is none: {error!r}") from error
        if kind is None:
            known = ", ".join(map(repr, KINDS))
            raise UnsupportedFormatError(url, found=f"a constraint of kind {fields['kind']!r}", supported=known)
    return found


# --- the commit

#: What a transaction declares, or (None) drops.
Changes = Mapping[str, Constraint | None]


class Declared(NamedTuple):
    constraints: Mapping[str, Constraint]
    new: frozenset[str]  # declared by the commit itself


def merge(changes: Changes, base: Mapping[str, Constraint], head: Mapping[str, Constraint]) -> Declared:
    """Return what a commit on top of `head` has to keep. Raises `ConflictError` if others declared what it does."""
    taken = [name for name in changes if base.get(name) != head.get(name)]
    if taken:
        raise ConflictError(taken, reason="another commit declared or dropped these constraints")
    kept = {name: each for name, each in {**head, **changes}.items() if each is not None}
    return Declared(kept, frozenset(name for name in changes if kept.get(name) != head.get(name)))


def check(declared: Declared, outcome: Outcome) -> None:
    """Raise `ConstraintError` if the outcome of a commit is not as it is declared to be."""
    violations = [
        Violation(name, where, reason)
        for name, each in declared.constraints.items()
        for where, reason in islice(each.faults(outcome, is_new=name in declared.new), MAX_NAMED)
    ]
    if violations:
        raise ConstraintError(violations)


# --- for users


@dataclass(frozen=True, repr=False, eq=False)
class Constraints(MutableMapping[str, Constraint]):
    """Constraints by their names. What is set or deleted is declared, or dropped, with a commit."""

    _read: Callable[[], Mapping[str, Constraint]]
    _declare: Callable[[str, Constraint | None], None]

    def __getitem__(self, name: str) -> Constraint:
        return self._read()[name]

    def __setitem__(self, name: str, constraint: Constraint) -> None:
        check_name("constraint", name)
        if not isinstance(constraint, Constraint):
            kinds = ", ".join(f"constraints.{kind.__name__}" for kind in KINDS.values())
            raise TypeError(f"{constraint!r} is no constraint: use one of {kinds}")
        self._declare(name, constraint)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._declare(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._read()))

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return f"<Constraints {dict(self)}>"
