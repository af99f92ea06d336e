"""Defines views: arrays that are derived from others, and stay so, whichever process changes those."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

import numpy as np

from txstore.deriving.methods import Method
from txstore.deriving.stages import ApplyStage, CoarsenStage, DerivingStage, LabelsStage, ReduceStage
from txstore.format.cf import decoded, meaning_attributes, meaning_of
from txstore.format.documents import Described
from txstore.format.keys import directory_prefix

if TYPE_CHECKING:
    import numpy.typing as npt
    import xarray as xr


When = Literal["commit", "follow"]


class ViewSources(Protocol):
    """The arrays that a view is derived from, as a commit leaves them."""

    def after(self, path: str) -> Described | None:
        """Return what is at a path."""

    def before(self, path: str) -> Described | None:
        """Return what is at a path at the head."""

    def elements(self, path: str) -> npt.NDArray[Any]:
        """Return a whole array."""

    def elements_before(self, path: str) -> npt.NDArray[Any] | None:
        """Return a whole array, as it was at the head; None if there was none."""


_COARSEN_METHODS = ("mean", "min", "max", "mode", "nearest")
_REDUCE_METHODS = ("mean", "min", "max", "count")


class ViewDefinition(ABC):
    """Arrays that are derived from others."""

    kind: ClassVar[str]
    when: When

    @property
    @abstractmethod
    def sources(self) -> tuple[str, ...]:
        """The arrays that it is derived from."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """The arrays that it makes, in the order in which it makes them."""

    @abstractmethod
    def stages(self, sources: ViewSources) -> list[DerivingStage]:
        """Return the steps that make the outputs.

        Raises `ValueError` if the sources do not allow that.
        """

    def makes_alike(self, other: ViewDefinition, output: str) -> bool:
        """Tell whether another view makes an output in the same way, at the same time: then both may."""
        return False

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return what of the view is written, besides its kind: a JSON object."""

    @classmethod
    @abstractmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return what `as_dict` has written."""


@dataclass(frozen=True)
class Coarsen(ViewDefinition):
    """Smaller versions of an array, each made from the one before: the levels of a pyramid.

    Parameters
    ----------
    source : str
        The array.
    to : str
        The paths of the levels, with `{level}` in the place of 1, 2 and so on: "image/{level}".
    factors : sequence of int
        How many elements along each axis become one. Those at the end of an axis may be fewer.
    levels : int
        How many levels there are, besides the source.
    method : {"mean", "min", "max", "mode", "nearest"}
        What becomes of them. NaN counts as no value. "mean" is computed in 64-bit floats, and rounded for integers,
        halves to the even neighbour; "mode" is the most frequent value, the lowest of equally frequent ones; "nearest"
        the first one.
    when : {"commit", "follow"}
        Whether each commit that changes the source makes the levels anew, where they depend on the change, before it is
        published; or somebody does it later: `DeclaredView.update`.
    """

    source: str
    to: str
    factors: Sequence[int]
    levels: int = 1
    method: Method = "mean"
    when: When = "commit"
    kind = "coarsen"

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", _path(self.source))
        object.__setattr__(self, "to", _path(self.to))
        factors = _whole_numbers("factors", self.factors)
        if not isinstance(factors, tuple):
            raise TypeError(f"factors={self.factors}: one for each axis, as in ({self.factors}, {self.factors})")
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "levels", operator.index(self.levels))
        if "{level}" not in self.to:
            raise ValueError(f"to={self.to!r} needs {{level}} in the place of the level's number")
        if not self.factors or min(self.factors) < 1 or max(self.factors) < 2:
            raise ValueError(f"factors={self.factors}: one for each axis, 1 or more, and not all 1")
        if not 1 <= self.levels <= 64:
            raise ValueError(f"levels={self.levels}: from 1 to 64")
        _check_one_of("method", self.method, _COARSEN_METHODS)
        _check_when(self.when)
        _check_apart(self.sources, self.outputs)

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.to.replace("{level}", str(level)) for level in range(1, self.levels + 1))

    def stages(self, sources: ViewSources) -> list[DerivingStage]:
        extents = _array(sources, self.source).node.shape
        if len(extents) != len(self.factors):
            raise ValueError(
                f"{self.source!r} has {len(extents)} dimensions, and there are {len(self.factors)} factors"
            )
        found: list[DerivingStage] = []
        source = self.source
        meaning = meaning_of(_array(sources, source))
        missing = meaning.missing if self.method != "nearest" else ()
        is_other = self.method != "nearest" and _differs(sources, source, meaning_of, meaning)
        for output in self.outputs:
            stage = CoarsenStage(source, output, extents, tuple(self.factors), self.method, missing, is_other)
            found.append(stage)
            source, extents = output, stage.shape
        return found

    def as_dict(self) -> dict[str, Any]:
        return {"source": self.source, "to": self.to, "factors": list(self.factors), "levels": self.levels,
                "method": self.method, "when": self.when}  # fmt: skip

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(*(fields[name] for name in ("source", "to", "factors", "levels", "method", "when")))


@dataclass(frozen=True)
class Reduce(ViewDefinition):
    """An array without one of its dimensions, or with one element for each month, or other period, of a time axis.

    Parameters
    ----------
    source : str
        The array.
    dim : str
        The name of the dimension.
    method : {"mean", "min", "max", "count"}
        What becomes of the elements along it. NaN counts as no value; "count" is the number of the others.
    to : str
        The output.
    by : {"year", "month", "day", "hour"}, optional
        Combine the elements of each such period. The labels beside the source, an array that is named as the dimension
        is, ascend and have CF units ("days since ..."). The output's labels are those of the first element of each
        period. By default all elements along the dimension are combined, and the output does not have it.
    when : {"commit", "follow"}
        As of `Coarsen`.
    """

    source: str
    dim: str
    method: Method
    to: str
    by: str | None = None
    when: When = "commit"
    kind = "reduce"

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", _path(self.source))
        object.__setattr__(self, "to", _path(self.to))
        _check_one_of("method", self.method, _REDUCE_METHODS)
        _check_when(self.when)
        if self.by is not None:
            _check_one_of("by", self.by, PERIODS)
        _check_apart(self.sources, self.outputs)

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,) if self.by is None else (self.source, self._coordinate)

    @property
    def outputs(self) -> tuple[str, ...]:
        if self.by is None:
            return (self.to,)
        return self.to, _beside(self.to, self.name_of_periods)

    @property
    def name_of_periods(self) -> str:
        """The name of the output's dimension of periods, and of their labels: `dim`, unless that is in its group."""
        is_beside = self.to.rpartition("/")[0] == self.source.rpartition("/")[0]
        return f"{self.dim}_{self.by}" if is_beside else self.dim

    @property
    def _coordinate(self) -> str:
        return _beside(self.source, self.dim)

    def makes_alike(self, other: ViewDefinition, output: str) -> bool:
        """Of several variables, the periods have the same labels, if each commit derives them."""
        if not isinstance(other, Reduce) or {self.when, other.when} != {"commit"} or None in (self.by, other.by):
            return False
        alike = (self._coordinate, self.dim, self.by) == (other._coordinate, other.dim, other.by)
        return alike and self.outputs[1] == other.outputs[1] == output

    def stages(self, sources: ViewSources) -> list[DerivingStage]:
        array = _array(sources, self.source)
        extents, axis, meaning = array.node.shape, axis_of(array, self.dim), meaning_of(array)
        is_other = _differs(sources, self.source, partial(axis_of, dim=self.dim), axis)
        is_other = is_other or _differs(sources, self.source, meaning_of, meaning)
        reduced = partial(
            ReduceStage, self.source, self.to, extents, axis, method=self.method, along=self.name_of_periods,
            missing=meaning.missing, is_other=is_other,
        )  # fmt: skip
        if self.by is None:
            return [reduced(groups=None)]
        path = self._coordinate
        labels = sources.elements(path)
        if labels.shape != (extents[axis],):
            raise ValueError(
                f"{path!r} has shape {labels.shape}, and {self.source!r} {extents[axis]} elements along it"
            )
        said = meaning_attributes(_array(sources, path))
        groups = begins(labels, said, self.by)
        are_others = _differs(sources, path, meaning_attributes, said)  # of the same numbers, perhaps
        same = 0 if are_others else same_until(sources.elements_before(path), labels)
        # The group before the first other label may have got more elements, or fewer.
        others_from = max(0, bisect_right(groups, max(0, same - 1)) - 1)
        return [
            reduced(groups=tuple(groups), others_from=others_from),
            LabelsStage(path, self.outputs[1], labels[groups], self.name_of_periods, others_from),
        ]

    def as_dict(self) -> dict[str, Any]:
        return {"source": self.source, "dim": self.dim, "method": self.method, "to": self.to, "by": self.by,
                "when": self.when}  # fmt: skip

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(*(fields[name] for name in ("source", "dim", "method", "to", "by", "when")))


