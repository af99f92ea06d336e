"""A repository on S3: how many requests there are, what they cost 30 ms away, and how many objects and bytes they make.

The server is `s3_stub`, in a process of its own, and each sample is taken by a process that has read nothing before. At
a distance all that counts is how often somebody waits for an answer, so most of what must be reached is a number of
requests, or a time that is a few times the distance. Where Icechunk, obstore and s3fs are installed, they do the same
work; of the fastest peer TxStore must be as fast.
"""

from __future__ import annotations

import random
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import zarr

import txstore
from benchmarks.harness import OURS, Row, Setting, compare, faster, finish_requests, medians, percentile, timed
from benchmarks.memory import resident_peak
from benchmarks.own_process import Parent, Values, ask, together
from benchmarks.simulated.s3_stub import S3Stub, move_away
from benchmarks.stores import Bucket, Fsspec, Icechunk, Layout, Object, TxStore, ZarrStore

DISTANCE, JITTER = 0.03, 0.5  # seconds; the share of them
VARIABLES, COMMITS = 500, 300
COMMITTERS, DELETERS = 32, 4
KEYS, LOADS = 1_000_000, 4
SAMPLES = 100
LARGE, LARGE_CHUNK = 8, 64 << 20
MANY, MANY_CHUNK, AT_ONCE = 2000, 128 << 10, 64
FEW = 512
SMALL_CHUNK = 16 << 10
CHUNKS_OPENED = 100_000
MEMORY, MEMORY_CHUNK = 2 << 30, 16 << 20
RAW: dict[str, Any] = {"dtype": "u1", "compressors": None, "filters": None}
KINDS: dict[str, type[ZarrStore]] = {OURS: TxStore, "Icechunk": Icechunk, "obstore": Object, "s3fs": Fsspec}


def _taking_part(*, quick: bool = False) -> list[str]:
    return [who for who, kind in KINDS.items() if not kind.missing() and (who != "s3fs" or not quick)]


def _laid(who: str, bucket: Bucket) -> tuple[Any, Callable[[], object]]:
    """Return a new store to write to, and what publishes it."""
    kind = KINDS[who](bucket)
    kind.lay()
    return kind.begin()


def _repository(port: int, name: str = "commits") -> txstore.Repository:
    repo: txstore.Repository = TxStore(Bucket(port, name)).repository()
    return repo


@contextmanager
def _far(port: int) -> Iterator[Values]:
    """Be far from a stub for a `with` block: what it gives tells what that took, once the block has ended."""
    told: Values = {}
    move_away(port, DISTANCE)
    with timed() as seconds:
        yield told
    traffic = move_away(port)
    told |= {"seconds": seconds(), "requests": traffic.requests, "counts": traffic.counts}
    told["under way"] = traffic.under_way(SAMPLES)


def _ask(task: Callable[..., Values], **order: Any) -> Any:
    """Ask for a task beside a stub that is new."""
    with S3Stub() as stub:
        return ask(task, port=stub.port, **order)


def _beside(each: Mapping[str, object]) -> str:
    return f" ({', '.join(f'{who} {said}' for who, said in each.items())})"


def _traffic_of(found: Mapping[str, Values]) -> list[dict[str, Any]]:
    return [{"who": who, "seconds": each["seconds"], "under way": each["under way"]} for who, each in found.items()]


def _bytes(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype="u1")


# --- opening


