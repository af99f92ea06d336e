"""Builds the base of a merge whose sides have several best common ancestors: their merge, which is never committed.

If two branches merged each other's earlier commits, or those of a third branch, they can share several best common
ancestors, none an ancestor of another. Any single one as the base would make changes of the others look new: reverted
changes would come back, and elements that only one branch wrote would be in conflict. So the base is the merge of all
of them, by the same rules, and the base of that merge is found in the same way. Git calls this the recursive strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from txstore.commit import Stored
from txstore.engine import Engine
from txstore.format.documents import describe
from txstore.format.keys import is_document, node_of_document
from txstore.history.ancestry import Ancestry, Reach
from txstore.history.snapshot import Snapshot
from txstore.merging.document_fields import structure_of
from txstore.merging.doubts import Doubting, Doubts
from txstore.merging.moved_nodes import Renamed, Renaming
from txstore.merging.three_way import three_way
from txstore.merging.virtual_commits import Virtual, side_of, virtual

#: Number of cached bases, each with its merged values: near commits share them.
_KEPT = 64
_NO_REACH = Reach({}, frozenset())


@dataclass(frozen=True)
class Base:
    """A commit, or the merge of several."""

    view: Snapshot | Virtual
    reach: Reach = _NO_REACH
    doubts: Doubts = field(default_factory=Doubts)
    is_cut: bool = False  # a vacuum expired commits with which less would be in doubt


#: Finds a base: yields common ancestors, and is sent their base.
_Search: TypeAlias = "Generator[Sequence[Stored], Base, Base]"


#: Opens a commit, or with None the empty repository.
Open: TypeAlias = Callable[[Stored | None], Snapshot]


def base_of(engine: Engine, best: Sequence[Stored], open_commit: Open) -> Base:
    """Return the base of a merge, by the best common ancestors of its sides, oldest first."""
    if len(best) <= 1:
        return Base(open_commit(best[0] if best else None))
    return _Bases(engine, open_commit).of(best)


class _Bases:
    def __init__(self, engine: Engine, open_commit: Open) -> None:
        self._engine = engine
        self._open = open_commit
        self._ancestry = Ancestry(engine.commits)
        self._known: dict[tuple[bytes, ...], Base] = {}

    def of(self, best: Sequence[Stored]) -> Base:
        """Go back in history as far as needed. That may be deeper than Python can nest calls, so this uses a stack."""
        searches = [self._search(best)]
        found: Base | None = None
        while True:
            try:
                wanted = next(searches[-1]) if found is None else searches[-1].send(found)
            except StopIteration as stop:
                found = cast(Base, stop.value)
                searches.pop()
                if not searches:
                    return found
            else:
                searches.append(self._search(wanted))
                found = None

    def _search(self, best: Sequence[Stored]) -> _Search:
        names = tuple(stored.hash for stored in best)
        if names not in self._known:
            found = self._point(best[0]) if best else Base(self._open(None))
            for stored in best[1:]:
                found = yield from self._with(found, self._point(stored))
            if len(self._known) == _KEPT:
                del self._known[next(iter(self._known))]
            self._known[names] = found
        return self._known[names]

    def _point(self, stored: Stored) -> Base:
        return Base(self._open(stored), self._ancestry.reach(stored))

    def _with(self, one: Base, other: Base) -> _Search:
        """Return the merge of two bases."""
        reach = one.reach | other.reach
        if not one.doubts and not side_of(self._engine, one.view, other.view).changes:
            return Base(one.view, reach, is_cut=one.is_cut)
        best = self._ancestry.common(one.reach, other.reach)
        if best is None:
            # It is unknown which of the two made which change: every difference is in doubt.
            base = Base(one.view, doubts=Doubts(nodes={"": True}), is_cut=True)
        else:
            base = yield best
        return self._merged(base, one, other, reach)

    def _merged(self, base: Base, one: Base, other: Base, reach: Reach) -> Base:
        assert isinstance(other.view, Snapshot)  # a commit is merged into the bases merged before
        answers = Doubting()
        ours, theirs = (side_of(self._engine, base.view, each.view) for each in (one, other))
        plan = three_way(base.view, ours, theirs, answers, base.doubts)
        place = Renaming(plan.moved)
        doubts = Doubts()
        doubts.add(one.doubts)
        doubts.add(Doubts(nodes=dict.fromkeys(answers.moved, False)))
        doubts = doubts.moved(place.of)
        made = virtual(one.view).merged(plan, other.view)
        for path in {node_of_document(key) for key in (*plan.taken, *plan.values) if is_document(key)}:
            was, is_now = (structure_of(describe(view.get_view, path)) for view in (Renamed(one.view, place), made))
            if was != is_now and doubts.is_below(path):  # its rows have moved, say: it is unknown where that is now
                doubts.add(Doubts(nodes={path: True}))
        doubts.add(answers.noted)
        return Base(made, reach, doubts, base.is_cut or one.is_cut)
