"""Whoever ends a transaction with a name dies, or its disk fails, at each step: it is committed once, or all there."""

import itertools
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import txstore
from tests.system.processes.ranks import (
    KEYS,
    NAME,
    assert_tidy,
    content,
    is_committed,
    named,
    stage,
    stage_all,
    value_of,
)
from tests.tools.faults import once, watch
from tests.tools.inside import existing
from tests.tools.steps import BeforeEach, BeforeEachChange, forked, status_of
from tests.tools.waiting import wait_until
from txstore import TransactionStateError
from txstore.format import names

pytestmark = pytest.mark.long

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


class BeforeEachCall(BeforeEach):
    """The same hook before every call but `close`, which closes also where it fails."""

    def get(self, name: str, default: Any = None) -> Any:
        return (lambda *_: None) if name == "file.close" else super().get(name, default)


def tidy_up(repo: txstore.Repository) -> None:
    """Write as the next process does, which deletes what the dead have left."""
    with txstore.Repository(repo.url).transaction() as store:
        store["next"] = value_of("next")
    assert_tidy(repo)


@needs_fork
def test_one_who_was_attached_learns_of_a_commit(repo: txstore.Repository) -> None:
    """The committer died right after its commit: what it has committed is not committed again, and it is said."""
    transaction = stage_all(repo)
    storage = watch(repo)
    late = existing(repo, NAME)
    with forked(end_and_die_after_commit, repo.url) as child:
        status_of(child)
    assert is_committed(repo, transaction)
    with pytest.raises(TransactionStateError, match="no transaction"):
        existing(repo, NAME)
    with pytest.raises(TransactionStateError, match=f"has committed it, as main@0 .{transaction}") as error:
        late.commit()
    assert error.value.state == "ended"
    # I1: the directory was not synced by the one who died, and the packs are only deleted after it is.
    order = [call[:2] for call in storage.calls]
    synced = order.index(("sync_directory", names.commits_directory("main")))
    deleted = [i for i, call in enumerate(order) if call[0] == "delete" and call[1].startswith(names.STAGING)]
    assert synced < min(deleted)
    assert is_committed(repo, transaction)
    assert named(repo) == []
    stage(repo, "d")
    repo.transaction(name=NAME).commit()
    assert_tidy(repo)


def end_and_die_after_commit(url: str) -> None:
    repo = txstore.Repository(url)
    watch(repo).before["sync_directory"] = die_if(lambda path: path == names.commits_directory("main") and repo.head())
    existing(repo, NAME).commit()


def die_if(when: Callable[..., Any]) -> Callable[..., None]:
    def hook(*arguments: Any) -> None:
        if when(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def test_a_disk_that_fails_at_each_step(open_repo: Any) -> None:
    """An error instead of a death: then another process may try again."""
    for step in itertools.count():
        repo = open_repo(f"{step}.tx")
        transaction = stage_all(repo)
        failing = txstore.Repository(repo.url)
        storage = watch(failing)
        store = failing.transaction(name=NAME)
        steps = itertools.count()
        storage.before = BeforeEachChange(
            once(OSError(5, "broken"), lambda *_, steps=steps, at=step: next(steps) == at)
        )
        refused = unknown = False
        try:
            store.commit()
        except txstore.CommitUnknownError:
            unknown = True
        except OSError:
            refused = True
        done = next(steps) < step
        committed = is_committed(repo, transaction)
        assert unknown or committed != refused
        assert committed or unknown or named(repo) == [NAME]
        del store
        storage.calls.clear()  # the commit is among their arguments
        opened_when_free(repo).commit(allow_lost=True)
        assert is_committed(repo, transaction)
        tidy_up(repo)
        assert content(repo) == [*KEYS, "next"]
        if done:
            break
    assert step > 15


def opened_when_free(repo: txstore.Repository) -> txstore.TxStore:
    """Open the transaction with the name, which a thread that works in the background may hold for a moment more."""
    opened: list[txstore.TxStore] = []

    def is_open() -> bool:
        with suppress(TransactionStateError):
            opened.append(txstore.Repository(repo.url).transaction(name=NAME))
        return bool(opened)

    wait_until(is_open)
    return opened[0]


@needs_fork
def test_taking_over_on_a_disk_that_fails_at_each_step(open_repo: Any) -> None:
    """Who can't tell whether a dead process has committed it neither opens it again nor commits it again."""
    for step in itertools.count():
        repo = open_repo(f"{step}.tx")
        transaction = stage_all(repo)
        failing = txstore.Repository(repo.url)
        storage = watch(failing)
        late = existing(failing, NAME)
        with forked(end_and_die_after_commit, repo.url) as child:
            status_of(child)
        steps = itertools.count()
        storage.before = BeforeEachCall(once(OSError(5, "broken"), lambda *_, steps=steps, at=step: next(steps) == at))
        with pytest.raises((OSError, TransactionStateError)):
            late.commit()
        done = next(steps) < step
        assert is_committed(repo, transaction)
        assert named(repo) == []
        storage.before = {}
        with pytest.raises(TransactionStateError, match="has ended"):
            late.commit()
        txstore.Repository(repo.url).transaction(name=NAME).commit()
        tidy_up(repo)
        assert is_committed(repo, transaction)
        assert content(repo) == [*KEYS, "next"]
        if done:
            break
    assert step > 15


@needs_fork
def test_beginning_on_a_disk_that_fails_at_each_step(open_repo: Any) -> None:
    """The name is free, since its transaction was committed; but that has to be found out, and tidied up, first."""
    for step in itertools.count():
        repo = open_repo(f"{step}.tx")
        transaction = stage_all(repo)
        with forked(end_and_die_after_commit, repo.url) as child:
            status_of(child)
        failing = txstore.Repository(repo.url)
        storage = watch(failing)
        steps = itertools.count()
        storage.before = BeforeEachCall(once(OSError(5, "broken"), lambda *_, steps=steps, at=step: next(steps) == at))
        with suppress(OSError):
            failing.transaction(name=NAME)
        done = next(steps) < step
        storage.before = {}
        store = txstore.Repository(repo.url).transaction(name=NAME)
        assert store.mapping.id != transaction
        assert sorted(store) == KEYS
        store.commit()
        tidy_up(repo)
        assert is_committed(repo, transaction)
        assert content(repo) == [*KEYS, "next"]
        if done:
            break
    assert step > 20
