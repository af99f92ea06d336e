"""Erasures of arrays and rows, kills, backups, repairs, freezes and retention, beside what the model of history does.

Every row, and every attribute, is unlike all others. So the files are searched for what was erased.
"""

import gc
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

import txstore
from tests.maintenance.erased_rows import files_of
from tests.model.test_history_model import (
    ARRAYS,
    GROUPS,
    Content,
    History,
    HistoryOfObjects,
    below,
    is_document,
    node_of,
    steps,
)
from tests.tools.faults import Killed, watch
from tests.tools.inside import objects_of
from tests.tools.steps import BeforeEachChange
from tests.tools.upkeep import below as objects_below
from txstore.maintenance.vacuum import STEP
from txstore.transactions.transaction import Transaction

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # what the dead can't clean up
    pytest.mark.filterwarnings("ignore::txstore.UncommittedChangesWarning"),
]

ROWS, CHUNK, DIMENSION = 8, 4, "row"
#: The rows of one array are so long that its values are aligned.
COLUMNS = {path: 40 if path == "h/x" else 1 for path in ARRAYS}
#: What a process is killed before.
CHANGES = ("replace", "replace_blanked", "rename_noreplace", "write_once", "delete", "create")
#: A value that was erased: whoever asks for it is told.
ERASED: Any = None

deaths = st.integers(0, 40)


def document(path: str, secret: bytes) -> bytes:
    told: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {"secret": secret.hex()}}
    if path in ARRAYS:
        told |= {
            "node_type": "array", "shape": [ROWS, COLUMNS[path]], "data_type": "uint64", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK, COLUMNS[path]]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "dimension_names": [DIMENSION, None],
        }  # fmt: skip
    return json.dumps(told).encode()


def is_at(key: str, path: str) -> bool:
    return not path or key.startswith(f"{path}/")


