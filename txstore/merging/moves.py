"""Nodes that one side of a merge has moved: what the other has changed below them follows.

Both sides and the base are looked at as if each node lay where it lies in the end. So the rules of the merge are the
same with moves and without. A move is recognised by a node whose document, or one of whose chunks, lies in the same
place of the same pack below another path, while there is no node any more where it was.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from txstore.format.documents import NODE_DOCUMENTS, describe, kind_of_node
from txstore.format.keys import after_prefix, ancestors, directory_prefix, is_document, node_of_document
from txstore.format.mapping import Hierarchy
from txstore.merging.conflicts import Answers, Conflict
from txstore.merging.side import Change, Side


class Renaming:
    """Where keys are, whose nodes have moved all at once: those below the longest of the paths that were moved."""

    def __init__(self, moves: Mapping[str, str]) -> None:
        self.moves = {source: to for source, to in moves.items() if source != to}
        self._to_sources = {to: source for source, to in self.moves.items()}

    def __bool__(self) -> bool:
        return bool(self.moves)

    def of(self, key: str) -> str:
        """Return where a key, or a node, comes to be."""
        found = _nearest(self.moves, key)
        return key if found is None else self.moves[found] + key[len(found) :]

    def origin(self, key: str) -> str | None:
        """Return the key that comes to be this one; None if none can."""
        found = _nearest(self._to_sources, key)
        origin = key if found is None else self._to_sources[found] + key[len(found) :]
        return origin if _nearest(self.moves, origin) == (None if found is None else self._to_sources[found]) else None

    def beside(self, path: str) -> Renaming:
        """Return the moves that lead neither to a path nor below it."""
        return Renaming({source: to for source, to in self.moves.items() if to != path and not _is_below(to, path)})


def _is_below(path: str, other: str) -> bool:
    return path.startswith(other + "/")


def _nearest(paths: Mapping[str, str], key: str) -> str | None:
    """Return the longest of some paths that a key is at or below."""
    if key in paths:
        return key
    return next((path for path in ancestors(key) if path in paths), None)


class Renamed(Hierarchy):
    """A view as if nodes had been moved."""

    def __init__(self, view: Hierarchy, renaming: Renaming) -> None:
        self._view = view
        self._renaming = renaming

    def get_view(self, key: str) -> memoryview | None:
        origin = self._renaming.origin(key)
        return None if origin is None else self._view.get_view(origin)

    def size_of(self, key: str) -> int | None:
        origin = self._renaming.origin(key)
        return None if origin is None else self._view.size_of(origin)

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        streams = [self._keys(start, stop, "", "", batch)]
        for source, to in self._renaming.moves.items():
            low, high = max(start, to + "/"), min(each for each in (stop, to + "0") if each is not None)
            if low < high:
                streams.append(self._keys(low, high, source, to, batch))
        return heapq.merge(*streams)

    def _keys(self, start: str, stop: str | None, source: str, to: str, batch: int) -> Iterator[str]:
        """Yield the keys that one move brings, or that none has; keys that others bring are skipped, not walked."""
        low: str | None = source + start[len(to) :]
        high = None if stop is None else source + stop[len(to) :]
        while low is not None:
            page, low = self._view.keys_between(low, high, batch=batch), None
            for key in page:
                nearest = _nearest(self._renaming.moves, key)
                if (nearest or "") != source:
                    low = after_prefix(directory_prefix(nearest or ""))
                    break
                yield to + key[len(source) :]


# --- which nodes a side has moved


def recognised(base: Hierarchy, before: Mapping[str, Hashable], after: Mapping[str, Hashable]) -> dict[str, str]:
    """Return the nodes that were moved, and where to; not those that went with one above them.

    `before` are the places in which the values of keys lay that a side has deleted, `after` those of keys that it has
    made.
    """
    gone = {node_of_document(key): key for key in before if _says_what_it_is(key)}
    made = {node_of_document(key): key for key in after if _says_what_it_is(key)}
    if not gone or not made:
        return {}
    found = _by_documents(before, after, gone, made)
    rest = gone.keys() - found.keys(), made.keys() - set(found.values())
    if all(rest):
        found |= _by_chunks(before, after, *rest)
    taken: dict[str, str] = {}
    for source, to in sorted(found.items()):
        is_new = to not in base and not base.has_keys_below(to)
        if is_new and source and to and Renaming(taken).of(source) != to:
            taken[source] = to
    return taken


def _by_documents(
    before: Mapping[str, Hashable], after: Mapping[str, Hashable], gone: Mapping[str, str], made: Mapping[str, str]
) -> dict[str, str]:
    places: dict[Hashable, list[str]] = {}
    for path, key in made.items():
        places.setdefault((key.rpartition("/")[2], after[key]), []).append(path)
    found = {path: places.get((key.rpartition("/")[2], before[key]), []) for path, key in gone.items()}
    return {path: to[0] for path, to in found.items() if len(to) == 1}  # a node that was copied twice is two nodes


def _by_chunks(
    before: Mapping[str, Hashable], after: Mapping[str, Hashable], gone: set[str], made: set[str]
) -> dict[str, str]:
    """Return nodes whose documents were changed, too, and whose chunks lie where they did."""
    places: dict[Hashable, set[str]] = {}
    for path, suffix, place in _chunks(after, made):
        places.setdefault((suffix, place), set()).add(path)
    found: dict[str, set[str]] = {}
    for path, suffix, place in _chunks(before, gone):
        found.setdefault(path, set()).update(places.get((suffix, place), ()))
    return {path: next(iter(to)) for path, to in found.items() if len(to) == 1}


def _chunks(keys: Mapping[str, Hashable], nodes: set[str]) -> Iterator[tuple[str, str, Hashable]]:
    for key, place in keys.items():
        if not is_document(key):
            path = next((each for each in ancestors(key) if each in nodes), None)
            if path is not None:
                yield path, key[len(directory_prefix(path)) :], place


def _says_what_it_is(key: str) -> bool:
    return is_document(key) and key.rpartition("/")[2] in NODE_DOCUMENTS


# --- both sides and the base, with each node where it lies in the end


class Aligned(NamedTuple):
    base: Hierarchy
    ours: Side
    theirs: Side
    of_ours: Renaming  # what has to be moved in ours
    of_theirs: Renaming
    conflicts: list[Conflict]


def align(base: Hierarchy, ours: Side, theirs: Side, answers: Answers) -> Aligned | None:
    """Return both sides as if each had moved what the other has moved; None where no move matters to the other.

    Raises `ValueError` for answers that are none.
    """
    if not (_matters(ours, theirs) or _matters(theirs, ours)):
        return None
    return _Alignment(base, ours, theirs, answers).aligned()


def _matters(mover: Side, other: Side) -> bool:
    return any(other.changes_below(source) or other.changes_below(to) for source, to in mover.moves.items())


class _Alignment:
    def __init__(self, base: Hierarchy, ours: Side, theirs: Side, answers: Answers) -> None:
        self._base = base
        self._sides = ours, theirs
        self._moves = dict(ours.moves), dict(theirs.moves)
        self._answers = answers
        self._conflicts: dict[str, Conflict] = {}
        self._lost: tuple[set[str], set[str]] = set(), set()  # what the other side has moved elsewhere, and keeps there

    def aligned(self) -> Aligned:
        self._choose()
        while self._drop():
            pass
        ours, theirs = self._renaming(0), self._renaming(1)
        base = Renamed(Renamed(self._base, Renaming(self._moves[1])), theirs)
        return Aligned(base, self._side(0, ours), self._side(1, theirs), ours, theirs, [*self._conflicts.values()])

    def _choose(self) -> None:
        """Say where nodes go that both have moved, to different places."""
        for source in sorted(self._moves[0].keys() & self._moves[1].keys()):
            places = self._moves[0][source], self._moves[1][source]
            if places[0] == places[1]:
                continue
            conflict = self._conflict(source, *places, source, fields=places)
            answer = self._answer(conflict)
            if answer is None:
                self._conflicts[source] = conflict
            self._lost[0 if answer == "theirs" else 1].add(source)

    def _answer(self, conflict: Conflict) -> str | None:
        answer = self._answers.of(conflict)
        if callable(answer):
            raise ValueError(
                f"resolve[{conflict.path!r}]: {conflict}. Only a side can be the answer: 'ours' or 'theirs', as a whole"
            )
        return answer

    def _renaming(self, side: int) -> Renaming:
        """Return how what the other side has moved is moved in this one."""
        own = Renaming(self._moves[side])
        lost = self._lost[1 - side]
        return Renaming({own.of(s): own.of(to) for s, to in self._moves[1 - side].items() if s not in lost})

    def _drop(self) -> bool:
        """Take a move that can't be made on the other side for a deletion and a creation; tell if there was one."""
        for mover in (0, 1):
            other = 1 - mover
            renaming, view, own = self._renaming(other), self._sides[other].view, Renaming(self._moves[other])
            for source, to in sorted(self._moves[mover].items()):
                if source in self._lost[mover] or (start := own.of(source)) == (end := own.of(to)):
                    continue
                is_taken = end in view or Renamed(view, renaming.beside(end)).has_keys_below(end)
                if is_taken or _is_below(end, start):
                    self._note((to, end), mover)
                elif not self._has_no_group(view, own, to):
                    continue
                del self._moves[mover][source]
                self._lost[other].discard(source)
                return True
        return False

    def _has_no_group(self, view: Hierarchy, own: Renaming, to: str) -> bool:
        """Tell whether the group above a destination was deleted on the other side."""
        above = to.rpartition("/")[0]
        return kind_of_node(self._base, above) != "absent" and kind_of_node(view, own.of(above)) == "absent"

    def _note(self, paths: tuple[str, str], mover: int) -> None:
        """Say that something is in the way: where the mover has a node now, and where that comes to be."""
        to, end = paths
        if end not in self._conflicts:
            ours, theirs = paths if mover == 0 else (end, to)
            self._conflicts[end] = self._conflict(to, ours, theirs, end)

    def _conflict(self, base: str, ours: str, theirs: str, path: str, fields: tuple[str, ...] = ()) -> Conflict:
        views = self._base, self._sides[0].view, self._sides[1].view
        sides = {
            name: partial(_document, view, at)
            for name, view, at in zip(("base", "ours", "theirs"), views, (base, ours, theirs), strict=True)
        }
        return Conflict(path, "moved", path, fields=fields, _sides=sides)

    def _side(self, number: int, renaming: Renaming) -> Side:
        side, own = self._sides[number], Renaming(self._moves[number])
        changes = {renaming.of(key): change for key, change in _following(side, own).items()}
        moved = {renaming.of(to) for source, to in own.moves.items()}
        return Side(Renamed(side.view, renaming), changes, moved=moved)


def _following(side: Side, own: Renaming) -> dict[str, Change]:
    """Return what a side has changed, compared with the base as if that had been moved as the side has moved it."""
    if not own:
        return dict(side.changes)
    found: dict[str, Change] = {}
    for key, change in side.changes.items():
        if change.after is None:
            now = side.changes.get(place := own.of(key))
            if now is None or now.after is None:
                found[place] = change
        else:
            origin = own.origin(key)
            if (
                origin is None
                or origin == key
                or origin not in side.changes
                or not (side.is_same and side.is_same(origin, key))
            ):
                found[key] = change
    return found


def _document(view: Hierarchy, path: str) -> dict[str, object] | None:
    node = describe(view.get_view, path)
    return None if node is None else dict(node.document)
