"""I2 and I3: a version is taken once, and only its content says by whom. I1 and I9: what is synced, and when."""

import contextlib
import gc
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zarr

import txstore
from tests.tools.faults import Watched, always, once, watch
from txstore import CommitUnknownError, ConflictError, StaleArrayError, TransactionStateError
from txstore.format import names, records

OpenRepo = Callable[..., txstore.Repository]


def put(repo: txstore.Repository, key: str, value: bytes = b"1") -> None:
    with repo.begin() as mapping:
        mapping[key] = value


def into_version(_: str, target: str) -> bool:
    return target.startswith("commits/")


@pytest.fixture
def repo(open_repo: OpenRepo) -> txstore.Repository:
    """A repository with one commit."""
    repo = open_repo()
    put(repo, "first")
    return repo


@pytest.fixture
def storage(repo: txstore.Repository) -> Watched:
    return watch(repo)


@pytest.fixture
def rival(open_repo: OpenRepo, repo: txstore.Repository) -> txstore.Repository:
    """The same repository as another process sees it whose lock does not work."""
    rival = open_repo()
    rival.engine.storage.lock = lambda *_, **__: contextlib.nullcontext()  # type: ignore[method-assign]
    return rival


# --- the version
@pytest.mark.parametrize("error", [FileExistsError(17, "exists"), OSError(5, "lost")], ids=["exists", "error"])
def test_a_lost_response_is_a_success(repo: txstore.Repository, storage: Watched, error: OSError) -> None:
    storage.after["rename_noreplace"] = once(error, into_version)
    put(repo, "key")
    assert repo.head().version == 1
    assert repo.mapping()["key"] == b"1"


def test_an_error_with_nothing_in_the_version_publishes_nothing(repo: txstore.Repository, storage: Watched) -> None:
    storage.before["rename_noreplace"] = once(OSError(28, "no space"), into_version)
    mapping = repo.begin()
    mapping["key"] = b"1"
    with pytest.raises(OSError, match="no space"):
        mapping.commit()
    assert repo.head().version == 0
    mapping.commit()
    assert repo.mapping()["key"] == b"1"


@pytest.mark.parametrize("times", [1, 3])
def test_a_foreign_commit_in_the_version_is_passed(repo, storage, rival, times):
    left = list(range(times))

    def rival_first(_: str, target: str) -> None:
        if left and target.startswith("commits/"):
            put(rival, f"rival{left.pop()}")

    storage.before["rename_noreplace"] = rival_first
    put(repo, "key")
    assert repo.head().version == 1 + times
    assert sorted(repo.mapping()) == ["first", "key", *(f"rival{i}" for i in range(times))]


@pytest.fixture
def orphan(repo: txstore.Repository) -> Path:
    """A commit whose parent is another than the one in the version below it: what a power loss can leave."""
    put(repo, "lost parent")
    put(repo, "orphan")
    commits = Path(repo.url, "commits/main")
    versions = [commits / Path(names.commit_path("main", version)).name for version in (1, 2)]
    content = versions[1].read_bytes()
    for path in versions:
        path.unlink()
    Path(repo.url, names.head_cache_path("main")).unlink()
    put(txstore.Repository(repo.url), "new parent")
    versions[1].write_bytes(content)
    repo.engine.commits.store._known.forget_all()  # power loss ends every process that knew of the lost ones
    return versions[1]


def test_an_orphan_is_not_followed(open_repo: OpenRepo, repo: txstore.Repository, orphan: Path) -> None:
    again = txstore.Repository(repo.url)
    assert sorted(again.mapping()) == ["first", "new parent"]
    orphan.unlink()


def test_an_orphan_is_moved_aside(open_repo: OpenRepo, repo: txstore.Repository, orphan: Path) -> None:
    lost = orphan.read_bytes()
    again = open_repo()
    put(again, "key")
    assert again.head().version == 2
    assert sorted(again.mapping()) == ["first", "key", "new parent"]
    (aside,) = orphan.parent.glob("*.orphan-*")
    assert aside.read_bytes() == lost


def test_an_orphan_that_a_rival_moves_aside_first_leads_to_the_next_version(repo, orphan, rival):
    again = txstore.Repository(repo.url)
    storage = watch(again)
    storage.before["rename_noreplace"] = lambda _, target: (
        storage.before.clear() or put(rival, "rival") if ".orphan-" in target else None
    )
    put(again, "key")
    assert again.head().version == 3
    assert sorted(again.mapping()) == ["first", "key", "new parent", "rival"]


