"""Random histories of branches that move rows, beside a model that goes by label.

A merge goes by position, so where rows have moved it may report a conflict that the model does not have. What it makes
without a conflict is what the model makes. Half of the histories have the values 0 and 1 only: an element that was
written to a wrong row often has the value there that the base had at this position.
"""

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


class Player:
    """One history. `counts` says what it was made of; an `AssertionError` what no merge by label makes."""

    def __init__(self, seed: int, directory: Path, counts: Counter[str]) -> None:
        self._random = random.Random(seed)
        self._is_unique = bool(seed % 2)
        self._written = 1
        self._counts = counts
        self._repo = txstore.Repository(directory / "data.tx", durability="none")
        self._labels = iter(LABELS)
        self._history = History()
        self._commits: dict[Node, txstore.Commit] = {}
        self._heads: dict[str, Node] = {}
        rows, chunks = self._rows(self._random.randint(3, 6)), self._random.randint(2, 4)
        encoding = {name: {"chunks": (chunks,)} for name in (*NAMES, "time")}
        with self._repo.transaction() as store:
            rows.to_zarr(store, mode="w", consolidated=False, encoding=encoding)
        self._note("main", found(self._repo.snapshot()))
        for number in range(1, self._random.randint(2, 3)):
            self._fork(f"b{number}", self._heads["main"])

    def play(self) -> None:
        for _ in range(STEPS):
            steps = [self._write, self._prepend, self._append, self._roll, self._shift, self._put, self._merge]
            step = self._random.choices([*steps, self._revert, self._pick], [9, 3, 2, 3, 2, 2, 10, 2, 4])[0]
            step(self._random.choice([*self._heads]))

    # --- one side

    def _value(self) -> int:
        self._written += 1
        return self._written if self._is_unique else self._random.randrange(2)

    def _rows(self, count: int) -> xr.Dataset:
        labels = [label for label, _ in zip(self._labels, range(count), strict=False)]
        arrays = {name: ("time", np.array([self._value() for _ in labels], "i4")) for name in NAMES}
        return xr.Dataset(arrays, {"time": np.array(labels, "i8")})

    def _commit(self, branch: str, what: str, change: Change, expected: Mapping[str, Any] | None = None) -> None:
        before = self._repo.head(branch)
        with self._repo.transaction(branch=branch) as store:
            change(store)
        values = found(self._repo.snapshot(branch=branch))
        assert expected is None or values == expected, what
        if self._repo.head(branch) != before:
            self._counts[what] += 1
            self._note(branch, values, self._heads[branch])

    def _note(self, branch: str, values: Mapping[str, Any], *parents: Node) -> None:
        head = self._repo.head(branch)
        assert head is not None
        self._heads[branch] = node = self._history.commit(values, *parents)
        self._commits[node] = head

    def _fork(self, branch: str, node: Node) -> None:
        self._repo.branches[branch] = self._commits[node]
        self._heads[branch] = node

    def _length(self, branch: str) -> int:
        return len(self._heads[branch].values[ROWS])  # type: ignore[arg-type]

    def _write(self, branch: str) -> None:
        values, length = dict(self._heads[branch].values), self._length(branch)
        if length:
            name, at, value = self._random.choice(NAMES), self._random.randrange(length), self._value()
            values[_place(name, values[ROWS][at])] = value  # type: ignore[index]
            write = lambda store: zarr.open_array(store, path=name).__setitem__(at, value)  # noqa: E731
            self._commit(branch, "writes", write, values)

    def _prepend(self, branch: str) -> None:
        rows = self._rows(self._random.randint(1, 3))
        self._commit(branch, "prepends", lambda store: txstore.prepend(rows, store, dim="time"))

    def _append(self, branch: str) -> None:
        rows = self._rows(self._random.randint(1, 2))
        self._commit(branch, "appends", lambda store: txstore.upsert(rows, store, dim="time"))

    def _roll(self, branch: str) -> None:
        keep = max(1, self._length(branch) - self._random.randint(1, 3))
        self._commit(branch, "rolls", lambda store: txstore.roll(store, "time", keep=keep))

    def _shift(self, branch: str) -> None:
        rows, offset = self._rows(1), self._random.choice([1, -1])

        def shift(store: txstore.TxStore) -> None:
            for name in (*NAMES, "time"):
                store.shift(name, {0: offset}, fill=rows[name].item())

        if rows.sizes["time"] and self._length(branch):
            self._commit(branch, "shifts", shift)

    def _put(self, branch: str) -> None:
        """Write all attributes anew, as programs do that know of none."""
        attributes = {"n": self._random.randrange(3)}

        def put(store: txstore.TxStore) -> None:
            for name in (*NAMES, "time"):
                zarr.open_array(store, path=name).attrs.put(attributes)

        self._commit(branch, "attributes", put, self._heads[branch].values)

    # --- both sides

    def _merge(self, into: str) -> None:
        ours = self._heads[into]
        news = [node for node in self._history.nodes[-RECENT:] if node not in ours.ancestors]
        if not news:
            return
        node = self._random.choice(news)
        self._repo.branches["then"] = self._commits[node]
        bases = recursive.best_common_ancestors(ours, node)
        self._counts["merges of several bases" if len(bases) > 1 else "merges"] += 1
        since = {*bases, *((ours.ancestors | node.ancestors) - bases[0].ancestors)}
        is_plain = len(bases) == 1 and len({each.values[ROWS] for each in since}) == 1
        merge = lambda resolve: self._repo.merge("then", into, resolve=resolve)  # noqa: E731
        self._agree(into, recursive.merge(ours, node), merge, node, (node,), is_plain=is_plain)
        del self._repo.branches["then"]

    def _pick(self, branch: str, *, reverts: bool = False) -> None:
        node, ours = self._random.choice(self._history.nodes), self._heads[branch]
        if not node.parents:
            return
        base, theirs = (node, node.parents[0]) if reverts else (node.parents[0], node)
        self._counts["reverts" if reverts else "picks"] += 1
        method = self._repo.revert if reverts else self._repo.cherry_pick
        change = lambda resolve: method(self._commits[node], branch, resolve=resolve)  # noqa: E731
        self._agree(branch, recursive.three_way(base.values, ours.values, theirs.values), change, theirs)

    def _revert(self, branch: str) -> None:
        self._pick(branch, reverts=True)

    def _agree(
        self, branch: str, expected: Merge, change: Any, theirs: Node, parents: tuple[Node, ...] = (), *,
        is_plain: bool = False,
    ) -> None:  # fmt: skip
        """Make a change; compare what comes of it. `is_plain`: no rows have moved."""
        ours, before, conflicts = self._heads[branch], self._repo.head(branch), []
        try:
            change(None)
        except txstore.MergeConflictError as error:
            conflicts = [*error.conflicts]
        if conflicts:
            self._counts["conflicts"] += 1
            is_of_attributes = all(each.fields == ("attributes.n",) for each in conflicts)
            assert not is_plain or expected.conflicts or is_of_attributes, conflicts
            answer = self._random.choice([None, "ours", "theirs"])
            if answer is None:
                return
            change({"": answer})
        values = found(self._repo.snapshot(branch=branch))
        if conflicts:
            assert values[ROWS] in [each.values[ROWS] for each in (ours, theirs)]
            wrong = [
                place
                for place, value in values.items()
                if self._is_unique and value not in {each.values[place] for each in self._history.nodes}
            ]
            assert not wrong, wrong
        else:
            self._counts["without conflicts" if is_plain else "without conflicts, rows had moved"] += 1
            assert values == expected.values
            assert not expected.conflicts, expected.conflicts
        if self._repo.head(branch) != before:
            self._note(branch, values, ours, *parents)


def play(seed: int, counts: Counter[str]) -> None:
    """Make the history of a seed. Raises `AssertionError` for what no merge by label makes."""
    with TemporaryDirectory() as directory:
        Player(seed, Path(directory), counts).play()
