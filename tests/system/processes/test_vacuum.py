"""Maintenance beside those who read and write in other processes: nobody waits, conflicts or misses anything."""

import contextlib
import os
import signal
import stat
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.faults import watch
from tests.tools.inside import staged
from tests.tools.steps import forked, status_of
from tests.tools.upkeep import content, oldest_kept_of, put, rewrite, tree
from tests.tools.waiting import wait_until
from tests.tools.workers import QUICK, TIMEOUT, Worker, ended
from txstore.errors import SnapshotExpiredError

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs signals and forks")]

ROUNDS = int(os.environ.get("TXSTORE_VACUUM_ROUNDS", "1"))


# --- readers
def read_and_wait(url: str, version: int, ready: str, go: str) -> None:
    snapshot = txstore.Repository(url).mapping(at=version)
    Path(ready).touch()
    wait_until(Path(go).exists)
    assert sorted(snapshot) == [f"a/c/{i}" for i in range(10)]
    for key in snapshot:
        assert len(snapshot[key]) == 96


@pytest.fixture
def signs(tmp_path):
    return str(tmp_path / "ready"), str(tmp_path / "go")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_reader_that_is_killed_or_stopped(repo, signs, number):
    rewrite(repo, 10)
    with forked(read_and_wait, repo.url, 5, *signs) as reader:
        wait_until(Path(signs[0]).exists)
        os.kill(reader, number)
        status = status_of(reader)
        assert os.WIFSTOPPED(status) == (number == signal.SIGSTOP)
        oldest_kept = repo.vacuum(keep=1).oldest_kept
        assert oldest_kept == 5 if os.WIFSTOPPED(status) else oldest_kept > 5
        Path(signs[1]).touch()
        if os.WIFSTOPPED(status):
            os.kill(reader, signal.SIGCONT)
            assert status_of(reader) == 0


def test_a_forked_reader_pins_for_itself(repo, signs):
    """Its parent forgets the snapshot; what the child reads stays."""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(40), chunks=(4,))
    rewrite(repo, 6)
    arrays = [zarr.open_array(repo.snapshot(at=0), path="x", mode="r")]
    ready, go = map(Path, signs)

    def child() -> None:
        assert arrays[0][:4].tolist() == [0, 1, 2, 3]
        ready.touch()
        wait_until(go.exists)
        assert arrays[0][:].tolist() == list(range(40))

    del store
    with forked(child) as reader:
        wait_until(ready.exists)
        arrays.clear()
        with repo.transaction() as store:
            zarr.open_array(store, path="x")[:] = 0
        repo.optimize()
        assert repo.vacuum(keep=1).oldest_kept == 0
        go.touch()
        assert status_of(reader) == 0
    assert repo.vacuum(keep=1).oldest_kept > 0


def test_a_forked_transaction(repo):
    """The child's part is based where its parent's is: as long as the record is there."""
    rewrite(repo, 3)
    with repo.transaction() as store:
        store.mapping["mine"] = b"1"

        def child() -> None:
            store.mapping["child"] = b"1"
            store.mapping.lifecycle.seal()

        with forked(child) as process:
            rewrite(repo, 3, size=200)
            assert repo.vacuum(keep=1).oldest_kept == 2
            assert status_of(process) == 0
    assert content(repo).keys() >= {"mine", "child"}


# --- users who may only read
@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can be several users")
def test_a_reader_who_may_not_write(signs, tmp_path_factory):
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        repo = txstore.Repository(folder / "data.tx")
        rewrite(repo, 10)
        for directory, _, files in os.walk(repo.url):
            os.chmod(directory, 0o755)
            for file in files:
                os.chmod(Path(directory, file), stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH)
        outside = folder / "signs"
        outside.mkdir()
        outside.chmod(0o777)
        ready, go = str(outside / "ready"), str(outside / "go")
        content(repo)  # what the child imports later, it may not be allowed to read

        def child() -> None:
            os.setgroups([])
            os.setgid(61003)
            os.setuid(61003)
            read_and_wait(repo.url, 5, ready, go)

        with forked(child) as reader:
            wait_until(Path(ready).exists)
            assert repo.vacuum(keep=1).oldest_kept == 5, "its pin needs no write permission"
            Path(go).touch()
            assert status_of(reader) == 0
        # Where nobody has made the file of pins, it reads all the same, without one.
        Path(repo.url, "locks/pins").unlink()
        for path in (ready, go):
            Path(path).unlink()
        last = repo.head().version
        held = []

        def unpinned() -> None:
            os.setgid(61003)
            os.setuid(61003)
            snapshot = txstore.Repository(repo.url).mapping(at=last)
            held.append(snapshot)
            assert len({key: bytes(snapshot[key]) for key in snapshot}) == 10

        with forked(unpinned) as reader:
            assert status_of(reader) == 0
        assert repo.verify().faults == []
    finally:
        shutil.rmtree(folder)


# --- writers
def write_stream(url: str, prefix: str, go: str, durability: str = "none") -> dict[str, bytes]:
    """Commit until told to stop; each writes its own keys and one that is counted up. No commit may fail."""
    repo = txstore.Repository(url, durability=durability)
    model: dict[str, bytes] = {}
    number = 0
    while not Path(go).exists() or number < 20:
        some = {f"{prefix}/{(3 * number + i) % 20}": b"%06d" % number * 20 for i in range(3)}
        if number % 7 == 6:
            some = dict.fromkeys(list(model)[:2], b"")
        with repo.begin(f"{prefix} {number}") as mapping:
            for key, value in some.items():
                mapping[key] = value
        model |= some
        number += 1
    return model


