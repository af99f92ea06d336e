"""Branches, merges, picks, reverts, moves, copies, restores and vacuums, against a dict for each commit.

The model of a merge is three dicts: what it says of nodes and of elements is written anew here, in a few lines.
"""

import gc
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule

import txstore
from tests.tools.inside import branch_id, staged
from tests.tools.upkeep import tree
from txstore.errors import (
    CommitNotFoundError,
    ConflictError,
    ErasedError,
    MergeConflictError,
    NoCommonAncestorError,
    SnapshotExpiredError,
)
from txstore.transactions.transaction import Transaction

pytestmark = pytest.mark.long

Content = dict[str, bytes]

GROUPS = ("g", "h", "g/k", "h/k")
ARRAYS = ("x", "y", "g/x", "h/x", "g/k/x", "h/k/x")
CHUNK, FIELDS = 4, ("a", "b")
EMPTY = bytes(CHUNK)


def document(path: str, attributes: dict[str, int]) -> bytes:
    if path not in ARRAYS:
        return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}).encode()
    return json.dumps(
        {
            "zarr_format": 3, "node_type": "array", "shape": [2 * CHUNK], "data_type": "uint8", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK]}}, "codecs": [{"name": "bytes"}],
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "attributes": attributes,
        }
    ).encode()  # fmt: skip


def is_document(key: str) -> bool:
    return key.endswith("zarr.json")


def node_of(key: str) -> str:
    return key[: -len("zarr.json")].rstrip("/") if is_document(key) else key.partition("/c/")[0]


def prefix_of(path: str) -> str:
    return path + "/" if path else ""


def below(content: Content, path: str) -> Content:
    return {key: value for key, value in content.items() if key.startswith(prefix_of(path))}


def meaning(content: Content) -> dict[str, Any]:
    return {key: json.loads(value) if is_document(key) else value for key, value in content.items()}


def changes(before: Content, after: Content) -> set[str]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


# --- what one transaction does
STEPS = ("put", "put", "put", "attribute", "delete", "move", "copy", "copy at", "restore", "take")
numbers = st.integers(0, 11)
steps = st.lists(st.tuples(st.sampled_from(STEPS), numbers, numbers, st.integers(0, 30)), min_size=1, max_size=4)


def step(
    repo: txstore.Repository, tx: Transaction, now: Content, old: list[tuple[str, Content]], what: str, *n: int
) -> None:
    """Do something to a transaction, and to a dict beside it. `old` are commits that are kept."""
    array, node = ARRAYS[n[0] % len(ARRAYS)], (*ARRAYS, *GROUPS)[n[0] % 10]
    if what in ("copy at", "restore", "take"):
        commit, there = old[n[2] % len(old)]
        snapshot = repo.mapping(at=commit)
    if what == "put":
        create(tx, now, array)
        key = f"{array}/c/{n[1] % 2}"
        value = bytearray(now.get(key, EMPTY))
        value[n[1] % CHUNK] = n[2] % 4
        if any(value):
            tx[key] = now[key] = bytes(value)
        else:
            tx.delete(key)
            now.pop(key, None)
    elif what == "attribute":
        create(tx, now, node)
        attributes = json.loads(now[f"{node}/zarr.json"])["attributes"]
        attributes[FIELDS[n[1] % 2]] = n[2] % 3
        if n[2] % 5 == 0:
            del attributes[FIELDS[n[1] % 2]]
        tx[f"{node}/zarr.json"] = now[f"{node}/zarr.json"] = document(node, attributes)
    elif what == "delete":
        tx.delete_dir(node)
        for key in below(now, node):
            del now[key]
    elif what == "restore":
        path = "" if n[0] == 11 else node
        was = below(there, path)
        if was or below(now, path):
            tx.nodes.restore(path, snapshot)
            for key in below(now, path):
                del now[key]
            now.update(was)
    elif what == "take":
        keys = sorted(there)
        taken = {keys[at % len(keys)] for at in n} if keys else set()
        tx.nodes.take({key: key for key in taken}, snapshot)
        now.update((key, there[key]) for key in taken)
    else:
        kind = ARRAYS if node in ARRAYS else GROUPS
        to, source = kind[n[1] % len(kind)], there if what == "copy at" else now
        above = to.rpartition("/")[0]
        is_free = not below(now, to) and (not above or f"{above}/zarr.json" in now)
        if f"{node}/zarr.json" not in source or not is_free or (to + "/").startswith(node + "/"):
            return
        moved = {to + key[len(node) :]: value for key, value in below(source, node).items()}
        if what == "move":
            tx.nodes.move(node, to)
            for key in below(now, node):
                del now[key]
        else:
            tx.nodes.copy(node, to, snapshot if what == "copy at" else None)
        now.update(moved)


