"""A repository on S3 that is 30 ms away: how many requests there are, and what they cost.

The server is `s3_stub`, in a process of its own, and each sample is taken by a process that has read nothing before. At
a distance all that counts is how often somebody waits for an answer, so most of what must be reached is a number of
requests, or a time that is a few times the distance. Where Icechunk, obstore and s3fs are installed, they do the same
work; of the fastest peer TxStore must be as fast.
"""

from __future__ import annotations

import importlib
import random
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import zarr

import txstore
from benchmarks.harness import OURS, Row, Setting, finish_requests, medians, percentile, timed
from benchmarks.own_process import Parent, Values, ask, together
from benchmarks.simulated.s3_stub import S3Stub, move_away, requests_in, take_counts, take_seen, under_way
from benchmarks.stores import Bucket, Fsspec, Icechunk, Object, TxStore, ZarrStore

DISTANCE, JITTER = 0.03, 0.5  # seconds; the share of them
VARIABLES, COMMITS = 500, 300
COMMITTERS, DELETERS = 32, 4
KEYS, LOADS = 1_000_000, 4
SAMPLES = 100
LARGE, LARGE_CHUNK = 8, 64 << 20
MANY, MANY_CHUNK, AT_ONCE = 2000, 128 << 10, 64
RANDOM, RANDOM_CHUNK = 200, 16 << 10
RAW: dict[str, Any] = {"dtype": "u1", "compressors": None, "filters": None}
KINDS: dict[str, type[ZarrStore]] = {OURS: TxStore, "Icechunk": Icechunk, "obstore": Object, "s3fs": Fsspec}
MODULES = {
    OURS: ["txstore.store", "txstore.repository", "obstore.store"],
    "Icechunk": ["icechunk"],
    "obstore": ["obstore.store"],
    "s3fs": ["s3fs"],
}


def _taking_part(*, quick: bool) -> list[str]:
    return [who for who, kind in KINDS.items() if not kind.missing() and (who != "s3fs" or not quick)]


def _laid(who: str, bucket: Bucket) -> tuple[Any, Callable[[], object]]:
    """Return a new store to write to, and what publishes it."""
    kind = KINDS[who](bucket)
    kind.lay()
    return kind.begin()


def _repository(port: int, name: str = "commits") -> txstore.Repository:
    repo: txstore.Repository = TxStore(Bucket(port, name)).repository()
    return repo


def _told(each: dict[str, str]) -> str:
    return f" ({', '.join(f'{who} {said}' for who, said in each.items())})"


def _traffic(port: int) -> list[float]:
    """Return how many requests were under way while somebody was far from a stub, in equal parts of that time."""
    return under_way(take_seen(port), SAMPLES)


def _traffic_of(found: dict[str, Values], what: str) -> list[dict[str, Any]]:
    return [{"who": who, "seconds": each[what], "under way": each[f"{what} traffic"]} for who, each in found.items()]


# --- opening


def opening(setting: Setting) -> Iterator[Row]:
    variables = 50 if setting.quick else VARIABLES
    with S3Stub() as stub:
        found = {}
        for who in _taking_part(quick=setting.quick):
            ask(write_variables, who=who, port=stub.port, variables=variables, commits=1)
            found[who] = ask(open_variables, who=who, port=stub.port, variables=variables)
    others = _told({who: f"{each['requests']:.0f}, {each['seconds']:.2f} s" for who, each in found.items()})
    what = f"xr.open_zarr of {variables} variables"
    yield Row("distance open requests", f"{what}: requests{others}", int(found[OURS]["requests"]), 10, "")
    seconds = {who: each["seconds"] for who, each in found.items()}
    traffic = _traffic_of(found, "seconds")
    yield Row("distance open", f"{what}: time", seconds[OURS], 0.5, "s", medians=seconds, figures=traffic)
    with S3Stub() as stub:
        ask(write_variables, who=OURS, port=stub.port, variables=variables, commits=variables)
        before = ask(open_variables, who=OURS, port=stub.port, variables=variables)
        ask(optimize_variables, port=stub.port)
        after = ask(open_variables, who=OURS, port=stub.port, variables=variables)
    times = f"({before['requests']:.0f} before optimize, {before['seconds']:.2f} s; {after['seconds']:.2f} s after)"
    what = f"after {variables} commits of one variable each, and optimize: requests to open them {times}"
    yield Row("distance open optimized", what, int(after["requests"]), 12, "")