def opening(setting: Setting) -> Iterator[Row]:
    variables = 50 if setting.quick else VARIABLES
    found = {}
    with S3Stub() as stub:
        for who in _taking_part(quick=setting.quick):
            ask(write_variables, who=who, port=stub.port, variables=variables, commits=1)
            found[who] = ask(open_variables, who=who, port=stub.port, variables=variables)
    others = _beside({who: f"{each['requests']}, {each['seconds']:.2f} s" for who, each in found.items()})
    what = f"xr.open_zarr of {variables} variables"
    yield Row("distance open requests", f"{what}: requests{others}", found[OURS]["requests"], 10, "")
    samples = {who: [each["seconds"]] for who, each in found.items()}
    yield Row("distance open", f"{what}: time", samples[OURS][0], 0.5, "s", samples=samples, figures=_traffic_of(found))
    with S3Stub() as stub:
        ask(write_variables, who=OURS, port=stub.port, variables=variables, commits=variables)
        before = ask(open_variables, who=OURS, port=stub.port, variables=variables)
        _repository(stub.port, f"open-{OURS.lower()}").optimize()
        finish_requests()
        after = ask(open_variables, who=OURS, port=stub.port, variables=variables)
    times = f"({before['requests']} before optimize, {before['seconds']:.2f} s; {after['seconds']:.2f} s after)"
    what = f"after {variables} commits of one variable each, and optimize: requests to open them {times}"
    yield Row("distance open optimized", what, after["requests"], 12, "")


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
    values = _bytes(256 << 10)
    for number in numbers:
        array = group.create_array(
            f"variable{number}", shape=values.shape, chunks=values.shape, dimension_names=["x"],
            attributes={"long_name": f"variable {number}", "units": "K"}, **RAW,
        )  # fmt: skip
        array[:] = values


def open_variables(who: str, port: int, variables: int) -> Values:
    import xarray

    _laid(who, Bucket(port, f"warm-{who.lower()}"))  # to import what that takes is no part of it
    kind = KINDS[who](Bucket(port, f"open-{who.lower()}"))
    with _far(port) as told:
        opened = xarray.open_zarr(kind.newest(), consolidated=who in ("obstore", "s3fs"), chunks=None)
    if len(opened) != variables:
        raise AssertionError(f"{len(opened)} variables instead of {variables}")
    return told


# --- commits


def commits(setting: Setting) -> Iterator[Row]:
    seconds = 2.0 if setting.quick else 10.0
    alone = _ask(commit_alone, commits=setting.rounds(50, 10))
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
    what = f"{how}: fewest by most ({found['fewest']}/{found['most']})"
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
        requests = move_away(stub.port).requests
    made = [each["made"] for each in answers]
    slowest = max(each["p99"] for each in answers)
    return {
        "rate": sum(made) / min(took, seconds + slowest),
        "fewest": min(made),
        "most": max(made),
        "p99": slowest,
        "requests": requests / max(1, sum(made)),
        "given_up": sum(each["given_up"] for each in answers),
    }


def make_array(port: int) -> None:
    with _repository(port).transaction() as store:
        zarr.create_array(store, name="x", shape=(100 * COMMITTERS,), chunks=(100,), fill_value=0, **RAW)
        zarr.create_array(store, name="log", shape=(0,), chunks=(1000,), fill_value=0, **RAW)


def commit_alone(port: int, commits: int) -> Values:
    make_array(port)
    repo, times = _repository(port), list[float]()
    _commit_once(repo, 0, 0)  # the first one of a process reads what the array is
    with _far(port) as told:
        for number in range(commits):
            with timed() as seconds:
                _commit_once(repo, 0, number + 1)
            times.append(seconds())
    head_caches = told["counts"]["put"]  # once a second at most, and nobody waits for them
    return {"requests": (told["requests"] - head_caches) / commits, "median": statistics.median(times) * 1e3}


def _commit_once(repo: txstore.Repository, number: int, made: int) -> None:
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[100 * number : 100 * number + 100] = made % 250 + 1


def commit_for(port: int, number: int, seconds: float, parent: Parent) -> Values:
    repo = _repository(port)
    with repo.transaction() as store:
        zarr.open_array(store, path="x")
    return _times_of(lambda made: _commit_once(repo, number, made), seconds, parent)


def commit_or_delete_for(port: int, number: int, seconds: float, parent: Parent) -> Values:
    repo = _repository(port)

    def once(made: int) -> None:
        with repo.transaction() as store:
            store[f"{number}/{made + 1}"] = b"0"
            if made >= 0:
                del store[f"{number}/{made}"]

    if number >= DELETERS:
        return commit_for(port, number, seconds, parent)
    once(-1)
    return _times_of(once, seconds, parent)


