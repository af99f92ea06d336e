"""A repository of several users: what one of them creates the others may write, whatever anybody's umask."""

import contextlib
import fcntl
import itertools
import multiprocessing
import os
import signal
import stat
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.commits import create_array, set_keys
from tests.tools.disk import in_child, said
from tests.tools.inside import staged
from tests.tools.steps import commit_with_signal, forked, status_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can be several users"),
]

GROUP = 61010
ALICE, BOB = 61001, 61002


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import what the children need: they may not be allowed to read it."""
    with tempfile.TemporaryDirectory() as folder:
        everything(Path(folder) / "data.tx", "root")


def make_root(folder: Path, mode: int = 0o2775, name: str = "data.tx") -> Path:
    root = folder / name
    root.mkdir()
    os.chown(root, ALICE, GROUP)
    root.chmod(mode)
    return root


def become(user: int, umask: int = 0o077, groups: tuple[int, ...] = (GROUP,)) -> None:
    os.setgroups(groups)
    os.setgid(user)
    os.setuid(user)
    os.umask(umask)


def run_as(user: int, function: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
    """Return what a function returns in a child that is this user; what it raises is raised."""

    def act() -> Any:
        become(user, **how)
        try:
            return function(*arguments)
        except (OSError, txstore.TxStoreError) as error:
            return AssertionError(said(error))

    answer = in_child(act)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def everything(root: Path, who: str) -> None:
    """Use all that there is to write in a repository."""
    repo = txstore.Repository(root)
    with repo.transaction(who) as store:
        group = zarr.open_group(store, mode="a")
        group.require_array(who, shape=(4,), chunks=(2,), dtype="i8")[:] = 7
        store["shared"] = who.encode()
    repo.tags[f"{who}-{repo.head().version}"] = repo.head().version
    set_keys(txstore.Repository(root, durability="none"), {f"large/{who}": os.urandom(3_000_000)}, f"{who}, large")
    with repo.transaction(f"{who}, locked", lock=[who]) as store:
        zarr.open_array(store, path=who)[0] = 8
    named = repo.transaction(name=who)
    named["named"] = who.encode()
    named.commit()
    assert repo.snapshot()["named"] == who.encode()
    assert np.array_equal(zarr.open_array(repo.snapshot(), path=who, mode="r")[:], [8, 7, 7, 7])
    assert repo.verify().faults == []


def modes(root: Path) -> dict[str, set[int]]:
    """The permission bits of all files, and of all directories but the root. What is locked has some of its own."""
    found: dict[str, set[int]] = {"files": set(), "directories": set()}
    for path in root.rglob("*"):
        if path == root / ".staging" or (path.parent == root / "locks" and path.name != "pins"):
            continue
        found["directories" if path.is_dir() else "files"].add(stat.S_IMODE(path.stat().st_mode))
    return found


def modes_of_the_locked(root: Path) -> tuple[int, set[int]]:
    """The permission bits of `.staging`, and of the lock files."""
    files = {stat.S_IMODE(path.stat().st_mode) for path in (root / "locks").iterdir() if path.name != "pins"}
    return stat.S_IMODE((root / ".staging").stat().st_mode), files


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("mode", [0o2775, 0o2770, 0o775, 0o777, 0o1777])
def test_what_is_created_takes_the_bits_of_a_shared_root(folder, mode, umask):
    root = make_root(folder, mode)
    run_as(ALICE, everything, root, "alice", umask=umask)
    bits = mode & 0o2777
    assert modes(root) == {"files": {bits & 0o666}, "directories": {bits}}
    of_writers = 0o2777 if mode & 0o002 else 0o2770
    assert modes_of_the_locked(root) == (bits & of_writers, {bits & of_writers & 0o666})
    assert stat.S_IMODE(root.stat().st_mode) == mode


@pytest.mark.parametrize(
    ("umask", "files", "directories"),
    [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0o002, 0o644, 0o755), (0o007, 0o640, 0o750), (0o000, 0o644, 0o755)],
)
@pytest.mark.parametrize("mode", [0o755, 0o700, 0o2755])
def test_under_any_other_root_the_umask_decides_who_reads(folder, mode, umask, files, directories):
    """But nobody who may not write the root may write below it."""
    root = make_root(folder, mode)

    def write() -> None:
        repo = txstore.Repository(root)
        create_array(repo, "a", shape=(2,), chunks=(2,), dtype="i1")
        with repo.transaction() as store, store.lock("a"):
            zarr.open_array(store, path="a")[:] = 1

    run_as(ALICE, write, umask=umask)
    setgid = mode & 0o2000  # which the system passes on
    assert modes(root) == {"files": {files}, "directories": {directories | setgid}}
    assert modes_of_the_locked(root) == (0o700 | setgid, {0o600})


def test_one_who_is_not_in_the_group(folder):
    root = make_root(folder)
    run_as(ALICE, everything, root, "alice")
    assert run_as(BOB, lambda: bytes(txstore.Repository(root).snapshot()["shared"]), groups=()) == b"alice"
    with pytest.raises(AssertionError, match="PermissionError"):
        run_as(BOB, everything, root, "bob", groups=())


def holds_back(root: Path) -> list[str]:
    """Lock whatever a file can be opened for, as one who may only read; return what a writer would have to wait for."""
    locked = []
    for path in sorted(root.rglob("*")):
        with contextlib.suppress(PermissionError, IsADirectoryError, BlockingIOError), open(path, "rb") as file:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
            os.dup(file.fileno())  # until the process ends
            locked.append(str(path.relative_to(root)))
    return locked


@pytest.mark.parametrize("mode", [0o755, 0o2775])
def test_who_may_only_read_holds_up_no_writer(folder, mode):
    """A reader locks all that can be opened; a vacuum waits for nobody either, but keeps what the reader pins."""
    root = make_root(folder, mode)
    run_as(ALICE, everything, root, "alice", umask=0o022)

    def stay(pipe: Any) -> None:
        become(BOB, groups=())
        pipe.send(holds_back(root))
        pipe.recv()

    here, there = multiprocessing.Pipe()
    with forked(stay, there) as reader:
        locked = here.recv()
        assert "commits/main/0000000000" in locked
        assert "locks/pins" in locked
        assert [name for name in locked if name.startswith((".staging", "locks/")) and name != "locks/pins"] == []
        run_as(ALICE, everything, root, "again", umask=0o022)

        def vacuum() -> tuple[int, int]:
            repo = txstore.Repository(root)
            repo.optimize()
            return repo.vacuum(keep=1).oldest_kept, repo.head().version

        oldest_kept, head = run_as(ALICE, vacuum)
        assert oldest_kept == 0 < head
        here.send(None)
        assert status_of(reader) == 0
    oldest_kept, head = run_as(ALICE, vacuum)
    assert oldest_kept > 0


def commit_as(user: int, root: Path, times: int) -> None:
    become(user)
    repo = txstore.Repository(root, durability="none")
    for i in range(times):
        set_keys(repo, {f"{user}/{i}": b"1"}, f"{user}/{i}")


def test_two_users_at_the_same_time(folder):
    """They create the repository together, again and again."""
    for round_ in range(20):
        root = make_root(folder, name=f"{round_}.tx")
        with forked(commit_as, ALICE, root, 10) as alice, forked(commit_as, BOB, root, 10) as bob:
            assert [status_of(alice), status_of(bob)] == [0, 0]
        assert sorted(txstore.Repository(root).mapping()) == sorted(f"{u}/{i}" for u in (ALICE, BOB) for i in range(10))
        assert modes(root) == {"files": {0o664}, "directories": {0o2775}}


def commit_other(root: Path) -> None:
    set_keys(txstore.Repository(root), {"other": b"1"}, "other")


def commit_impatiently(root: Path) -> None:
    txstore.storage.tree._LOOKS = 2  # nobody is about to share it
    commit_other(root)


STEPS_WITHIN = ("mkdir", "chmod", "fchmod", "rename")


def signal_within(root: Path, step: int, number: int) -> None:
    """Create a repository as Alice; get a signal before the n-th thing that has to do with permissions."""
    steps = itertools.count()

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def signal_once(*arguments: Any, **options: Any) -> Any:
            if next(steps) == step:
                os.kill(os.getpid(), number)
            return call(*arguments, **options)

        return signal_once

    become(ALICE)
    for name in STEPS_WITHIN:
        setattr(os, name, watched(getattr(os, name)))
    set_keys(txstore.Repository(root), {"alice": b"1"})


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_nobody_meets_what_has_no_permissions_yet(folder, number):
    """Bob creates the repository, too, while Alice stands still, or was killed, within its creation."""
    for step in range(200):
        root = make_root(folder, name=f"{step}.tx")
        with forked(signal_within, root, step, number) as alice:
            status = status_of(alice)
            if (root / ".staging").exists() and stat.S_IMODE((root / ".staging").stat().st_mode) == 0o2700:
                # The one directory that others may meet too early. Alice's next process mends it.
                with pytest.raises(AssertionError, match="PermissionError"):
                    run_as(BOB, commit_impatiently, root)
                run_as(ALICE, commit_as_now, root, 1)
            if os.WIFSTOPPED(status) and (root / "locks" / "commit").exists():
                os.kill(alice, signal.SIGCONT)  # she may hold it
            run_as(BOB, commit_other, root)
            if os.WIFSTOPPED(status):
                os.kill(alice, signal.SIGCONT)
                assert status_of(alice) == 0
        run_as(BOB, commit_as_now, root, 1)
        run_as(ALICE, commit_as_now, root, 2)  # only she could delete what has no permissions yet
        assert modes(root) == {"files": {0o664}, "directories": {0o2775}}
        repo = txstore.Repository(root)
        assert repo.verify().faults == []
        assert {"other", f"{BOB}/0", f"{ALICE}/1"} <= set(repo.mapping())
        assert not staged(repo)
        if os.WIFEXITED(status):
            break
    assert status == 0
    assert step > 20


def test_what_another_user_left_when_killed(folder):
    """Bob goes on where Alice was killed, with her locks and head cache, and deletes what she had staged."""

    def killed_as_alice(root: Path, step: int) -> None:
        become(ALICE)
        commit_with_signal(str(root), step, 9, "fsync", bytes(300_000))

    for step in range(200):
        root = make_root(folder, name=f"{step}.tx")
        with forked(killed_as_alice, root, step) as alice:
            status = status_of(alice)
        run_as(BOB, commit_other, root)
        repo = txstore.Repository(root)
        assert repo.head().message == "other"
        assert repo.verify().faults == []
        assert not staged(repo)
        if not os.WIFSIGNALED(status):
            break
    assert status == 0
    assert step > 15


def commit_as_now(root: Path, times: int) -> None:
    repo = txstore.Repository(root, durability="none")
    for i in range(times):
        set_keys(repo, {f"{os.getuid()}/{i}": b"1"})