def create(tx: Transaction, now: Content, path: str) -> None:
    """Create a node, and those above it, unless it is there."""
    for each in (path.partition("/")[0], path.rpartition("/")[0], path):
        key = f"{each}/zarr.json"
        if each and key not in now:
            tx[key] = now[key] = document(each, {})


# --- what a merge is
def merged(
    base: Content, ours: Content, theirs: Content, prefers: str | None = None
) -> tuple[dict[str, Any], set[str]]:
    """Return what comes of a merge, and where there are conflicts, which go as `prefers` says."""
    here, there = changes(base, ours), changes(base, theirs)
    result = dict(ours)
    conflicts: set[str] = set()
    settled: list[str] = []

    def is_settled(key: str) -> bool:
        return any(key.startswith(prefix) for prefix in settled)

    def take(key: str) -> None:
        result.pop(key, None)
        if key in theirs:
            result[key] = theirs[key]

    for path in sorted({node_of(key) for key in here | there if is_document(key)}):
        prefix, name = prefix_of(path), f"{path}/zarr.json"
        if is_settled(prefix) or name not in base or (name in ours) == (name in theirs):
            continue
        both = {key for key in here | there if key.startswith(prefix)}
        if both & (there if name not in ours else here):
            conflicts.add(path)
            settled.append(prefix)
            if prefers == "theirs":
                for key in both:
                    take(key)
        elif name not in theirs and not below(theirs, path):
            settled.append(prefix)
            for key in below(ours, path):
                del result[key]
    for key in sorted(there):
        if is_settled(key):
            continue
        if key not in here:
            take(key)
            continue
        three = base.get(key), ours.get(key), theirs.get(key)
        if three[1] == three[2]:
            continue
        if is_document(key):
            sides = [json.loads(each)["attributes"] if each else {} for each in three]
            attributes, is_conflict = cells(*sides, prefers)
            result[key] = document(node_of(key), attributes)
        else:
            found, is_conflict = cells(*(dict(enumerate(each or EMPTY)) for each in three), prefers)
            result.pop(key, None)
            if any(found.values()):
                result[key] = bytes(found.values())
        if is_conflict:
            conflicts.add(node_of(key))
    return meaning(result), conflicts


def cells(base: dict[Any, int], ours: dict[Any, int], theirs: dict[Any, int], prefers: str | None) -> Any:
    result, is_conflict = {}, False
    for name in sorted({*base, *ours, *theirs}):
        b, o, t = base.get(name), ours.get(name), theirs.get(name)
        clash = len({b, o, t}) == 3
        is_conflict |= clash
        value = o if b == t or (clash and prefers != "theirs") else t
        if value is not None:
            result[name] = value
    return result, is_conflict


# --- history
@dataclass(frozen=True)
class Made:
    """A commit."""

    number: int  # in the order in which they were made
    id: str
    branch: str  # its id
    version: int
    parents: tuple[str, ...]
    content: Content


