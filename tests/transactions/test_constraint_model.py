"""A model of constraints: a commit is refused if, and only if, what it would leave breaks the rule.

The same steps go to a repository without constraints, on a branch of its own for each attempt. What that holds after
the attempt is judged by the rules below, which know neither commits nor changes. Other handles commit meanwhile.
"""

import itertools
import json
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import txstore
from tests.tools.arrays import Step, array, both, delete
from txstore import ConflictError, ConstraintError
from txstore.constraints import (
    Complete,
    Constraint,
    EqualLength,
    Fixed,
    OnlyGrows,
    RequiredAttributes,
    Sorted,
    Unique,
)

WHOLE = {"config": {"write_empty_chunks": True}}
#: How arrays are stored, and what the keys of the chunks of x are called.
LAYOUTS: dict[str, tuple[dict[str, Any], str]] = {
    "format 3": ({"chunks": (3,)}, "x/c/{}"),
    "shards": ({"chunks": (2,), "shards": (4,)}, "x/c/{}"),
    "dots": ({"chunks": (3,), "chunk_key_encoding": {"name": "default", "separator": "."}}, "x/c.{}"),
    "format 2": ({"chunks": (3,), "zarr_format": 2}, "x/{}"),
}


class State(NamedTuple):
    """What a branch holds."""

    store: txstore.TxStore
    keys: dict[str, bytes]

    @classmethod
    def of(cls, repo: txstore.Repository, branch: str) -> "State":
        return cls(repo.snapshot(branch=branch), {key: bytes(v) for key, v in repo.mapping(branch=branch).items()})

    def array(self, path: str = "x") -> zarr.Array | None:
        try:
            return array(self.store, path, mode="r")
        except (KeyError, FileNotFoundError, ValueError, TypeError):  # there is none, or it is a group
            return None


#: Of an array before (None when it is declared), and after, whether it holds. `anew`: whether x was made anew.
Holds = Callable[[State | None, State, str, bool], bool]


def of_array(holds: Callable[..., bool]) -> Holds:
    """A rule of x, which has to be there."""

    def rule(before: State | None, after: State, chunk: str, anew: bool) -> bool:
        x = after.array()
        return x is not None and holds(before, after, x, chunk, anew)

    return rule


def lengths(before: Any, after: State, chunk: str, anew: bool) -> bool:
    found = [after.array(path) for path in ("x", "y")]
    return all(each is not None and each.ndim for each in found) and len({each.shape[0] for each in found}) == 1


def is_fixed(before: State | None, after: State, x: zarr.Array, *_: Any) -> bool:
    def described(z: zarr.Array) -> str:
        found = {key: value for key, value in z.metadata.to_dict().items() if key not in ("shape", "attributes")}
        return json.dumps(found, default=str)

    old = None if before is None else before.array()
    return before is None or (old is not None and described(old) == described(x))


def has_attributes(before: Any, after: State, chunk: str, anew: bool) -> bool:
    try:
        found = dict(zarr.open(after.store, path="x", mode="r").attrs)
    except (KeyError, FileNotFoundError):
        return False
    return "flag" in found and json.dumps([found["flag"], found.get("units")]) == json.dumps([True, "m"])


def only_grows(before: State | None, after: State, x: zarr.Array, chunk: str, anew: bool) -> bool:
    old = x if before is None else before.array()
    return before is None or (not anew and old.ndim == x.ndim and all(np.greater_equal(x.shape, old.shape)))


def is_complete(before: Any, after: State, x: zarr.Array, chunk: str, anew: bool) -> bool:
    if not x.ndim:
        return chunk.format(0).removesuffix("/0").removesuffix(".0") in after.keys or "x/0" in after.keys
    return all(chunk.format(n) in after.keys for n in range(math.ceil(x.shape[0] / (x.shards or x.chunks)[0])))


def ordered(compare: Callable[..., Any]) -> Holds:
    return of_array(lambda _, after, x, *rest: x.ndim == 1 and bool(np.all(compare(x[1:], x[:-1]))))


def is_unique(before: Any, after: State, x: zarr.Array, *_: Any) -> bool:
    return x.ndim == 1 and len(np.unique(x[:])) == x.shape[0]


