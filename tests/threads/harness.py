"""Eight threads over one store, beside other processes, for some seconds; then everything that they said is checked.

A round has a repository, a pipeline of zarr and a seed of its own. The main thread is one of the eight, since signals
interrupt it alone.
"""

import gc
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import zarr
import zarr.core.codec_pipeline

import txstore
from tests.isolation import checker
from tests.isolation.histories import SETUP, Op, Txn, replay
from tests.threads import layout, neighbours
from tests.threads.interrupts import Signals, ignored_in_finalizers
from tests.threads.layout import LIST_KEYS, NAME, NEIGHBOURS, THREADS, Content
from tests.threads.records import DONE, UNKNOWN, End, Series
from tests.threads.rules import Fault, Made, Rules
from tests.threads.watchdog import Watchdog
from tests.threads.workers import ACTIONS, Shared, Worker
from tests.tools.workers import QUICK, ended
from tests.tools.workers import Worker as Process

#: The codec pipelines that an array over a store of ours may have, by name: our own, and those of this zarr.
PIPELINES = {
    "txstore": "txstore.pipeline.codec_pipeline.TxCodecPipeline",
    **{
        name: f"zarr.core.codec_pipeline.{kind}"
        for name, kind in (("batched", "BatchedCodecPipeline"), ("fused", "FusedCodecPipeline"))
        if hasattr(zarr.core.codec_pipeline, kind)
    },
}

ROUND = 10.0  # seconds
LIMIT = 5.0  # that any call may take
POOL = 4  # threads of the fused pipeline
PAUSE = 0.2  # seconds between two signals, at most
#: In the history that the checker gets: processes of the session and of the transaction with a name.
_SESSION, _NAMED = 100, 101


class Settings(NamedTuple):
    interrupts: bool = True
    limit: float = LIMIT
    leave_out: Collection[str] = ()  # names of actions


#: What has to have happened: else nothing was shown.
_EXPECTED = {
    "write", "read", "append", "lock", "create", "resize", "attribute", "store[key] = value", "snapshot", "entry",
    "commit", "rollback", "commit by name", "commits of other processes",
}  # fmt: skip
_INTERRUPTED = {"commit: interrupted", "rollback: interrupted", "write: interrupted", "read: interrupted"}


def missing(counts: Counter[str], settings: Settings) -> list[str]:
    """Return what should have happened, and has not."""
    if settings.leave_out:
        return []
    expected = _EXPECTED | (_INTERRUPTED if settings.interrupts else set())
    return sorted(what for what in expected if not counts[what])


class Outcome(NamedTuple):
    """What came of one round."""

    pipeline: str
    seed: int
    faults: list[Fault]
    counts: Counter[str]
    longest: dict[str, float]  # seconds that each kind of call took, at most
    stalled: float
    url: str


def run(
    pipelines: Sequence[str], seconds: float, seed: int, settings: Settings, *, directory: str | None = None
) -> Iterator[Outcome]:
    """Yield what came of each round, until the time is over, or one has found something: its repository is kept.

    On a machine so slow that something has not happened by then, there are more rounds.
    """
    begun = time.monotonic()
    number = 0
    counts: Counter[str] = Counter()
    while (passed := time.monotonic() - begun) < seconds or number < len(pipelines) or missing(counts, settings):
        if passed > 20 * seconds + 60:
            return
        pipeline = pipelines[number % len(pipelines)]
        each = min(ROUND, seconds / len(pipelines))
        folder = tempfile.mkdtemp(prefix="txstore-threads-", dir=directory)
        outcome = Round(folder, pipeline, seed + number, settings).run(each)
        yield outcome
        counts += outcome.counts
        if outcome.faults:
            return
        shutil.rmtree(folder)
        number += 1