@pytest.mark.parametrize("key", ["other", "key"], ids=["no conflict", "conflict"])
def test_who_waits_for_its_turn_looks_at_what_others_commit(repo, rival, key, monkeypatch):
    storage = watch(repo)
    read_inside = []

    @contextlib.contextmanager
    def lock(_: str, prepare: Callable[[], object], **options: bool) -> Iterator[None]:
        put(rival, key, b"rival")
        prepare()
        before = len(storage.calls)
        yield
        read_inside.extend(call[1] for call in storage.calls[before:] if call[0] in ("read_tail", "map"))

    mapping = repo.begin()
    mapping["key"] = b"1"
    with monkeypatch.context() as patch:
        patch.setattr(storage, "lock", lock, raising=False)
        if key == "key":
            with pytest.raises(ConflictError):
                mapping.commit()
            assert storage.named("rename_noreplace") == []
            mapping.rollback()
            return
        mapping.commit()
    assert read_inside == [names.commit_path("main", 2)]  # whether there is one more
    assert repo.head().version == 2


# --- an outcome that is unknown
def test_after_a_failed_directory_sync_the_outcome_is_unknown(repo: txstore.Repository, storage: Watched) -> None:
    storage.after["rename_noreplace"] = lambda _, target: storage.before.update(
        sync_directory=once(OSError(5, "the disk is gone"))
    )
    mapping = repo.begin()
    mapping["key"] = b"1"
    with pytest.raises(CommitUnknownError, match="syncing the directory failed") as caught:
        mapping.commit()
    assert caught.value.commit_id == mapping.id
    assert repo.resolve(mapping.id).version == 1
    for again in (mapping.commit, lambda: mapping.set("key", b"2")):
        with pytest.raises(TransactionStateError):
            again()


def test_nothing_staged_is_deleted_while_the_outcome_is_unknown(repo: txstore.Repository, storage: Watched) -> None:
    def disconnect(*_: object) -> None:
        storage.before["read_tail"] = always(OSError(5, "the disk is gone"))
        raise OSError(5, "the disk is gone")

    storage.before["rename_noreplace"] = disconnect
    mapping = repo.begin()
    mapping["key"] = b"1"
    with pytest.raises(CommitUnknownError, match="can't be read back"):
        mapping.commit()
    storage.before.clear()
    staged = os.listdir(Path(repo.url, ".staging"))
    assert [name.partition(".")[0] for name in staged] == [mapping.id]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mapping.rollback()
        del mapping
        gc.collect()
    assert os.listdir(Path(repo.url, ".staging")) == staged


