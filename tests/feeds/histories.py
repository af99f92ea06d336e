"""Random histories: two processes write, move, delete, merge and revert; two others keep a copy by a feed alone.

Or one other, which keeps it in another repository. Processes are killed at any step, consumers also between any two of
their steps. Each commit that moves the feed must begin where the one before it ended, and its copy must equal the
source where it ends: so each change was done once.

    python -m tests.feeds --histories 2000 --seed 1
"""

import contextlib
import multiprocessing
import os
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import txstore
from tests.feeds.copying import apply, content, copy_regions, copy_structure
from tests.tools.crew import LATE, WrongError, repeat
from txstore.errors import TxStoreError
from txstore.feeds import Feed

OPERATIONS = 5
#: How the workers of a history take changes.
WAYS = ("one by one", "combined", "mixed", "shared", "elsewhere")
#: Of a thousand steps of a consumer, so many kill it; of a thousand moments of 10 ms, so many; of a thousand histories,
#: in so many a writer is killed. A consumer is killed so many times at most.
KILLED_STEPS, KILLED_MOMENTS, KILLED_WRITERS, MOST = 40, 8, 100, 3
NAMES = ("a", "b", "g/a", "g/b")
DTYPES = ("i4", "f8", "u1")


# --- writers
def begin(repo: txstore.Repository) -> Feed:
    with repo.transaction("begin") as store:
        zarr.create_group(store, path="src/g")
        zarr.create_group(store, path="other")
        for name in NAMES[:2]:
            zarr.create_array(store, name=f"src/{name}", data=np.arange(10), chunks=(4,))
    return repo.feeds.create("copy", paths="src", since=-1)


def _create(store: txstore.TxStore, drawn: random.Random, path: str) -> None:
    shape = tuple(drawn.randrange(0, 8) for _ in range(drawn.choice([1, 1, 2])))
    chunks = tuple(drawn.randrange(1, 5) for _ in shape)
    shards = tuple(2 * each for each in chunks) if drawn.random() < 0.2 else None
    array = zarr.create_array(
        store, name=path, shape=shape, chunks=chunks, shards=shards, dtype=drawn.choice(DTYPES),
        fill_value=drawn.choice([0, 7]), overwrite=True,
    )  # fmt: skip
    if drawn.random() < 0.6:
        array[...] = drawn.randrange(1, 100)


def _array(store: txstore.TxStore, drawn: random.Random) -> zarr.Array[Any] | None:
    found = [
        each for _, each in zarr.open_group(store, path="src").members(max_depth=None) if isinstance(each, zarr.Array)
    ]
    return drawn.choice(found) if found else None


def change(store: txstore.TxStore, drawn: random.Random, repo: txstore.Repository) -> str:
    """Make one change of the source, or beside it."""
    array = _array(store, drawn)
    what = drawn.choice(
        [
            "create",
            "write",
            "write",
            "write",
            "resize",
            "resize",
            "attributes",
            "move",
            "delete",
            "group",
            "copy",
            "restore",
            "other",
        ]
    )
    path = f"src/{drawn.choice(NAMES)}"
    if what == "create" or array is None:
        _create(store, drawn, path)
    elif what == "write":
        region = tuple(sorted((drawn.randrange(n + 1), drawn.randrange(n + 1))) for n in array.shape)
        array[tuple(slice(*each) for each in region)] = drawn.choice([0, 7, drawn.randrange(100)])
    elif what == "resize":
        array.resize(tuple(drawn.randrange(0, 12) for _ in array.shape))
        if drawn.random() < 0.5 and all(array.shape):
            array[tuple(n - 1 for n in array.shape)] = drawn.randrange(100)
    elif what == "attributes":
        (array if drawn.random() < 0.7 else zarr.open_group(store, path="src/g")).attrs["n"] = drawn.randrange(9)
    elif what == "move":
        store.move(array.path, path)
    elif what == "delete":
        del zarr.open_group(store, mode="r+")[array.path]
    elif what == "group":
        if drawn.random() < 0.5:
            store.move("src/g", "src/h")
            store.move("src/h", "src/g") if drawn.random() < 0.5 else None
        else:
            store.move("src/h", "src/g")
    elif what == "copy":
        store.copy(array.path, path)
    elif what == "restore":
        store.restore(drawn.choice(["src", array.path]), at=drawn.randrange(2, store.base.version + 1))  # type: ignore[union-attr]
    else:
        zarr.create_array(store, name="other/x", data=np.full(3, drawn.randrange(100)), overwrite=True)
    return what


