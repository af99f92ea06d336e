"""Random histories of four processes that change the sources of views. At each commit, each output is what numpy makes.

python -m tests.views --histories 2000 --seed 1
"""

import contextlib
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import txstore
from tests.tools.arrays import HAS_RECTILINEAR
from tests.tools.crew import Crew, WrongError, repeat
from tests.views.functions import blurred
from txstore.views import Apply, Coarsen, Reduce, ViewDefinition
from txstore.views.following import DeclaredView

OPERATIONS = 4
ANSWERS = [None, {"": "ours"}, {"": "theirs"}]


# --- what numpy makes
def numbers(array: zarr.Array) -> np.ndarray:
    """Return the elements as the numbers that they are: with `_Unsigned`, not those that are stored."""
    found: np.ndarray = array[...]  # type: ignore[assignment]
    return found.view(f"u{found.itemsize}") if array.attrs.get("_Unsigned") == "true" else found


def missing_of(array: zarr.Array) -> list[Any]:
    """Return what stands for no value, as the numbers that they are."""
    told = array.fill_value if array.metadata.zarr_format == 2 else array.attrs.get("_FillValue")
    own = numbers(array).dtype
    return [] if told is None else list(np.array([told]).astype(array.dtype).view(own))


def coarsened(source: np.ndarray, factors: tuple[int, ...], method: str, missing: list[Any]) -> np.ndarray:
    shape = [-(-extent // factor) for extent, factor in zip(source.shape, factors, strict=True)]
    found = np.empty(shape, source.dtype)
    for place in np.ndindex(*shape):
        block = source[tuple(slice(at * factor, (at + 1) * factor) for at, factor in zip(place, factors, strict=True))]
        found[place] = one(block, method, source.dtype, missing)
    return found


def one(block: np.ndarray, method: str, dtype: Any, missing: list[Any]) -> Any:
    if method == "nearest":
        return block.flat[0]
    values = block[~np.isnan(block)] if block.dtype.kind == "f" else block.ravel()
    values = values[~np.isin(values, missing)]
    if method == "count":
        return len(values)
    if not len(values):
        return np.nan if np.dtype(dtype).kind == "f" else [*missing, 0][0]
    if method == "mode":
        kinds, counts = np.unique(values, return_counts=True)
        return kinds[np.argmax(counts)]
    found = getattr(np, method)(values.astype("f8") if method == "mean" else values)
    return np.rint(found) if np.dtype(dtype).kind in "iu" else found


def expected(view: ViewDefinition, array: zarr.Array) -> list[np.ndarray]:
    source, missing = numbers(array), missing_of(array)
    match view:
        case Coarsen():
            found = []
            for _ in range(view.levels):
                source = coarsened(source, tuple(view.factors), view.method, missing)
                found.append(source)
            return found
        case Reduce():
            moved = np.moveaxis(source, 0 if view.dim == "y" else 1, 0)
            dtype = "i8" if view.method == "count" else "f8"
            made = np.empty(moved.shape[1:], dtype if view.method in ("count", "mean") else source.dtype)
            for place in np.ndindex(*made.shape):
                made[place] = one(moved[(slice(None), *place)], view.method, made.dtype, missing)
            return [made]
        case Apply():
            stored: np.ndarray = array[...]  # type: ignore[assignment]
            made = blurred(stored)
            if stored.dtype.kind in "iu":
                limits = np.iinfo(stored.dtype)
                made = np.clip(np.rint(made), limits.min, limits.max)
            return [made.astype(stored.dtype)]
    raise WrongError(f"what is {view}?")


def check(repo: txstore.Repository) -> Counter[str]:
    """Raise `WrongError` unless at each commit of each branch each output is what its source makes it."""
    counts: Counter[str] = Counter()
    for branch in repo.branches:
        for commit in repo.log(branch):
            found = repo.snapshot(at=commit.version, branch=branch)
            for name, view in found.views.items():
                is_current = (
                    DeclaredView(name, view, repo).is_current(commit.version, branch=branch)
                    if view.when == "follow"
                    else True
                )
                counts["current" if is_current else "behind"] += view.when == "follow"
                if not is_current:
                    continue
                source = zarr.open_array(found, path=view.sources[0], mode="r")
                for output, wanted in zip(view.outputs, expected(view, source), strict=True):
                    made = zarr.open_array(found, path=output, mode="r")
                    held = made[...] if isinstance(view, Apply) else numbers(made)
                    if held.shape != wanted.shape or not np.allclose(held, wanted, rtol=1e-12, equal_nan=True):
                        raise WrongError(
                            f"{branch}@{commit.version} ({commit.message}): {output} of {name}, {view}:\n"
                            f"{held}\nshould be\n{wanted}\nof\n{numbers(source)}, without {missing_of(source)}"
                        )
                    counts["compared"] += 1
    if faults := repo.verify().faults:
        raise WrongError(f"verify: {faults}")
    return counts


# --- what workers do
def _values(drawn: random.Random, array: zarr.Array, shape: tuple[int, ...]) -> np.ndarray:
    most, step = drawn.choice([2, 16, 16]), 17 if array.dtype.kind == "i" and array.dtype.itemsize == 1 else 1
    drawn_values = [drawn.randrange(most) * step for _ in range(int(np.prod(shape)))]
    values = np.array(drawn_values).reshape(shape).astype(array.dtype)
    if array.dtype.kind == "f" and drawn.random() < 0.3:
        values[values < 4] = np.nan
    return values


def _region(drawn: random.Random, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
    if not all(shape):
        return None
    begins = [drawn.randrange(extent) for extent in shape]
    return tuple(slice(begin, drawn.randrange(begin, extent) + 1) for begin, extent in zip(begins, shape, strict=True))


def _fill(store: txstore.TxStore, path: str, drawn: random.Random) -> None:
    array = zarr.open_array(store, path=path)
    if (region := _region(drawn, array.shape)) is not None:
        array[region] = _values(drawn, array, tuple(each.stop - each.start for each in region))


def write(store: txstore.TxStore, drawn: random.Random) -> None:
    _fill(store, "image/0", drawn)


def write_output(store: txstore.TxStore, drawn: random.Random) -> None:
    """What is written to an output is replaced."""
    views = store.views
    if views:
        output = drawn.choice(views[drawn.choice(list(views))].outputs)
        if _is_there(store, output):  # a revert may have deleted it
            _fill(store, output, drawn)


def _is_there(store: txstore.TxStore, path: str) -> bool:
    return f"{path}/zarr.json" in store or f"{path}/.zarray" in store


def resize(store: txstore.TxStore, drawn: random.Random) -> None:
    array = zarr.open_array(store, path="image/0")
    array.resize(tuple(max(0, extent + drawn.randrange(-4, 5)) for extent in array.shape))
    if drawn.random() < 0.5:
        _fill(store, "image/0", drawn)


def remake(store: txstore.TxStore, drawn: random.Random) -> None:
    array = zarr.open_array(store, path="image/0")
    made = zarr.create_array(
        store, name="image/0", shape=array.shape, dtype=array.dtype, fill_value=array.fill_value, overwrite=True,
        chunks=(drawn.randrange(1, 5), drawn.randrange(1, 5)), zarr_format=array.metadata.zarr_format,
        dimension_names=("y", "x") if array.metadata.zarr_format == 3 else None,
    )  # fmt: skip
    kept = drawn.random() < 0.7
    made.attrs.update({name: each for name, each in array.attrs.items() if kept or name == "_ARRAY_DIMENSIONS"})
    _fill(store, "image/0", drawn)


def shift(store: txstore.TxStore, drawn: random.Random) -> None:
    store.shift("image/0", {drawn.randrange(2): drawn.choice([-4, -2, -1, 1, 2, 4])})


def restore(store: txstore.TxStore, drawn: random.Random) -> None:
    if store.base is not None:
        store.restore("image/0", at=drawn.randrange(store.base.version + 1))


def redeclare(store: txstore.TxStore, drawn: random.Random) -> None:
    names = list(store.views)
    if names and drawn.random() < 0.3:
        del store.views[drawn.choice(names)]
    else:
        declare(store, drawn)


def declare(store: txstore.TxStore, drawn: random.Random) -> None:
    name = drawn.choice(["pyramid", "profile", "blurred"])
    when = drawn.choice(["commit", "commit", "follow"])
    methods = ["mean", "min", "max", "mode", "nearest"]
    if name == "pyramid":
        factors = drawn.choice([(2, 2), (1, 2), (3, 2)])
        view: ViewDefinition = Coarsen(
            "image/0", "image/{level}", factors, drawn.randrange(1, 4), drawn.choice(methods)
        )  # type: ignore[arg-type]
    elif name == "profile":
        view = Reduce(
            "image/0", drawn.choice("yx"), drawn.choice(["mean", "min", "max", "count"]), "profile", when=when
        )  # type: ignore[arg-type]
    else:
        view = Apply(blurred, ["image/0"], "blurred", overlap=1, when=when)
    for output in view.outputs:  # of another type or shape, perhaps
        if _is_there(store, output):
            zarr.open_group(store, mode="a").__delitem__(output)
    store.views[name] = view


IN_ONE = [write, write, write, write, write_output, resize, resize, remake, shift, restore, redeclare]


def work(path: str, seed: str) -> Counter[str]:
    drawn, counts = random.Random(seed), Counter[str]()
    repo = txstore.Repository(path, durability="none")
    for number in range(OPERATIONS):
        operate = drawn.choice([*IN_ONE, *IN_ONE, branch, merge, merge, revert, update, update])
        state = drawn.getstate()

        def step(store: txstore.TxStore, operate: Any = operate, state: Any = state) -> None:
            again = random.Random()
            again.setstate(state)
            operate(store, again)

        try:
            if operate in (branch, merge, revert, update):
                operate(repo, drawn, f"{seed}/{number}")
            elif drawn.random() < 0.6:
                repo.run(step, timeout=300, message=operate.__name__)
            else:
                options: dict[str, Any] = {"on_conflict": "merge"} if drawn.random() < 0.5 else {}
                with repo.transaction(operate.__name__, **options) as store:
                    step(store)
        except (txstore.ConflictError, txstore.MergeConflictError, txstore.TransactionStateError) as error:
            counts[f"{operate.__name__}: {type(error).__name__}"] += 1
        except txstore.ViewError as error:  # a branch has made a source anew, with other dimensions, say
            counts[f"{operate.__name__}: {error.reason}"] += 1
        drawn.random()
        counts[operate.__name__] += 1
    return counts


def branch(repo: txstore.Repository, drawn: random.Random, name: str) -> None:
    made = f"b{name.replace('/', '-')}"
    repo.branches[made] = repo.head()
    with repo.transaction("on a branch", branch=made) as store:
        write(store, drawn)
    with repo.transaction("on a branch", branch=made) as store:
        drawn.choice(IN_ONE)(store, drawn)


def merge(repo: txstore.Repository, drawn: random.Random, name: str) -> None:
    others = [each for each in repo.branches if each != "main"]
    if others:
        repo.merge(drawn.choice(others), resolve=drawn.choice(ANSWERS))


def update(repo: txstore.Repository, drawn: random.Random, name: str) -> None:
    names = [name for name, view in repo.snapshot().views.items() if view.when == "follow"]
    if names:
        with contextlib.suppress(KeyError, ValueError):  # another process has dropped it, or declared it anew
            repo.views[drawn.choice(names)].update(step=drawn.choice([200, 1000, 1 << 30]))


def revert(repo: txstore.Repository, drawn: random.Random, name: str) -> None:
    head = repo.head()
    if head is not None and head.version > 1:
        repo.revert(drawn.randrange(1, head.version + 1), resolve=drawn.choice(ANSWERS))


# --- running
def begin(repo: txstore.Repository, drawn: random.Random) -> None:
    shape = (drawn.randrange(1, 12), drawn.randrange(1, 12))
    dtype = drawn.choice(["u1", "i1", "i4", "f8"])
    attributes: dict[str, Any] = {"_Unsigned": "true"} if dtype == "i1" else {}
    grid: dict[str, Any] = drawn.choice(
        [{"chunks": (2, 2)}, {"chunks": (3, 4)}, {"chunks": (5, 1)}, {"chunks": (2, 2), "shards": (4, 4)}]
    )
    with repo.transaction("begin") as store:
        if HAS_RECTILINEAR and drawn.random() < 0.2:
            made = zarr.create_array(
                store, name="image/0", shape=shape, dtype=dtype, dimension_names=("y", "x"),
                chunks=[[1] * shape[0], [shape[1]]], fill_value=drawn.choice([0, 3]),
            )  # fmt: skip
        elif "shards" not in grid and drawn.random() < 0.3:
            made = zarr.create_array(
                store, name="image/0", shape=shape, dtype=dtype, zarr_format=2, fill_value=drawn.choice([0, 3]), **grid
            )
            made.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
        else:
            made = zarr.create_array(
                store, name="image/0", shape=shape, dtype=dtype, dimension_names=("y", "x"),
                fill_value=drawn.choice([0, 3]), **grid,
            )  # fmt: skip
        if made.metadata.zarr_format == 3 and drawn.random() < 0.4:
            attributes["_FillValue"] = drawn.choice([0, 1, 3])
        made.attrs.update(attributes)
        if drawn.random() < 0.8:
            made[...] = _values(drawn, made, shape)
        for _ in range(drawn.randrange(1, 4)):
            declare(store, drawn)


def history(crew: Crew, directory: Path, seed: int) -> Counter[str]:
    """Make one history and check it. Raise `WrongError`."""
    drawn, counts = random.Random(seed), Counter[str]()
    repo = txstore.Repository(directory / "data.tx", durability="none")
    begin(repo, drawn)
    for report in crew.run(directory / "data.tx", seed, drawn):
        counts += report
    for view in repo.views.values():
        if view.definition.when == "follow":
            with contextlib.suppress(txstore.ViewError):  # a revert has deleted its output
                view.update()
                if not view.is_current():
                    raise WrongError(f"{view.name} is not current after its update")
    return counts + check(repo)


def histories(count: int, seed: int) -> Counter[str]:
    if HAS_RECTILINEAR:
        zarr.config.set({"array.rectilinear_chunks": True})
    crew = Crew(work)
    try:
        return repeat(partial(history, crew), count, seed)
    finally:
        crew.close()