def append_for(port: int, number: int, seconds: float, parent: Parent) -> Values:
    repo = _repository(port)
    with repo.transaction() as store:
        zarr.open_array(store, path="log")
    block = np.full(1, number, "u1")
    return _times_of(
        lambda _: repo.run(lambda store: zarr.open_array(store, path="log").append(block)), seconds, parent
    )


def _times_of(once: Callable[[int], object], seconds: float, parent: Parent) -> Values:
    parent.meet()
    ends, times, given_up = time.monotonic() + seconds, list[float](), 0
    while time.monotonic() < ends:
        with timed() as took:
            try:
                once(len(times))
            except txstore.ConflictError:
                given_up += 1
        times.append(took())
    return {"made": len(times), "p99": percentile(times, 99), "given_up": given_up}


# --- values


def values(setting: Setting) -> Iterator[Row]:
    found = _in_turns(large_values, setting, 5)
    for verb in ("write", "read"):
        yield _beside_best(f"{LARGE} × 64 MiB, {verb}", f"distance large {verb}", found, verb)
    for name, task, what, rounds in (
        ("many", many_values, f"{MANY:,} × 128 KiB, {AT_ONCE} at once, read", 3),
        ("random", random_values, f"200 random of 16 KiB, {AT_ONCE} threads", 9),  # each takes a fifth of a second
    ):
        found = _in_turns(task, setting, rounds)
        yield _beside_best(what, f"distance {name}", found, "read")


def _in_turns(
    task: Callable[..., Values], setting: Setting, rounds: int, *, once: Iterable[str] = ("s3fs",)
) -> dict[str, list[Values]]:
    """Let each store do the same, in turns, since the first to use memory pays for it; who is slow, only once."""
    found: dict[str, list[Values]] = {who: [] for who in _taking_part(quick=setting.quick and bool(once))}
    for number in range(setting.rounds(rounds, 1)):
        for who in found if number % 2 else reversed(found):
            if who not in once or not number:
                found[who].append(_ask(task, who=who))
    return found


def _seconds_of(found: dict[str, list[Values]], verb: str) -> tuple[dict[str, list[float]], str]:
    """Return the samples, and what is said of them."""
    samples = {who: [each[verb]["seconds"] for each in values] for who, values in found.items()}
    return samples, _beside({who: f"{seconds:.2f} s" for who, seconds in medians(samples).items()})


def _beside_best(what: str, name: str, found: dict[str, list[Values]], verb: str) -> Row:
    samples, others = _seconds_of(found, verb)
    took = medians(samples)
    best = min((who for who in took if who != OURS), key=lambda who: took[who], default=OURS)
    ratios = [theirs / ours for theirs, ours in zip(samples[best], samples[OURS], strict=False)]
    return Row(
        name, f"{what}, times as fast as the best peer{others}", statistics.median(ratios), 1, at_least=True,
        samples=samples, figures=_traffic_of({who: each[-1][verb] for who, each in found.items()}),
    )  # fmt: skip


def large_values(who: str, port: int) -> Values:
    data, bucket = _bytes(LARGE * LARGE_CHUNK), Bucket(port, f"large-{who.lower()}")
    store, commit = _laid(who, bucket)
    array = zarr.create_array(store, name="x", shape=data.shape, chunks=(LARGE_CHUNK,), **RAW)
    with _far(port) as write:
        array[:] = data
        commit()
    _forget()
    reader = KINDS[who](bucket)
    with _far(port) as read:
        found = reader.read(reader.open(), slice(None))
    compare(found, data)
    return {"write": write, "read": read}


def many_values(who: str, port: int) -> Values:
    return _read_chunks(who, port, MANY, MANY_CHUNK, lambda array: array[:])


def random_values(who: str, port: int) -> Values:
    chosen = np.random.default_rng(1).permutation(4000)[:200]

    def read(array: Any) -> np.ndarray:
        parts = [slice(int(n) * SMALL_CHUNK, (int(n) + 1) * SMALL_CHUNK) for n in chosen]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return np.concatenate(list(threads.map(array.__getitem__, parts)))

    return _read_chunks(who, port, 4000, SMALL_CHUNK, read, chosen)