def write_variables(who: str, port: int, variables: int, commits: int) -> None:
    store, commit = _laid(who, Bucket(port, f"open-{who.lower()}"))
    group = zarr.create_group(store)
    if commits == 1:
        _add_variables(group, range(variables))
    commit()
    if who in ("obstore", "s3fs"):
        zarr.consolidate_metadata(store)
    if commits > 1:
        repo = _repository(port, f"open-{who.lower()}")
        for number in range(commits):
            with repo.transaction() as store:
                _add_variables(zarr.open_group(store), range(number, number + 1))
    finish_requests()


def _add_variables(group: Any, numbers: range) -> None:
    values = np.random.default_rng(0).integers(0, 256, 256 << 10, dtype="u1")
    for number in numbers:
        array = group.create_array(
            f"variable{number}", shape=values.shape, chunks=values.shape, dimension_names=["x"],
            attributes={"long_name": f"variable {number}", "units": "K"}, **RAW,
        )  # fmt: skip
        array[:] = values


def open_variables(who: str, port: int, variables: int) -> Values:
    import xarray

    for module in MODULES[who]:  # to import them is no part of it
        importlib.import_module(module)
    kind = KINDS[who](Bucket(port, f"open-{who.lower()}"))
    move_away(port, DISTANCE)
    with timed() as seconds:
        opened = xarray.open_zarr(kind.newest(), consolidated=who in ("obstore", "s3fs"), chunks=None)
    counts, traffic = take_counts(port), _traffic(port)
    move_away(port, 0)
    if len(opened) != variables:
        raise AssertionError(f"{len(opened)} variables instead of {variables}")
    return {"requests": requests_in(counts), "seconds": seconds(), "seconds traffic": traffic}


def optimize_variables(port: int) -> None:
    _repository(port, f"open-{OURS.lower()}").optimize()
    finish_requests()


# --- commits


def commits(setting: Setting) -> Iterator[Row]:
    seconds = 2.0 if setting.quick else 10.0
    with S3Stub() as stub:
        alone = ask(commit_alone, port=stub.port, commits=10 if setting.quick else 50)
    yield Row("distance commit requests", "requests of a small commit, alone", alone["requests"], 3, "")
    yield Row("distance commit", "a small commit, alone: median", alone["median"], 75, "ms")
    for jitter in (0.0, JITTER):
        found = _crowd(commit_for, seconds, jitter)
        how = f"{COMMITTERS} committers of disjoint chunks, {'with' if jitter else 'without'} jitter"
        name = f"distance committers{' jitter' if jitter else ''}"
        yield Row(name, f"{how}: commits/s", found["rate"], 60, "", at_least=True)
        yield _share(name, how, found)
        yield Row(f"{name} p99", f"{how}: p99 of a commit", found["p99"], 1, "s")
        yield Row(f"{name} requests", f"{how}: requests a commit", found["requests"], 15, "")
    found = _crowd(commit_or_delete_for, seconds, JITTER)
    how = f"{COMMITTERS} committers, of which {DELETERS} delete, and so take their versions alone, with jitter"
    yield _share("distance mixed", how, found)
    yield Row("distance mixed p99", f"{how}: p99 of a commit", found["p99"], 2, "s")
    found = _crowd(append_for, seconds, JITTER)
    how = f"{COMMITTERS} that append to one array by repo.run"
    yield Row("distance appends", f"{how}: appends/s", found["rate"], 11, "", at_least=True)
    yield Row("distance appends given up", f"{how}: how many gave up", int(found["given_up"]), 0, "")