REFUSED = (TxStoreError, ValueError, KeyError, zarr.errors.GroupNotFoundError, zarr.errors.ContainsGroupError)


def write(path: Path, seed: str) -> None:
    drawn = random.Random(seed)
    repo = txstore.Repository(path, durability="none")
    for number in range(OPERATIONS):
        with contextlib.suppress(*REFUSED):
            _write(repo, drawn, f"b-{seed.replace('/', '-')}-{number}")
        time.sleep(drawn.random() * 0.02)


def _write(repo: txstore.Repository, drawn: random.Random, name: str) -> None:
    way = drawn.choice(["commit"] * 6 + ["merge", "merge", "revert", "optimize"])
    if way == "commit":
        with repo.transaction(drawn.choice([None, "a message"])) as store:
            for _ in range(drawn.randrange(1, 3)):
                change(store, drawn, repo)
    elif way == "merge":
        head = repo.head()
        repo.branches[name] = repo.commit(drawn.randrange(max(2, head.version - 3), head.version + 1))
        for _ in range(drawn.randrange(1, 3)):
            with repo.transaction(branch=name) as store:
                change(store, drawn, repo)
        repo.merge(name, resolve={"": drawn.choice(["ours", "theirs"])})
        if drawn.random() < 0.5:
            del repo.branches[name]
    elif way == "revert":
        head = repo.head()
        commit = repo.commit(drawn.randrange(2, head.version + 1))
        if "src" in {node.path.partition("/")[0] for node in repo.diff(commit)}:
            repo.revert(commit, resolve={"": drawn.choice(["ours", "theirs"])})
    else:
        repo.optimize()


# --- consumers
def consume(path: Path, seed: str, way: str, attempt: int) -> None:
    """Do what is pending until the writers have ended and nothing is."""
    drawn = random.Random(f"{seed}/{attempt}")
    repo = txstore.Repository(path, durability="none")
    feed = repo.feeds["copy"]

    def step() -> None:
        if attempt < MOST and drawn.randrange(1000) < KILLED_STEPS:
            os.kill(os.getpid(), signal.SIGKILL)

    while True:
        ended = (path.parent / "ended").exists()
        combine = way in ("combined", "shared", "elsewhere") or (way == "mixed" and drawn.random() < 0.5)
        try:
            if feed.wait(0.0 if ended else 0.05, combine=combine):
                if way == "elsewhere":
                    take_elsewhere(_elsewhere(path), feed, step)
                else:
                    take(repo, feed, drawn, step, combine=combine, is_shared=way == "shared")
            elif way == "mixed" and feed.wait(0.0, combine=not combine):
                continue
            elif ended:
                return
        except (txstore.FeedMovedError, txstore.ConflictError):
            continue  # another worker was faster


def take(
    repo: txstore.Repository,
    feed: Feed,
    drawn: random.Random,
    step: Callable[[], None],
    *,
    combine: bool,
    is_shared: bool,
) -> None:
    if is_shared:
        for share in feed.claim(drawn.choice([1, 2, 3, 5])):
            step()
            with repo.transaction() as store:
                copy_structure(share.change, share.nodes, store)
                step()
                copy_regions(share.change, share.regions, store)
                share.done(store)
                step()
            step()
        return
    for told in feed.changes(combine=combine):
        step()
        with repo.transaction() as store:
            feed.advance(store, to=told)  # first: if another worker was faster, the copy is not what this one expects
            step()
            apply(told, store)
            step()
        step()


def _elsewhere(path: Path) -> txstore.Repository:
    return txstore.Repository(path.parent / "elsewhere.tx", durability="none")


def take_elsewhere(other: txstore.Repository, feed: Feed, step: Callable[[], None]) -> None:
    for told in feed.changes(combine=True):
        step()
        done = {commit.properties.get("token") for commit in other.log()} if other.exists else set()
        if told.token not in done:
            with other.transaction(properties={"token": told.token, "version": told.commit.version}) as store:
                apply(told, store)
                step()
        step()
        feed.advance(to=told)
        step()


# --- what must be true
def check_elsewhere(repo: txstore.Repository, other: txstore.Repository) -> Counter[str]:
    """Go through all commits of the copy: each must be one change, the last one the newest."""
    commits = [*reversed(list(other.log()))] if other.exists else []
    if len({commit.properties["token"] for commit in commits}) < len(commits):
        raise WrongError(f"a change was done twice: {[commit.properties for commit in commits]}")
    for commit in commits:
        was, is_now = (
            content(repo.snapshot(commit.properties["version"]), "src"),
            content(other.snapshot(commit), "copy"),
        )
        if was != is_now:
            raise WrongError(f"{commit.properties}: the copy is {is_now}, and not {was}")
    if commits and content(repo.snapshot(), "src") != content(other.snapshot(), "copy"):
        raise WrongError("the copy has not come to the end")
    return Counter({"changes elsewhere": len(commits)})