RULES: dict[str, tuple[Constraint, Holds]] = {
    "lengths": (EqualLength(["x", "y"]), lengths),
    "fixed": (Fixed("x"), of_array(is_fixed)),
    "attributes": (RequiredAttributes("x", {"units": "m", "flag": True}), has_attributes),
    "grows": (OnlyGrows("x"), of_array(only_grows)),
    "complete": (Complete("x"), of_array(is_complete)),
    "unique": (Unique("x"), of_array(is_unique)),
    "sorted": (Sorted("x"), ordered(np.greater)),
    "sorted, not strictly": (Sorted("x", strict=False), ordered(np.greater_equal)),
    "descending": (Sorted("x", descending=True), ordered(np.less)),
}


# --- what commits do
def add(path: str, *values: int) -> Step:
    """Append labels that go on, in the order that the array has."""

    def step(store: txstore.TxStore) -> None:
        z = array(store, path)
        first, last = (int(z[0]), int(z[-1])) if z.shape[0] else (0, 0)
        sign = -1 if first > last else 1
        with zarr.config.set({"array.write_empty_chunks": True}):
            z.append(np.array([last + sign * value for value in values], z.dtype))

    return step


def put(path: str, where: int, value: int) -> Step:
    """Overwrite a label by one that is so far from what is there."""

    def step(store: txstore.TxStore) -> None:
        z = array(store, path)
        at = where % max(1, z.shape[0])
        z[at] = int(z[at]) + value

    return step


def resize(path: str, by: int) -> Step:
    return lambda store: array(store, path).resize((max(0, array(store, path).shape[0] + by),))


def values_again(path: str) -> Step:
    """Delete all chunks, and write what was there."""

    def step(store: txstore.TxStore) -> None:
        z = array(store, path)
        values = z[:]
        store.mapping.delete_dir(f"{path}/c" if z.metadata.zarr_format == 3 else path)
        z[:] = values

    return step


def by_key(change: Callable[[txstore.TxStore, str], object], chunk: str, number: int) -> Step:
    return lambda store: change(store, chunk.format(number))


def create(path: str, values: Any, options: dict[str, Any]) -> Step:
    def step(store: txstore.TxStore) -> None:
        here = {**options, "attributes": {"units": "m", "flag": True}, "overwrite": True, **WHOLE}
        zarr.create_array(store, name=path, data=np.array(values), **here)

    return step


def attribute(**values: Any) -> Step:
    return lambda store: zarr.open(store, path="x", mode="r+").attrs.update(values)


def without_attribute(store: txstore.TxStore) -> None:
    del zarr.open(store, path="x", mode="r+").attrs["units"]


def steps(options: dict[str, Any], chunk: str, start: Any) -> dict[str, Step]:
    """By name; those that begin with `anew x` make x anew."""
    other = {**options, "compressors": None}
    return {
        **{f"{path}: {n} more": add(path, *range(1, n + 1)) for path in "xy" for n in (1, 4)},
        **{f"{path}: one again": add(path, 0) for path in "xy"},
        "x: one that was": add("x", -10, 1),
        **{f"{path}: {by:+} elements": resize(path, by) for path in "xy" for by in (-3, 1, 5)},
        **{f"x: element {at} {by:+}": put("x", at, by) for at in (0, 2, 3, 7) for by in (-10, -3, 3, 30)},
        "y: element 3 +1": put("y", 3, 1),
        "x: the same": put("x", 4, 0),
        "x: all again": values_again("x"),
        "x: all chunks go": lambda store: store.mapping.delete_dir("x/c"),
        "anew x": create("x", start, options),
        "anew x, of other length": create("x", start[:4], options),
        "anew x, of other type": create("x", np.array(start, "f8"), options),
        "anew x, of other codecs": create("x", start, other),
        "anew x: a scalar": create("x", 3, {k: v for k, v in options.items() if k not in ("chunks", "shards")}),
        "anew x: a group": both(delete("x"), lambda store: zarr.create_group(store, path="x")),
        "anew x: gone": delete("x"),
        "anew y: gone": delete("y"),
        "anew x: moved and back": both(lambda s: s.move("x", "z"), lambda s: s.move("z", "x")),
        "anew x: a copy of y": both(delete("x"), lambda store: store.copy("y", "x")),
        "y: anew": create("y", start, options),
        "a chunk goes": by_key(lambda store, key: store.mapping.delete(key), chunk, 1),
        "a chunk is as another": by_key(lambda store, key: store.__setitem__(key, store[chunk.format(0)]), chunk, 1),
        "what is no chunk": by_key(lambda store, key: store.__setitem__(f"{key}?", b"1"), chunk, 1),
        "attribute: another": attribute(more=1),
        "attribute: another value": attribute(units="km"),
        "attribute: 1 is not true": attribute(flag=1),
        "attribute: back": attribute(units="m", flag=True),
        "attribute: gone": without_attribute,
        "elsewhere": create("elsewhere", [1, 1], options),
    }


