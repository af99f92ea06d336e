"""Repositories that lie (`hostile`), and what is done to each: an answer, or one of our errors, in time and in memory.

An input is told by a seed and a number. One in `WHOLE_EVERY` is a whole repository, in a directory, on which a few
operations are tried, from reading to repairing; of the others, a commit is read in memory, as `Snapshot` and `verify`
do, or what a document of an array says is thought through.
"""

import contextlib
import gc
import os
import resource
import shutil
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import zarr
from typer.testing import CliRunner

import txstore
from tests.fuzz import hostile
from tests.fuzz.forging import Files, Forged
from tests.tools.compaction_outputs import listed, outputs_of
from tests.tools.faults import always
from txstore.cli import main
from txstore.constraints import EqualLength, Fixed, OnlyGrows
from txstore.errors import TxStoreError
from txstore.format.documents import Node, compare_documents, moved_edges
from txstore.history.opening import open_commits
from txstore.history.snapshot import Snapshots
from txstore.loaders import Samples, SampleStream
from txstore.maintenance.check_file import check_frames, check_sections, entries_of, frames_end, open_run
from txstore.storage.capabilities import LOCAL
from txstore.storage.dispatch import Dispatch
from txstore.transactions import regions

#: Every so many inputs one is a repository in a directory; the others are commits, and documents, in memory.
WHOLE_EVERY = 50
#: What one operation may take: seconds of processor time, and memory of the process, in bytes, at its highest.
SECONDS, MEMORY = 2.0, 300 << 20
if "asan" in os.environ.get("LD_PRELOAD", ""):  # which takes several times as much of both
    SECONDS, MEMORY = 60.0, 4 << 30
#: Seconds until an input that waits for something, or is stuck in C, ends the process.
_STUCK = 600


class TooSlowError(BaseException):
    """No `except Exception` hides it."""


class Finding(NamedTuple):
    seed: int
    number: int
    operation: str
    what: str

    def __str__(self) -> str:
        return f"input {self.number} of seed {self.seed}, {self.operation}: {self.what}"


# --- good repositories
def build(directory: Path) -> list[Forged]:
    """Make the repositories that lies are told about."""
    made = []
    random = Random(1)  # ids are drawn anew by each process: a seed and a number say what an input is
    with mock.patch.object(os, "urandom", random.randbytes):
        for number, write in enumerate((_write_plain, _write_arrays, _write_foreign)):
            write(directory / f"good-{number}.tx", directory)
            made.append(Forged.read(directory / f"good-{number}.tx"))
    gc.collect()  # what holds files of transactions that are open
    return made


def _write_plain(path: Path, _: Path) -> None:
    repo = txstore.Repository(path)
    for version in range(5):
        with (
            listed() if version == 3 else contextlib.nullcontext(),
            repo.transaction(f"commit {version}", properties={"version": version}) as store,
        ):
            if version == 3:
                store.mapping.delete_dir("a")
            store[f"a/{version}"] = b"%d" % version * 7
            store["a/large"] = b"%d" % version * 1500
            store["b/empty"] = b""
            if version == 4:
                del store["a/3"]
    assert outputs_of(repo)
    repo.tags["v1"] = 1


def _write_arrays(path: Path, _: Path) -> None:
    repo = txstore.Repository(path)
    with repo.transaction("arrays") as store:
        group = zarr.open_group(store)
        group.attrs["a"] = {"b": [1, {}]}
        group.create_array("x", data=np.arange(6), chunks=(2,))
        group.create_array("y", data=np.arange(6.0), chunks=(4,))
        zarr.create_array(store, name="g/x", data=np.ones((4, 4)), chunks=(2, 2), shards=(4, 4))
        zarr.create_array(store, name="old", data=np.ones((4, 4)), chunks=(2, 2), zarr_format=2)
        store.constraints["equal"] = EqualLength(["x", "y"])
        store.constraints["fixed"] = Fixed("x", ["dtype", "chunks"])
        store.constraints["grows"] = OnlyGrows("y")
    for i in range(3):
        with repo.transaction("append") as store:
            for name in ("x", "y"):
                zarr.open_array(store, path=name).append(np.full(2, i))
    repo.tags["v1"] = 2
    repo.optimize()
    repo.vacuum(keep=2)
    with repo.transaction("append") as store:
        for name in ("x", "y"):
            zarr.open_array(store, path=name).append(np.zeros(2))
    for name in ("run-17", "run-18"):
        store = repo.transaction(name=name, properties={"a": 1})
        with store:
            zarr.open_array(store, path="x")[0] = 5
            store["x/new"] = b"staged"
        if name == "run-18":
            with repo.transaction(name=name) as store:
                store["x/other"] = b"staged"


