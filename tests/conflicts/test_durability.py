"""I1 where the history has holes: what power loss leaves of commits that were not synced, and what is synced when."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import txstore
from tests.conflicts.faults import once, watch
from txstore import names

OpenRepo = Callable[..., txstore.Repository]


def put(repo: txstore.Repository, key: str) -> None:
    with repo.begin() as mapping:
        mapping[key] = b"1"


def file_of(repo: txstore.Repository, slot: int) -> Path:
    return Path(repo.url, names.commit_path("main", slot))


def test_the_first_durable_commit_syncs_that_there_is_a_repository(open_repo: OpenRepo) -> None:
    scratch = open_repo(durability="none")
    scratch.begin()._staging._begin()  # creates it, syncs nothing, commits nothing
    repo = open_repo()
    storage = watch(repo)
    put(repo, "key")
    synced = storage.named("sync_file", "sync_directory")
    assert ("sync_file", names.FORMAT) in synced
    assert {("sync_directory", name) for name in ("", "..", "commits")} <= set(synced)


def test_a_failed_sync_of_the_parent_poisons(open_repo: OpenRepo) -> None:
    put(open_repo(durability="none"), "first")
    repo = open_repo()
    storage = watch(repo)
    mapping = repo.begin()
    mapping["key"] = b"1"
    storage.before["sync_file"] = once(OSError(5, "lost"), lambda path: path.startswith("commits/"))
    with pytest.raises(OSError, match="lost"):
        mapping.commit()
    with pytest.raises(txstore.TransactionStateError, match="rollback"):  # the kernel reports the loss only once
        mapping.commit()
    mapping.rollback()


@pytest.fixture
def holed(open_repo: OpenRepo) -> txstore.Repository:
    """A durable commit, then three that were not synced, of which power loss has taken the first."""
    put(open_repo(), "durable")
    scratch = open_repo(durability="none")
    for slot in (1, 2, 3):
        put(scratch, f"scratch {slot}")
    file_of(scratch, 1).unlink()
    return scratch


@pytest.mark.parametrize("hint", [True, False], ids=["hint", "no hint"])
def test_commits_above_a_hole_are_not_followed(holed: txstore.Repository, hint: bool) -> None:
    if not hint:
        Path(holed.url, names.hint_path("main")).unlink()
    repo = txstore.Repository(holed.url)
    assert sorted(repo.mapping()) == ["durable"]
    put(repo, "new")
    Path(holed.url, names.hint_path("main")).unlink()
    again = txstore.Repository(holed.url)
    assert sorted(again.mapping()) == ["durable", "new"]
    for key in ("over", "and over"):  # the orphans are moved aside
        put(again, key)
    assert again.head().slot == 3
    assert again.verify().faults == []


def test_an_older_commit_is_read_beside_a_torn_newer_one(repo: txstore.Repository) -> None:
    put(repo, "first")
    put(repo, "second")
    content = file_of(repo, 1).read_bytes()
    file_of(repo, 1).write_bytes(b"")
    assert sorted(txstore.Repository(repo.url).mapping(0)) == ["first"]
    file_of(repo, 1).write_bytes(content)


def test_a_missing_format_is_no_missing_repository(repo: txstore.Repository) -> None:
    put(repo, "first")
    content = Path(repo.url, names.FORMAT).read_bytes()
    Path(repo.url, names.FORMAT).unlink()
    with pytest.raises(txstore.CorruptionError, match="there are commits"):
        txstore.TxStore(repo.url)
    Path(repo.url, names.FORMAT).write_bytes(content)


def test_a_head_that_has_gone_is_an_error_every_time(repo: txstore.Repository, tmp_path: Path) -> None:
    for key in ("first", "second"):
        put(repo, key)
    file_of(repo, 1).rename(tmp_path / "taken away")
    mapping = txstore.Repository(repo.url).begin()
    assert sorted(mapping) == ["first"]  # a new process can't know; verify() does, by the hint
    for _ in range(2):
        with pytest.raises(txstore.CorruptionError, match="was there and is gone"):
            repo.begin()
    (tmp_path / "taken away").rename(file_of(repo, 1))


def test_an_orphan_with_two_names_is_moved_aside(open_repo: OpenRepo, repo: txstore.Repository) -> None:
    for key in ("first", "lost parent", "orphan"):
        put(repo, key)
    orphan = repo.head()
    assert orphan is not None
    content = file_of(repo, 2).read_bytes()
    for slot in (1, 2):
        file_of(repo, slot).unlink()
    Path(repo.url, names.hint_path("main")).unlink()
    put(txstore.Repository(repo.url), "new parent")
    file_of(repo, 2).write_bytes(content)
    # What a crash between link and unlink leaves.
    os.link(file_of(repo, 2), Path(repo.url, names.orphan_path("main", 2, bytes.fromhex(orphan.id))))
    again = open_repo()
    put(again, "key")
    assert again.head().slot == 2
    assert sorted(again.mapping()) == ["first", "key", "new parent"]


def test_a_store_over_a_repository_has_its_own_durability(open_repo: OpenRepo) -> None:
    repo = open_repo(durability="none")
    storage = watch(repo)
    store = txstore.TxStore(repo, durability="fsync")
    store["key"] = b"1"
    store.commit()
    assert storage.named("file.sync")