def read_stream(url: str, go: str) -> int:
    """Read old and new snapshots whole until told to stop."""
    rounds = 0
    while not Path(go).exists() or rounds < 5:
        repo = txstore.Repository(url)
        snapshot = repo.mapping()
        first = {key: bytes(snapshot[key]) for key in snapshot}
        time.sleep(0.01)
        assert {key: bytes(snapshot[key]) for key in snapshot} == first
        with contextlib.suppress(SnapshotExpiredError):
            old = repo.mapping(at=max(0, (snapshot.version or 0) - 5))
            assert all(old[key] is not None for key in old)
        rounds += 1
    return rounds


def maintain(url: str, go: str, keep: int, enough: str) -> None:
    """Optimize and vacuum until told to stop; say when there was enough to do for both."""
    repo = txstore.Repository(url, durability="none")
    optimized = raised = 0
    while not Path(go).exists():
        optimized += repo.optimize() is not None
        raised += repo.vacuum(keep=keep).expired > 0
        if optimized >= 3 and raised:
            Path(enough).touch()
        time.sleep(0.005)


def test_all_at_once(open_repo, tmp_path):
    """Writers of streams, readers, two who optimize and vacuum: nobody is refused, and nothing is lost."""
    repo = open_repo(durability="none")
    put(repo, {"first": b"1"})
    go = str(tmp_path / "go")
    writers = [Worker(write_stream, repo.url, f"w{i}", go, context=QUICK) for i in range(2)]
    readers = [Worker(read_stream, repo.url, go, context=QUICK)]
    keepers = {
        tmp_path / f"enough {keep}": Worker(
            maintain, repo.url, go, keep, str(tmp_path / f"enough {keep}"), context=QUICK
        )
        for keep in (1, 10)
    }
    with ended(*writers, *readers, *keepers.values()):
        time.sleep(1.5 * ROUNDS)
        for enough, keeper in keepers.items():
            # Only while there are writers there is anything to do. One that answers already has failed.
            wait_until(lambda enough=enough, keeper=keeper: enough.exists() or keeper.answered())
        Path(go).touch()
        model = {"first": b"1"}
        for writer in writers:
            model |= writer.result()
        for reader in readers:
            assert reader.result() >= 5
        for enough, keeper in keepers.items():
            keeper.result()
            assert enough.exists()
    assert content(repo) == model
    repo.optimize()
    repo.vacuum(keep=1)
    assert content(repo) == model
    assert len([path for path in tree(repo) if path.startswith(("commits/", "packs/"))]) <= 8
    assert staged(repo) == []


def commit_with_hook(url: str, sign: str, go: str) -> None:
    """A writer whose file system's lock excludes nobody stands still right before its rename."""
    from txstore.storage.local import LocalStorage

    LocalStorage.lock = lambda self, path, prepare=None, **_: contextlib.nullcontext()  # type: ignore[method-assign,assignment,return-value]
    LocalStorage.open_pins = lambda self: None  # type: ignore[method-assign]
    repo = txstore.Repository(url, durability="none")
    transaction = repo.begin("late")
    transaction["late"] = b"1"
    watched = watch(repo)
    watched.before["rename_noreplace"] = lambda *_: (Path(sign).touch(), os.kill(os.getpid(), signal.SIGSTOP))
    try:
        transaction.commit()
    except SnapshotExpiredError:
        os._exit(7)


def test_a_writer_stopped_right_before_its_rename(repo, signs):
    rewrite(repo, 3)
    with forked(commit_with_hook, repo.url, *signs) as writer:
        assert os.WIFSTOPPED(status_of(writer))
        model = rewrite(repo, 5, size=200)
        repo.optimize()
        repo.vacuum(keep=1)
        assert oldest_kept_of(repo) > 3
        os.kill(writer, signal.SIGCONT)
        assert os.waitstatus_to_exitcode(status_of(writer)) == 7
    assert content(repo).keys() == model.keys()
    assert content(txstore.Repository(repo.url)).keys() == model.keys()


# --- retention by several
def write_with_retention(barrier, url: str, prefix: str, commits: int, retention: int) -> int:
    repo = txstore.Repository(url, durability="none", retention=retention)
    most = 0
    for number in range(commits):
        if number % 50 == 0:
            barrier.wait()  # whoever stands still in a transaction pins what it is based on
        with repo.begin(f"{prefix} {number}") as mapping:
            for i in range(3):
                mapping[f"{prefix}/{(3 * number + i) % 30}"] = b"%06d" % number * 50
        if number % 50 == 49:
            most = max(most, len(os.listdir(Path(url, "commits/main"))))
    return most


def test_retention_by_several_processes(open_repo):
    repo = open_repo(durability="none")
    put(repo, {"first": b"1"})
    commits = 300 * ROUNDS
    barrier = QUICK.Barrier(3, timeout=TIMEOUT)
    writers = [Worker(write_with_retention, barrier, repo.url, f"w{i}", commits, 20, context=QUICK) for i in range(3)]
    with ended(*writers):
        most = max(writer.result() for writer in writers)
    assert most <= 20 + 6 * 64
    found = content(repo)
    assert len(found) == 91
    for i in range(3):
        for number in range(commits - 10, commits):
            for j in range(3):
                assert found[f"w{i}/{(3 * number + j) % 30}"] == b"%06d" % number * 50
    assert len(list(repo.log())) >= 20
    assert repo.vacuum(older_than=timedelta(days=1)).expired == 0