def rows_of(key: str, value: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of a chunk, by their numbers in the array."""
    length, first = len(value) // CHUNK, CHUNK * int(key.split("/c/")[1][0])
    for number in range(CHUNK):
        yield first + number, value[number * length : (number + 1) * length]


def without_row(key: str, value: bytes, row: int) -> bytes:
    return b"".join(bytes(len(each)) if number == row else each for number, each in rows_of(key, value))


def pieces_of(key: str, content: Content) -> Iterator[tuple[int | None, bytes]]:
    """Yield what is searched for of a value, and its row; None: it is a document."""
    value = content[key]
    if value is ERASED:
        return
    if is_document(key):
        yield None, json.loads(value)["attributes"]["secret"].encode()
    else:
        yield from ((row, each[:8]) for row, each in rows_of(key, value) if any(each))


def is_erased(there: Any, key: str) -> bool:
    try:
        there.get(key)
    except txstore.ErasedError:
        return True
    return False


def leaks(files: Iterator[tuple[str, bytes]], pieces: set[bytes]) -> list[str]:
    return [path for path, content in files if any(piece in content for piece in pieces)]


class Upkeep(History):
    merge = cherry_pick = revert = None  # tests/erasures has these beside erasures

    @initialize()
    def begin(self) -> None:
        self.written: dict[tuple[str, int | None], set[bytes]] = {}  # by path and row; None: the document
        self.secrets: set[bytes] = set()
        self.recorded: set[bytes] = set()  # those that no backup may have: the erasure found them in a commit
        super().begin()

    def teardown(self) -> None:
        if hasattr(self, "repo"):
            self.leave()
            self.repo.vacuum()  # deletes what killed processes have left
            self.note("main")
        super().teardown()

    def secret(self) -> bytes:
        return random.Random(next(self.numbers)).randbytes(8)

    # --- contents

    def note_written(self, values: Content) -> None:
        for key in values:
            for row, piece in pieces_of(key, values):
                self.written.setdefault((node_of(key), row), set()).add(piece)

    def do(self, tx: Transaction, content: Content, steps: Any) -> None:
        for what, *n in steps:
            self.step(tx, content, what, *n)

    def create(self, tx: Transaction, now: Content, path: str) -> None:
        for each in (path.partition("/")[0], path.rpartition("/")[0], path):
            if each and now.get(f"{each}/zarr.json") is ERASED:
                self.put(tx, now, f"{each}/zarr.json", document(each, self.secret()))

    def put(self, tx: Transaction, now: Content, key: str, value: bytes) -> None:
        tx[key] = now[key] = value
        self.note_written({key: value})

    def step(self, tx: Transaction, now: Content, what: str, *n: int) -> None:
        array, node = ARRAYS[n[0] % len(ARRAYS)], (*ARRAYS, *GROUPS)[n[0] % 10]
        if what == "put":
            self.create(tx, now, array)
            key, size = f"{array}/c/{n[1] % 2}/0", 8 * COLUMNS[array]
            value = bytearray(now.get(key) or bytes(CHUNK * size))
            at = n[1] % CHUNK * size
            value[at : at + size] = self.secret() * COLUMNS[array]
            self.put(tx, now, key, bytes(value))
        elif what == "attribute":
            self.create(tx, now, node)
            self.put(tx, now, f"{node}/zarr.json", document(node, self.secret()))
        elif what == "delete":
            tx.delete_dir(node)
            for key in below(now, node):
                del now[key]
        else:
            self.refer(tx, now, what, node, *n[1:])

    def refer(self, tx: Transaction, now: Content, what: str, node: str, *n: int) -> None:
        """Move, copy, restore or take what is there already."""
        old = self.kept()
        commit, there = old[n[1] % len(old)]
        source = now if what in ("move", "copy") else there
        path, to = node, node
        if what == "take":
            path = to = ""
            keys = sorted(key for key, value in there.items() if value is not ERASED)
            taken = {keys[at % len(keys)] for at in n} if keys else set()
            found = {key: there[key] for key in taken}
        else:
            found = below(source, path)
        if what in ("move", "copy", "copy at"):
            kind = ARRAYS if node in ARRAYS else GROUPS
            to = kind[n[0] % len(kind)]
            above = to.rpartition("/")[0]
            is_free = not below(now, to) and (not above or now.get(f"{above}/zarr.json") is not ERASED)
            if source.get(f"{node}/zarr.json") is ERASED or not is_free or is_at(f"{to}/", node):
                return
        if what == "restore" and not found and not below(now, path):
            return
        snapshot = self.repo.mapping(at=commit) if what in ("copy at", "restore", "take") else None
        try:
            if what == "move":
                tx.nodes.move(node, to)
            elif what == "restore":
                tx.nodes.restore(path, snapshot)
            elif what == "take":
                tx.nodes.take({key: key for key in found}, snapshot)
            else:
                tx.nodes.copy(node, to, snapshot)
        except txstore.ErasedError:
            assert ERASED in found.values()
            return
        assert ERASED not in found.values()
        gone = below(now, path) if what in ("move", "restore") else {}
        for key in gone:
            del now[key]
        moved = {to + key[len(path) :]: value for key, value in found.items()}
        self.note_written(moved)
        now.update(moved)

    @staticmethod
    def compare(there: Any, content: Content) -> None:
        expected = {key: value for key, value in content.items() if value is not ERASED and any(value)}
        found = {key: bytes(there[key]) for key in there}
        assert {key: value for key, value in found.items() if any(value)} == expected
        assert [key for key, value in content.items() if value is ERASED and not is_erased(there, key)] == []

    # --- erasures

    @rule(at=st.integers(0, 11), row=st.none() | st.integers(0, ROWS - 1), ends=st.booleans(), dies=st.none() | deaths)
    def erase(self, at: int, row: int | None, ends: bool, dies: int | None) -> None:
        if ends:
            self.leave()
        gc.collect()
        kept = [made.content for made in self.made.values() if self.is_kept(made)]
        there = {key for content in kept for key, value in content.items() if value is not ERASED}
        tops = sorted({key.partition("/")[0] for key in there})
        for paths in ([(*ARRAYS, *GROUPS)[at % 10]], tops):
            arguments = paths if row is None else [*paths, {DIMENSION: row}]
            try:
                self.erase_once(paths, row, arguments, dies)
            except txstore.ErasureTimeoutError:
                assert self.opened or self.reading
            except txstore.NodeNotFoundError:
                assert not all(any(is_at(key, path) for key in there) for path in paths)
            except txstore.ErasureError as error:
                if "same values" in str(error):
                    continue
                if row is None or "no commit has" not in str(error):
                    raise
            break
        self.check()

    def erase_once(self, paths: list[str], row: int | None, arguments: list[Any], dies: int | None) -> None:
        def call(repo: txstore.Repository) -> None:
            report.append(repo.erase(*arguments, positions=row is not None, timeout=0))

        report: list[Any] = []
        if dies is None or not self.killed(call, dies):
            call(self.repo)
        elif not report:
            self.leave()
            assert {fault.part for fault in self.open().verify().faults} <= {"erasure"}
            call(self.open())
        old = {*self.made}
        for name in self.ids:
            self.note(name)
        deleting = {
            each.id for name in self.ids for each in self.repo.log(name) if each.message.endswith("to be erased")
        }
        for made in sorted(self.made.values(), key=lambda made: made.number):
            if made.id not in old and made.parents[0] in deleting - old:
                deleting.add(made.id)
            for key, value in [*made.content.items()]:
                if any(is_at(key, path) for path in paths):
                    if row is None and made.id in deleting - old:
                        del made.content[key]
                    elif row is None:
                        made.content[key] = ERASED
                    elif value is not ERASED and not is_document(key):
                        made.content[key] = without_row(key, value, row)
        if self.opened:
            return  # one may have written it again
        meant = {
            (path, number)
            for path, number in self.written
            if any(is_at(f"{path}/", each) for each in paths) and row in (None, number)
        }
        seen = {
            piece for made in self.made.values() for key in made.content for _, piece in pieces_of(key, made.content)
        }
        gone = {piece for each in meant for piece in self.written.pop(each)} - seen
        self.secrets |= gone
        if report[-1].commit is not None:
            self.recorded |= gone
        assert leaks(self.files(), self.secrets) == []

    def files(self) -> Iterator[tuple[str, bytes]]:
        return files_of(self.url)

    # --- kills

    def killed(self, call: Callable[[txstore.Repository], object], at: int) -> bool:
        """Do something in a process that is killed before its n-th change; tell whether it was."""
        repo, left = self.open(), iter(range(at))

        def die(*_: object) -> None:
            if threading.current_thread() is threading.main_thread() and next(left, None) is None:
                raise Killed

        watched = watch(repo)
        watched.before = BeforeEachChange(die)
        is_dead = False
        try:
            call(repo)
        except Killed:
            is_dead = self.are_leftovers = True
        watched.before = {}
        del repo, watched
        gc.collect()
        return is_dead

    @rule(on=st.integers(0, 5), steps=steps, dies=deaths)
    def commit_killed(self, on: int, steps: Any, dies: int) -> None:
        name = self.name(on)
        content = dict(self.head(name).content)

        def call(repo: txstore.Repository) -> None:
            with repo.begin(branch=name) as tx:
                self.do(tx, content, steps)

        self.killed(call, dies)
        if self.note(name, content) is None:
            self.check()

    @rule(on=st.integers(0, 5), keep=st.integers(1, 5), dies=deaths)
    def vacuum_killed(self, on: int, keep: int, dies: int) -> None:
        name = self.name(on)
        self.killed(lambda repo: (repo.optimize(branch=name), repo.vacuum(keep=keep, branch=name)), dies)
        self.note(name)
        done = self.repo.vacuum(branch=name)
        self.note(name)
        self.oldest_kept_versions[self.ids[name]] = done.oldest_kept
        self.check()

    # --- copies

    @property
    def copy(self) -> Path:
        return Path(self.folder.name, "copy.tx")

    def back_up(self) -> None:
        try:
            self.repo.backup(self.copy, erase=True)
        except txstore.BackupError as error:
            if "a vacuum has passed it" not in str(error):
                raise
            shutil.rmtree(self.copy)
            self.repo.backup(self.copy, erase=True)

    @rule()
    def backup(self) -> None:
        self.back_up()
        assert txstore.Repository(self.copy).verify().faults == []
        self.check_copy(self.copy)
        assert leaks(files_of(self.copy), self.recorded) == []

    def check_copy(self, path: Path) -> int:
        """Read all that is kept in a copy: each commit is right, or an error. Return how many are errors."""
        copy, errors = txstore.Repository(path), 0
        for made in self.made.values():
            if self.is_kept(made):
                try:
                    self.compare(copy.mapping(at=made.id), made.content)
                except (txstore.TxStoreError, ValueError):
                    errors += 1
        return errors

    @rule(file=st.integers(0, 50), at=st.integers(0, 2**16), flip=st.integers(1, 255))
    def repair(self, file: int, at: int, flip: int) -> None:
        self.back_up()
        damaged = Path(self.folder.name, "damaged.tx")
        shutil.copytree(self.copy, damaged)
        files = sorted(path for path in damaged.rglob("*") if path.is_file() and path.stat().st_size)
        files.remove(damaged / "format.json")  # without it a repository can't be opened: the command repairs it
        path = files[file % len(files)]
        content = bytearray(path.read_bytes())
        content[at % len(content)] ^= flip
        path.write_bytes(content)
        self.check_copy(damaged)
        report = txstore.Repository(damaged).verify(repair=True)
        is_shorter = any("the head is version" in repair.action for repair in report.repairs)
        assert self.check_copy(damaged) == 0 or not report.ok or is_shorter
        assert leaks(files_of(damaged), self.recorded) == []
        shutil.rmtree(damaged)

    # --- freezes, retention

    @rule(on=st.integers(0, 5))
    def freeze(self, on: int) -> None:
        name = self.name(on)
        self.repo.freeze("published", branch=name)
        with pytest.raises(txstore.ConstraintError), self.repo.begin(branch=name) as tx:
            tx["new/zarr.json"] = document("g", b"")
        if self.head(name).content:
            with pytest.raises((txstore.ConstraintError, txstore.ErasureError, txstore.ErasureTimeoutError)):
                self.repo.erase(*{key.partition("/")[0] for key in self.head(name).content}, timeout=0)
        self.vacuum(on, None, False)
        self.optimize(on)
        self.repo.unfreeze(branch=name)
        self.note(name)

    @rule(at=st.integers(0, 30), name=st.sampled_from(["dev", "one", "two"]))
    def fork(self, at: int, name: str) -> None:
        super().fork(at, name)
        if name in self.ids:
            self.repo.unfreeze(branch=name)  # unless it begins with a commit that is not frozen
            self.note(name)

    @rule(on=st.integers(0, 5))
    def retain(self, on: int) -> None:
        """Commit so often that a retention expires old commits."""
        name, keep = self.name(on), 3
        repo = txstore.Repository(self.url, retention=keep, **self.options)
        content = dict(self.head(name).content)
        for number in range(STEP + 2):
            with repo.begin(branch=name) as tx:
                self.do(tx, content, [("put", 0, number, 0)])
            del tx
            self.note(name, content)
        told = self.repo.vacuum(branch=name, dry_run=True)
        self.oldest_kept_versions[self.ids[name]] = told.oldest_kept
        self.check()


class UpkeepOfObjects(Upkeep, HistoryOfObjects):
    options: ClassVar[dict[str, Any]] = {"durability": "none", "single_writer": True}

    def killed(self, call: Callable[[txstore.Repository], object], at: int) -> bool:
        """What a killed process has left here goes when its lease has run out: nobody is killed."""
        call(self.repo)
        return False

    def files(self) -> Iterator[tuple[str, bytes]]:
        objects = objects_of(self.repo)
        for path, _ in objects_below(objects):
            yield path, bytes(objects.get(path))


def examples(count: int) -> settings:
    count = int(os.environ.get("TXSTORE_MODEL_EXAMPLES", str(count)))
    return settings(max_examples=count, stateful_step_count=30, deadline=None)


TestUpkeep = Upkeep.TestCase
TestUpkeep.settings = examples(15)
TestUpkeepOfObjects = UpkeepOfObjects.TestCase
TestUpkeepOfObjects.settings = examples(10)
