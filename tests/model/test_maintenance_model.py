"""Random commits, deletes, tags, readers, transactions, optimize and vacuum, against a dictionary for each commit."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

import txstore
from tests.tools.inside import staged
from tests.tools.upkeep import content
from txstore.errors import ConflictError, SnapshotExpiredError
from txstore.transactions.transaction import Transaction

pytestmark = pytest.mark.long

KEYS = st.sampled_from(["a", "b", "p/a", "p/b", "p/q/a", "p/q/b", "r/a"])
PREFIXES = st.sampled_from(["", "p/", "p/q/", "r/"])
VALUES = st.binary(max_size=6) | st.binary(min_size=1020, max_size=1030)
Model = dict[str, bytes]


def without(model: Model, prefix: str) -> Model:
    return {key: value for key, value in model.items() if not key.startswith(prefix)}


class Maintenance(RuleBasedStateMachine):
    readers = Bundle("readers")
    open_ones = Bundle("open_ones")

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.url = str(Path(self.folder.name, "data.tx"))
        self.repo = txstore.Repository(self.url, durability="none")
        self.history: list[Model] = []  # by version
        self.tags: dict[str, int] = {}
        self.opened: list[Transaction] = []
        self.commit({"a": b"0"}, [], None)

    def teardown(self) -> None:
        if hasattr(self, "repo"):
            for transaction in self.opened:
                transaction.rollback()
            assert self.repo.verify().faults == []
            self.folder.cleanup()

    @property
    def oldest_kept(self) -> int:
        return self.repo.engine.commits.oldest_kept.of("main")

    def follow(self) -> None:
        """What has made commits of its own has changed nothing."""
        for _ in range(len(self.history), self.repo.head().version + 1):
            self.history.append(self.history[-1])

    @rule(
        values=st.dictionaries(KEYS, VALUES, max_size=3),
        deleted=st.lists(KEYS, max_size=2),
        prefix=st.none() | PREFIXES,
    )
    def commit(self, values: Model, deleted: list[str], prefix: str | None) -> None:
        model = dict(self.history[-1]) if self.history else {}
        with self.repo.begin() as transaction:
            if prefix is not None:
                transaction.delete_dir(prefix)
                model = without(model, prefix)
            for key in deleted:
                transaction.delete(key)
                model.pop(key, None)
            transaction.update(values)
            model |= values
        head = self.repo.head()
        if head is not None and head.version == len(self.history):
            self.history.append(model)
        else:
            assert not self.history or model == self.history[-1]

    @rule()
    def optimize(self) -> None:
        self.repo.optimize()
        self.follow()
        assert self.repo.optimize() is None

    @rule(keep=st.none() | st.integers(1, 6), dry_run=st.booleans())
    def vacuum(self, keep: int | None, dry_run: bool) -> None:
        report = self.repo.vacuum(keep=keep, dry_run=dry_run)
        self.follow()
        if not dry_run:
            assert report.oldest_kept == self.oldest_kept
            assert self.repo.vacuum().files == 0

    @rule(target=readers, at=st.integers(0, 40), anew=st.booleans())
    def read(self, at: int, anew: bool) -> Any:
        version = at % len(self.history)
        repo = txstore.Repository(self.url) if anew else self.repo
        if version < self.oldest_kept and version not in self.tags.values():
            try:
                content(repo, version)
            except SnapshotExpiredError:
                return multiple()
            raise AssertionError(f"version {version} was given up, and can be read")
        return repo.mapping(at=version)

    @rule(reader=readers)
    def look(self, reader: Any) -> None:
        assert {key: bytes(reader[key]) for key in reader} == self.history[reader.version]

    @rule(reader=consumes(readers))
    def drop(self, reader: Any) -> None:
        pass

    @rule(at=st.integers(0, 40), name=st.sampled_from(["v1", "v2"]))
    def tag(self, at: int, name: str) -> None:
        version = at % len(self.history)
        if name in self.tags:
            del self.repo.tags[name]
            del self.tags[name]
        elif version >= self.oldest_kept or version in self.tags.values():
            self.repo.tags[name] = version
            self.tags[name] = version

    @rule(target=open_ones, values=st.dictionaries(KEYS, VALUES, min_size=1, max_size=2), prefix=st.none() | PREFIXES)
    def begin_transaction(self, values: Model, prefix: str | None) -> Any:
        transaction = txstore.Repository(self.url, durability="none").begin()
        if prefix:
            transaction.delete_dir(prefix)
        transaction.update(values)
        self.opened.append(transaction)
        return transaction, values, prefix

    @rule(opened=consumes(open_ones))
    def end_transaction(self, opened: Any) -> None:
        transaction, values, prefix = opened
        self.opened.remove(transaction)
        base, head = self.history[transaction.base.version], self.history[-1]
        between = self.history[transaction.base.version :]
        touched = {key for key in {*base, *head} if any(model.get(key) != base.get(key) for model in between)}
        try:
            transaction.commit()
        except ConflictError:
            transaction.rollback()
            assert len(between) > 1
        else:
            lost = {key for key in touched & values.keys() if base.get(key) != values[key]}
            assert not lost, f"written over others: {lost}"
            if self.repo.head().version == len(self.history):
                self.history.append({**(without(head, prefix) if prefix else head), **values})
            else:
                assert {**(without(base, prefix) if prefix else base), **values} == base

    @invariant()
    def head_is_right(self) -> None:
        if getattr(self, "history", None):
            assert content(txstore.Repository(self.url)) == self.history[-1]
            assert staged(self.repo) == []
            for version in self.tags.values():
                assert content(self.repo, version) == self.history[version]


TestMaintenance = Maintenance.TestCase
TestMaintenance.settings = settings(
    max_examples=int(os.environ.get("TXSTORE_MODEL_EXAMPLES", "25")), stateful_step_count=25, deadline=None
)
