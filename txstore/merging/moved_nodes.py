"""Follows nodes that one side of a merge moved, so that the other side's changes below them move too.

Both sides and the base are read as if each node were at its final path. So the rules of the merge are the same with
moves and without. A node counts as moved if its document, or something below it, is at the same place of the same pack
under another path, and nothing is left at the old path.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from txstore.format.documents import describe, is_node_document, kind_of_node
from txstore.format.keys import after_prefix, ancestors, directory_prefix, node_of_document
from txstore.format.mapping import Hierarchy
from txstore.merging.doubts import Doubts
from txstore.merging.merge_conflicts import SIDES, Answers, Conflict
from txstore.merging.merge_side import Change, Side


class Renaming:
    """The new places of keys after several nodes moved at once: the longest moved path above a key counts."""

    def __init__(self, moves: Mapping[str, str], sources: Mapping[str, str] | None = None) -> None:
        self.moves = moves
        self.sources = {to: source for source, to in moves.items()} if sources is None else sources

    def __bool__(self) -> bool:
        return bool(self.moves)

    def of(self, key: str) -> str:
        """Return the new path of a key or node."""
        return _renamed(self.moves, key)

    def origin(self, key: str) -> str | None:
        """Return the old path of a key; None if no key can have moved there."""
        to = _nearest(self.sources, key)
        source = None if to is None else self.sources[to]
        origin = key if to is None or source is None else source + key[len(to) :]
        return origin if _nearest(self.moves, origin) == source else None

    def but_to(self, path: str) -> Renaming:
        """Return the same without nodes that move to a path or below it: these are then nowhere."""
        prefix = directory_prefix(path)
        return Renaming(
            self.moves, {to: source for to, source in self.sources.items() if not f"{to}/".startswith(prefix)}
        )


def _renamed(moves: Mapping[str, str], key: str) -> str:
    found = _nearest(moves, key)
    return key if found is None else moves[found] + key[len(found) :]


def _nearest(paths: Collection[str], key: str) -> str | None:
    """Return the longest of `paths` at or above a key."""
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
        for to, source in self._renaming.sources.items():
            low, high = max(start, to + "/"), min(each for each in (stop, to + "0") if each is not None)
            if low < high:
                streams.append(self._keys(low, high, source, to, batch))
        return heapq.merge(*streams)

    def _keys(self, start: str, stop: str | None, source: str, to: str, batch: int) -> Iterator[str]:
        """Yield the keys of one move, or of none; keys of other moves are skipped without a walk."""
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


# --- recognising a side's moves


def recognised(
    base: Hierarchy, view: Hierarchy, before: Mapping[str, Hashable], after: Mapping[str, Hashable]
) -> dict[str, str]:
    """Return the moved nodes and their new paths, without nodes that moved with a node above them.

    `before` has the places of the values of keys that a side deleted, `after` those of keys that it created; `view` is
    the side's present state.
    """
    gone = {node_of_document(key): key for key in before if is_node_document(key)}
    made = {node_of_document(key): key for key in after if is_node_document(key)}
    if not gone or not made:
        return {}
    found = _by_documents(before, after, gone, made)
    rest = gone.keys() - found.keys(), made.keys() - set(found.values())
    if all(rest):
        found |= _by_what_is_below(before, after, *rest)
    taken: dict[str, str] = {}
    for source, to in sorted(found.items()):
        if source and to and _renamed(taken, source) != to:
            is_new = to not in base and not base.has_keys_below(to)
            if is_new and not view.has_keys_below(source):
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


def _by_what_is_below(
    before: Mapping[str, Hashable], after: Mapping[str, Hashable], gone: set[str], made: set[str]
) -> dict[str, str]:
    """Return moved nodes whose documents changed, too: some of their chunks, or nodes below, are unchanged."""
    places: dict[Hashable, set[str]] = {}
    for path, suffix, place in _below(after, made):
        places.setdefault((suffix, place), set()).add(path)
    found: dict[str, set[str]] = {}
    for path, suffix, place in _below(before, gone):
        found.setdefault(path, set()).update(places.get((suffix, place), ()))
    return {path: next(iter(to)) for path, to in found.items() if len(to) == 1}


def _below(keys: Mapping[str, Hashable], nodes: set[str]) -> Iterator[tuple[str, str, Hashable]]:
    """Yield each key's nearest node among `nodes`, its name below that, and the place of its value."""
    for key, place in keys.items():
        path = _nearest(nodes, key)
        if path is not None:
            yield path, key[len(directory_prefix(path)) :], place