class Round:
    def __init__(self, folder: str, pipeline: str, seed: int, settings: Settings) -> None:
        self.seed = seed
        self.pipeline = pipeline
        self.settings = settings
        self.chance = random.Random(seed)
        self.durability = self.chance.choice(("none", "fsync"))
        self.actions = {action: often for action, often in ACTIONS.items() if action.__name__ not in settings.leave_out}
        self.repo = txstore.Repository(Path(folder) / "data.tx", durability=self.durability)

    def run(self, seconds: float) -> Outcome:
        settings = {"codec_pipeline.path": PIPELINES[self.pipeline], "threading.max_workers": POOL}
        with (
            zarr.config.set(settings),
            Watchdog(self.settings.limit) as watchdog,
            ignored_in_finalizers() as in_finalizers,
        ):
            with self.repo.transaction("set up") as store:
                layout.create(store)
            signals = Signals(self.chance, PAUSE) if self.settings.interrupts else None
            shared = Shared(self.repo, txstore.TxStore(self.repo), watchdog, signals, self.actions)
            workers = [Worker(shared, number, self.seed) for number in range(THREADS)]
            told = self.run_all(shared, workers, seconds)
            self.end_all(shared)
            faults = list(shared.faults) + [Fault("in a finalizer", what) for what in in_finalizers]
            faults += self.check(shared, told)
        counts = sum((worker.counts for worker in workers), Counter())
        counts["commits of other processes"] = len(told)
        return Outcome(
            self.pipeline, self.seed, faults, counts, dict(watchdog.longest), watchdog.stalled, self.repo.url
        )

    def run_all(self, shared: Shared, workers: list[Worker], seconds: float) -> list[neighbours.Told]:
        stop = QUICK.Event()
        arguments = self.repo.url, self.seed, self.durability, self.settings.limit, stop
        processes = [Process(neighbours.run, number, *arguments, context=QUICK) for number in range(NEIGHBOURS)]
        timer = threading.Timer(seconds, shared.stop.set)
        timer.daemon = True
        threads = [
            threading.Thread(target=worker.run, name=f"thread {worker.number}", daemon=True) for worker in workers[1:]
        ]
        with ended(*processes), _coming(shared.signals):
            timer.start()
            for thread in threads:
                thread.start()
            workers[0].run()
            for thread in threads:
                with shared.watchdog.over(f"the end of {thread.name}"):
                    thread.join()
            timer.cancel()
            stop.set()
            gc.collect()  # members of those who were interrupted
            with shared.watchdog.over("the last rollback"):
                shared.store.rollback()  # a process may wait for what the session has locked
            return [each for process in processes for each in process.result()]

    def end_all(self, shared: Shared) -> None:
        """Whatever was interrupted: the rollback has led back to where one can work, and nobody is left inside."""
        store, watchdog = shared.store, shared.watchdog
        with watchdog.over("the last operation"):
            store["d/0"] = b"0"
            zarr.open_array(store, path="w0", mode="r+")[:] = 0
        with watchdog.over("the rollback of the last operation"):
            store.rollback()
        with watchdog.over("the last rollback by name"), self.repo.transaction(name=NAME) as named:
            named.rollback()
        if self.repo.transactions():
            shared.faults.append(Fault("not ended", f"{self.repo.transactions()}"))
        shared.faults.extend(self.left_locked())
        store.close()

    def left_locked(self) -> Iterator[Fault]:
        """Nothing is locked when all who have locked anything have ended."""
        try:
            with self.repo.transaction(lock=["e", "l"], lock_timeout=0):
                pass
        except txstore.LockTimeoutError as error:
            yield Fault("left locked", str(error))

    # --- what they said

    def check(self, shared: Shared, told: list[neighbours.Told]) -> Iterator[Fault]:
        commits = {commit.message: commit.seq for commit in self.repo.log()}
        contents = {commit.seq: layout.content(self.repo.mapping(at=commit.id)) for commit in self.repo.log()}
        session = _made(shared.session, commits)
        named = _made(shared.named, commits)
        yield from _unexpected(shared)
        yield from _unacknowledged(shared.session.ends + shared.named.ends, commits)
        rules = (
            Rules(shared.session, session, contents, layout.owned(), LIST_KEYS),
            Rules(shared.named, named, contents, layout.named(), []),
        )
        for each in rules:
            yield from each.faults()
        for seq, found in shared.snapshots:
            for key, values in found.items():
                if values != contents[seq][key]:
                    yield Fault("not of its snapshot", f"{values} of {key} in {seq}, not {contents[seq][key]}")
        yield from self.compare(shared, told, commits, contents)
        for fault in self.repo.verify().faults:
            yield Fault("verify", str(fault))

    def compare(
        self, shared: Shared, told: list[neighbours.Told], commits: dict[str, int], contents: dict[int, Content]
    ) -> Iterator[Fault]:
        """Compare all commits with what the processes say that they wrote and read."""
        history = [_setup(contents[1])]
        history += _transactions(shared.session, commits, contents, layout.owned(), _SESSION)
        history += _transactions(shared.named, commits, contents, layout.named(), _NAMED)
        for number, each in enumerate(told):
            if each.message not in commits:
                yield Fault("lost commit", f"{each.message!r} was acknowledged, and is not in the history")
                continue
            process = int(each.message.rpartition(" ")[2])
            history.append(Txn(10**6 + number, process, each.ops, each.base, commits[each.message]))
        known = {txn.commit for txn in history}
        for message, seq in commits.items():
            if seq not in known:
                yield Fault("unexpected", f"commit {seq} ({message!r}) is of nobody")
        history.sort(key=lambda txn: txn.commit or 0)
        states = replay(history)
        for seq in sorted(contents):
            said = states.get(seq, {})
            for key, values in contents[seq].items():
                expected = said.get(key, () if key[0] == "l" else 0)
                if (values if key[0] == "l" else values[-1]) != expected and key[:3] != "r/h":
                    yield Fault(
                        "lost update", f"{key} is {values[-3:]} in commit {seq}, all that was said makes {expected}"
                    )
                    return
        for anomaly in checker.check(history, "snapshot"):
            yield Fault(anomaly.name, anomaly.what)


