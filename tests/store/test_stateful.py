"""zarr's state machines on a TxStore: within one transaction, and with commits at random between the rules."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine

import txstore
from txstore.store import TxStore


class Hierarchy(ZarrHierarchyStateMachine):
    def __init__(self, repo: txstore.Repository) -> None:
        super().__init__(TxStore(repo))
        self.repo = repo

    def teardown(self) -> None:
        self.store.rollback()
        assert self.repo.verify().faults == []


class CommittedHierarchy(Hierarchy):
    @rule(reopen=st.booleans())
    def commit(self, reopen: bool) -> None:
        self.store.commit()
        assert list(self.repo.snapshot()) == sorted(self._sync_iter(self.model.list()))
        if reopen:
            self.store = TxStore(self.repo.url)


class Keys(ZarrStoreStateMachine):
    def __init__(self, repo: txstore.Repository) -> None:
        super().__init__(TxStore(repo))
        self.repo = repo

    def teardown(self) -> None:
        self.store.store.rollback()
        assert self.repo.verify().faults == []


class CommittedKeys(Keys):
    @rule(reopen=st.booleans())
    def commit(self, reopen: bool) -> None:
        self.store.store.commit()
        assert dict(self.repo.mapping()) == {key: value.to_bytes() for key, value in self.model.items()}
        if reopen:
            self.store.store = TxStore(self.repo.url)


Machine = Callable[[txstore.Repository], RuleBasedStateMachine]


def check(machine: Machine, folder: Path, *, examples: int) -> None:
    number = count()
    run(machine, lambda: txstore.Repository(folder / f"{next(number)}.tx", durability="none"), examples=examples)


def run(machine: Machine, new: Callable[[], txstore.Repository], *, examples: int, steps: int = 50) -> None:
    run_state_machine_as_test(
        lambda: machine(new()),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


@pytest.mark.long
def test_a_hierarchy_behaves_as_in_memory_within_a_transaction(tmp_path: Path) -> None:
    check(Hierarchy, tmp_path, examples=40)


@pytest.mark.long
def test_a_hierarchy_behaves_as_in_memory_across_commits(tmp_path: Path) -> None:
    check(CommittedHierarchy, tmp_path, examples=40)


@pytest.mark.long
def test_keys_behave_as_a_dict_within_a_transaction(tmp_path: Path) -> None:
    check(Keys, tmp_path, examples=40)


@pytest.mark.long
def test_keys_behave_as_a_dict_across_commits(tmp_path: Path) -> None:
    check(CommittedKeys, tmp_path, examples=40)
