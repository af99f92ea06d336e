"""Random histories of erasures of rows and of arrays: one to three at once, in threads and processes, killed anywhere.

Between them the repository is written, branched, merged, restored, rechunked, optimized, vacuumed, backed up and
checked out, arrays are copied and moved by reference, and commits are picked and reverted. After each step every
element of every commit is compared with what it was before, and at the end all files are searched for the bytes of what
was erased. Half of the values are 0 or 1, so that a wrong element may look right to a checksum of values; the others
are unlike any other bytes.

    python -m tests.erasures --histories 2000 --seed 1
"""

import contextlib
import gc
import multiprocessing
import random
import shutil
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr

import txstore
from tests.maintenance.erased_rows import array_of, files_of
from tests.tools.crew import LATE, FailedError, WrongError, repeat
from tests.tools.faults import Killed, watch
from tests.tools.inside import objects_of
from tests.tools.upkeep import below
from txstore.format.documents import describe
from txstore.format.keys import is_document, node_of_document

ROUNDS = 5
#: Arrays with rows, by what their values are: few, or unlike any others.
FEW, UNIQUE = ("few", "g/few"), ("u", "g/u")
FILLS = {"few": 9, "g/few": 0, "u": 0, "g/u": 0, "plain": 0}
TIMEOUT = 60

REFUSED = (
    txstore.ErasedError, txstore.MergeConflictError, txstore.NoCommonAncestorError, txstore.SnapshotExpiredError,
    txstore.CommitNotFoundError,
)  # fmt: skip
Place = tuple[str, int, str]  # branch, version and path of an array
Values = npt.NDArray[Any]


class Task(NamedTuple):
    """One erasure: of arrays, or of rows of them."""

    paths: tuple[str, ...]
    rows: tuple[int, ...] | None

    def covers(self, path: str) -> bool:
        has_rows = path in FEW or path in UNIQUE
        return has_rows and any(not given or path == given or path.startswith(f"{given}/") for given in self.paths)


def erase(repo: txstore.Repository, task: Task) -> str:
    """Return what came of it."""
    arguments: list[Any] = [*task.paths]
    if task.rows is not None:
        arguments.append({"p": [*task.rows]})
    try:
        report = repo.erase(*arguments, timeout=TIMEOUT)
    except txstore.NodeNotFoundError:
        return "no node"
    except txstore.ErasureError as error:
        if "can't be erased: no commit has" in str(error):
            return "no rows"
        if "have some of the same values" in str(error):
            return "shared"
        raise
    return "erased" if report.commit is not None else "nothing left"


def elements(repo: txstore.Repository, but: Container[Place] = ()) -> dict[Place, Values | None]:
    """Return each array of each commit, but for some; None if some of it was erased as a whole.

    What has the same bytes is decoded once.
    """
    found: dict[Place, Values | None] = {}
    decoded: dict[tuple[tuple[str, bytes], ...], Values] = {}
    for branch in repo.branches:
        for commit in repo.log(branch):
            try:
                keys = repo.mapping(at=commit.version, branch=branch)
                of_nodes = {node_of_document(key): [] for key in keys if is_document(key)}
                for key in sorted(keys):
                    of_nodes.setdefault(_node_of_key(key), []).append(key)
            except (txstore.CommitNotFoundError, txstore.SnapshotExpiredError):
                continue
            for path, keys_of_node in of_nodes.items():
                place = branch, commit.version, path
                if place in but:
                    continue
                try:
                    described = describe(keys.get_view, path)
                    if described is None or described.kind != "array":
                        continue
                    content = tuple((key, bytes(keys[key])) for key in keys_of_node)
                    if content not in decoded:
                        snapshot = repo.snapshot(at=commit.version, branch=branch)
                        decoded[content] = zarr.open_array(snapshot, path=path, mode="r")[...]  # type: ignore[assignment]
                    found[place] = decoded[content]
                except txstore.ErasedError:
                    found[place] = None
    return found


def _node_of_key(key: str) -> str:
    return node_of_document(key) if is_document(key) else key.rpartition("/c/")[0]


# --- other processes
def serve(connection: Any) -> None:
    gc.freeze()
    while (told := connection.recv()) is not None:
        url, task = told
        try:
            connection.send(erase(txstore.Repository(url, durability="none"), task))
        except Exception:  # noqa: BLE001 - the parent tells of it
            connection.send(FailedError(traceback.format_exc()))
        gc.collect()