def _read_chunks(
    who: str, port: int, chunks: int, length: int, read: Callable[[Any], Any], chosen: Any = slice(None)
) -> Values:
    zarr.config.set({"async.concurrency": AT_ONCE})
    data, bucket = _bytes(chunks, length), Bucket(port, f"many-{who.lower()}")
    store, commit = _laid(who, bucket)
    zarr.create_array(store, name="x", shape=(chunks * length,), chunks=(length,), **RAW)[:] = data.reshape(-1)
    commit()
    _forget()
    array = KINDS[who](bucket).open()
    with _far(port) as told:
        found = read(array)
    compare(found, data[chosen].reshape(-1))
    return {"read": told}


def _forget() -> None:
    """Keep nothing of what was written for what reads."""
    from txstore.storage import kept

    kept._shared._empty()


# --- upkeep


def upkeep(setting: Setting) -> Iterator[Row]:
    made = setting.rounds(COMMITS, COMMITS // 10)
    with S3Stub() as stub, setting.scratch() as scratch:
        ask(make_commits, port=stub.port, commits=made)
        for what, must in (("verify", 4.0), ("backup", 3.0), ("log", 0.3), ("usage", 4.0)):
            took = ask(keep_up, port=stub.port, what=what, directory=str(scratch))
            told = f"{what} of {made} commits ({took['requests']} requests)"
            yield Row(f"distance {what}", told, took["seconds"], must, "s", figures=_traffic_of({OURS: took}))


def make_commits(port: int, commits: int) -> None:
    make_array(port)
    repo = _repository(port)
    for number in range(commits):
        _commit_once(repo, number % COMMITTERS, number)


def keep_up(port: int, what: str, directory: str) -> Values:
    repo = _repository(port)
    with _far(port) as told:
        found = repo.backup(f"{directory}/{uuid.uuid4().hex}.tx") if what == "backup" else getattr(repo, what)()
        if what == "log":
            len(found)
    return told


# --- growth


def growth(setting: Setting) -> Iterator[Row]:
    keys = setting.rounds(KEYS, KEYS // 20)
    found = _ask(commit_after_many, keys=keys)
    what = f"the first small commit after {keys:,} keys in {LOADS} commits, in a process of its own"
    yield Row("distance growth", f"{what}: moved", found["moved"] / 1000, 100, "KB")
    yield Row("distance growth time", f"{what}, to a later one ({found['first']:.2f} s)", found["ratio"], 1.2)


def _fill(repo: txstore.Repository, keys: int, loads: int) -> None:
    """Write an array of chunks of 16 bytes; each load brings a run as large as the others, which should be one."""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(16 * keys,), chunks=(16,), fill_value=0, **RAW)
    for part in range(loads):
        with repo.begin() as mapping:
            for number in range(part * keys // loads, (part + 1) * keys // loads):
                mapping[f"x/c/{number}"] = number.to_bytes(16, "little")
    finish_requests()


def commit_after_many(port: int, keys: int) -> Values:
    _fill(_repository(port), keys, LOADS)
    _forget()
    repo, times = _repository(port), list[float]()
    with repo.transaction() as store:
        zarr.open_array(store, path="x")  # so that what is moved is that of the commit
    # Chunks far apart: of the same one again it is known what it was, which saves the later ones a trip.
    for chunk in random.Random(0).sample(range(keys), 8):
        with _far(port) as told, timed() as seconds, repo.transaction() as store:
            store[f"x/c/{chunk}"] = bytes([len(times)]) * 100
        times.append(seconds())
        if len(times) == 1:
            moved = told["counts"]["received"] + told["counts"]["sent"]
    return {"moved": moved, "first": times[0], "ratio": times[0] / statistics.median(times[1:])}


# --- on a server that is near: beside other stores, requests, and memory


def near(setting: Setting) -> Iterator[Row]:
    found = _in_turns(small_values, setting, 5, once=())
    for verb, what in (("write", "write and commit"), ("read", "read back")):
        samples, others = _seconds_of(found, verb)
        for peer, least in (("s3fs", 5.0), ("Icechunk", 3.0)):
            told = f"{what} {FEW} chunks of 16 KiB on S3, times as fast as {peer}{others}"
            yield faster(f"remote {what}: {peer}", told, samples, OURS, peer, least)
    objects = {who: each[-1]["objects"] for who, each in found.items()}
    yield Row("remote objects", f"objects that are written then{_beside(objects)}", objects[OURS], 8, "")

    chunks = setting.rounds(CHUNKS_OPENED, CHUNKS_OPENED // 10)
    counts = _ask(count_requests, chunks=chunks)
    for name, what, count, most in (
        ("open", f"requests to open a repository and read one chunk of {chunks:,}", counts["open"]["reads"], 6),
        ("commit writes", "requests that write, for a small commit and its head cache", counts["commit"]["writes"], 2),
        ("commit reads", "requests that read, for a small commit", counts["commit"]["reads"], 3),
        ("latest", "requests of latest()", counts["latest"]["reads"], 3),
    ):
        yield Row(f"remote {name}", what, count, most, "", figures=[counts])

    size = setting.rounds(MEMORY, MEMORY // 16)
    took = _ask(write_much, size=size)
    what = f"memory above the start while {size / (1 << 30):g} GB are written in chunks of 16 MiB"
    speed = f" ({size / took['seconds'] / 1e6:.0f} MB/s)"
    yield Row("remote memory", f"{what}{speed}", took["above"] / (1 << 20), 512, "MiB", figures=[took])


def small_values(who: str, port: int) -> Values:
    """Write and read by one operation each; the second time, so that no library is loaded meanwhile."""
    data = _bytes(FEW * SMALL_CHUNK)
    for number in range(2):
        bucket = Bucket(port, f"small-{number}-{who.lower()}")
        store = KINDS[who](bucket)
        store.prepare()
        finish_requests()
        move_away(port)
        with timed() as write:
            store.write(Layout(data.shape, (SMALL_CHUNK,), "u1"), data)
        finish_requests()
        counts = move_away(port).counts
        with timed() as read:
            reader = KINDS[who](bucket)
            found = reader.read(reader.open(), slice(None))
        compare(found, data)
    return {"write": {"seconds": write()}, "read": {"seconds": read()}, "objects": counts["objects"]}


def count_requests(port: int, chunks: int) -> Values:
    """Count what is read (with lists) and written to open a repository, to commit to it, and to see that."""
    repo = _repository(port)
    _fill(repo, chunks, 1)
    with _far(port) as opened:
        again = _repository(port)
        compare(zarr.open_array(again.snapshot(), path="x", mode="r")[16 * 777 : 16 * 778][:2], [777 % 256, 3])
    reader = again.snapshot()
    _commit_once(repo, 0, 1)  # the first one of a process reads what the array is
    finish_requests()
    with _far(port) as committed:
        _commit_once(repo, 0, 2)
        finish_requests()
    with _far(port) as seen:
        latest = reader.latest()
    if latest.base == reader.base:
        raise AssertionError("latest() has not found the new commit")
    each = {"open": opened["counts"], "commit": committed["counts"], "latest": seen["counts"]}
    return {
        what: {"reads": sum(counts[kind] for kind in ("get", "head", "list")),
               "writes": sum(counts[kind] for kind in ("put", "create", "upload", "delete"))}
        for what, counts in each.items()
    }  # fmt: skip


def write_much(port: int, size: int) -> Values:
    """Write in this process, and return how far its memory went above what it was when all was imported and open."""
    repo, block = _repository(port), _bytes(2 * MEMORY_CHUNK)
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(size,), chunks=(MEMORY_CHUNK,), **RAW)

    def write() -> None:
        with repo.transaction() as store:
            array = zarr.open_array(store, path="x")
            for start in range(0, size, len(block)):
                array[start : start + len(block)] = block

    with timed() as seconds:
        above = resident_peak(write)
    return {"above": above, "seconds": seconds()}


CASES = {
    "distance opening": opening, "distance commits": commits, "distance values": values, "distance upkeep": upkeep,
    "distance growth": growth, "remote": near,
}  # fmt: skip