def _write_foreign(path: Path, directory: Path) -> None:
    raw = directory / "raw.bin"
    raw.write_bytes(bytes(range(200)))
    repo = txstore.Repository(path, sources=[str(directory)])
    with repo.transaction("references") as store:
        zarr.create_array(store, name="x", shape=(20,), chunks=(10,), dtype="u1", compressors=None)
        store.set_reference("x/c/0", str(raw), 0, 10)
        store.set_reference("x/c/1", str(raw), 10, 10)
    with repo.transaction("more") as store:
        store["x/c/1"] = bytes(10)


# --- what is done to a repository in a directory
Operation = Callable[[Path, Random], object]


def _read(path: Path, _: Random) -> None:
    repo = txstore.Repository(path, sources=[str(path.parent)])
    for commit in islice(repo.log(), 100):
        str((commit, commit.time, commit.statistics, commit.properties))
    _read_all(repo.mapping())
    for name in repo.tags:
        str(repo.tags[name])


def _read_all(snapshot: Any) -> None:
    for key in snapshot:
        with _either():
            snapshot.get_view(key)
            snapshot.get_part(key, slice(1, 3))
        with _either():
            snapshot.size_of(key)
    for name in islice(snapshot.list_dir(""), 100):
        with _either():
            snapshot.listdir(name)
            snapshot.getsize(name)


def _describe(path: Path, _: Random) -> None:
    repo = txstore.Repository(path)
    for step in (
        repo.transactions,
        repo.usage,
        lambda: dict(repo.constraints),
        lambda: repo.commit(0),
        lambda: repo.commit("abcd"),
        lambda: list(repo.follow(since=-1, timeout=0)),
    ):
        with _either():
            str(step())


def _zarr(path: Path, _: Random) -> None:
    store = txstore.Repository(path, sources=[str(path.parent)]).snapshot()
    with _either(zarrs=True):
        group = zarr.open_group(store, mode="r")
        str([name for name, _ in group.members(max_depth=None)])
    for name in ("x", "y", "g/x", "old"):
        with _either(zarrs=True):
            array = zarr.open_array(store, path=name, mode="r")
            if array.nbytes < 1 << 20 and np.prod(array.chunks) * array.dtype.itemsize < 1 << 20:
                array[...]


def _verify(path: Path, _: Random) -> None:
    report = txstore.Repository(path).verify(sources=True)
    str([str(fault) for fault in report.faults])


def _repair(path: Path, _: Random) -> None:
    report = txstore.Repository(path).verify(repair=True)
    str([*map(str, report.faults), *map(str, report.repairs)])
    txstore.Repository(path).verify()


def _back_up(path: Path, _: Random) -> None:
    txstore.Repository(path).backup(path.with_name("copy.tx"))
    txstore.Repository(path.with_name("copy.tx")).verify()


def _maintain(path: Path, _: Random) -> None:
    repo = txstore.Repository(path)
    for step in (repo.optimize, lambda: repo.vacuum(dry_run=True), lambda: repo.vacuum(keep=1), repo.usage):
        with _either():
            step()


def _commit(path: Path, _: Random) -> None:
    repo = txstore.Repository(path)
    with _either():
        with repo.transaction(isolation="serializable") as store:
            store["x/c/0"] = store.mapping.get("x/c/0", b"") + b"\0"
            store["a/1"] = b"new"
        _read_all(repo.mapping())
    with _either(), repo.transaction() as first:
        first["a/2"] = b"first"
        with repo.transaction() as second:  # conflicts, if anything of it says so
            second["x/c/1"] = b"second"
            second.mapping.delete_dir("b")
    with _either(zarrs=True), repo.transaction() as store:
        zarr.open_array(store, path="x").append(np.zeros(2))


def _join(path: Path, _: Random) -> None:
    repo = txstore.Repository(path)
    for name in ("run-17", "run-18"):
        with _either():
            with repo.transaction(name=name) as store:
                store["x/joined"] = b"joined"
            store = repo.transaction(name=name)
            store.commit(allow_lost=True)
    for found in repo.transactions():
        str(found)


def _lock(path: Path, random: Random) -> None:
    repo = txstore.Repository(path)
    locks: list[regions.Lock] = [
        ["x"], {"x": np.s_[1:3], "y": txstore.APPEND}, {"g/x": np.s_[..., 1]}, {"x": np.s_[::7]}, [""],
        {"x": regions.Blocks(np.s_[0])}, {"x": regions.Points(np.array([0, 1]))}, {"x": regions.Resize((1,))},
    ]  # fmt: skip
    for lock in random.sample(locks, 3):
        with _either(usage=True), repo.transaction(lock=lock, lock_timeout=0):
            pass
    with _either(zarrs=True):
        len(txstore.synchronized(repo, "x"))


