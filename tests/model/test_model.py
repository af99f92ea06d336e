"""TxStore against a model: a dict for each commit, and what two transactions at a time may do to one another.

The model knows the rules of `docs/understand/invariants.md`, I5, as far as keys, prefixes and group documents go. It is
exact: a commit that it expects must be made, a conflict that it expects must be raised.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from zarr.core.sync import sync

import txstore
from txstore.transactions import reads

pytestmark = pytest.mark.long

DOCUMENTS = ["zarr.json", "a/zarr.json", "a/b/zarr.json", "b/zarr.json"]
CANDIDATES = [
    "a", "a/b", "a/b/c", "a/c/0", "a/c/1", "a.b", "a-b/c", "a0", "b/c/0/0", "b/c/0/1", "b/c/1/0",
    "é", "é/x", "e\u0301", "\u2028/\u202e", "\U0001f600/ﬀ", "\ue000", "\U00010000", " ", "a/ ", "...", "a/..b", "\0",
    "a\0b", "\x7f/\n", "%2F", "K" * 2000 + "/x", "K" * 2000 + "/y",
]  # fmt: skip
PATHS = ["", "a", "a/b", "a/c", "b", "b/c", "a-b", "é", "\x7f", "K" * 2000, "nothing"]
SIZES = [0, 1, 30, 1023, 1024, 1025, 5000, 200_000]


def without_collisions(keys: list[str]) -> list[str]:
    """Leave out keys that share a read mark with another: the marks are a hash, and the model is exact."""
    places = {hash(key) % reads._MARKS: key for key in [*keys, *_all_documents(keys)]}
    return [key for key in keys if places[hash(key) % reads._MARKS] == key]


def _all_documents(keys: list[str]) -> Iterator[str]:
    for path in {path for key in keys for path in ancestors(key)}:
        yield from (f"{path}/{name}" if path else name for name in (".zarray", ".zgroup", ".zattrs", "zarr.json"))


def ancestors(key: str) -> list[str]:
    parts = key.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts))]


KEYS = without_collisions(CANDIDATES)


def group_document(number: int) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"n": number}}).encode()


def is_below(key: str, path: str) -> bool:
    return not path or key.startswith(path + "/")


@dataclass
class Recorded:
    """One commit: what it left, and what it wrote for others to conflict with."""

    content: dict[str, bytes]
    written: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    id: str = ""

    def touches(self, key: str) -> bool:
        return key in self.written or any(is_below(key, path) for path in self.paths)


class Modelled:
    """One transaction, and the model of it."""

    def __init__(self, repo: txstore.Repository, base: int, content: dict[str, bytes]) -> None:
        self.real = repo.begin()
        self.base = base  # number of commits that it sees
        self.before = content
        self.content = dict(content)
        self.set: dict[str, bytes] = {}
        self.deleted: set[str] = set()
        self.paths: set[str] = set()
        self.read: set[str] = set()

    def write(self, key: str, value: bytes) -> None:
        self.real[key] = value
        self.content[key] = self.set[key] = value
        self.deleted.discard(key)

    def delete(self, key: str) -> None:
        self.real.delete(key)
        self.content.pop(key, None)
        self.set.pop(key, None)
        self.deleted.add(key)

    def delete_dir(self, path: str) -> None:
        self.real.delete_dir(path)
        self.content = {key: value for key, value in self.content.items() if not is_below(key, path)}
        self.set = {key: value for key, value in self.set.items() if not is_below(key, path)}
        self.deleted = {key for key in self.deleted if not is_below(key, path)}
        self.paths.add(path)

    def look(self, key: str) -> None:
        assert self.real.get(key) == self.content.get(key)
        if key in self.before and not self.is_staged(key):
            self.read.add(key)

    def look_at_what_is_staged(self) -> None:
        for key in filter(self.is_staged, {*self.before, *self.set, *self.deleted}):
            self.look(key)

    def is_staged(self, key: str) -> bool:
        return key in self.set or key in self.deleted or self.is_below_deleted(key)

    def is_below_deleted(self, key: str) -> bool:
        return any(is_below(key, path) for path in self.paths)

    # --- the commit

    def effective(self) -> dict[str, bytes]:
        """What is set, but for values that are as in the base, unless they were read before they were written."""
        return {
            key: value
            for key, value in self.set.items()
            if self.before.get(key) != value
            or self.is_below_deleted(key)
            or (key in self.read and not key.endswith("zarr.json"))
        }

    def recorded(self) -> Recorded:
        deleted = {key for key in self.deleted if key in self.before and not self.is_below_deleted(key)}
        paths = {path for path in self.paths if any(is_below(key, path) for key in self.before)}
        return Recorded({}, {*self.effective(), *deleted}, paths)

    def apply_to(self, content: dict[str, bytes]) -> dict[str, bytes]:
        kept = {
            key: value for key, value in content.items() if key not in self.deleted and not self.is_below_deleted(key)
        }
        return kept | self.effective()

    def conflicts(self, newer: list[Recorded]) -> bool:
        """Tell whether any of these commits, made since the base, stands against this one."""
        head = newer[-1].content if newer else self.before
        touched = {key for key in [*KEYS, *DOCUMENTS] if any(commit.touches(key) for commit in newer)}
        new = {key for key in head if any(key in commit.written for commit in newer)}
        dropped_groups = {
            key for key in touched if key.endswith("zarr.json") and key in self.before and key not in head
        }
        mine = self.effective()
        for key in mine.keys() & touched:
            is_group_that_both_made = (
                key.endswith("zarr.json") and key not in self.before and head.get(key) == mine[key]
            )
            if not is_group_that_both_made:
                return True
        if any(key in head or key in self.before for key in self.deleted & touched):
            return True
        for key in [*mine, *self.deleted]:
            above = {f"{path}/zarr.json" if path else "zarr.json" for path in ancestors(key)}
            if (above - {key}) & dropped_groups:
                return True
        cleared = set(self.paths)
        cleared |= {key.rpartition("/")[0] for key in self.deleted if key.endswith("zarr.json") and key in self.before}
        return any(is_below(key, path) for key in new for path in cleared)


#: What to do, where, and a number: which size, or which document.
Write = tuple[str, str, int]
NUMBERS = st.integers(0, len(SIZES) - 1)
KEY = st.sampled_from(KEYS[:10]) | st.sampled_from(KEYS)
DOCUMENT = st.sampled_from(DOCUMENTS)
WRITES = st.one_of(
    st.tuples(st.just("set"), KEY, NUMBERS),
    st.tuples(st.just("set"), KEY, NUMBERS),
    st.tuples(st.just("set group"), DOCUMENT, NUMBERS),
    st.tuples(st.sampled_from(["set what is there", "look and set what is there", "delete"]), KEY | DOCUMENT, NUMBERS),
    st.tuples(st.just("delete below"), st.sampled_from(PATHS), NUMBERS),
)


class Model(RuleBasedStateMachine):
    transactions = st.sampled_from(["first", "second"])

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.open: dict[str, Modelled] = {}
        self.commits: list[Recorded] = []
        self.written = 0

    @initialize()
    def make(self) -> None:
        self.repo = txstore.Repository(self.folder / f"{len(list(self.folder.iterdir()))}.tx", durability="none")

    @property
    def head(self) -> dict[str, bytes]:
        return self.commits[-1].content if self.commits else {}

    def transaction(self, name: str) -> Modelled:
        if name not in self.open:
            self.open[name] = Modelled(self.repo, len(self.commits), self.head)
        return self.open[name]

    # --- writing

    @rule(name=transactions, writes=st.lists(WRITES, min_size=1, max_size=6))
    def write(self, name: str, writes: list[Write]) -> None:
        for write in writes:
            self.stage(self.transaction(name), *write)
        if name in self.open:
            self.open[name].look_at_what_is_staged()

    def stage(self, transaction: Modelled, what: str, place: str, number: int) -> None:
        match what:
            case "set":
                self.written += 1
                size = SIZES[number]
                transaction.write(place, (b"%d " % self.written).ljust(size, b".")[:size])
            case "set group":
                transaction.write(place, group_document(number % 2))
            case "set what is there":
                if place in transaction.before:
                    transaction.write(place, transaction.before[place])
            case "look and set what is there":
                transaction.look(place)
                self.stage(transaction, "set what is there", place, number)
            case "delete":
                transaction.delete(place)
            case "delete below":
                transaction.delete_dir(place)

    # --- reading

    @rule(name=transactions, key=KEY | DOCUMENT)
    def look(self, name: str, key: str) -> None:
        self.transaction(name).look(key)

    @rule(name=transactions)
    def check_transaction(self, name: str) -> None:
        transaction = self.transaction(name)
        check_listing(transaction.real, transaction.content)
        changes = transaction.real.changes()
        staged = sorted(key for keys in changes.pop("participants").values() for key in keys)
        assert staged == sorted(changes["set"] + changes["deleted"])
        assert changes == {
            "set": sorted(transaction.set, key=str.encode),
            "deleted": sorted(transaction.deleted, key=str.encode),
            "deleted_below": sorted(transaction.paths),
            "reflinked": [],
            "constraints": [],
        }

    @precondition(lambda self: self.commits)
    @rule(data=st.data(), by_id=st.booleans())
    def check_commit(self, data: st.DataObject, by_id: bool) -> None:
        version = data.draw(st.integers(0, len(self.commits) - 1))
        commit = self.commits[version]
        snapshot = self.repo.mapping(commit.id if by_id else version)
        assert dict(snapshot) == commit.content
        check_listing(snapshot, commit.content)

    @precondition(lambda self: self.commits)
    @rule(prefix=st.sampled_from(["", "a", "a/", "a/c/", "b/c/0", "é", "K"]))
    def check_prefix(self, prefix: str) -> None:
        found = sync(_collect(self.repo.snapshot().list_prefix(prefix)))
        below = prefix.rstrip("/") + "/" if prefix else ""
        assert found == [key for key in sorted(self.head, key=str.encode) if key.startswith(below)]

    @precondition(lambda self: self.commits)
    @rule(data=st.data())
    def check_part(self, data: st.DataObject) -> None:
        if self.head:
            key = data.draw(st.sampled_from(sorted(self.head)))
            part = slice(data.draw(st.integers(0, 1100)), data.draw(st.none() | st.integers(0, 2200)))
            assert self.repo.mapping().get_part(key, part) == self.head[key][part]

    # --- the end of a transaction

    @rule(name=transactions)
    def commit(self, name: str) -> None:
        """Commit one transaction; the other may have begun before it."""
        transaction = self.transaction(name)
        newer = self.commits[transaction.base :]
        recorded = transaction.recorded()
        if not (recorded.written or recorded.paths):
            assert transaction.real.commit() is None
            assert dict(transaction.real) == transaction.before
            del self.open[name]
        elif transaction.conflicts(newer):
            with pytest.raises(txstore.ConflictError) as caught:
                transaction.real.commit()
            assert caught.value.keys
            assert dict(transaction.real) == transaction.content
        else:
            result = transaction.real.commit(f"commit {len(self.commits)}")
            assert result.commit.version == len(self.commits)
            recorded.id = result.commit.id
            recorded.content = transaction.apply_to(self.head)
            self.commits.append(recorded)
            del self.open[name]

    @rule(name=transactions)
    def roll_back(self, name: str) -> None:
        if name in self.open:
            self.open.pop(name).real.rollback()

    @rule(first=st.lists(WRITES, min_size=1, max_size=4), second=st.lists(WRITES, min_size=1, max_size=4))
    def commit_two_that_began_together(self, first: list[Write], second: list[Write]) -> None:
        for name, writes in (("first", first), ("second", second)):
            self.roll_back(name)
            self.write(name, writes)
            self.transaction(name)
        for name in ("first", "second"):
            self.commit(name)
            self.roll_back(name)

    @rule(count=st.integers(1, 8), key=KEY)
    def commit_many_times(self, count: int, key: str) -> None:
        """Runs are merged by this, and packs without a live value appear."""
        for number in range(count):
            chosen = KEYS[(KEYS.index(key) + number // 2) % len(KEYS)]
            self.open["tiny"] = Modelled(self.repo, len(self.commits), self.head)
            self.stage(self.open["tiny"], "set", chosen, 2)
            self.commit("tiny")

    @rule()
    def reopen(self) -> None:
        """Transactions that are open go on."""
        self.repo = txstore.Repository(self.repo.url, durability="none")

    @invariant()
    def head_is_the_last_commit(self) -> None:
        if self.commits:
            snapshot = self.repo.mapping()
            assert snapshot.commit.id == self.commits[-1].id
            assert dict(snapshot) == self.head

    def teardown(self) -> None:
        for transaction in self.open.values():
            transaction.real.rollback()
        if self.repo.exists:
            assert self.repo.verify().faults == []
            for version, commit in enumerate(self.commits):
                assert dict(self.repo.mapping(version)) == commit.content


def check_listing(real: txstore.Transaction | txstore.Snapshot, content: dict[str, bytes]) -> None:
    assert list(real) == sorted(content, key=str.encode)
    assert len(real) == len(content)
    for path in PATHS:
        below = [key for key in content if is_below(key, path)]
        names = {key[len(path) + 1 if path else 0 :].partition("/")[0] for key in below}
        assert sorted(real.list_dir(path)) == sorted(names)
        assert real.has_keys_below(path) == bool(below)
        assert sorted(real.keys_below(path)) == sorted(below)
    for key in KEYS:
        assert (key in real) == (key in content)
        assert real.size_of(key) == (len(content[key]) if key in content else None)


async def _collect(keys: Any) -> list[str]:
    return [key async for key in keys]


def test_txstore_behaves_as_the_model(tmp_path: Path) -> None:
    run_state_machine_as_test(
        lambda: Model(tmp_path),
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


@settings(max_examples=600, deadline=None)
@given(
    base=st.lists(WRITES, max_size=8),
    first=st.lists(WRITES, min_size=1, max_size=3),
    second=st.lists(WRITES, min_size=1, max_size=3),
)
@example(
    base=[("set", "b/c/0/0", 0), ("set group", "b/zarr.json", 0)],
    first=[("delete below", "b/c", 0)],
    second=[("delete", "b/zarr.json", 0)],
)
def test_two_transactions_conflict_as_the_model_says(tmp_path_factory, base, first, second):
    model = Model(tmp_path_factory.mktemp("repository", numbered=True))
    model.make()
    model.write("base", base)
    if base:
        model.commit("base")
    model.commit_two_that_began_together(first, second)
    model.teardown()


def test_many_small_commits_leave_few_runs(tmp_path: Path) -> None:
    repo = txstore.Repository(tmp_path / "data.tx", durability="none")
    for number in range(500):
        with repo.begin() as transaction:
            transaction[f"c/{number}"] = b"%d" % number
    snapshot = repo.mapping()
    assert len(snapshot.runs) <= 20
    assert dict(snapshot) == {f"c/{number}": b"%d" % number for number in range(500)}
    assert repo.verify().faults == []