def _share(name: str, how: str, found: Values) -> Row:
    what = f"{how}: fewest by most ({found['fewest']:.0f}/{found['most']:.0f})"
    return Row(f"{name} share", what, found["fewest"] / max(1, found["most"]), 0.5, "", at_least=True)


def _crowd(task: Callable[..., Values], seconds: float, jitter: float) -> Values:
    """Let processes commit to one repository for some seconds."""
    began: list[float] = []
    with S3Stub() as stub:

        def leave() -> None:
            move_away(stub.port, DISTANCE, jitter=jitter)
            began.append(time.monotonic())

        ask(make_array, port=stub.port)
        orders = [{"port": stub.port, "number": number, "seconds": seconds} for number in range(COMMITTERS)]
        answers = together(task, orders, before=leave)
        took = time.monotonic() - began[0]
        counts = take_counts(stub.port)
    made = [each["made"] for each in answers]
    slowest = max(each["p99"] for each in answers)
    return {
        "rate": sum(made) / min(took, seconds + slowest),
        "fewest": min(made),
        "most": max(made),
        "p99": slowest,
        "requests": requests_in(counts) / max(1, sum(made)),
        "given_up": sum(each.get("given_up", 0) for each in answers),
    }


def make_array(port: int) -> None:
    with _repository(port).transaction() as store:
        zarr.create_array(store, name="x", shape=(100 * COMMITTERS,), chunks=(100,), fill_value=0, **RAW)
        zarr.create_array(store, name="log", shape=(0,), chunks=(1000,), fill_value=0, **RAW)


def commit_alone(port: int, commits: int) -> Values:
    make_array(port)
    repo = _repository(port)
    times = []
    for number in range(commits + 1):
        if number == 1:  # the first one of a process reads what the array is
            move_away(port, DISTANCE)
        with timed() as seconds:
            _commit_once(repo, 0, number)
        times.append(seconds())
    counts = take_counts(port)
    counts["put"] -= counts["put"]  # head caches, once a second at most, which nobody waits for
    return {"requests": requests_in(counts) / commits, "median": statistics.median(times[1:]) * 1e3}


def _commit_once(repo: txstore.Repository, number: int, made: int) -> None:
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[100 * number : 100 * number + 100] = made % 250 + 1


def commit_for(port: int, number: int, seconds: float, parent: Parent) -> Values:
    repo = _repository(port)
    with repo.transaction() as store:
        zarr.open_array(store, path="x")
    parent.meet()
    return _times_of(lambda made: _commit_once(repo, number, made), seconds)


def commit_or_delete_for(port: int, number: int, seconds: float, parent: Parent) -> Values:
    if number >= DELETERS:
        return commit_for(port, number, seconds, parent)
    repo = _repository(port)
    with repo.transaction() as store:
        store[f"{number}/0"] = b"0"

    def once(made: int) -> None:
        with repo.transaction() as store:
            store[f"{number}/{made + 1}"] = b"0"
            del store[f"{number}/{made}"]

    parent.meet()
    return _times_of(once, seconds)


def append_for(port: int, number: int, seconds: float, parent: Parent) -> Values:
    repo, given_up = _repository(port), list[int]()
    with repo.transaction() as store:
        zarr.open_array(store, path="log")

    def once(made: int) -> None:
        try:
            repo.run(lambda store: zarr.open_array(store, path="log").append(np.full(1, number, "u1")))
        except txstore.ConflictError:
            given_up.append(made)

    parent.meet()
    return {**_times_of(once, seconds), "given_up": len(given_up)}


def _times_of(once: Callable[[int], None], seconds: float) -> Values:
    ends, times = time.monotonic() + seconds, list[float]()
    while time.monotonic() < ends:
        with timed() as took:
            once(len(times))
        times.append(took())
    return {"made": len(times), "p99": percentile(times, 99)}


# --- values