def _command_line(path: Path, random: Random) -> None:
    command, *more = random.choice(_COMMANDS)
    result = CliRunner().invoke(main.app, [*command.split(), str(path), *more])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception


_COMMANDS = (
    ["log"], ["ls"], ["show", "HEAD"], ["show", "0"], ["du"], ["tx list"], ["constraints"], ["verify"], ["verify"],
    ["log", "--json"], ["ls", "--json"], ["du", "--json"], ["show", "0", "--json"], ["tx list", "--json"],
)  # fmt: skip


def _export(path: Path, random: Random) -> None:
    repo = txstore.Repository(path)
    random.choice((
        lambda: repo.export(path.with_name("plain.zarr")),
        lambda: repo.publish(path.with_name("published.zarr")),
        lambda: repo.references(path.with_name("references.json"), tag="v1"),
        lambda: repo.references(path.with_name("references.parquet"), tag="v1", create_tag=True),
    ))()  # fmt: skip


def _load(path: Path, random: Random) -> None:
    arrays = random.choice((["x", "y"], ["x"], ["g/x"], ["old"]))
    with _either(zarrs=True):
        samples = Samples(path, arrays)
        str(samples.schema)
        for _ in islice(SampleStream(samples, seed=1, window=1 << 16), 3):
            pass


OPERATIONS: Mapping[str, Operation] = {
    "read": _read, "describe": _describe, "zarr": _zarr, "verify": _verify, "repair": _repair, "backup": _back_up,
    "maintain": _maintain, "commit": _commit, "join": _join, "lock": _lock, "command line": _command_line,
    "export": _export, "load": _load,
}  # fmt: skip


@contextlib.contextmanager
def _either(*, zarrs: bool = False, usage: bool = False) -> Iterator[None]:
    """Let an operation end in one of our errors; with `zarrs` also in one that zarr raises of what it was given."""
    try:
        yield
    except TxStoreError:
        pass
    except Exception as error:
        if isinstance(error, MemoryError) or (
            not (zarrs and _is_of_zarr(error)) and not (usage and isinstance(error, IndexError))
        ):
            raise


