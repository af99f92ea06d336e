"""I1 where the history has holes: what power loss leaves of commits that were not synced, and what is synced when."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import txstore
from tests.tools.faults import once, watch
from tests.tools.inside import stored_commit
from txstore.format import names, records
from txstore.storage.local import LocalStorage

OpenRepo = Callable[..., txstore.Repository]


def put(repo: txstore.Repository, key: str) -> None:
    with repo.begin() as mapping:
        mapping[key] = b"1"


def file_of(repo: txstore.Repository, version: int) -> Path:
    return Path(repo.url, names.commit_path("main", version))


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
def power_loss(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lose files, and boot anew."""

    def power_loss(*paths: Path) -> None:
        for path in paths:
            path.unlink()
        monkeypatch.setattr(LocalStorage, "boot", lambda _: 1)

    return power_loss


@pytest.fixture
def holed(open_repo: OpenRepo, power_loss: Callable[..., None]) -> txstore.Repository:
    """A durable commit, then three that were not synced, of which power loss has taken the first."""
    put(open_repo(), "durable")
    scratch = open_repo(durability="none")
    for version in (1, 2, 3):
        put(scratch, f"scratch {version}")
    power_loss(file_of(scratch, 1))
    return scratch


@pytest.mark.parametrize("head_cache", [True, False], ids=["head_cache", "no head cache"])
def test_commits_above_a_hole_are_not_followed(holed: txstore.Repository, head_cache: bool) -> None:
    if not head_cache:
        Path(holed.url, names.head_cache_path("main")).unlink()
    repo = txstore.Repository(holed.url)
    assert sorted(repo.mapping()) == ["durable"]
    put(repo, "new")
    Path(holed.url, names.head_cache_path("main")).unlink()
    again = txstore.Repository(holed.url)
    assert sorted(again.mapping()) == ["durable", "new"]
    for key in ("over", "and over"):  # the orphans are moved aside
        put(again, key)
    assert again.head().version == 3
    assert again.verify().faults == []


# --- between the rename and the sync of the directory others commit
def leave_pending(repo: txstore.Repository, key: str) -> None:
    """Commit in a process that does not come to sync the directory."""
    watch(repo).before["sync_directory"] = once(OSError(5, "gone"), lambda path: path == "commits/main")
    with pytest.raises(txstore.CommitUnknownError):
        put(repo, key)


@pytest.fixture
def pending(open_repo: OpenRepo) -> txstore.Repository:
    """A commit that is known to be durable, then three by different processes, none of which has synced its name."""
    repo = open_repo()
    put(repo, "durable")
    for version in (1, 2, 3):
        leave_pending(txstore.Repository(repo.url), f"pending {version}")
    return repo


def test_a_commit_says_how_many_below_it_are_pending(pending: txstore.Repository) -> None:
    def pending_of(version: int) -> int:
        stored = stored_commit(pending, version)
        return stored.header.pending

    assert [pending_of(version) for version in range(4)] == [0, 0, 1, 2]
    put(pending, "fourth")
    Path(pending.url, names.head_cache_path("main")).unlink()
    put(pending, "fifth")  # all is known to be durable by the sync of the fourth
    assert [pending_of(version) for version in (4, 5)] == [3, 0]
    put(txstore.Repository(pending.url), "sixth")  # as the head cache says
    assert pending_of(6) == 0


def test_nobody_builds_on_too_many_pending_commits(pending, monkeypatch):
    monkeypatch.setattr("txstore.history.branches_on_disk.MAX_PENDING", 2)
    repo = txstore.Repository(pending.url)
    storage = watch(repo)
    put(repo, "key")
    calls = [call[0] for call in storage.named("sync_directory", "rename_noreplace") if call[1] != "commits"]
    assert calls[calls.index("rename_noreplace") - 1] == "sync_directory"
    assert repo.engine.commits.head().header.pending == 0


def test_others_commit_while_the_directory_is_synced(open_repo: OpenRepo) -> None:
    repo, other = open_repo(), open_repo()
    put(repo, "first")
    storage = watch(repo)
    rival = threading.Thread(target=put, args=(other, "second"))

    def overtake(path: str) -> None:
        storage.before.clear()
        rival.start()
        rival.join(30)  # seconds: it would wait for the lock, if this were inside
        assert not rival.is_alive()

    storage.before["sync_directory"] = overtake
    put(repo, "key")
    assert [repo.mapping(version).commit.seq for version in range(3)] == [1, 2, 3]
    assert sorted(repo.mapping()) == ["first", "key", "second"]
    assert head_cache_of(repo).version == 2  # not put back by the slower one
    assert head_cache_of(repo).durable


def head_cache_of(repo: txstore.Repository) -> records.HeadCache:
    return records.HeadCache.decode(Path(repo.url, names.head_cache_path("main")).read_bytes())


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
    for _ in range(2):
        with pytest.raises(txstore.CorruptionError, match="is not there"):
            txstore.Repository(repo.url).begin()
        with pytest.raises(txstore.CorruptionError, match="was there and is gone"):
            repo.begin()
    (tmp_path / "taken away").rename(file_of(repo, 1))


def test_an_orphan_with_two_names_is_moved_aside(open_repo: OpenRepo, repo: txstore.Repository) -> None:
    for key in ("first", "lost parent", "orphan"):
        put(repo, key)
    orphan = repo.head()
    assert orphan is not None
    content = file_of(repo, 2).read_bytes()
    for version in (1, 2):
        file_of(repo, version).unlink()
    Path(repo.url, names.head_cache_path("main")).unlink()
    put(txstore.Repository(repo.url), "new parent")
    file_of(repo, 2).write_bytes(content)
    # What a crash between link and unlink leaves.
    os.link(file_of(repo, 2), Path(repo.url, names.orphan_path("main", 2, bytes.fromhex(orphan.id))))
    again = open_repo()
    put(again, "key")
    assert again.head().version == 2
    assert sorted(again.mapping()) == ["first", "key", "new parent"]


def test_a_store_over_a_repository_has_its_own_durability(open_repo: OpenRepo) -> None:
    repo = open_repo(durability="none")
    storage = watch(repo)
    store = txstore.TxStore(repo, durability="fsync")
    store["key"] = b"1"
    store.commit()
    assert storage.named("file.sync")


def test_a_commit_that_is_not_durable_leaves_a_copy_what_it_is(open_repo, tmp_path, monkeypatch):
    """The first durable commit in a copy syncs all that was copied, whatever was committed there before (I1)."""
    original = open_repo("original.tx")
    for number in range(3):
        with original.begin(f"{number}") as mapping:
            mapping["a"] = b"%d" % number
    shutil.copytree(original.url, tmp_path / "copy.tx")
    with open_repo("copy.tx", durability="none").begin("not durable") as mapping:
        mapping["a"] = b"3"
    synced = list[str]()
    sync_file = LocalStorage.sync_file

    def note(storage: LocalStorage, path: str) -> None:
        synced.append(path)
        sync_file(storage, path)

    monkeypatch.setattr(LocalStorage, "sync_file", note)
    with open_repo("copy.tx").begin("durable") as mapping:
        mapping["a"] = b"4"
    assert {f"commits/main/{version:010}" for version in range(4)} <= set(synced)