def values(setting: Setting) -> Iterator[Row]:
    found = _in_turns(large_values, setting, 5)
    for verb in ("write", "read"):
        yield _beside(f"{LARGE} × 64 MiB, {verb}", f"distance large {verb}", found, verb)
    found = _in_turns(many_values, setting, 3)
    yield _beside(f"{MANY:,} × 128 KiB, {AT_ONCE} at once, read", "distance many", found, "read")
    found = _in_turns(random_values, setting, 9)  # each takes a fifth of a second
    yield _beside(f"{RANDOM} random of 16 KiB, {AT_ONCE} threads", "distance random", found, "read")


def _in_turns(task: Callable[..., Values], setting: Setting, rounds: int) -> dict[str, list[Values]]:
    """Let each store do the same, in turns, since who is the first to use memory pays for it; s3fs only once."""
    found: dict[str, list[Values]] = {who: [] for who in _taking_part(quick=setting.quick)}
    for number in range(setting.rounds(rounds, 1)):
        for who in found if number % 2 else reversed(found):
            if who != "s3fs" or not number:
                with S3Stub() as stub:
                    found[who].append(ask(task, who=who, port=stub.port))
    return found


def _beside(what: str, name: str, found: dict[str, list[Values]], verb: str) -> Row:
    samples = {who: [each[verb] for each in values] for who, values in found.items()}
    took = medians(samples)
    best = min((who for who in took if who != OURS), key=lambda who: took[who], default=OURS)
    others = _told({who: f"{seconds:.2f} s" for who, seconds in took.items()})
    ratios = [theirs / ours for theirs, ours in zip(samples[best], samples[OURS], strict=False)]
    traffic = _traffic_of({who: values[-1] for who, values in found.items()}, verb)
    return Row(
        name, f"{what}, times as fast as the best peer{others}", statistics.median(ratios), 1, at_least=True,
        medians=took, samples=samples, figures=traffic,
    )  # fmt: skip


def large_values(who: str, port: int) -> Values:
    data = np.random.default_rng(0).integers(0, 256, LARGE * LARGE_CHUNK, dtype="u1")
    bucket = Bucket(port, f"large-{who.lower()}")
    store, commit = _laid(who, bucket)
    array = zarr.create_array(store, name="x", shape=data.shape, chunks=(LARGE_CHUNK,), **RAW)
    move_away(port, DISTANCE)
    with timed() as writing:
        array[:] = data
        commit()
    wrote = _traffic(port)
    _forget()
    reader = KINDS[who](bucket)
    with timed() as reading:
        found = reader.read(reader.open(), slice(None))
    read = _traffic(port)
    move_away(port, 0)
    if not np.array_equal(found, data):
        raise AssertionError(f"{who} has not read what was written")
    return {"write": writing(), "read": reading(), "write traffic": wrote, "read traffic": read}


def many_values(who: str, port: int) -> Values:
    return _read_chunks(who, port, MANY, MANY_CHUNK, lambda array: array[:])


def random_values(who: str, port: int) -> Values:
    chosen = np.random.default_rng(1).permutation(20 * RANDOM)[:RANDOM]

    def read(array: Any) -> np.ndarray:
        parts = [slice(int(n) * RANDOM_CHUNK, (int(n) + 1) * RANDOM_CHUNK) for n in chosen]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return np.concatenate(list(threads.map(array.__getitem__, parts)))

    return _read_chunks(who, port, 20 * RANDOM, RANDOM_CHUNK, read, chosen)


def _read_chunks(
    who: str, port: int, chunks: int, length: int, read: Callable[[Any], Any], chosen: Any = slice(None)
) -> Values:
    zarr.config.set({"async.concurrency": AT_ONCE})
    data = np.random.default_rng(0).integers(0, 256, (chunks, length), dtype="u1")
    bucket = Bucket(port, f"many-{who.lower()}")
    store, commit = _laid(who, bucket)
    zarr.create_array(store, name="x", shape=(chunks * length,), chunks=(length,), **RAW)[:] = data.reshape(-1)
    commit()
    _forget()
    move_away(port, DISTANCE)
    array = KINDS[who](bucket).open()
    take_seen(port)
    with timed() as seconds:
        found = read(array)
    traffic = _traffic(port)
    move_away(port, 0)
    if not np.array_equal(found, data[chosen].reshape(-1)):
        raise AssertionError(f"{who} has not read what was written")
    return {"read": seconds(), "read traffic": traffic}