class Attempts:
    """Makes each change in both repositories."""

    def __init__(self, place: str, rule: str, layout: str) -> None:
        self.plain, self.ruled = (
            txstore.Repository(f"memory://constraints/{place}-{name}.tx", durability="none")
            for name in ("plain", "ruled")
        )
        self.other = txstore.Repository(self.ruled.url, durability="none")
        self.constraint, self.holds = RULES[rule]
        options, self.chunk = LAYOUTS[layout]
        start = np.arange(10, 90, 10)[:: -1 if rule == "descending" else 1].astype("i4")
        self.steps = steps(options, self.chunk, start)
        self.branch = "main"
        self.numbers = itertools.count()
        self.settled: State | None = None  # what Fixed compares with
        for repo in (self.plain, self.ruled):
            with repo.transaction() as store:
                both(lambda store: zarr.open_group(store), *(create(path, start, options) for path in "xy"))(store)

    def state(self) -> State:
        return State.of(self.plain, self.branch)

    def declare(self) -> None:
        state = self.state()
        is_right = self.holds(None, state, self.chunk, False)
        try:
            self.ruled.constraints["it"] = self.constraint
        except (ConstraintError, txstore.errors.NodeNotFoundError):
            assert not is_right
        else:
            assert is_right
            self.settled = state

    def attempt(self, repo: txstore.Repository, names: list[str], beside: list[str] | None = None) -> None:
        branch = f"b{next(self.numbers)}"
        self.plain.branches[branch] = self.plain.head(self.branch)
        plain, ruled = self.plain.transaction("it", branch=branch), repo.transaction("it")
        try:
            both(*(self.steps[name] for name in names))(plain)
        except (KeyError, FileNotFoundError, ValueError, IndexError, txstore.TxStoreError, TypeError):
            plain.rollback()  # there is no such array by now
            ruled.rollback()
            return
        both(*(self.steps[name] for name in names))(ruled)
        if beside:
            at = self.branch
            self.attempt(self.other, beside)
            if self.branch != at:
                with self.plain.transaction("beside", branch=branch) as store:
                    both(*(self.steps[name] for name in beside))(store)
        before = self.state()
        try:
            plain.commit()
        except ConflictError:
            plain.rollback()
            with pytest.raises((ConflictError, ConstraintError)):
                ruled.commit()
            ruled.rollback()
            return
        after = State.of(self.plain, branch)
        anew = any(name.startswith("anew x") for name in names)
        reference = self.settled if isinstance(self.constraint, Fixed) else before
        if self.settled is None or self.holds(reference, after, self.chunk, anew):
            ruled.commit()
            self.branch = branch
        else:
            head = self.ruled.head()
            with pytest.raises(ConstraintError):
                ruled.commit()
            ruled.rollback()
            assert self.ruled.head() == head
        assert State.of(self.ruled, "main").keys == self.state().keys


NAMES = st.lists(st.sampled_from(sorted(steps({}, "", [0]))), min_size=1, max_size=2)
#: What is done first, without the constraint; then by two handles in turn, and beside them.
HISTORIES = st.tuples(
    st.lists(NAMES, max_size=2),
    st.lists(st.tuples(st.booleans(), NAMES, st.one_of(st.none(), NAMES)), min_size=6, max_size=12),
)
PLACES = itertools.count()


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=int(os.environ.get("TXSTORE_MODEL_EXAMPLES", "20")), deadline=None)
@given(layout=st.sampled_from(sorted(LAYOUTS)), history=HISTORIES)
def test_a_commit_is_refused_if_and_only_if_it_breaks_the_rule(
    rule: str, layout: str, history: tuple[list[list[str]], list[tuple[bool, list[str], list[str] | None]]]
) -> None:
    attempts = Attempts(f"{rule}-{next(PLACES)}", rule, layout)
    first, then = history
    for names in first:
        attempts.attempt(attempts.ruled, names)
    attempts.declare()
    for is_other, names, beside in then:
        attempts.attempt(attempts.other if is_other else attempts.ruled, names, beside)
    assert not attempts.ruled.verify().faults