@dataclass(frozen=True)
class Apply(ViewDefinition):
    """A function of arrays of one shape, piece by piece.

    Parameters
    ----------
    function : str or callable
        A function at the top of a module, or its name, "module:name". It takes one numpy array for each input, all of
        one shape, and returns one of this shape; for the same values the same, wherever they lie.
    inputs : sequence of str
        The arrays.
    to : str
        The output.
    overlap : int or sequence of int
        How many elements beside an element, along each axis, its result depends on.
    when : {"commit", "follow"}
        As of `Coarsen`. With "commit", a process that has not registered the function (`register`) can't change the
        inputs.
    """

    function: Any
    inputs: Sequence[str]
    to: str
    overlap: int | Sequence[int] = 0
    when: When = "commit"
    kind = "apply"

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", _function_name(self.function))
        object.__setattr__(self, "inputs", tuple(map(_path, _strings(self.inputs))))
        object.__setattr__(self, "to", _path(self.to))
        overlap = _whole_numbers("overlap", self.overlap)
        if min(overlap if isinstance(overlap, tuple) else [overlap], default=0) < 0:
            raise ValueError(f"overlap={self.overlap}: 0 or more")
        if not self.inputs:
            raise ValueError("inputs= names one array or more")
        object.__setattr__(self, "overlap", overlap)
        _check_when(self.when)
        _check_apart(self.sources, self.outputs)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.to,)

    def stages(self, sources: ViewSources) -> list[DerivingStage]:
        shapes = {path: _array(sources, path).node.shape for path in self.inputs}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"its inputs have different shapes: {shapes}")
        extents = next(iter(shapes.values()))
        overlap = (self.overlap,) * len(extents) if isinstance(self.overlap, int) else tuple(self.overlap)
        if len(overlap) != len(extents):
            raise ValueError(f"overlap={self.overlap}, and the inputs have {len(extents)} dimensions")
        return [ApplyStage(tuple(self.inputs), self.to, extents, overlap, partial(registered, self.function))]

    def as_dict(self) -> dict[str, Any]:
        overlap = self.overlap if isinstance(self.overlap, int) else list(self.overlap)
        return {"function": self.function, "inputs": list(self.inputs), "to": self.to, "overlap": overlap,
                "when": self.when}  # fmt: skip

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(*(fields[name] for name in ("function", "inputs", "to", "overlap", "when")))


