"""A repository on S3 that is 30 ms away: how many requests there are, and what they cost.

The server is `s3_stub`, in a process of its own, and each sample is taken by a process that has read nothing before. At
a distance all that counts is how often somebody waits for an answer, so most of what must be reached is a number of
requests, or a time that is a few times the distance. Where Icechunk, obstore and s3fs are installed, they do the same
work; of the fastest peer TxStore must be as fast.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import zarr

import txstore
from benchmarks.harness import OURS, Row, Setting, finish_requests, medians, percentile, timed
from benchmarks.peers.fresh import Process, ask
from benchmarks.simulated.s3_stub import BUCKET, S3Stub, move_away, requests_in, take_counts, take_seen, under_way

Values = dict[str, Any]

DISTANCE = 0.03  # seconds
JITTER = 0.5
VARIABLES = 500
COMMITTERS, DELETERS = 32, 4
COMMITS = 300
KEYS, LOADS = 1_000_000, 4
SAMPLES = 100
LARGE, LARGE_CHUNK = 8, 64 << 20
MANY, MANY_CHUNK, AT_ONCE = 2000, 128 << 10, 64
RANDOM, RANDOM_CHUNK = 200, 16 << 10
RAW: dict[str, Any] = {"dtype": "u1", "compressors": None, "filters": None}
_REGION, _KEY, _SECRET = "us-east-1", "key", "secret"


class Place(NamedTuple):
    """Where something lies on a stub."""

    port: int
    prefix: str

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.prefix}"

    @property
    def options(self) -> dict[str, Any]:
        return {
            "key": _KEY,
            "secret": _SECRET,
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": _REGION},
        }

    def repository(self) -> txstore.Repository:
        return txstore.Repository(self.url, storage_options=self.options)


# --- the stores that are compared: each returns one to write to, with what publishes it, and one to read


def _icechunk(place: Place, *, create: bool = False) -> Any:
    import icechunk

    storage = icechunk.s3_storage(
        bucket=BUCKET,
        prefix=place.prefix,
        region=_REGION,
        endpoint_url=place.endpoint,
        allow_http=True,
        access_key_id=_KEY,
        secret_access_key=_SECRET,
        force_path_style=True,
    )
    return icechunk.Repository.create(storage) if create else icechunk.Repository.open(storage)


def _obstore(place: Place, *, read_only: bool) -> Any:
    from obstore.store import S3Store

    bucket = S3Store(
        BUCKET,
        prefix=place.prefix,
        endpoint=place.endpoint,
        access_key_id=_KEY,
        secret_access_key=_SECRET,
        region=_REGION,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    return zarr.storage.ObjectStore(bucket, read_only=read_only)


def _writing(who: str, place: Place) -> tuple[Any, Callable[[], object]]:
    if who == OURS:
        store = place.repository().transaction()
        return store, store.commit
    if who == "Icechunk":
        session = _icechunk(place, create=True).writable_session("main")
        return session.store, lambda: session.commit("fill")
    if who == "obstore":
        return _obstore(place, read_only=False), lambda: None
    return zarr.storage.FsspecStore.from_url(place.url, storage_options=place.options), lambda: None


def _reading(who: str, place: Place) -> Any:
    if who == OURS:
        return place.repository().snapshot()
    if who == "Icechunk":
        return _icechunk(place).readonly_session("main").store
    if who == "obstore":
        return _obstore(place, read_only=True)
    return zarr.storage.FsspecStore.from_url(place.url, storage_options=place.options, read_only=True)


PACKAGES = {OURS: "obstore", "Icechunk": "icechunk", "obstore": "obstore", "s3fs": "s3fs"}
MODULES = {
    OURS: ["txstore.store", "txstore.repository", "obstore.store"],
    "Icechunk": ["icechunk"],
    "obstore": ["obstore.store"],
    "s3fs": ["s3fs"],
}


def installed() -> list[str]:
    return [who for who, package in PACKAGES.items() if importlib.util.find_spec(package) is not None]


# --- opening


def opening(setting: Setting) -> Iterator[Row]:
    variables = 50 if setting.quick else VARIABLES
    with S3Stub() as stub:
        found = {}
        for who in installed():
            if who != "s3fs" or not setting.quick:
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
        what = f"after {variables} commits of one variable each, and optimize: requests to open them"
        what += (
            f" ({before['requests']:.0f} before optimize, {before['seconds']:.2f} s; {after['seconds']:.2f} s after)"
        )
        yield Row("distance open optimized", what, int(after["requests"]), 12, "")


def write_variables(who: str, port: int, variables: int, commits: int) -> Values:
    place = Place(port, f"open-{who.lower()}")
    values = np.random.default_rng(0).integers(0, 256, 256 << 10, dtype="u1")
    each = variables // commits
    if commits == 1:
        store, commit = _writing(who, place)
        group = zarr.create_group(store)
        _add_variables(group, range(variables), values)
        commit()
        if who in ("obstore", "s3fs"):
            zarr.consolidate_metadata(store)
        finish_requests()
        return {}
    repo = place.repository()
    with repo.transaction() as store:
        zarr.create_group(store)
    for number in range(commits):
        with repo.transaction() as store:
            _add_variables(zarr.open_group(store), range(number * each, (number + 1) * each), values)
    finish_requests()
    return {}


def _add_variables(group: Any, numbers: range, values: np.ndarray) -> None:
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
    move_away(port, DISTANCE)
    with timed() as seconds:
        opened = xarray.open_zarr(
            _reading(who, Place(port, f"open-{who.lower()}")), consolidated=who in ("obstore", "s3fs"), chunks=None
        )
    counts, traffic = take_counts(port), _traffic(port)
    move_away(port, 0)
    if len(opened) != variables:
        raise AssertionError(f"{len(opened)} variables instead of {variables}")
    return {"requests": requests_in(counts), "seconds": seconds(), "seconds traffic": traffic}


def optimize_variables(port: int) -> Values:
    Place(port, f"open-{OURS.lower()}").repository().optimize()
    finish_requests()
    return {}


# --- commits


def commits(setting: Setting) -> Iterator[Row]:
    seconds = 2.0 if setting.quick else 10.0
    with S3Stub() as stub:
        alone = ask(commit_alone, port=stub.port, commits=10 if setting.quick else 50)
        yield Row("distance commit requests", "requests of a small commit, alone", alone["requests"], 3, "")
        yield Row("distance commit", "a small commit, alone: median", alone["median"], 75, "ms")
    for jitter in (0.0, JITTER):
        found = _crowd(commit_for, COMMITTERS, seconds, jitter)
        how = f"{COMMITTERS} committers of disjoint chunks, {'with' if jitter else 'without'} jitter"
        name = f"distance committers{' jitter' if jitter else ''}"
        yield Row(name, f"{how}: commits/s", found["rate"], 60, "", at_least=True)
        share = f"fewest by most ({found['fewest']:.0f}/{found['most']:.0f})"
        yield Row(f"{name} share", f"{how}: {share}", found["fewest"] / max(1, found["most"]), 0.5, "", at_least=True)
        yield Row(f"{name} p99", f"{how}: p99 of a commit", found["p99"], 1, "s")
        yield Row(f"{name} requests", f"{how}: requests a commit", found["requests"], 15, "")
    found = _crowd(commit_or_delete_for, COMMITTERS, seconds, JITTER)
    how = f"{COMMITTERS} committers, of which {DELETERS} delete, and so take their versions alone, with jitter"
    share = f"fewest by most ({found['fewest']:.0f}/{found['most']:.0f})"
    yield Row(
        "distance mixed share", f"{how}: {share}", found["fewest"] / max(1, found["most"]), 0.5, "", at_least=True
    )
    yield Row("distance mixed p99", f"{how}: p99 of a commit", found["p99"], 2, "s")
    found = _crowd(append_for, COMMITTERS, seconds, JITTER)
    how = f"{COMMITTERS} that append to one array by repo.run"
    yield Row("distance appends", f"{how}: appends/s", found["rate"], 25, "", at_least=True)
    yield Row("distance appends given up", f"{how}: how many gave up", int(found["given_up"]), 0, "")


def _crowd(task: Callable[..., Values], processes: int, seconds: float, jitter: float) -> Values:
    """Let processes commit to one repository for some seconds."""
    with S3Stub() as stub, ExitStack() as stack:
        ask(make_array, port=stub.port)
        crew = [
            stack.enter_context(Process(task, meets=True, port=stub.port, number=number, seconds=seconds))
            for number in range(processes)
        ]
        for each in crew:
            each.wait_until_ready()
        move_away(stub.port, DISTANCE, jitter=jitter)
        with timed() as took:
            for each in crew:
                each.go()
            answers = [each.answer() for each in crew]
        counts = take_counts(stub.port)
    made = [each["made"] for each in answers]
    slowest = [each["p99"] for each in answers]
    return {
        "rate": sum(made) / min(took(), seconds + max(slowest)),
        "fewest": min(made),
        "most": max(made),
        "p99": max(slowest) if len(slowest) < 100 else percentile(slowest, 99),
        "requests": requests_in(counts) / max(1, sum(made)),
        "given_up": sum(each.get("given_up", 0) for each in answers),
    }


def make_array(port: int) -> Values:
    with Place(port, "commits").repository().transaction() as store:
        zarr.create_array(store, name="x", shape=(100 * COMMITTERS,), chunks=(100,), fill_value=0, **RAW)
        zarr.create_array(store, name="log", shape=(0,), chunks=(1000,), fill_value=0, **RAW)
    return {}


def commit_alone(port: int, commits: int) -> Values:
    make_array(port)
    repo = Place(port, "commits").repository()
    times = []
    for number in range(commits + 1):
        if number == 1:  # the first one of a process reads what the array is
            move_away(port, DISTANCE)
        with timed() as seconds, repo.transaction() as store:
            zarr.open_array(store, path="x")[:100] = number % 250
        times.append(seconds())
    counts = take_counts(port)
    counts["put"] -= counts["put"]  # head caches, once a second at most, which nobody waits for
    return {"requests": requests_in(counts) / commits, "median": statistics.median(times[1:]) * 1e3}


def commit_for(port: int, number: int, seconds: float, meet: Callable[[], None]) -> Values:
    repo = Place(port, "commits").repository()
    with repo.transaction() as store:
        zarr.open_array(store, path="x")
    meet()
    return _times_of(lambda made: _commit_once(repo, number, made), seconds)


def commit_or_delete_for(port: int, number: int, seconds: float, meet: Callable[[], None]) -> Values:
    if number >= DELETERS:
        return commit_for(port, number, seconds, meet)
    repo = Place(port, "commits").repository()
    with repo.transaction() as store:
        store[f"{number}/0"] = b"0"

    def once(made: int) -> None:
        with repo.transaction() as store:
            store[f"{number}/{made + 1}"] = b"0"
            del store[f"{number}/{made}"]

    meet()
    return _times_of(once, seconds)


def _commit_once(repo: txstore.Repository, number: int, made: int) -> None:
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[100 * number : 100 * number + 100] = made % 250 + 1


def _times_of(once: Callable[[int], None], seconds: float) -> Values:
    ends, times = time.monotonic() + seconds, []
    while time.monotonic() < ends:
        with timed() as took:
            once(len(times))
        times.append(took())
    return {"made": len(times), "p99": percentile(times, 99)}


def append_for(port: int, number: int, seconds: float, meet: Callable[[], None]) -> Values:
    repo = Place(port, "commits").repository()
    with repo.transaction() as store:
        zarr.open_array(store, path="log")
    given_up = 0

    def append(store: Any) -> None:
        zarr.open_array(store, path="log").append(np.full(1, number, "u1"))

    def once(_: int) -> None:
        nonlocal given_up
        try:
            repo.run(append)
        except txstore.ConflictError:
            given_up += 1

    meet()
    return {**_times_of(once, seconds), "given_up": given_up}


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
    who_all = [who for who in installed() if who != "s3fs" or not setting.quick]
    found: dict[str, list[Values]] = {who: [] for who in who_all}
    for number in range(setting.rounds(rounds, 1)):
        for who in who_all if number % 2 else reversed(who_all):
            if who != "s3fs" or not number:
                with S3Stub() as stub:
                    found[who].append(ask(task, who=who, port=stub.port))
    return found


def _beside(what: str, name: str, found: dict[str, list[Values]], verb: str) -> Row:
    samples = {who: [each[verb] for each in values] for who, values in found.items()}
    took = medians(samples)
    peers = {who: seconds for who, seconds in took.items() if who != OURS}
    best = min(peers, key=lambda who: peers[who], default=OURS)
    others = _told({who: f"{seconds:.2f} s" for who, seconds in took.items()})
    ratios = [theirs / ours for theirs, ours in zip(samples[best], samples[OURS], strict=False)]
    return Row(
        name,
        f"{what}, times as fast as the best peer{others}",
        statistics.median(ratios),
        1,
        at_least=True,
        medians=took,
        samples=samples,
        figures=_traffic_of({who: values[-1] for who, values in found.items()}, verb),
    )


def _traffic(port: int) -> list[float]:
    """Return how many requests were under way while somebody was far from a stub, in equal parts of that time."""
    return under_way(take_seen(port), SAMPLES)


def _traffic_of(found: dict[str, Values], what: str) -> list[dict[str, Any]]:
    return [{"who": who, "seconds": each[what], "under way": each[f"{what} traffic"]} for who, each in found.items()]


def _told(each: dict[str, str]) -> str:
    return f" ({', '.join(f'{who} {said}' for who, said in each.items())})"


def large_values(who: str, port: int) -> Values:
    data = np.random.default_rng(0).integers(0, 256, LARGE * LARGE_CHUNK, dtype="u1")
    place = Place(port, f"large-{who.lower()}")
    store, commit = _writing(who, place)
    array = zarr.create_array(store, name="x", shape=data.shape, chunks=(LARGE_CHUNK,), **RAW)
    move_away(port, DISTANCE)
    with timed() as writing:
        array[:] = data
        commit()
    wrote = _traffic(port)
    _forget()
    with timed() as reading:
        found = zarr.open_array(_reading(who, place), path="x", mode="r")[:]
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
    place = Place(port, f"many-{who.lower()}")
    store, commit = _writing(who, place)
    zarr.create_array(store, name="x", shape=(chunks * length,), chunks=(length,), **RAW)[:] = data.reshape(-1)
    commit()
    _forget()
    move_away(port, DISTANCE)
    array = zarr.open_array(_reading(who, place), path="x", mode="r")
    take_seen(port)
    with timed() as seconds:
        found = read(array)
    traffic = _traffic(port)
    move_away(port, 0)
    if not np.array_equal(found, data[chosen].reshape(-1)):
        raise AssertionError(f"{who} has not read what was written")
    return {"read": seconds(), "read traffic": traffic}


def _forget() -> None:
    """Keep nothing of what was written for who reads."""
    from txstore.storage import pack_cache

    pack_cache._shared._empty()


# --- upkeep


def upkeep(setting: Setting) -> Iterator[Row]:
    made = 30 if setting.quick else COMMITS
    with S3Stub() as stub, setting.scratch() as scratch:
        ask(make_commits, port=stub.port, commits=made)
        for what, must in (("verify", 4.0), ("backup", 3.0), ("log", 0.3), ("usage", 4.0)):
            took = ask(keep_up, port=stub.port, what=what, directory=str(scratch))
            told = f"{what} of {made} commits ({took['requests']:.0f} requests)"
            yield Row(
                f"distance {what}", told, took["seconds"], must, "s", figures=_traffic_of({OURS: took}, "seconds")
            )


def make_commits(port: int, commits: int) -> Values:
    make_array(port)
    repo = Place(port, "commits").repository()
    for number in range(commits):
        _commit_once(repo, number % COMMITTERS, number)
    return {}


def keep_up(port: int, what: str, directory: str) -> Values:
    repo = Place(port, "commits").repository()
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
    repo = Place(port, "commits").repository()
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(16 * keys,), chunks=(16,), fill_value=0, **RAW)
    for part in range(LOADS):  # each brings a run as large as the others, which should be one
        with repo.begin() as mapping:
            for number in range(part * keys // LOADS, (part + 1) * keys // LOADS):
                mapping[f"x/c/{number}"] = number.to_bytes(16, "little")
    del store, mapping, repo
    finish_requests()
    _forget()
    repo = Place(port, "commits").repository()
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
    return {
        "moved": counts["received"] + counts["sent"],
        "first": times[0],
        "ratio": times[0] / statistics.median(times[1:]),
    }


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {
    f"distance {each.__name__}": lambda setting, each=each: list(each(setting))  # type: ignore[misc]
    for each in (opening, commits, values, upkeep, growth)
}
