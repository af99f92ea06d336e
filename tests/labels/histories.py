"""Random histories of four processes that write one table by label and by position, checked in the order of commits.

Each commit's message says what it was meant to do. A model, which is a list of rows, does the same, one commit
after the other, and has to be equal to what each commit holds. Workers are killed now and then.

    python -m tests.labels --histories 5000 --seed 1
"""

import json
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

import txstore
from tests.tools.crew import Crew, WrongError, repeat

OPERATIONS = 4
LABELS = range(0, 60, 2)
GRIDS: list[dict[str, Any]] = [{"chunks": (4, 2)}, {"chunks": (3, 1)}, {"chunks": (2, 2), "shards": (4, 2)}]
Rows = list[tuple[int, int]]


def table(rows: Mapping[int, int]) -> xr.Dataset:
    """Return rows with two variables, both of which say the value."""
    values = np.array(list(rows.values()), "i8")
    return xr.Dataset(
        {"v": (("time", "x"), np.stack([values, values * 3], axis=1) if len(rows) else np.zeros((0, 2), "i8")),
         "w": ("time", values.astype("f8"))},
        {"time": np.array(list(rows), "i8")},
    )  # fmt: skip


def begin(repo: txstore.Repository, drawn: random.Random) -> Rows:
    rows = {label: drawn.randrange(1000) for label in sorted(drawn.sample(LABELS, drawn.randrange(1, 12)))}
    grid = drawn.choice(GRIDS)
    encoding = {"v": grid, "w": {"chunks": (4,)}, "time": {"chunks": (drawn.choice([3, 64]),)}}
    with repo.transaction() as store:
        table(rows).to_zarr(store, encoding=encoding, consolidated=False)
    return list(rows.items())