def _is_of_zarr(error: Exception) -> bool:
    """Tell whether zarr, or what it calls, has raised an error: no line of ours was the last, nor asked for a value."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = os.path.dirname(txstore.__file__)
    ends_in_zarr = not frames[-1].startswith(ours) and any(f"{os.sep}zarr{os.sep}" in name for name in frames)
    return ends_in_zarr or type(error).__module__.startswith("zarr.")


# --- what is done in memory
class MemoryStorage:
    """As much of a storage as reading takes."""

    url, ranges = "memory", None
    capabilities, dispatch, given = LOCAL, Dispatch(), url

    def __init__(self, files: Files) -> None:
        self.files = files

    def read(self, path: str) -> bytes:
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        content = self.read(path)
        return content[max(len(content) - length, 0) :], len(content)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return self.read(path)[offset : offset + length]

    def map(self, path: str) -> bytes:
        return self.read(path)

    def exists(self, path: str) -> bool:
        return path in self.files

    def list(self, path: str) -> list[str]:
        begin = f"{path}/" if path else ""
        return sorted({name[len(begin) :].partition("/")[0] for name in self.files if name.startswith(begin)})

    def open_pins(self) -> None:
        return None

    def place(self) -> int:
        return 2

    def boot(self) -> int:
        return 1


def _read_a_commit(files: Files, path: str) -> None:
    commits: Any = open_commits(MemoryStorage(files))  # type: ignore[arg-type]
    version = int(path.rpartition("/")[2])
    with _either():
        commits.head()
    with _either():
        stored = commits.files.read("main", version)
        str((stored.commit, stored.commit.time))
        snapshot = Snapshots(commits).of(stored, check=False)
        with _either():
            _read_all(snapshot)
        with _either():
            str([snapshot.get_view(key) for key in ("x/zarr.json", "a/large", "x/c/0")])
        with _either():
            runs = snapshot.runs
            runs.merge(len(runs))
            runs.changes(b"", None, 1)
            runs.new_prefixes(0)
        with _either():
            dict(snapshot.constraints)
        storage: Any = commits.storage
        check_frames(storage.read_range, stored.header.name, commits.identity.id, frames_end(stored))
        check_sections(storage.read_range, stored)
        for pack in stored.header.packs:
            with contextlib.suppress(FileNotFoundError):
                check_frames(storage.read_range, pack.name, commits.identity.id, pack.end)
        for name in stored.header.runs:
            if name.pack is None or name.pack in stored.header.compaction_outputs:
                with contextlib.suppress(ValueError, FileNotFoundError):
                    run, _ = open_run(storage.read_range, name, path if name.pack is None else name.pack.path)
                    for page in entries_of(run):
                        len(page)


def _read_a_document(random: Random) -> None:
    documents = [hostile.document(random, b"") for _ in range(2)]
    keys = [random.choice(("x/zarr.json", "x/.zarray", "zarr.json")) for _ in documents]
    for key, content in zip(keys, documents, strict=True):
        node = Node.parse(key, content)
        node.drops("c/0/1")
        compare_documents(key, documents[0], content)
        len(moved_edges(key, documents[0], content))
        with _either(), mock.patch.object(regions, "MAX_KEYS", 1000):  # to count up to it takes a second
            view: Any = _View({"x/zarr.json": content, "y/zarr.json": documents[0]})
            lock = random.choice((
                ["x"], {"x": np.s_[1:3]}, {"x": txstore.APPEND}, {"x": np.s_[::3]}, {"x": regions.Resize((1, 1))},
                {"x": regions.Blocks(np.s_[0])}, {"x": regions.Points(np.array([0, 1]))}, {"x": np.s_[..., 2]},
            ))  # fmt: skip
            with contextlib.suppress(IndexError):
                regions.keys_to_lock(view, lock)


class _View(txstore.format.mapping.Hierarchy):
    def __init__(self, values: dict[str, bytes]) -> None:
        self._values = values

    def get_view(self, key: str) -> memoryview | None:
        return None if key not in self._values else memoryview(self._values[key])

    def size_of(self, key: str) -> int | None:
        return None if key not in self._values else len(self._values[key])

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        return iter(sorted(key for key in self._values if start <= key and (stop is None or key < stop)))


# --- inputs
class Inputs:
    """Makes inputs, and tries them. `directory` is scratch, and should be in memory."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.seed = seed
        self.directory = directory
        self.good = build(directory)
        self._files = [each.files() for each in self.good]
        self.places = [(number, path) for number, each in enumerate(self.good) for path in each.commits]

    def try_one(self, number: int, only: str | None = None) -> Iterator[Finding]:
        random = Random(f"{self.seed} {number}")
        if number % WHOLE_EVERY == 0:
            yield from self.try_whole(number, random, only)
        elif random.random() < 0.2:
            yield from self.measured(number, "document", lambda: _read_a_document(random))
        else:
            which, path = random.choice(self.places)
            forged = self.good[which].with_own(path)
            hostile.lie_in(forged, path, random)
            files = {**self._files[which], path: forged.file(path)}
            yield from self.measured(number, "commit", lambda: _read_a_commit(files, path))

    def try_whole(self, number: int, random: Random, only: str | None) -> Iterator[Finding]:
        forged = random.choice(self.good).copy()
        hostile.lie(forged, random)
        chosen = ["read", *random.sample(list(OPERATIONS)[1:], 2)]
        for name in chosen:
            if only is not None and only != name:
                continue
            path = self.directory / "input" / "data.tx"
            shutil.rmtree(path.parent, ignore_errors=True)
            forged.write(path)
            yield from self.measured(number, name, lambda name=name, path=path: OPERATIONS[name](path, random))
        shutil.rmtree(self.directory / "input", ignore_errors=True)

    def measured(self, number: int, name: str, operation: Callable[[], object]) -> Iterator[Finding]:
        before = resource.getrusage(resource.RUSAGE_SELF)
        what = None
        try:
            with _watched(), contextlib.suppress(TxStoreError):
                operation()
        except TooSlowError as error:
            what = f"it takes more than {SECONDS} s\n{_shown(error)}"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
            what = f"{type(error).__name__}: {error!s:.300}\n{_shown(error)}"
        after = resource.getrusage(resource.RUSAGE_SELF)
        peak = after.ru_maxrss << 10
        if what is None and peak > MEMORY and after.ru_maxrss > before.ru_maxrss + (4 << 10):
            what = f"it takes {peak - (before.ru_maxrss << 10) >> 20} MiB more, {peak >> 20} MiB in all"
        if what is not None:
            yield Finding(self.seed, number, name, what)


def _shown(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return "".join(traceback.format_list(frames[-6:]))


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    signal.signal(signal.SIGPROF, always(TooSlowError))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, _STUCK)  # its signal kills: nothing of ours handles it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A directory in memory, where there is one."""
    return tempfile.TemporaryDirectory(prefix="txstore-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def batch(seed: int, begin: int, count: int) -> list[Finding]:
    """Try `count` inputs of a seed, from one on. To be called in a process that does nothing else."""
    found: list[Finding] = []
    warnings.simplefilter("ignore")
    # What is asked for beyond reason is refused, and not taken from everybody else on the machine. The address
    # sanitizer alone has more than that.
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, resource.RLIM_INFINITY))
    with scratch() as directory:
        inputs = Inputs(Path(directory), seed)
        for number in range(begin, begin + count):
            found.extend(inputs.try_one(number))
    return found
