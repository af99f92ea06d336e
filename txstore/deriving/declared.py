"""Encodes and decodes the views in commit headers, and puts them in order. No I/O."""

from __future__ import annotations

import json
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, Protocol, Self

from txstore.commit import Commit
from txstore.deriving.definitions import KINDS, ViewDefinition
from txstore.errors import CorruptionError, UnsupportedFormatError, ViewError
from txstore.format.commitfile import Written
from txstore.format.documents import Described

#: What is stored under a key; None, nothing.
Value = bytes | memoryview | None


class DerivableCommit(Protocol):
    """The state of the head after a commit on top of it. `format.constraints.Outcome` documents most of it."""

    def before(self, path: str) -> Described | None: ...

    def document(self, key: str) -> Value:
        """Return a document, as it will be."""

    def value(self, key: str) -> Value:
        """Return what will be stored under a key."""

    def value_before(self, key: str) -> Value:
        """Return what is stored under a key at the head."""

    def __contains__(self, key: str) -> bool: ...

    def rewrites(self, path: str) -> bool: ...

    def remakes(self, path: str) -> bool: ...

    def restructures(self, path: str) -> bool: ...

    def clears_below(self, path: str) -> bool: ...

    def changed_below(self, path: str) -> Iterator[str]: ...

    def fetch(self, keys: Sequence[str]) -> None: ...

    def put(self, key: str, value: bytes | None) -> None:
        """Set a key besides what the commit changes, or delete it. From now on the commit has changed it."""


#: Views by name.
Views = Mapping[str, ViewDefinition]


#: The member of a view that is derived later: of which commit the outputs are. None: of none, or not in full.
_AS_OF = "as_of"
#: The member of one whose outputs are derived in parts: how far they are.
_BACKFILL = "backfill"


class CommitAt(NamedTuple):
    """A commit's id, and where it is."""

    id: str
    branch: str  # its name then
    version: int

    @classmethod
    def of(cls, commit: Commit) -> Self:
        return cls(commit.id, commit.branch, commit.version)


class Reached(NamedTuple):
    """How far the outputs of a view are derived, from the first chunk of the first one on."""

    stage: int = 0
    chunk: int = 0  # of its output, in the order of its grid


class Backfill(NamedTuple):
    """A derivation that is made in parts: of the sources of one commit, up to a place."""

    since: CommitAt
    place: Reached


def encode(view: ViewDefinition, done: Commit | Backfill | None = None) -> dict[str, Any]:
    """Return a view as JSON that `decode` can read. `done`: the commit that the outputs were derived from, or a part.

    Raises `TypeError` if it is of a class that others do not know.
    """
    if type(view) is not KINDS.get(view.kind):
        kinds = ", ".join(f"views.{kind.__name__}" for kind in KINDS.values())
        raise TypeError(f"not every writer can derive {view!r}: use one of {kinds}")
    written: dict[str, Any] = json.loads(json.dumps({"kind": view.kind, **view.as_dict()}))
    if view.when == "follow":
        written[_AS_OF] = CommitAt.of(done)._asdict() if isinstance(done, Commit) else None
        if isinstance(done, Backfill):
            written[_BACKFILL] = {**done.since._asdict(), **done.place._asdict()}
    return written


def as_of(url: str, name: str, fields: Mapping[str, Any]) -> CommitAt | None:
    """Return where the commit is that the outputs of a view were derived from. Raises `CorruptionError`."""
    told = fields.get(_AS_OF)
    return None if told is None else _commit_at(url, name, told)


def backfill_of(url: str, name: str, fields: Mapping[str, Any]) -> Backfill | None:
    """Return how far a view is that is derived in parts. Raises `CorruptionError`."""
    told = fields.get(_BACKFILL)
    if told is None:
        return None
    since = _commit_at(url, name, told)
    with _telling(url, name):
        return Backfill(since, Reached(operator.index(told["stage"]), operator.index(told["chunk"])))


def _commit_at(url: str, name: str, told: Any) -> CommitAt:
    with _telling(url, name):
        return CommitAt(str(told["id"]), str(told["branch"]), operator.index(told["version"]))


@contextmanager
def _telling(url: str, name: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(url, reason=f"view {name!r} of a commit is invalid: {error!r}") from error


def are_alike(fields: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Tell whether two entries make the same outputs, whenever they do so."""
    later = dict.fromkeys(("when", _AS_OF, _BACKFILL))
    return {**fields, **later} == {**others, **later}


def distrust(views: Views, commit: DerivableCommit, updated: Collection[str], head: Commit | None) -> Written:
    """Return the views that are derived later, and whose outputs a commit changes: they are of no commit any more.

    The commit itself brings `updated` up to date. Each of the others gets an entry that says that its derivation begins
    at the head: so the entry differs from what it was, and an update that is under way conflicts.
    """
    if head is None:
        return {}
    anew = Backfill(CommitAt.of(head), Reached())
    return {
        name: encode(view, anew)
        for name, view in views.items()
        if view.when == "follow" and name not in updated and any(changes(commit, output) for output in view.outputs)
    }


def changes(commit: DerivableCommit, path: str) -> bool:
    """Tell whether a commit changes an array."""
    return commit.clears_below(path) or commit.rewrites(path) or any(True for _ in commit.changed_below(path))


def decode(url: str, written: Written) -> dict[str, ViewDefinition]:
    """Return the views of a header.

    Raises `UnsupportedFormatError` for a kind that this version can't derive, `CorruptionError` for an invalid entry.
    """
    found = {}
    for name, fields in written.items():
        with _telling(url, name):
            kind = KINDS.get(fields["kind"])
            if kind is not None:
                found[name] = kind.from_dict(fields)
        if kind is None:
            known = ", ".join(map(repr, KINDS))
            raise UnsupportedFormatError(url, found=f"a view of kind {fields['kind']!r}", supported=known)
    return found


def outputs_of(url: str, written: Written) -> list[str]:
    """Return the outputs of the views of a header. Raises what `decode` does."""
    return [output for view in decode(url, written).values() for output in view.outputs]


def ordered(views: Views) -> list[str]:
    """Return the names of views, each after those that make its sources.

    Raises `ValueError` if two views make the same array, but for labels that both make alike, or if there is no such
    order.
    """
    makers: dict[str, str] = {}
    for name, view in sorted(views.items()):
        for output in view.outputs:
            maker = makers.setdefault(output, name)
            if maker != name and not view.makes_alike(views[maker], output):
                raise ValueError(f"the views {makers[output]!r} and {name!r} both make {output!r}")
    needed = {
        name: {makers[source] for source in view.sources if source in makers} for name, view in sorted(views.items())
    }
    try:
        return list(TopologicalSorter(needed).static_order())
    except CycleError as error:
        raise ValueError(f"these views are derived from each other: {', '.join(sorted(set(error.args[1])))}") from error


def check_together(views: Views, new: Collection[str]) -> None:
    """Raise `ViewError` for new views that do not fit the others, which another commit may have declared meanwhile."""
    if new:
        try:
            ordered(views)
        except ValueError as error:
            raise ViewError(min(new), str(error)) from error