# --- what workers do
@dataclass
class Report:
    """What a worker says of its operations, by their names."""

    done: dict[str, tuple[int, int]] = field(default_factory=dict)
    refused: dict[str, list[int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


def _rows(drawn: random.Random, labels: list[int]) -> dict[int, int]:
    return {label: drawn.randrange(1000) for label in labels}


def _new_value(drawn: random.Random) -> int:
    """Return a value that no element has: to write the one that is there is no change, and others' changes stand."""
    return drawn.randrange(1000, 10**9)


def _own_rows(drawn: random.Random, count: int) -> dict[int, int]:
    """Return rows with labels that nobody else has."""
    return _rows(drawn, [1001 + 2 * drawn.randrange(10**12) for _ in range(count)])


def _upsert(repo: txstore.Repository, name: str, drawn: random.Random, report: Report) -> None:
    rows = _rows(drawn, drawn.sample(LABELS, drawn.randrange(1, 5)))
    missing = "insert" if _is_ordered(name) else drawn.choice(["append", "insert"])
    modes = {"existing": drawn.choice(["update", "update", "keep"]), "missing": missing}
    ds = table(rows).chunk(time=2) if drawn.random() < 0.2 else table(rows)
    told = {"op": "upsert", "name": name, "rows": list(rows.items()), **modes}
    try:
        found = repo.upsert(ds, message=json.dumps(told), timeout=300, **modes)  # type: ignore[arg-type]
    except txstore.LabelConflictError as conflict:
        report.refused[name] = [int(label) for label in conflict.labels["time"]]
    except ValueError as error:
        if "in no order" not in str(error):
            raise
        report.counts["in no order"] += 1
    else:
        report.done[name] = (found.updated, found.inserted)


def _prepend(repo: txstore.Repository, name: str, drawn: random.Random, report: Report) -> None:
    rows = _own_rows(drawn, drawn.choice([1, 4, 4]))
    repo.run(
        lambda store: txstore.prepend(table(rows), store, dim="time"), timeout=300,
        message=json.dumps({"op": "prepend", "name": name, "rows": list(rows.items())}),
    )  # fmt: skip


def _roll(repo: txstore.Repository, name: str, drawn: random.Random, report: Report) -> None:
    keep = drawn.choice([4, 8, 12])
    repo.run(
        lambda store: txstore.roll(store, "time", keep=keep), timeout=300,
        message=json.dumps({"op": "roll", "name": name, "keep": keep}),
    )  # fmt: skip


def _write(repo: txstore.Repository, name: str, drawn: random.Random, report: Report) -> None:
    """One element, by its position, as programs do that know nothing of labels."""
    store = repo.transaction()
    try:
        labels = zarr.open_array(store, path="time", mode="r")[:]
        if len(labels):
            at, value = drawn.randrange(len(labels)), _new_value(drawn)
            zarr.open_array(store, path="v")[at] = [value, value * 3]
            zarr.open_array(store, path="w")[at] = value
            store.commit(json.dumps({"op": "write", "name": name, "label": int(labels[at]), "at": at, "value": value}))
    except (txstore.ConflictError, txstore.StaleArrayError):
        report.counts["refused write"] += 1
    finally:
        store.rollback()


def _follow(repo: txstore.Repository, name: str, drawn: random.Random, report: Report) -> None:
    """One element, by its position, merged with what others wrote: if rows move meanwhile, it is refused."""
    store = repo.transaction(on_conflict="merge")
    try:
        labels = zarr.open_array(store, path="time", mode="r")[:]
        if len(labels) and store.base is not None:
            at, value = drawn.randrange(len(labels)), _new_value(drawn)
            zarr.open_array(store, path="v")[at] = [value, value * 3]
            zarr.open_array(store, path="w")[at] = value
            time.sleep(drawn.choice([0, 0.05]))
            told = {"op": "follow", "name": name, "label": int(labels[at]), "value": value, "base": store.base.version}
            store.commit(json.dumps(told))
    except (txstore.ConflictError, txstore.StaleArrayError):
        report.counts["refused follow"] += 1
    finally:
        store.rollback()


def _rename(repo: txstore.Repository, name: str, drawn: random.Random, report: Report) -> None:
    """One label, by its position, to one that others look for, too."""
    store = repo.transaction()
    try:
        array = zarr.open_array(store, path="time")
        labels = array[:].tolist()
        free = [label for label in LABELS if label not in labels]
        if labels and free:
            at, new = drawn.randrange(len(labels)), drawn.choice(free)
            array[at] = new
            store.rely_on(f"time/c/{chunk}" for chunk in range(-(-len(labels) // array.chunks[0])))  # none is twice
            store.commit(json.dumps({"op": "rename", "name": name, "label": labels[at], "new": new}))
    except (txstore.ConflictError, txstore.StaleArrayError):
        report.counts["refused rename"] += 1
    finally:
        store.rollback()


def _append(repo: txstore.Repository, name: str, drawn: random.Random, report: Report) -> None:
    """With xarray alone."""
    rows = _own_rows(drawn, drawn.randrange(1, 4))

    def step(store: txstore.TxStore) -> None:
        table(rows).to_zarr(store, append_dim="time", consolidated=False)

    repo.run(step, timeout=300, message=json.dumps({"op": "append", "name": name, "rows": list(rows.items())}))


def _shift(repo: txstore.Repository, name: str, drawn: random.Random, report: Report) -> None:
    """Rows that move within the arrays, and new ones in the places that get free."""
    offset = drawn.choice([-4, -1, 1, 2, 4])
    rows = _own_rows(drawn, abs(offset))

    def step(store: txstore.TxStore) -> None:
        new = table(rows)
        for path in ("v", "w", "time"):
            store.shift(path, {0: offset})
            array, values = zarr.open_array(store, path=path), new[path].values
            free, given = slice(0, offset), values[: array.shape[0]]
            if offset < 0:
                free, given = slice(max(0, array.shape[0] + offset), None), values[-array.shape[0] :]
            if array.shape[0]:
                array[free] = given

    told = {"op": "shift", "name": name, "offset": offset, "rows": list(rows.items())}
    repo.run(step, timeout=300, message=json.dumps(told))


def _rechunk(repo: txstore.Repository, name: str, drawn: random.Random, report: Report) -> None:
    """Other chunks, while others write."""
    path = drawn.choice(["v", "v", "w", "time"])
    grid = drawn.choice(GRIDS) if path == "v" else {"chunks": (drawn.choice([2, 3, 4, 64]),)}
    told = json.dumps({"op": "rechunk", "name": name})
    try:
        repo.rechunk(path, **grid, name=name.replace("/", "-"), workers=1, message=told, timeout=300)
    except txstore.ConflictError as error:
        if "while it was rechunked" not in str(error):
            raise
        report.counts["refused rechunk"] += 1


WORK = [_upsert, _upsert, _upsert, _write, _follow, _follow, _roll, _rechunk, _rename, _prepend, _append, _shift]
#: What keeps labels in order.
ORDERED = WORK[:-4]


def _is_ordered(name: str) -> bool:
    """Tell whether the labels of a history stay in order: in half of them."""
    return int(name.partition("/")[0]) % 2 == 0


def work(path: str, seed: str) -> Report:
    drawn, report = random.Random(seed), Report()
    repo = txstore.Repository(path, durability="none")
    for number in range(OPERATIONS):
        drawn.choice(ORDERED if _is_ordered(seed) else WORK)(repo, f"{seed}/{number}", drawn, report)
    return report


# --- the model
def apply(rows: Rows, told: Mapping[str, Any]) -> tuple[Rows, tuple[int, int]]:
    """Return the rows after a commit, and how many labels it changed and added."""
    before = dict(rows)
    match told["op"]:
        case "upsert":
            given = dict(told["rows"])
            new = [(label, value) for label, value in given.items() if label not in before]
            changed = {} if told["existing"] == "keep" else {
                label: value for label, value in given.items() if before.get(label, value) != value
            }  # fmt: skip
            found = [(label, changed.get(label, value)) for label, value in rows]
            found = _inserted(found, new) if told["missing"] == "insert" else [*found, *new]
            return found, (len(changed), len(new))
        case "prepend":
            return [*map(tuple, told["rows"]), *rows], (0, len(told["rows"]))
        case "append":
            return [*rows, *map(tuple, told["rows"])], (0, len(told["rows"]))
        case "shift":
            new, offset = [*map(tuple, told["rows"])], told["offset"]
            moved = [*new, *rows][: len(rows)] if offset > 0 else [*rows, *new][len(new) :]
            return moved, (0, 0)
        case "rechunk":
            return rows, (0, 0)
        case "roll":
            return rows[max(0, len(rows) - told["keep"]) :], (0, 0)
        case "write":
            at = told["at"]
            return [*rows[:at], (rows[at][0], told["value"]), *rows[at + 1 :]], (1, 0)
        case "follow":
            return [(label, told["value"] if label == told["label"] else value) for label, value in rows], (1, 0)
        case "rename":
            return [(told["new"] if label == told["label"] else label, value) for label, value in rows], (1, 0)
    raise WrongError(f"what is {told}?")


def _inserted(rows: Rows, new: Rows) -> Rows:
    labels = [label for label, _ in rows]
    if not new:
        return rows
    if labels != sorted(labels) and labels == sorted(labels, reverse=True):
        return sorted([*rows, *new], reverse=True)
    return sorted([*rows, *new])


def check(repo: txstore.Repository, rows: Rows, reports: list[Report]) -> Counter[str]:
    """Raise `WrongError` unless each commit holds what the model says."""
    counts: Counter[str] = Counter()
    done = {name: each for report in reports for name, each in report.done.items()}
    touched: dict[str, set[int]] = {}
    renamed: list[tuple[int, int, int]] = []  # the version, and the label before and after
    for commit in sorted(repo.log(), key=lambda each: each.version)[1:]:
        told = json.loads(commit.message)
        if told["op"] == "rename":
            renamed.append((commit.version, told["label"], told["new"]))
        if told["op"] == "follow":
            for version, before, after in renamed:
                if version > told["base"] and before == told["label"]:
                    told["label"] = after
        rows, counted = apply(rows, told)
        found = repo.snapshot(at=commit.version)
        labels = zarr.open_array(found, path="time", mode="r")[:].tolist()
        if len(set(labels)) != len(labels):
            raise WrongError(f"version {commit.version}: labels are there twice: {labels}")
        values = [value for _, value in rows]
        stored = {name: zarr.open_array(found, path=name, mode="r")[:].tolist() for name in ("v", "w")}
        wanted = {"v": [[value, value * 3] for value in values], "w": values}
        if labels != [label for label, _ in rows] or stored != wanted:
            raise WrongError(f"version {commit.version}, {told}: {labels} {stored}, should be {rows}")
        if told["op"] == "upsert" and done.get(told["name"], counted) != counted:
            raise WrongError(f"version {commit.version}, {told}: counted {done[told['name']]}, should be {counted}")
        touched[told["name"]] = {label for label, _ in told.get("rows", [[told.get("label"), 0], [told.get("new"), 0]])}
        counts[told["op"]] += 1
    for report in reports:
        for name, labels in report.refused.items():
            others = set().union(*(each for other, each in touched.items() if other != name))
            # A row that a roll or a shift dropped is a change of it, too.
            if not set(labels) & others and not counts["roll"] and not counts["shift"]:
                raise WrongError(f"{name} was refused for {labels}, which nobody else has changed")
            counts["refused upsert"] += 1
        counts += report.counts
    if counts["refused rechunk"] and not counts["rechunk"]:
        raise WrongError("a rechunk was refused, and nobody else has rechunked")
    if faults := repo.verify().faults:
        raise WrongError(f"verify: {faults}")
    return counts


# --- running
def history(crew: Crew, directory: Path, seed: int) -> Counter[str]:
    """Make one history and check it. Raise `WrongError`."""
    drawn = random.Random(seed)
    repo = txstore.Repository(directory / "data.tx", durability="none")
    rows = begin(repo, drawn)
    return check(repo, rows, crew.run(directory / "data.tx", seed, drawn))


def histories(count: int, seed: int) -> Counter[str]:
    crew = Crew(work)
    try:
        return repeat(partial(history, crew), count, seed)
    finally:
        crew.close()