@pytest.mark.parametrize("call", ["rename_noreplace", "sync_directory", "write_in_place"])
def test_after_an_interrupt_what_may_be_published_is_not_written_again(repo, storage, call):
    store = txstore.TxStore(repo)
    store["key"] = b"1"
    mapping = store.mapping
    storage.after[call] = once(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.commit()
    for again in (store.commit, lambda: store.__setitem__("key", bytes(1 << 18))):
        with pytest.raises(TransactionStateError, match="unknown outcome"):
            again()
    assert repo.resolve(mapping.id).version == 1
    store.rollback()
    assert store["key"] == b"1"


def test_a_commit_that_can_not_be_read_is_no_failed_one(repo: txstore.Repository, storage: Watched) -> None:
    mapping = repo.begin()
    mapping["key"] = b"1"
    storage.before["map"] = once(OSError(24, "too many open files"), lambda path: path == names.commit_path("main", 1))
    snapshot = mapping.commit()
    with pytest.raises(OSError, match="too many open files"):
        snapshot["key"]
    assert snapshot["key"] == b"1"


def test_a_session_goes_on_from_a_commit_that_can_not_be_read(repo: txstore.Repository, storage: Watched) -> None:
    store = txstore.TxStore(repo)
    z = zarr.create_array(store, name="x", shape=(4,), chunks=(2,), dtype="i4")
    store.commit()
    with repo.transaction() as other:
        other["elsewhere"] = b"1"
    z[:] = 1
    fails = [OSError(24, "too many open files")]  # it is opened once, however many documents were handed out

    def fail(path: str) -> None:
        if fails and path == names.commit_path("main", 3):
            raise fails.pop()

    storage.before["map"] = fail
    assert store.commit().version == 3
    assert not fails
    with pytest.raises(StaleArrayError):
        z[:] = 2  # what has changed could not be seen
    store.rollback()


@pytest.mark.parametrize("call", ["file.sync", "rename_noreplace"])
def test_an_interrupt_before_the_version_is_taken_changes_nothing(repo, storage, call):
    store = txstore.TxStore(repo)
    store["key"] = b"1"
    storage.before[call] = once(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.commit()
    store["other"] = b"2"
    store.commit()
    assert sorted(repo.mapping()) == ["first", "key", "other"]


@pytest.mark.parametrize("size", [8, 300_000, 2 << 20], ids=["buffered", "written directly", "preallocated"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "the disk is full")], ids=["Ctrl-C", "full"])
@pytest.mark.parametrize("call", ["file.write 0", "file.write 1", "file.truncate 0", "file.allocate 0"])
@pytest.mark.parametrize("attempts", [0, 1], ids=["first attempt", "second"])
def test_the_next_attempt_cuts_off_what_an_interrupted_one_wrote(repo, storage, attempts, call, error, size):
    """I2: the file that takes the version ends with its footer, however much longer the earlier header was."""
    store = txstore.TxStore(repo)
    store["key"] = bytes(size)
    if attempts:
        storage.before["rename_noreplace"] = once(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            store.commit("short")
    name, number = call.split()
    calls = itertools.count()
    # The file has changed, and the writer does not know by how much.
    storage.after[name] = once(error, lambda *_: next(calls) == int(number))
    with contextlib.suppress(KeyboardInterrupt, OSError):
        store.commit("a long message " * 30)
    if repo.head().version == 0:
        store.commit("short")
    assert repo.verify().faults == []
    assert txstore.Repository(repo.url).mapping()["key"] == bytes(size)


@pytest.mark.parametrize("size", [8, 2 << 20], ids=["small", "synced before the lock"])
def test_a_failed_sync_poisons(repo: txstore.Repository, storage: Watched, size: int) -> None:
    storage.before["file.sync"] = once(OSError(5, "the disk is gone"))
    store = txstore.TxStore(repo)
    store["key"] = bytes(size)
    with pytest.raises(OSError, match="the disk is gone"):
        store.commit()
    for again in (store.commit, lambda: store.__setitem__("key", b"2")):
        with pytest.raises(TransactionStateError, match="the disk is gone"):
            again()
    assert repo.head().version == 0
    store.rollback()
    store["key"] = b"2"
    store.commit()
    assert repo.mapping()["key"] == b"2"


# --- the head cache
def torn(content: bytes) -> bytes:
    return content[:20] + bytes(44)


def of_version(version: int, **changes: object) -> Callable[[bytes], bytes]:
    def edit(content: bytes) -> bytes:
        fields = {
            name: getattr(records.HeadCache.decode(content), name) for name in records.HeadCache.__dataclass_fields__
        }
        return records.HeadCache(**fields | {"version": version} | changes).encode()

    return edit


@pytest.mark.parametrize(
    "damage",
    [
        torn,
        lambda content: b"",
        lambda content: content[:-1],
        of_version(99, durable=False, boot=0),
        of_version(0, durable=False, boot=0),
        of_version(1, commit_id=bytes(16), durable=False, boot=0),
        of_version(2, commit_id=bytes(16), durable=False, boot=0),
        of_version(2, commit_id=bytes(16), place=8),
        of_version(2, file_length=1, header_offset=0, header_length=1),
    ],
    ids=[
        "torn",
        "empty",
        "short",
        "too far",
        "of another version",
        "other commit",
        "other head",
        "copy",
        "other place",
    ],
)
def test_the_head_is_found_whatever_the_head_cache_says(open_repo: OpenRepo, damage: Callable[[bytes], bytes]) -> None:
    repo = open_repo()
    for key in "abc":
        put(repo, key)
    head_cache = Path(repo.url, names.head_cache_path("main"))
    head_cache.write_bytes(damage(head_cache.read_bytes()))
    again = open_repo()
    assert sorted(again.mapping()) == ["a", "b", "c"]
    put(again, "d")
    assert again.head().version == 3


# --- what is synced
SYNCS = ("file.sync", "sync_file", "sync_directory", "rename_noreplace")
REPOSITORY = ["sync format.json", "sync zarr.json", "sync commits", "sync ", "sync .."]


def syncs(storage: Watched) -> list[str]:
    return [
        f"sync {call[1]}" if call[0].startswith("sync") else call[0].replace("_noreplace", "")
        for call in storage.named(*SYNCS)
    ]


def test_data_is_synced_before_the_rename_and_its_name_after(repo: txstore.Repository, storage: Watched) -> None:
    put(repo, "key")
    assert syncs(storage) == ["file.sync", "rename", "sync commits/main"]


def test_large_data_is_synced_before_the_lock_too(repo: txstore.Repository, storage: Watched) -> None:
    put(repo, "key", bytes(2 << 20))
    names = [call[0] for call in storage.named(*SYNCS, "lock")]
    assert names == ["file.sync", "lock", "file.sync", "rename_noreplace", "sync_directory"]


def test_without_durability_nothing_is_synced(open_repo: OpenRepo) -> None:
    repo = open_repo(durability="none")
    put(repo, "a")
    storage = watch(repo)
    put(repo, "b", bytes(2 << 20))
    assert syncs(storage) == ["rename"]


def test_a_durable_commit_syncs_those_before_it_that_are_not(open_repo: OpenRepo, repo: txstore.Repository) -> None:
    fast = open_repo(durability="none")
    for key in "abc":
        put(fast, key)
    storage = watch(repo)
    put(repo, "key")
    parents = [f"sync {names.commit_path('main', version)}" for version in (3, 2, 1)]
    assert syncs(storage) == [*REPOSITORY, *parents, "sync commits/main", "file.sync", "rename", "sync commits/main"]
    storage.calls.clear()
    put(repo, "key", b"2")
    assert syncs(storage) == ["file.sync", "rename", "sync commits/main"]