def check(repo: txstore.Repository, way: str) -> Counter[str]:
    """Go through all commits of main, oldest first."""
    counts: Counter[str] = Counter()
    place, done, marks = -1, list[int](), dict[str, Any]()
    for commit in reversed(list(repo.log())):
        snapshot = repo.snapshot(commit)
        cursors = dict(snapshot.cursors)
        if "copy" not in cursors:
            continue
        now = cursors["copy"]["place"]["version"]
        for name, mark in cursors.items():
            if name != "copy" and mark != marks.get(name):
                counts["shares"] += 1
                if name in marks:
                    raise WrongError(f"{commit}: {name} was done twice: {marks[name]}, {mark}")
        marks = {name: mark for name, mark in cursors.items() if name != "copy"}
        if now == place:
            continue
        if now < place:
            raise WrongError(f"{commit}: the feed went back from {place} to {now}")
        done.append(now)
        place = now
        counts["moves"] += 1
        was, is_now = content(repo.snapshot(now), "src"), content(snapshot, "copy")
        if way != "elsewhere" and was != is_now:
            raise WrongError(f"{commit}: the copy is not what main@{now} has: {is_now}, and not {was}")
    changed = [commit.version for commit in reversed(list(repo.log(path="src")))]
    counts["changes"] += len(changed)
    if way == "one by one" and done != changed:
        raise WrongError(f"changes at {changed} were done as {done}")
    if changed and (not done or done[-1] != changed[-1]):
        left = repo.feeds["copy"].status()
        if left.pending:
            raise WrongError(f"the feed has come to {done[-1:]}, and the last change is {changed[-1]}")
    if faults := repo.verify().faults:
        raise WrongError(f"verify: {faults}")
    return counts


# --- running
def _run(task: Callable[..., None], path: Path, *arguments: Any) -> None:
    try:
        task(path, *arguments)
    except BaseException:
        with (path.parent / "failed").open("a") as file:
            file.write(traceback.format_exc())
        raise


def history(directory: Path, seed: int) -> Counter[str]:
    """Make one history and check it. Raise `WrongError`."""
    drawn, context = random.Random(seed), multiprocessing.get_context("forkserver")
    path, way = directory / "data.tx", WAYS[seed % len(WAYS)]
    repo = txstore.Repository(path, durability="none")
    begin(repo)
    counts: Counter[str] = Counter()

    def start(task: Callable[..., None], *arguments: Any) -> Any:
        process = context.Process(target=_run, args=(task, path, *arguments), daemon=True)
        process.start()
        return process

    writers = [start(write, f"{seed}/{number}") for number in range(2)]
    consumers = {
        number: (0, start(consume, f"{seed}/{number}", way, 0)) for number in ((2,) if way == "elsewhere" else (2, 3))
    }
    if drawn.randrange(1000) < KILLED_WRITERS:
        writers[0].join(drawn.random() * 0.3)
        writers[0].kill()
        counts["killed writers"] += 1
    until = time.monotonic() + 600
    while consumers:
        if not (directory / "ended").exists() and not any(each.is_alive() for each in writers):
            (directory / "ended").touch()
        for number, (attempt, process) in list(consumers.items()):
            process.join(0.01)
            if attempt < MOST and process.is_alive() and drawn.randrange(1000) < KILLED_MOMENTS:
                process.kill()  # wherever it is: in a commit, say
                process.join()
            if process.exitcode == -signal.SIGKILL:
                counts["killed consumers"] += 1
                consumers[number] = attempt + 1, start(consume, f"{seed}/{number}", way, attempt + 1)
            elif process.exitcode is not None:
                del consumers[number]
        if time.monotonic() > until:
            raise WrongError("it did not end")
    if (directory / "failed").exists():
        raise WrongError((directory / "failed").read_text())
    if way == "elsewhere":
        counts += check_elsewhere(repo, _elsewhere(path))
    return counts + check(repo, way)


def histories(count: int, seed: int) -> Counter[str]:
    multiprocessing.get_context("forkserver").set_forkserver_preload([*LATE, "tests.feeds.histories"])
    return repeat(history, count, seed)
