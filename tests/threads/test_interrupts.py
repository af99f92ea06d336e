"""After an interrupt one goes on as if nothing had been tried, or after a rollback."""

from __future__ import annotations

import pytest

import txstore
from tests.conflicts.faults import once, watch


def test_a_commit_that_was_interrupted_when_its_file_had_just_been_made_is_made_the_next_time(
    repo: txstore.Repository,
) -> None:
    storage = watch(repo)
    store = txstore.TxStore(repo)
    store["key"] = b"0"
    store.commit()
    store["key"] = b"1"
    storage.after["create"] = once(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.commit()
    store.commit()
    assert repo.mapping()["key"] == b"1"