KINDS: Mapping[str, type[ViewDefinition]] = {cls.kind: cls for cls in (Coarsen, Reduce, Apply)}


_registered: dict[str, Callable[..., Any]] = {}


def register(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let this process call a function for `Apply`, and return it: also a decorator. Its name is "module:name".

    A repository alone can't make a process call anything: it says a name, and only what was registered is called.

    Raises `ValueError` for a function that other processes can't import, such as a lambda.
    """
    name = _name_of(function)
    if "<" in name or name.startswith("__main__:") or not all(name.partition(":")):
        raise ValueError(f"other processes can't import {name!r}: define the function at the top of a module")
    _registered[name] = function
    return function


def registered(name: str) -> Callable[..., Any]:
    """Return the function of a name. Raises `ValueError` if it was not registered here."""
    if name not in _registered:
        raise ValueError(
            f"this process has no function {name!r}: import its module, which has to call txstore.views.register"
        )
    return _registered[name]


def _name_of(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '') or ''}:{getattr(function, '__qualname__', '')}"


def _function_name(function: Any) -> str:
    if callable(function):
        return _name_of(register(function))
    if not isinstance(function, str) or not all(function.partition(":")):
        raise ValueError(f"a function is named 'module:name', not {function!r}")
    return function


def axis_of(array: Described, dim: str) -> int:
    """Return the axis of a dimension's name. Raises `ValueError`."""
    if dim not in array.dimensions:
        raise ValueError(f"{array.path!r} has no dimension {dim!r}: its dimensions are {[*array.dimensions]}")
    return array.dimensions.index(dim)


def _differs(sources: ViewSources, path: str, ask: Callable[[Described], Any], now: Any) -> bool:
    """Tell whether something about an array was not so at the head."""
    before = sources.before(path)
    if before is None or before.kind != "array":
        return True
    try:
        return bool(ask(before) != now)
    except ValueError:
        return True


def _array(sources: ViewSources, path: str) -> Described:
    found = sources.after(path)
    if found is None or found.kind != "array":
        raise ValueError(f"there is no array {path!r}")
    return found


def _beside(path: str, name: str) -> str:
    return f"{directory_prefix(path.rpartition('/')[0])}{name}"


def _path(path: str) -> str:
    if not isinstance(path, str):
        raise TypeError(f"a path is a string, not {path!r}")
    return directory_prefix(path).rstrip("/")


def _strings(given: Sequence[str]) -> Sequence[str]:
    if isinstance(given, str):
        raise TypeError(f"inputs= takes a list of paths, not {given!r}")
    return given


def _whole_numbers(name: str, given: Any) -> int | tuple[int, ...]:
    """Return a number, or numbers, as Python's."""
    try:
        return tuple(map(operator.index, given)) if isinstance(given, Iterable) else operator.index(given)
    except TypeError:
        raise TypeError(f"{name}={given!r}: give whole numbers") from None


def _check_one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r}: one of {', '.join(map(repr, known))}")