# --- both sides and the base, with each node at its final path


class Aligned(NamedTuple):
    base: Hierarchy
    ours: Side
    theirs: Side
    of_ours: Renaming  # the moves to make in ours
    of_theirs: Renaming
    of_base: Renaming
    conflicts: list[Conflict]


def align(base: Hierarchy, ours: Side, theirs: Side, answers: Answers, doubts: Doubts) -> Aligned:
    """Return both sides as if each had made the other's moves, too. Raises `ValueError` for invalid answers.

    A move that can't be made on the other side becomes a deletion and a creation.
    """
    if not (ours.moves or theirs.moves):
        return Aligned(base, ours, theirs, Renaming({}), Renaming({}), Renaming({}), [])
    return _Alignment(base, ours, theirs, answers, doubts).aligned()


class _CircleError(Exception):
    """One side moved a node below another, which the other side moved below the first."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.source = source


class _Alignment:
    def __init__(self, base: Hierarchy, ours: Side, theirs: Side, answers: Answers, doubts: Doubts) -> None:
        self._base = base
        self._doubts = doubts
        self._sides = ours, theirs
        self._own = [Renaming(ours.moves), Renaming(theirs.moves)]
        self._lost: tuple[set[str], set[str]] = set(), set()  # nodes that both moved, if the other side's place counts
        self._answers = answers
        self._in_doubt: list[Conflict] = []
        self._blocked: list[tuple[int, str]] = []  # moves without a free place: side and target
        self._renamings: dict[int, Renaming] = {}  # of both sides, during one pass of `_drop`

    def aligned(self) -> Aligned:
        self._choose()
        while self._drop(self._leads_nowhere) or self._drop(self._is_taken):
            pass
        views = self._base, self._sides[0].view, self._sides[1].view
        renamings = [self._renaming(own) for own in (Renaming({}), *self._own)]
        base, *both = (Renamed(view, renaming) for view, renaming in zip(views, renamings, strict=True))
        places = {each.path: (self._end(each.path), each.fields) for each in self._in_doubt}
        places |= {end: (end, ()) for end in (self._place(*blocked) for blocked in self._blocked)}
        conflicts = [
            Conflict(
                path, "moved", path, fields=fields,
                _sides={
                    name: partial(_document, view, place)
                    for name, view in zip(("base", "ours", "theirs"), (base, *both), strict=True)
                },
            )
            for path, (place, fields) in places.items()
        ]  # fmt: skip
        ours, theirs = (
            Side(
                view,
                {renaming.of(key): change for key, change in _following(side, own).items()},
                moved={renaming.of(to) for to in own.moves.values()},
            )
            for side, own, view, renaming in zip(self._sides, self._own, both, renamings[1:], strict=True)
        )
        return Aligned(base, ours, theirs, renamings[1], renamings[2], renamings[0], conflicts)

    def _choose(self) -> None:
        """Choose the side whose place counts for nodes that both moved."""
        ours, theirs = (own.moves for own in self._own)
        for source in sorted(ours.keys() & theirs.keys()):
            conflict = Conflict(source, "moved", source, fields=(ours[source], theirs[source]))
            answer = None
            if not self._is_one_place(source):
                answer = self._answers.side_of(conflict)
                if answer is None:
                    self._in_doubt.append(conflict)
            self._lost[0 if answer == "theirs" else 1].add(source)
        for source in sorted(path for path in ours.keys() ^ theirs.keys() if self._doubts.is_of(path)):
            # The base's place is unreliable: one side has the node there, the other elsewhere.
            conflict = Conflict(source, "moved", source, fields=(ours.get(source, source), theirs.get(source, source)))
            answer = self._answers.side_of(conflict)
            mover = 0 if source in ours else 1
            if answer is None:
                self._in_doubt.append(conflict)
            elif SIDES.index(answer) != mover:
                self._lost[mover].add(source)

    def _is_one_place(self, source: str) -> bool:
        """Tell whether both moved a node to the same place; groups above may have moved, too."""
        try:
            return self._led(0, source) == self._led(1, source)
        except _CircleError:
            return False

    # --- final paths

    def _end(self, path: str, passed: frozenset[str] = frozenset()) -> str:
        """Return the final path of a path of the base. Raises `_CircleError`."""
        counting = [
            (len(source), -number, source)
            for number, own in enumerate(self._own)
            for source in (path, *ancestors(path))
            if source in own.moves and source not in self._lost[number]
        ]
        if not counting:
            return path
        _, number, source = max(counting)
        return self._led(-number, source, passed) + path[len(source) :]

    def _led(self, number: int, source: str, passed: frozenset[str] = frozenset()) -> str:
        """Return the final path of a node that a side moved. Raises `_CircleError`."""
        if source in passed:
            raise _CircleError(source)
        above, _, name = self._own[number].moves[source].rpartition("/")
        return _joined(self._place(number, above, passed | {source}), name)

    def _place(self, number: int, path: str, passed: frozenset[str] = frozenset()) -> str:
        """Return the final path of a path of one side. Raises `_CircleError`."""
        origin = self._own[number].origin(path)
        if origin is not None:
            return self._end(origin, passed)
        above, _, name = path.rpartition("/")
        return _joined(self._place(number, above, passed), name)

    def _renaming(self, own: Renaming) -> Renaming:
        """Return the moves from a side's own paths to the final ones."""
        moves: dict[str, str] = {}
        sources = self._own[0].moves.keys() | self._own[1].moves.keys()
        for start, end in sorted((own.of(source), self._end(source)) for source in sources):
            if _renamed(moves, start) != end:
                moves[start] = end
        return Renaming(moves)

    # --- moves that can't be made on the other side

    def _drop(self, is_impossible: Callable[[int, str], bool]) -> bool:
        """Turn impossible moves into deletions and creations; return True if there were any."""
        has_dropped = False
        self._renamings.clear()
        for mover in (0, 1):
            for source in sorted(self._own[mover].moves.keys() - self._lost[mover]):
                if is_impossible(mover, source):
                    moves = dict(self._own[mover].moves)
                    del moves[source]
                    self._own[mover] = Renaming(moves)
                    has_dropped = True
                    if source in self._lost[1 - mover]:  # now the other side's move of it counts
                        self._lost[1 - mover].discard(source)
                        return True
        return has_dropped

    def _leads_nowhere(self, mover: int, source: str) -> bool:
        """Tell whether the group of a moved node is missing on the other side: deleted there, replaced by something
        else, or moved below this node.
        """
        own, other = self._own[mover], self._own[1 - mover]
        to = own.moves[source]
        if any(whose == mover and to.startswith(f"{there}/") for whose, there in self._blocked):
            return True
        for above in ancestors(to):
            origin = own.origin(above)
            if origin is not None and kind_of_node(self._base, origin) != "absent":
                if kind_of_node(self._sides[1 - mover].view, other.of(origin)) != "group":
                    return True
                break
        try:
            self._end(source)
        except _CircleError as circle:
            if circle.source == source:
                self._blocked.append((mover, to))
                return True
        return False

    def _is_taken(self, mover: int, source: str) -> bool:
        """Tell whether the other side has something else at a node's new path, or an array above it."""
        other = self._own[1 - mover]
        try:
            end = self._end(source)
            if mover not in self._renamings:
                self._renamings[mover] = self._renaming(other)
        except _CircleError:
            return False  # a move dropped in this pass closed it: `_leads_nowhere` finds it in the next pass
        renaming = self._renamings[mover].but_to(end)
        view = Renamed(self._sides[1 - mover].view, renaming)
        if renaming.origin(end) == other.of(source):
            return False
        if any(kind_of_node(view, above) == "array" for above in ancestors(end)):
            return True
        if end not in view and not view.has_keys_below(end):
            return False
        self._blocked.append((mover, self._own[mover].moves[source]))
        return True


def _joined(above: str, name: str) -> str:
    return f"{above}/{name}" if above else name


def _following(side: Side, own: Renaming) -> dict[str, Change]:
    """Return a side's changes, compared with the base as if the side's moves had been made there."""
    found: dict[str, Change] = {}
    for key, change in side.changes.items():
        if change.after is None:
            place = own.of(key)
            now = side.changes.get(place)
            if now is None or now.after is None:
                found[place] = change
        else:
            origin = own.origin(key)
            if origin in (None, key) or origin not in side.changes or not side.is_same(origin, key):
                found[key] = change
    return found


def _document(view: Hierarchy, path: str) -> dict[str, object] | None:
    node = describe(view.get_view, path)
    return None if node is None else dict(node.document)