def _forget() -> None:
    """Keep nothing of what was written for what reads."""
    from txstore.storage import kept

    kept._shared._empty()


# --- upkeep


def upkeep(setting: Setting) -> Iterator[Row]:
    made = 30 if setting.quick else COMMITS
    with S3Stub() as stub, setting.scratch() as scratch:
        ask(make_commits, port=stub.port, commits=made)
        for what, must in (("verify", 4.0), ("backup", 3.0), ("log", 0.3), ("usage", 4.0)):
            took = ask(keep_up, port=stub.port, what=what, directory=str(scratch))
            told = f"{what} of {made} commits ({took['requests']:.0f} requests)"
            figures = _traffic_of({OURS: took}, "seconds")
            yield Row(f"distance {what}", told, took["seconds"], must, "s", figures=figures)


def make_commits(port: int, commits: int) -> None:
    make_array(port)
    repo = _repository(port)
    for number in range(commits):
        _commit_once(repo, number % COMMITTERS, number)


def keep_up(port: int, what: str, directory: str) -> Values:
    repo = _repository(port)
    works: dict[str, Callable[[], Any]] = {
        "verify": repo.verify,
        "backup": lambda: repo.backup(f"{directory}/{uuid.uuid4().hex}.tx"),
        "log": lambda: len(repo.log()),
        "usage": repo.usage,
    }
    move_away(port, DISTANCE)
    with timed() as seconds:
        works[what]()
    counts, traffic = take_counts(port), _traffic(port)
    move_away(port, 0)
    return {"seconds": seconds(), "requests": requests_in(counts), "seconds traffic": traffic}


# --- growth


def growth(setting: Setting) -> Iterator[Row]:
    keys = KEYS // 20 if setting.quick else KEYS
    with S3Stub() as stub:
        found = ask(commit_after_many, port=stub.port, keys=keys)
    what = f"the first small commit after {keys:,} keys in {LOADS} commits, in a process of its own"
    yield Row("distance growth", f"{what}: moved", found["moved"] / 1000, 100, "KB")
    yield Row("distance growth time", f"{what}, to a later one ({found['first']:.2f} s)", found["ratio"], 1.2)


def commit_after_many(port: int, keys: int) -> Values:
    repo = _repository(port)
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(16 * keys,), chunks=(16,), fill_value=0, **RAW)
    for part in range(LOADS):  # each brings a run as large as the others, which should be one
        with repo.begin() as mapping:
            for number in range(part * keys // LOADS, (part + 1) * keys // LOADS):
                mapping[f"x/c/{number}"] = number.to_bytes(16, "little")
    del store, mapping, repo
    finish_requests()
    _forget()
    repo = _repository(port)
    with repo.transaction() as store:
        zarr.open_array(store, path="x")  # so that what is moved is that of the commit
    move_away(port, DISTANCE)
    times: list[float] = []
    # Chunks far apart: of the same one again it is known what it was, which saves the later ones a trip.
    for chunk in random.Random(0).sample(range(keys), 8):
        with timed() as seconds, repo.transaction() as store:
            store[f"x/c/{chunk}"] = bytes([len(times)]) * 100
        times.append(seconds())
        if len(times) == 1:
            counts = take_counts(port)
    ratio = times[0] / statistics.median(times[1:])
    return {"moved": counts["received"] + counts["sent"], "first": times[0], "ratio": ratio}


CASES = {
    f"distance {each.__name__}": lambda setting, each=each: list(each(setting))  # type: ignore[misc]
    for each in (opening, commits, values, upkeep, growth)
}
