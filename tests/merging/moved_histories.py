"""Random histories of branches that move rows, beside a model that goes by label.

A merge goes by position, so where rows have moved it may report a conflict that the model does not have. What it makes
without a conflict is what the model makes. Half of the histories have the values 0 and 1 only: an element that was
written to a wrong row often has the value there that the base had at this position.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import xarray as xr
import zarr

import txstore
from tests.merging import recursive
from tests.merging.recursive import History, Merge, Node

NAMES = ("v", "w")
#: Each row gets a label of its own. `ROWS` is the place of the labels, in their order.
LABELS, ROWS = range(100), "rows"
STEPS = 30
#: Merges are of what a branch was up to so many commits ago: then the two often have several best common ancestors.
RECENT = 10
Change = Callable[[txstore.TxStore], object]


def _place(name: str, label: int) -> str:
    return f"{name}[{label}]"


def found(store: txstore.TxStore) -> dict[str, Any]:
    """Return the values of all places; None where there is no such row."""
    time, *arrays = (zarr.open_array(store, path=name, mode="r")[:].tolist() for name in ("time", *NAMES))
    assert len({len(time), *map(len, arrays)}) == 1, "rows of one array are beside none of another"
    values: dict[str, Any] = {_place(name, label): None for name in NAMES for label in LABELS}
    for name, array in zip(NAMES, arrays, strict=True):
        values |= {_place(name, label): value for label, value in zip(time, array, strict=True)}
    return values | {ROWS: tuple(time)}


def _have_appended_apart(ours: Any, theirs: Any) -> bool:
    """Tell whether other rows lie at the same positions, since an answer has kept those of one side: no rows moved."""
    same = sum(1 for _ in itertools.takewhile(lambda two: two[0] == two[1], zip(ours, theirs, strict=False)))
    return 0 < same < min(len(ours), len(theirs)) and {*ours[same:]}.isdisjoint(theirs)


class Player:
    """One history. `counts` says what it was made of; an `AssertionError` what no merge by label makes."""

    def __init__(self, seed: int, directory: Path, counts: Counter[str]) -> None:
        self.random = random.Random(seed)
        self.is_unique = bool(seed % 2)
        self.written = 1
        self.counts = counts
        self.repo = txstore.Repository(directory / "data.tx", durability="none")
        self.labels = iter(LABELS)
        self.history = History()
        self.commits: dict[Node, txstore.Commit] = {}
        self.heads: dict[str, Node] = {}
        self.answered: set[Node] = set()  # made by an answer to a conflict: whose rows moved is that side's
        rows, chunks = self.rows(self.random.randint(3, 6)), self.random.randint(2, 4)
        encoding = {name: {"chunks": (chunks,)} for name in (*NAMES, "time")}
        with self.repo.transaction() as store:
            rows.to_zarr(store, mode="w", consolidated=False, encoding=encoding)
        self.note("main", found(self.repo.snapshot()))
        for number in range(1, self.random.randint(2, 3)):
            self.fork(f"b{number}", self.heads["main"])

    def play(self) -> None:
        for _ in range(STEPS):
            steps = [
                self.write,
                self.add_before,
                self.append,
                self.drop_oldest,
                self.move_rows,
                self.put_attribute,
                self.merge_from,
            ]
            step = self.random.choices([*steps, self.take_back, self.pick], [9, 3, 2, 3, 2, 2, 10, 2, 4])[0]
            step(self.random.choice([*self.heads]))

    # --- one side

    def value(self) -> int:
        self.written += 1
        return self.written if self.is_unique else self.random.randrange(2)

    def rows(self, count: int) -> xr.Dataset:
        labels = [label for label, _ in zip(self.labels, range(count), strict=False)]
        arrays = {name: ("time", np.array([self.value() for _ in labels], "i4")) for name in NAMES}
        return xr.Dataset(arrays, {"time": np.array(labels, "i8")})

    def record(self, branch: str, what: str, change: Change, expected: Mapping[str, Any] | None = None) -> None:
        before = self.repo.head(branch)
        with self.repo.transaction(branch=branch) as store:
            change(store)
        values = found(self.repo.snapshot(branch=branch))
        assert expected is None or values == expected, what
        if self.repo.head(branch) != before:
            self.counts[what] += 1
            self.note(branch, values, self.heads[branch])

    def note(self, branch: str, values: Mapping[str, Any], *parents: Node) -> None:
        head = self.repo.head(branch)
        assert head is not None
        self.heads[branch] = node = self.history.commit(values, *parents)
        self.commits[node] = head

    def fork(self, branch: str, node: Node) -> None:
        self.repo.branches[branch] = self.commits[node]
        self.heads[branch] = node

    def length(self, branch: str) -> int:
        return len(self.heads[branch].values[ROWS])  # type: ignore[arg-type]

    def write(self, branch: str) -> None:
        values, length = dict(self.heads[branch].values), self.length(branch)
        if length:
            name, at, value = self.random.choice(NAMES), self.random.randrange(length), self.value()
            values[_place(name, values[ROWS][at])] = value  # type: ignore[index]
            write = lambda store: zarr.open_array(store, path=name).__setitem__(at, value)  # noqa: E731
            self.record(branch, "writes", write, values)

    def add_before(self, branch: str) -> None:
        rows = self.rows(self.random.randint(1, 3))
        self.record(branch, "prepends", lambda store: txstore.prepend(rows, store, dim="time"))

    def append(self, branch: str) -> None:
        rows = self.rows(self.random.randint(1, 2))
        self.record(branch, "appends", lambda store: txstore.upsert(rows, store, dim="time"))

    def drop_oldest(self, branch: str) -> None:
        keep = max(1, self.length(branch) - self.random.randint(1, 3))
        self.record(branch, "rolls", lambda store: txstore.roll(store, "time", keep=keep))

    def move_rows(self, branch: str) -> None:
        rows, offset = self.rows(1), self.random.choice([1, -1])

        def shift(store: txstore.TxStore) -> None:
            for name in (*NAMES, "time"):
                store.shift(name, {0: offset}, fill=rows[name].item())

        if rows.sizes["time"] and self.length(branch):
            self.record(branch, "shifts", shift)

    def put_attribute(self, branch: str) -> None:
        """Write all attributes anew, as programs do that know of none."""
        attributes = {"n": self.random.randrange(3)}

        def put(store: txstore.TxStore) -> None:
            for name in (*NAMES, "time"):
                zarr.open_array(store, path=name).attrs.put(attributes)

        self.record(branch, "attributes", put, self.heads[branch].values)

    # --- both sides

    def merge_from(self, into: str) -> None:
        ours = self.heads[into]
        news = [node for node in self.history.nodes[-RECENT:] if node not in ours.ancestors]
        if not news:
            return
        node = self.random.choice(news)
        self.repo.branches["then"] = self.commits[node]
        bases = recursive.best_common_ancestors(ours, node)
        self.counts["merges of several bases" if len(bases) > 1 else "merges"] += 1
        since = {*bases, *((ours.ancestors | node.ancestors) - bases[0].ancestors)}
        is_plain = len(bases) == 1 and len({each.values[ROWS] for each in since}) == 1
        is_plain &= self.answered.isdisjoint(ours.ancestors | node.ancestors)
        merge = lambda resolve: self.repo.merge("then", into, resolve=resolve)  # noqa: E731
        self.agree(into, recursive.merge(ours, node), merge, node, (node,), is_plain=is_plain)
        del self.repo.branches["then"]

    def pick(self, branch: str, *, reverts: bool = False) -> None:
        node, ours = self.random.choice(self.history.nodes), self.heads[branch]
        if not node.parents:
            return
        base, theirs = (node, node.parents[0]) if reverts else (node.parents[0], node)
        self.counts["reverts" if reverts else "picks"] += 1
        method = self.repo.revert if reverts else self.repo.cherry_pick
        change = lambda resolve: method(self.commits[node], branch, resolve=resolve)  # noqa: E731
        self.agree(branch, recursive.three_way(base.values, ours.values, theirs.values), change, theirs)

    def take_back(self, branch: str) -> None:
        self.pick(branch, reverts=True)

    def agree(
        self, branch: str, expected: Merge, change: Any, theirs: Node, parents: tuple[Node, ...] = (), *,
        is_plain: bool = False,
    ) -> None:  # fmt: skip
        """Make a change; compare what comes of it. `is_plain`: no rows have moved."""
        ours, before, conflicts = self.heads[branch], self.repo.head(branch), []
        try:
            change(None)
        except txstore.MergeConflictError as error:
            conflicts = [*error.conflicts]
        if conflicts:
            self.counts["conflicts"] += 1
            is_of_attributes = all(each.fields == ("attributes.n",) for each in conflicts)
            assert not is_plain or expected.conflicts or is_of_attributes, conflicts
            answer = self.random.choice([None, "ours", "theirs"])
            if answer is None:
                return
            change({"": answer})
        values = found(self.repo.snapshot(branch=branch))
        if conflicts:
            assert values[ROWS] in [each.values[ROWS] for each in (ours, theirs)]
            wrong = [
                place
                for place, value in values.items()
                if self.is_unique and value not in {each.values[place] for each in self.history.nodes}
            ]
            assert not wrong, wrong
        else:
            self.counts["without conflicts" if is_plain else "without conflicts, rows had moved"] += 1
            if not _have_appended_apart(ours.values[ROWS], theirs.values[ROWS]):
                assert values == expected.values
                assert not expected.conflicts, expected.conflicts
        if self.repo.head(branch) != before:
            self.note(branch, values, ours, *parents)
            self.answered |= {self.heads[branch]} if conflicts else set()


def play(seed: int, counts: Counter[str]) -> None:
    """Make the history of a seed. Raises `AssertionError` for what no merge by label makes."""
    with TemporaryDirectory() as directory:
        Player(seed, Path(directory), counts).play()