def _check_when(when: str) -> None:
    _check_one_of("when", when, ("commit", "follow"))


def _check_apart(sources: Sequence[str], outputs: Sequence[str]) -> None:
    inside = [output for output in outputs for source in sources if output.startswith(directory_prefix(source))]
    if inside:
        raise ValueError(f"{inside[0]!r} lies in an array that it is derived from: an array holds no others")
    both = set(sources) & set(outputs)
    if both or len(set(outputs)) < len(outputs):
        raise ValueError(f"no array can be derived from itself: {sorted(both) or list(outputs)}")


# --- where the periods of a time axis begin: years, months, days or hours of labels with CF units
#
# https://cfconventions.org/cf-conventions/cf-conventions.html#time-coordinate

PERIODS = ("year", "month", "day", "hour")


def begins(labels: npt.NDArray[Any], meaning: Mapping[str, Any], by: str) -> list[int]:
    """Return the places at which a period begins. `meaning`: the attributes that say which times the labels are.

    Raises `ValueError` if the labels do not ascend, are no times, or say nothing, and `ImportError` without xarray.
    """
    if not labels.size:
        return []
    if (labels.dtype.kind == "f" and not np.isfinite(labels).all()) or (
        labels.dtype.kind == "M" and np.isnat(labels).any()
    ):
        raise ValueError("its time coordinate has labels that are no times: NaN, NaT or infinity")
    times = _times(labels, meaning)
    if (times.values[1:] < times.values[:-1]).any():
        raise ValueError("its time coordinate does not ascend")
    keys = np.stack([getattr(times.dt, each).values for each in PERIODS[: PERIODS.index(by) + 1]], axis=1)
    return [0, *(np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1).tolist()]


def _times(labels: npt.NDArray[Any], meaning: Mapping[str, Any]) -> xr.DataArray:
    import xarray as xr  # late: xarray is an extra

    units = meaning.get("units")
    if labels.dtype.kind != "M" and (not isinstance(units, str) or " since " not in units):
        raise ValueError(f"its time coordinate has no units such as 'days since 2000-01-01', but {units!r}")
    times = xr.DataArray(decoded("time", labels, meaning), dims=("time",))
    if times.dtype.kind not in "MO":
        raise ValueError(f"its time coordinate can't be read as times: its units are {units!r}")
    if times.isnull().any():
        raise ValueError("its time coordinate has labels that are no times: NaT")
    return times


def same_until(before: npt.NDArray[Any] | None, after: npt.NDArray[Any]) -> int:
    """Return how many labels at the beginning are what they were."""
    if before is None:
        return 0
    length = min(len(before), len(after))
    others = np.flatnonzero(before[:length] != after[:length])
    return int(others[0]) if others.size else length