class Others:
    """Two processes that erase. One that was killed is replaced."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([*LATE, "tests.erasures.histories", "txstore.labels.erasing"])
        self.members = [self.member() for _ in range(2)]

    def member(self) -> tuple[Any, Any]:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=serve, args=(theirs,), daemon=True)
        process.start()
        return process, ours

    def begin(self, number: int, url: str, task: Task) -> None:
        self.members[number][1].send((url, task))

    def end(self, number: int, kill_after: float | None) -> str:
        process, connection = self.members[number]
        if kill_after is not None and not connection.poll(kill_after):
            process.kill()
            process.join()
            connection.close()
            self.members[number] = self.member()
            return "killed"
        answer: Any = connection.recv()
        if isinstance(answer, FailedError):
            raise answer
        return str(answer)

    def close(self) -> None:
        for process, connection in self.members:
            connection.send(None)
            process.join()


def in_thread(url: str, options: dict[str, Any], task: Task, dies_at: int | None) -> str:
    """Erase; die at the n-th call that changes a file."""
    repo = txstore.Repository(url, **options)
    if dies_at is not None:
        watched, left = watch(repo), iter(range(dies_at))

        def die(*_: Any) -> None:
            watched.calls.clear()
            if next(left, None) is None:
                raise Killed

        for name in ("replace", "replace_blanked", "rename_noreplace", "delete", "create"):
            watched.before[name] = die
    try:
        return erase(repo, task)
    except Killed:
        return "killed"
    finally:
        del repo


# --- the history
@dataclass
class History:
    repo: txstore.Repository
    drawn: random.Random
    directory: Path
    others: Others | None  # None: the repository is in the memory of this process
    options: dict[str, Any]
    counts: Counter[str] = field(default_factory=Counter)
    known: dict[Place, Values | None] = field(default_factory=dict)
    #: Of each array of unique values and each label: all that was written.
    written: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)
    secrets: set[bytes] = field(default_factory=set)
    #: Those that a backup must not have. If a branch is deleted, it may be the last that has some values: an erasure
    #: that finds nothing then leaves no record.
    recorded: set[bytes] = field(default_factory=set)
    unfinished: list[Task] = field(default_factory=list)
    labels: int = 0  # how many there are
    copied: bool = False

    def begin(self) -> None:
        self.labels = self.drawn.choice([4, 6, 9])
        with self.repo.transaction("first") as store:
            array_of(store, "p", np.arange(self.labels), ["p"], (self.drawn.choice([3, 16]),))
            for path in (*FEW, *UNIQUE):
                self._make(store, path)
            array_of(store, "plain", np.arange(5), ["x"], (5,))

    def _make(self, store: Any, path: str) -> None:
        data = self.data(path, range(self.labels))
        shards = {"shards": (4, 2), "chunks": (2, 2)} if self.drawn.random() < 0.2 else {"chunks": (3, 2)}
        compressors = self.drawn.choice([None, None, "auto"]) if path in FEW else None
        array_of(store, path, data, ["p", "x"], compressors=compressors, fill_value=FILLS[path], **shards)

    def data(self, path: str, labels: Any) -> Values:
        if path in FEW:
            return np.array([[self.drawn.randrange(2) for _ in range(2)] for _ in labels], "u1").reshape(-1, 2)
        found = np.frombuffer(self.drawn.randbytes(16 * len(labels)), np.uint64).reshape(-1, 2)
        for label, row in zip(labels, found, strict=True):
            self.written.setdefault((path, label), set()).update(each.tobytes() for each in row)
        return found

    # --- what others do to the repository

    def path(self, store: Any) -> str | None:
        there = list[str]()
        for path in (*FEW, *UNIQUE):
            with contextlib.suppress(KeyError, txstore.ErasedError):  # the branch begins with a commit that had it
                there += [path] * len(store[f"{path}/zarr.json"][:1])
        return self.drawn.choice(there) if there else None

    def _branch(self) -> str:
        return self.drawn.choice(sorted(self.repo.branches))

    def write(self) -> None:
        with self.repo.transaction("write", branch=self._branch()) as store:
            path = self.path(store)
            if path is not None:
                array = zarr.open_array(store, path=path)
                if length := array.shape[0]:
                    label = self.drawn.randrange(length)
                    array[label] = self.data(path, [label])[0]

    def append(self) -> None:
        """On `main` alone: a label is at one place in all commits."""
        with self.repo.transaction("append") as store:
            labels = range(self.labels, self.labels + self.drawn.randrange(1, 4))
            zarr.open_array(store, path="p").append(np.array(labels))
            for path in (*FEW, *UNIQUE):
                if f"{path}/zarr.json" in store:
                    array = zarr.open_array(store, path=path)
                    array.resize((labels.start, 2))
                    array.append(self.data(path, labels))
        self.labels = labels.stop

    def make(self) -> None:
        with self.repo.transaction("make") as store:
            missing = [path for path in (*FEW, *UNIQUE) if f"{path}/zarr.json" not in store]
            if missing:
                self._make(store, self.drawn.choice(missing))

    def branch(self) -> None:
        if len(self.repo.branches) < 3:
            commit = self.drawn.choice(list(self.repo.log()))
            with contextlib.suppress(txstore.SnapshotExpiredError, txstore.ErasedError):
                self.repo.branches[f"b{self.drawn.randrange(10**6)}"] = commit

    def drop_branch(self) -> None:
        name = self._branch()
        if name != "main":
            del self.repo.branches[name]
            self.known = {place: values for place, values in self.known.items() if place[0] != name}

    def restore(self) -> None:
        path = self.drawn.choice([*FEW, *UNIQUE])
        commit = self.drawn.choice(list(self.repo.log()))
        with (
            contextlib.suppress(txstore.ErasedError, txstore.NodeNotFoundError, txstore.SnapshotExpiredError),
            self.repo.transaction("restore") as store,
        ):
            at = self.repo.snapshot(at=commit.version)
            shape = zarr.open_array(at, path="p", mode="r").shape
            if shape == zarr.open_array(store, path="p", mode="r").shape:
                store.restore(path, at=commit.version)

    def rechunk(self) -> None:
        with self.repo.transaction() as store:
            path = self.path(store)
        del store
        if path is not None:
            self.repo.rechunk(path, chunks=(self.drawn.choice([2, 3, 4, 8]), self.drawn.choice([1, 2])), workers=1)

    def optimize(self) -> None:
        self.repo.optimize(branch=self._branch())

    def vacuum(self) -> None:
        branch = self._branch()
        self.repo.vacuum(keep=self.drawn.choice([None, None, 3]), branch=branch)

    def tag(self) -> None:
        self.repo.tags[f"t{self.drawn.randrange(10**6)}"] = self.drawn.choice(list(self.repo.log()))

    def back_up(self) -> None:
        try:
            self.repo.backup(self.copy, erase=self.copied)
        except txstore.BackupError as error:
            if "a vacuum has passed it" not in str(error):
                raise
            shutil.rmtree(self.copy)
            self.repo.backup(self.copy)
        self.copied = True

    @property
    def copy(self) -> Path:
        return self.directory / "copy.tx"

    def check_out(self) -> None:
        """A directory that was checked out some time ago brings nothing back."""
        work = self.directory / "work"
        if not work.exists():
            self.repo.checkout(work)
            return
        try:
            self.repo.commit_directory(work)
        except txstore.CheckoutError:
            self.counts["refused checkout"] += 1

    def copy_or_move(self) -> None:
        """By reference: two paths have the same values, until one of them is written again."""
        with (
            contextlib.suppress(txstore.ErasedError, txstore.NodeNotFoundError),  # or "g" was erased
            self.repo.transaction("copy", branch=self._branch()) as store,
        ):
            there = [path for path in UNIQUE if zarr.open_group(store).get(path) is not None]
            if len(there) == 2:
                del zarr.open_group(store)[gone := self.drawn.choice(UNIQUE)]
                there.remove(gone)
            if there:
                [source] = there
                to = next(path for path in UNIQUE if path != source)
                for label, row in enumerate(zarr.open_array(store, path=source)[:]):
                    self.written.setdefault((to, label), set()).update(each.tobytes() for each in row[row != 0])
                self.drawn.choice([store.copy, store.copy, store.move])(source, to)

    def merge(self) -> None:
        source, target = self._branch(), self._branch()
        if source != target:
            with contextlib.suppress(*REFUSED):
                self.repo.merge(source, target, resolve={"": self.drawn.choice(["ours", "theirs"])})

    def pick_or_revert(self) -> None:
        branch, target = self._branch(), self._branch()
        with contextlib.suppress(*REFUSED):
            commit = self.drawn.choice(list(self.repo.log(branch)))
            lengths = {
                zarr.open_array(self.repo.snapshot(at=at, branch=name), path="p", mode="r").shape
                for at, name in ((commit.version, branch), (commit.version - 1, branch), (None, target))
            }
            if len(lengths) == 1 and commit.version:
                how = self.drawn.choice([self.repo.cherry_pick, self.repo.revert])
                how(commit, target, resolve={"": self.drawn.choice(["ours", "theirs"])})

    # --- erasures

    def task(self) -> Task:
        if self.drawn.random() < 0.15:
            return Task((self.drawn.choice([*FEW, *UNIQUE, "g"]),), None)
        rows = tuple(sorted(self.drawn.sample(range(self.labels), self.drawn.choice([1, 1, 2]))))
        return Task(self.drawn.choice([("",), ("u",), ("g",), ("few",), ("g/u", "few"), ("u", "few")]), rows)

    def erase(self) -> None:
        tasks = [self.task() for _ in range(self.drawn.choice([1, 1, 2, 2, 3]))]
        if self.unfinished and self.drawn.random() < 0.4:
            tasks[0] = self.unfinished[0]
        before = {key: {*pieces} for key, pieces in self.written.items()}
        answers = self.run(tasks)
        for task, answer in zip(tasks, answers, strict=True):
            self.counts[answer] += 1
            if answer == "killed":
                self.unfinished.append(task)
            elif answer in ("erased", "nothing left"):
                self.note(task, before, answer)
        self.check(tasks, {task: answer for task, answer in zip(tasks, answers, strict=True) if answer != "killed"})

    def note(self, task: Task, before: dict[tuple[str, int], set[bytes]], answer: str) -> None:
        stays = set[bytes]()  # copies that were written again
        meant = {key for key in before if task.covers(key[0]) and (task.rows is None or key[1] in task.rows)}
        for key, pieces in self.written.items():
            stays |= pieces - before.get(key, set()) if key in meant else pieces
        for key in meant:
            self.secrets |= before[key] - stays
            self.recorded |= before[key] - stays if answer == "erased" else set()
            self.written[key] -= before[key]
        self.unfinished = [each for each in self.unfinished if each != task]

    def run(self, tasks: list[Task]) -> list[str]:
        url, answers = self.repo.url, dict[int, Any]()
        kills = self.drawn.random() < 0.4
        threads, waits = list[threading.Thread](), list[tuple[int, int, float | None]]()
        free = [0, 1] if self.others is not None else []
        for at, task in enumerate(tasks):
            dies = kills and at == 0
            if free and self.drawn.random() < 0.6:
                number = free.pop()
                self.others.begin(number, url, task)
                waits.append(
                    (at, number, self.drawn.choice([0.1, 0.3, 0.6, 1.0]) * self.drawn.random() if dies else None)
                )
            else:
                dies_at = self.drawn.randrange(40) if dies else None
                call = partial(in_thread, url, self.options, task, dies_at)
                threads.append(threading.Thread(target=partial(_answer, answers, at, call)))
                threads[-1].start()
        for at, number, kill_after in waits:
            answers[at] = self.others.end(number, kill_after)
        for thread in threads:
            thread.join()
        for answer in answers.values():
            if isinstance(answer, Exception):
                raise answer
        gc.collect()
        return [answers[at] for at in range(len(tasks))]

    # --- checks

    def read(self, but: Container[Place] = ()) -> dict[Place, Values | None]:
        """Return each array of each commit, without those that are known; None if some of it was erased as a whole.

        A process that has read something before may have it in memory, so this opens the repository anew.
        """
        found = elements(txstore.Repository(self.repo.url, **self.options), but)
        gc.collect()
        return found

    def look(self) -> None:
        """Read what is new. What was known is compared after the next erasure, and so after all that came between."""
        self.known |= self.read(self.known)

    def check(self, tasks: list[Task], ended: dict[Task, str]) -> None:
        """Compare all commits with what they were before these erasures."""
        now = self.read()
        for place, was in self.known.items():
            if place in now or not any(
                each.rows is None and each.covers(place[2]) for each in [*tasks, *self.unfinished]
            ):
                self.compare(place, was, now.get(place), tasks, ended)
        self.known = now

    def compare(
        self, place: Place, was: Values | None, now: Values | None, tasks: list[Task], ended: dict[Task, str]
    ) -> None:
        path = place[2]
        told = [each for each in [*tasks, *self.unfinished] if each.covers(path)]
        whole = [each for each in told if each.rows is None]
        if was is None or (now is None and whole):
            return
        if now is None or now.shape != was.shape:
            if place[1] < 0 or self.is_expired(place):
                return
            raise WrongError(f"{place}: {was.tolist()} is {None if now is None else now.tolist()} after {tasks}")
        if any(each in ended and ended[each] == "erased" for each in whole):
            raise WrongError(f"{place} is there after {whole}")
        for label, (old, new) in enumerate(zip(was, now, strict=True)):
            of_row = [each for each in told if each.rows is not None and label in each.rows]
            is_as_before, is_filled = np.array_equal(old, new), bool((new == FILLS.get(path, 0)).all())
            must = any(ended.get(each) in ("erased", "nothing left") for each in of_row)
            if (must and not is_filled) or not (is_as_before or (of_row and is_filled)):
                raise WrongError(f"{place}, row {label}: {old} became {new}: {tasks}, {ended}, {self.unfinished}")

    def is_expired(self, place: Place) -> bool:
        branch, version, _ = place
        return branch not in self.repo.branches or all(each.version != version for each in self.repo.log(branch))

    def leaks(self) -> list[str]:
        if self.others is None:
            objects = objects_of(self.repo)
            found: Iterator[tuple[str, bytes]] = ((path, bytes(objects.get(path))) for path, _ in list(below(objects)))
        else:
            found = files_of(self.repo.url)
        leaks = [path for path, content in found if any(piece in content for piece in self.secrets)]
        copied = files_of(self.copy) if self.copied else ()
        return leaks + [path for path, content in copied if any(piece in content for piece in self.recorded)]

    def end(self) -> Counter[str]:
        while self.unfinished:  # each is done again, and what was interrupted is finished by then
            task = self.unfinished.pop()
            before = {key: {*pieces} for key, pieces in self.written.items()}
            answer = in_thread(self.repo.url, self.options, task, None)
            gc.collect()
            self.counts[f"again: {answer}"] += 1
            if answer in ("erased", "nothing left"):
                self.note(task, before, answer)
            elif answer == "no node" and len(task.paths) > 1:  # one of them was erased as a whole since
                self.unfinished += [Task((path,), task.rows) for path in task.paths]
            elif answer == "shared":
                self.unfinished.append(Task(UNIQUE if task.rows is None else ("",), task.rows))
            self.check([task], {task: answer})
        if self.copied:
            self.back_up()
            copy = txstore.Repository(self.copy)
            theirs, ours = elements(copy), self.read()
            gc.collect()
            for place in ours.keys() & theirs.keys():
                if not np.array_equal(ours[place], theirs[place]):  # type: ignore[arg-type]
                    raise WrongError(f"the backup has {theirs[place]} at {place}, not {ours[place]}")
            if faults := copy.verify().faults:
                raise WrongError(f"verify of the backup: {faults}")
        if faults := self.repo.verify().faults:
            raise WrongError(f"verify: {faults}")
        if left := [each for each in self.repo.erasures() if each.finished is None]:
            raise WrongError(f"not finished: {left}")
        if found := self.leaks():
            raise WrongError(f"what was erased is in {found}")
        return self.counts


WORK: list[Callable[[History], None]] = [
    History.write, History.write, History.write, History.append, History.make, History.branch, History.drop_branch,
    History.restore, History.rechunk, History.optimize, History.vacuum, History.tag, History.back_up, History.back_up,
    History.check_out, History.check_out, History.copy_or_move, History.merge, History.merge, History.pick_or_revert,
    History.pick_or_revert,
]  # fmt: skip


def _answer(answers: dict[int, Any], at: int, call: Callable[[], str]) -> None:
    try:
        answers[at] = call()
    except Exception:  # noqa: BLE001 - the caller raises it
        answers[at] = FailedError(traceback.format_exc())


def history(others: Others, directory: Path, seed: int) -> Counter[str]:
    """Make one history and check it. Raise `WrongError`."""
    drawn = random.Random(seed)
    is_far = drawn.random() < 0.25
    options: dict[str, Any] = {"single_writer": True} if is_far else {}
    url = f"memory://{uuid.uuid4().hex}/data.tx" if is_far else str(directory / "data.tx")
    repo = txstore.Repository(url, durability="none", **options)
    found = History(repo, drawn, directory, None if is_far else others, {"durability": "none", **options})
    found.begin()
    steps = list[str]()
    try:
        for _ in range(ROUNDS):
            for work in drawn.sample(WORK, drawn.randrange(1, 4)):
                steps.append(work.__name__)
                work(found)
            gc.collect()
            found.look()
            steps.append("erase")
            found.erase()
        return found.end()
    except Exception as error:
        error.add_note(f"{url}: {steps}")
        raise


def histories(count: int, seed: int) -> Counter[str]:
    gc.collect()
    gc.freeze()  # what is imported is not looked through by each collection, of which a history makes dozens
    others = Others()
    try:
        return repeat(partial(history, others), count, seed)
    finally:
        others.close()