@contextmanager
def _coming(signals: Signals | None) -> Iterator[None]:
    if signals is None:
        yield
        return
    with signals.coming():
        yield


def _made(series: Series, commits: dict[str, int]) -> list[Made]:
    """Return the commits of a series that are in the history, in order. All have a message, and so all are made."""
    made = []
    for end in series.ends:
        seq = commits.get(end.message)
        if end.what == "commit" and seq is not None:
            made.append(Made(seq, end))
    return sorted(made, key=lambda each: (each.seq, each.end.begin))


def _unexpected(shared: Shared) -> Iterator[Fault]:
    """Yield errors that should not have been.

    A conflict may be, at a commit and, if somebody else changes documents or chunks, in an operation. When an operation
    has failed or was interrupted, the others get errors until a rollback: the transaction may be failed, or of
    unknown outcome, or another thread just rolls it back.
    """
    failures = [(each.note.begin, each.note.end) for each in shared.refusals if each.state == "conflict"]
    failures += shared.interrupts
    rollbacks = [end for end in shared.session.ends if end.what == "rollback" and end.outcome == DONE]
    for note, state, told in shared.refusals:
        last = max((end.begin for end in rollbacks if end.end < note.begin), default=0)
        failed = any(begin < note.end and end > last for begin, end in failures)
        is_rollback = isinstance(note, End) and note.what == "rollback"
        if is_rollback or not (state == "conflict" or (failed and state not in ("none", "open"))):
            yield Fault("unexpected", f"{note}: {told}")


def _unacknowledged(ends: list[End], commits: dict[str, int]) -> Iterator[Fault]:
    """Yield commits that were refused, and made."""
    for end in ends:
        if end.message in commits and end.outcome not in (DONE, UNKNOWN):
            yield Fault("made though refused", str(end))


def _setup(content: Content) -> Txn:
    ops = tuple(Op("write", key, values[0]) for key, values in content.items() if key[0] == "r")
    return Txn(0, SETUP, ops, 0, 1)


def _transactions(
    series: Series, commits: dict[str, int], contents: dict[int, Content], registers: list[str], process: int
) -> Iterator[Txn]:
    """Yield the commits of a series as the transactions that they must have been.

    What is in a transaction is in the content of its commit. Its base is not known; but what it has read and appended
    to must have been the same in the commit before it.
    """
    appends = {each.wrote: each for each in series.operations if each.wrote is not None and each.wrote[0][0] == "l"}
    for end in series.ends:
        seq = commits.get(end.message)
        if seq is None:
            continue
        ops = []
        for key in registers:
            value = contents[seq][key][-1]
            if value != contents[seq - 1][key][-1]:
                ops.append(Op("write", key, value))
        for key in LIST_KEYS:
            there = contents[seq - 1][key]
            new = [element for element in contents[seq][key] if element not in there and (key, element) in appends]
            if new:
                ops.append(Op("read", key, appends[key, new[0]].knew))
            ops += [Op("append", key, element) for element in new]
        yield Txn(seq, process, tuple(ops), seq - 1, seq)