class History(RuleBasedStateMachine):
    readers = Bundle("readers")
    open_ones = Bundle("open_ones")
    pins_are_seen = True
    are_leftovers = False  # a killed process may have left staged files: a vacuum counts them, and `tree` doesn't
    options: ClassVar[dict[str, Any]] = {"durability": "none"}

    def url_of(self, folder: str) -> str:
        return str(Path(folder, "data.tx"))

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.url = self.url_of(self.folder.name)
        self.repo = self.open()
        self.reading: dict[int, tuple[Any, Made]] = {}
        self.numbers = count()
        self.made: dict[str, Made] = {}
        self.ids = {"main": "main"}  # of branches, by name
        self.forks: dict[str, str] = {}  # by the id of a branch, the commit that it begins behind
        self.heads: dict[str, str] = {}  # by the id of a branch
        self.oldest_kept_versions: dict[str, int] = {}
        self.tags: dict[str, str] = {}
        self.opened: list[Transaction] = []
        with self.repo.begin() as tx:
            content: Content = {}
            self.do(tx, content, [("put", 2, 1, 1)])
        self.note("main", content)

    def open(self) -> txstore.Repository:
        return txstore.Repository(self.url, **self.options)

    def do(self, tx: Transaction, content: Content, steps: Any) -> None:
        for each in steps:
            step(self.repo, tx, content, self.kept(), *each)

    def teardown(self) -> None:
        if hasattr(self, "repo"):
            with self.folder:
                self.leave()
                self.check()
                assert staged(self.repo) == []
                assert self.repo.verify().faults == []

    def leave(self) -> None:
        """End all transactions and readers."""
        while self.opened:
            self.opened.pop().rollback()
        self.reading.clear()
        gc.collect()

    def note(self, name: str, content: Content | None = None) -> Made | None:
        """Note the commits that a branch has been given: one of this content, if it is given, and those of upkeep."""
        branch, new = self.ids[name], []
        for commit in self.repo.log(name):
            if commit.id in self.made:
                break
            new.append(commit)
        for commit in reversed(new):
            parents = tuple(filter(None, (commit.parent, commit.merged)))
            held = content
            if content is None or commit.message in ("vacuum", "optimize"):
                held = self.made[parents[0]].content
            assert held is not None
            made = Made(next(self.numbers), commit.id, branch, commit.version, parents, dict(held))
            self.made[commit.id] = made
            self.heads[branch] = commit.id
        return self.made[new[0].id] if new else None

    def head(self, name: str) -> Made:
        return self.made[self.heads[self.ids[name]]]

    def name(self, number: int) -> str:
        names = sorted(self.ids)
        return names[number % len(names)]

    def commit_of(self, number: int) -> Made:
        found = sorted(self.made.values(), key=lambda made: made.number)
        return found[-1 - number % len(found)]

    def is_kept(self, made: Made) -> bool:
        """Tell whether a commit is kept for sure: there is more that may be there."""
        if made.id in self.tags.values():
            return True
        if any(made.id == fork for branch, fork in self.forks.items() if branch in self.ids.values()):
            return True
        return made.branch in self.ids.values() and made.version >= self.oldest_kept_versions.get(made.branch, 0)

    def kept(self) -> list[tuple[str, Content]]:
        found = sorted(self.made.values(), key=lambda made: made.number)
        return [(made.id, made.content) for made in reversed(found) if self.is_kept(made)]

    def ancestors(self, commit: str) -> set[str]:
        found, waiting = set(), [commit]
        while waiting:
            if (each := waiting.pop()) not in found:
                found.add(each)
                waiting += self.made[each].parents
        return found

    def check(self) -> None:
        for name in self.ids:
            self.compare(self.repo.mapping(branch=name), self.head(name).content)
        for made in self.made.values():
            if self.is_kept(made):
                self.compare(self.repo.mapping(at=made.id), made.content)

    @staticmethod
    def compare(there: Any, content: Content) -> None:
        assert {key: bytes(there[key]) for key in there} == content

    # --- transactions

    @rule(on=st.integers(0, 5), steps=steps, ends=st.sampled_from(["commit"] * 5 + ["rollback"]))
    def commit(self, on: int, steps: Any, ends: str) -> None:
        name = self.name(on)
        content = dict(self.head(name).content)
        tx = self.repo.begin(branch=name)
        self.do(tx, content, steps)
        self.compare(tx, content)
        if ends == "rollback":
            tx.rollback()
            return
        tx.commit()
        if self.note(name, content) is None:
            assert content == self.head(name).content

    @rule(target=open_ones, on=st.integers(0, 5), steps=steps)
    def begin_transaction(self, on: int, steps: Any) -> Any:
        name = self.name(on)
        base = self.head(name)
        content = dict(base.content)
        tx = self.repo.begin(branch=name)
        self.do(tx, content, steps)
        self.opened.append(tx)
        return tx, self.ids[name], base, content

    @rule(opened=consumes(open_ones))
    def end_transaction(self, opened: Any) -> None:
        tx, branch, base, content = opened
        if tx not in self.opened:  # it was ended with all others
            return
        self.opened.remove(tx)
        names = [name for name, each in self.ids.items() if each == branch]
        if self.pins_are_seen:
            self.compare(tx, content)
        head = self.made[self.heads[branch]]
        try:
            tx.commit()
        except (ConflictError, CommitNotFoundError, SnapshotExpiredError, ErasedError) as error:
            tx.rollback()
            if isinstance(error, CommitNotFoundError):
                assert not names
            elif isinstance(error, ConflictError):
                assert head != base
            else:
                assert not self.pins_are_seen
            return
        if not names:
            assert content == base.content
            return
        both = changes(base.content, content) & changes(base.content, head.content)
        assert {key: content.get(key) for key in both} == {key: head.content.get(key) for key in both}
        expected = dict(head.content)
        for key in changes(base.content, content):
            expected.pop(key, None)
            if key in content:
                expected[key] = content[key]
        if self.note(names[0], expected) is None:
            assert content == base.content

    # --- branches, tags

    @rule(at=st.integers(0, 30), name=st.sampled_from(["dev", "one", "two"]))
    def fork(self, at: int, name: str) -> None:
        made = self.commit_of(at)
        if name in self.ids:
            with pytest.raises(ValueError, match="exists"):
                self.repo.branches[name] = made.id
            return
        try:
            self.repo.branches[name] = made.id
        except (SnapshotExpiredError, CommitNotFoundError):
            assert not self.is_kept(made)
            return
        branch = self.ids[name] = branch_id(self.repo, name)
        self.forks[branch] = self.heads[branch] = made.id

    @rule(at=st.integers(0, 5))
    def delete_branch(self, at: int) -> None:
        name = self.name(at)
        if name != "main":
            del self.repo.branches[name]
            del self.ids[name]

    @rule(at=st.integers(0, 5), to=st.sampled_from(["dev", "one", "two"]))
    def rename(self, at: int, to: str) -> None:
        name = self.name(at)
        if name != "main" and to not in self.ids:
            self.repo.branches.rename(name, to)
            self.ids[to] = self.ids.pop(name)

    @rule(at=st.integers(0, 30), name=st.sampled_from(["v1", "v2"]))
    def tag(self, at: int, name: str) -> None:
        made = self.commit_of(at)
        if name in self.tags:
            del self.repo.tags[name]
            del self.tags[name]
        elif self.is_kept(made):
            self.repo.tags[name] = made.id
            self.tags[name] = made.id

    # --- merges

    @rule(source=st.integers(0, 5), into=st.integers(0, 5), prefers=st.sampled_from([None, "ours", "theirs"]))
    def merge(self, source: int, into: int, prefers: str | None) -> None:
        one, other = self.name(source), self.name(into)
        if one == other:
            return
        ours, theirs = self.head(other), self.head(one)
        before, after = self.ancestors(ours.id), self.ancestors(theirs.id)
        base = max((self.made[each] for each in before & after), key=lambda made: made.number)
        try:
            self.apply(other, base.content, theirs.content, prefers, lambda **how: self.repo.merge(one, other, **how))
        except NoCommonAncestorError:
            living = self.ids.values()
            assert any(self.made[each].branch not in living for each in before | after)
            return
        assert base != theirs or self.head(other) == ours
        if self.head(other) != ours:
            assert self.head(other).parents == (ours.id, theirs.id)
        elif prefers is not None:
            assert base == theirs

    @rule(at=st.integers(0, 30), onto=st.integers(0, 5), prefers=st.sampled_from([None, "ours", "theirs"]))
    def cherry_pick(self, at: int, onto: int, prefers: str | None) -> None:
        self.redo(at, onto, prefers, reverts=False)

    @rule(at=st.integers(0, 30), on=st.integers(0, 5), prefers=st.sampled_from([None, "ours", "theirs"]))
    def revert(self, at: int, on: int, prefers: str | None) -> None:
        self.redo(at, on, prefers, reverts=True)

    def redo(self, at: int, onto: int, prefers: str | None, *, reverts: bool) -> None:
        made, name = self.commit_of(at), self.name(onto)
        parent = self.made[made.parents[0]] if made.parents else None
        before = {} if parent is None else parent.content
        try:
            if reverts:
                sides = made.content, before
                self.apply(name, *sides, prefers, lambda **how: self.repo.revert(made.id, name, **how))
            else:
                sides = before, made.content
                self.apply(name, *sides, prefers, lambda **how: self.repo.cherry_pick(made.id, name, **how))
        except (SnapshotExpiredError, CommitNotFoundError):
            assert not self.is_kept(made) or parent is None or not self.is_kept(parent)

    def apply(self, name: str, base: Content, theirs: Content, prefers: str | None, call: Any) -> None:
        ours = self.head(name)
        expected, conflicts = merged(base, ours.content, theirs, prefers)
        found: set[str] = set()
        try:
            call(resolve=None if prefers is None else {"": prefers})
        except MergeConflictError as error:
            found = {each.path for each in error.conflicts}
        head = self.repo.head(name)
        if found:
            assert (prefers, found, head.id) == (None, conflicts, ours.id)
            return
        there = self.repo.mapping(branch=name)
        content = {key: bytes(there[key]) for key in there}
        if head.id != ours.id:
            assert prefers is not None or not conflicts
            assert meaning(content) == expected
            self.note(name, content)
        else:
            assert content == ours.content

    # --- upkeep, readers

    @rule(on=st.integers(0, 5))
    def optimize(self, on: int) -> None:
        name = self.name(on)
        self.repo.optimize(branch=name)
        self.note(name)
        assert self.repo.optimize(branch=name) is None

    @rule(on=st.integers(0, 5), keep=st.none() | st.integers(1, 5), dry_run=st.booleans())
    def vacuum(self, on: int, keep: int | None, dry_run: bool) -> None:
        name = self.name(on)
        told, before = self.repo.vacuum(keep=keep, branch=name, dry_run=True), tree(self.repo)
        assert self.repo.vacuum(keep=keep, branch=name, dry_run=True) == told
        assert tree(self.repo) == before
        if dry_run:
            return
        done = self.repo.vacuum(keep=keep, branch=name)
        self.note(name)
        self.oldest_kept_versions[self.ids[name]] = done.oldest_kept
        if self.pins_are_seen:
            assert replace(told, dry_run=False) == done
            gone = before.keys() - tree(self.repo).keys()
            again = self.repo.vacuum(branch=name)
            if not self.are_leftovers:
                assert (len(gone), sum(before[path] for path in gone)) == (done.files, done.bytes)
                assert again.files == 0
            self.are_leftovers = False
        self.check()

    @rule()
    def reopen(self) -> None:
        self.repo = self.open()
        self.check()

    @rule(target=readers, at=st.integers(0, 30))
    def read(self, at: int) -> Any:
        made = self.commit_of(at)
        try:
            reader = self.repo.mapping(at=made.id)
        except (SnapshotExpiredError, CommitNotFoundError):
            assert not self.is_kept(made)
            return multiple()
        self.compare(reader, made.content)
        self.reading[number := next(self.numbers)] = reader, made
        return number

    @rule(number=consumes(readers))
    def look(self, number: int) -> None:
        if number in self.reading:  # else it was ended with all others
            reader, made = self.reading.pop(number)
            try:
                self.compare(reader, made.content)
            except SnapshotExpiredError:
                assert not self.pins_are_seen
                assert not self.is_kept(made)


_addresses: Iterator[int] = count()


class HistoryOfObjects(History):
    """The same on an object store, where nobody knows who reads."""

    pins_are_seen = False

    def url_of(self, folder: str) -> str:
        return f"memory://history-{os.getpid()}-{next(_addresses)}/data.tx"


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=int(os.environ.get("TXSTORE_MODEL_EXAMPLES", "25")), stateful_step_count=30, deadline=None
)
TestHistoryOfObjects = HistoryOfObjects.TestCase
TestHistoryOfObjects.settings = settings(
    max_examples=int(os.environ.get("TXSTORE_MODEL_EXAMPLES", "10")), stateful_step_count=30, deadline=None
)
