"""A member of the group that shares a repository puts other things in the place of its files and directories.

Whatever the others do then, with each path of it: nothing outside the root is changed, read into the repository or a
backup of it, or waited for, and each operation ends in a result or an error that says what is wrong.
"""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.system.processes.test_shared_users import ALICE, BOB, GROUP, become, make_root, run_as
from tests.tools.steps import forked, status_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can be several users"),
]

SECRET = b"what Alice keeps to herself " * 8
#: Every path with every kind of thing in its place: 200 rounds. Without, each path meets one kind.
EVERY_PATH = "TXSTORE_HOSTILE_PATHS" in os.environ
#: Seconds: an operation that takes so long waits for something that will never come.
FOR_EVER = 120


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import what the children need: they may not be allowed to read it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "private").mkdir()
        make_repository(Path(folder) / "data.tx")
        use(Path(folder) / "data.tx", Path(folder) / "private")


def make_repository(root: Path) -> None:
    """Make one that has a file of every kind."""
    repo = txstore.Repository(root)
    make_history(repo)
    repo.erase("erased")  # which waits for readers: there is no store any more
    repo.optimize()
    repo.vacuum(keep=2)
    put(repo, "b")
    with repo.transaction(name="run") as named:  # left, not committed
        named["named"] = b"1"
    assert repo.verify().faults == []


def make_history(repo: txstore.Repository) -> None:
    with repo.transaction("first") as store:
        zarr.create_array(store, name="x", shape=(8,), chunks=(2,), dtype="i8")[:] = 7
        zarr.create_array(store, name="erased", data=np.arange(8))
    repo.tags["first"] = 0
    with repo.transaction(lock={"x": np.s_[0:2]}) as store:
        zarr.open_array(store, path="x")[0] = 1
    for _ in range(3):
        put(repo, "a", os.urandom(2000))
    repo.branches["dev"] = repo.head()
    put(repo, "of dev", branch="dev")


def operations(root: Path, private: Path) -> dict[str, Callable[[txstore.Repository], object]]:
    """All that there is to do with a repository, by name."""

    def lock(repo: txstore.Repository) -> None:
        with repo.transaction(lock=["x"], lock_timeout=0) as store:
            store["locked"] = b"1"

    def end(repo: txstore.Repository) -> None:
        repo.transaction(name="run").rollback()

    def tag(repo: txstore.Repository) -> None:
        head = repo.head()
        if head is not None:  # else `commits/main` is missing, for a moment
            name = f"v{os.getpid()}-{head.version}"
            repo.tags[name] = head
            del repo.tags[name]

    def branch(repo: txstore.Repository) -> None:
        name = f"b{os.getpid()}"
        repo.branches[name] = repo.head("dev")
        repo.branches.rename(name, f"{name}-renamed")
        del repo.branches[f"{name}-renamed"]

    def move(repo: txstore.Repository) -> None:
        with repo.transaction("moved") as store:
            store.move("x", "y")
            store.copy("y", "x")
            store.restore("y", at=-1)

    return {
        "read": lambda repo: dict(repo.mapping()),
        "history": lambda repo: (list(repo.log()), dict(repo.tags)),
        "commit": lambda repo: put(repo, "a"),
        "commit what is large": lambda repo: put(repo, "large", bytes(1 << 21)),
        "commit without syncs": lambda repo: put(txstore.Repository(root, durability="none"), "c"),
        "follow": lambda repo: list(repo.follow(since=repo.head(), timeout=0)),
        "lock": lock,
        "transactions": lambda repo: list(repo.transactions()),
        "end": end,
        "tag": tag,
        "branch": branch,
        "commit to a branch": lambda repo: put(repo, "b", branch="dev"),
        "differences": lambda repo: (str(repo.diff(-1)), repo.diff("main", "dev", three_dot=True).as_dict()),
        "blame": lambda repo: len(repo.blame("x").commits),
        "move": move,
        "erase": lambda repo: repo.erase("y", timeout=0),
        "merge": lambda repo: repo.merge("dev"),
        "usage": lambda repo: repo.usage(),
        "optimize": lambda repo: repo.optimize(),
        "vacuum": lambda repo: repo.vacuum(keep=1),
        "backup": lambda repo: repo.backup(private / "backup.tx"),
        "backup, unchecked": lambda repo: repo.backup(private / "unchecked.tx", verify=False),
        "verify": lambda repo: repo.verify(),
        "repair": lambda repo: repo.verify(repair=True),
        "vacuum again": lambda repo: repo.vacuum(keep=1),
        "commit again": lambda repo: put(repo, "again"),
    }


def put(repo: txstore.Repository, key: str, value: bytes = b"value", branch: str = "main") -> None:
    with repo.begin(key, branch=branch) as transaction:
        transaction[key] = value


def use(root: Path, private: Path, expected: tuple[type[Exception], ...] = (PermissionError,)) -> list[str]:
    """Do everything; return what ended in an error that is neither one of ours nor expected."""
    wrong = []
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it is a signal that nobody handles: the process ends
    for name, operation in operations(root, private).items():
        signal.alarm(FOR_EVER)
        try:
            operation(txstore.Repository(root, commit_timeout=1))
        except (txstore.TxStoreError, *expected):
            pass
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            wrong.append(f"{name}: {error!r}" + __import__("traceback").format_exc())
    signal.alarm(0)
    return wrong


# --- what is put in the place of things
def link(path: Path, private: Path, was_directory: bool) -> None:
    path.symlink_to(private / "home" if was_directory else private / "secret")


def hard_link(path: Path, private: Path, was_directory: bool) -> None:
    if was_directory:  # there are none of directories
        link(path, private, was_directory)
    else:
        os.link(private / "secret", path)


def hard_link_to_nothing(path: Path, private: Path, was_directory: bool) -> None:
    if was_directory:
        path.symlink_to(private)
    else:
        os.link(private / "empty", path)


def fifo(path: Path, private: Path, was_directory: bool) -> None:
    os.mkfifo(path, 0o666)


def device(path: Path, private: Path, was_directory: bool) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero: there is no end to it


def listener(path: Path, private: Path, was_directory: bool) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))
    path.chmod(0o777)


def other_kind(path: Path, private: Path, was_directory: bool) -> None:
    """A directory in the place of a file, and the other way round."""
    if was_directory:
        path.write_bytes(b"")
    else:
        path.mkdir()
        (path / "inside").write_bytes(b"")


HOSTILE = [link, hard_link, hard_link_to_nothing, fifo, device, listener, other_kind]


def make_private(folder: Path) -> Path:
    """What is Alice's alone; in `home` whatever could be taken for a part of a repository."""
    private = folder / "private"
    home = private / "home"
    home.mkdir(parents=True)
    (private / "secret").write_bytes(SECRET)
    (private / "empty").write_bytes(b"")
    names = (
        "chunks",
        "commit",
        "staging",
        "pins",
        "main",
        "first",
        "0" * 10,
        "3f" * 16,
        "0" * 16 + ".new",
        "0" * 32 + ".0",
    )
    for name in names:
        (home / name).write_bytes(SECRET)
    for path in [private, *private.rglob("*")]:
        os.chown(path, ALICE, ALICE)
        path.chmod(0o700 if path.is_dir() else 0o600)
    return private


def state(private: Path) -> dict[str, Any]:
    """What must not change of what is Alice's."""
    found = {}
    for path in [private / "secret", private / "empty", private / "home", *(private / "home").rglob("*")]:
        status = path.stat()
        content = path.read_bytes() if path.is_file() else sorted(os.listdir(path))
        found[path.name] = content, status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns
    return found


def leaks(*roots: Path) -> list[str]:
    """Files that hold what is Alice's and are not her own file under another name."""
    found = []
    for path in (path for root in roots for path in root.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.stat().st_nlink > 1:
            continue
        if SECRET[:100] in path.read_bytes():
            found.append(str(path))
    return found


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.__name__)
def test_every_path_of_a_repository(folder, hostile):
    template = make_root(folder, name="template.tx")
    run_as(ALICE, make_repository, template)
    paths = sorted(str(path.relative_to(template)) for path in template.rglob("*"))
    assert {"locks/chunks", "locks/commit", "locks/pins", ".staging/named-run", "tags/first", "heads/main"} <= set(
        paths
    )
    assert {path.partition("/")[0] for path in paths} >= txstore.format.names.TOP - {"quarantine"}
    folder.chmod(0o755)
    first, every = (0, 1) if EVERY_PATH else (HOSTILE.index(hostile), len(HOSTILE))
    for number, path in enumerate([*paths, "quarantine"][first::every]):
        place = folder / str(number)
        place.mkdir(mode=0o755)
        private = make_private(place)
        root = place / "data.tx"
        subprocess.run(["cp", "-a", template, root], check=True)
        was_directory = (root / path).is_dir() or path == "quarantine"
        if was_directory:
            shutil.rmtree(root / path, ignore_errors=True)
        else:
            (root / path).unlink()
        hostile(root / path, private, was_directory)
        os.chown(root / path, BOB, GROUP, follow_symlinks=False) if not hostile.__name__.startswith("hard") else None
        before = state(private)
        wrong = run_as(ALICE, use, root, private)
        assert wrong == [], path
        assert state(private) == before, path
        assert leaks(root, private / "backup.tx", private / "unchecked.tx") == [], path
        shutil.rmtree(place)


DIRECTORIES = (
    ".staging", "locks", "packs", "commits/main", "tags", "heads", "oldest_kept/main", "branches", "erased",
    "quarantine",
)  # fmt: skip


def swap(root: Path, private: Path) -> None:
    """As Bob, put links in the place of directories, again and again, and take them away."""
    become(BOB)
    while True:
        for name in DIRECTORIES:
            path = root / name
            with contextlib.suppress(OSError):
                os.rename(path, f"{path}.away")
                os.symlink(private / "home", path)
                os.unlink(path)
            with contextlib.suppress(OSError):
                os.rename(f"{path}.away", path)


def test_while_links_come_and_go(folder):
    """Whoever has just seen a directory may find a link there a moment later."""
    root, private = make_root(folder), make_private(folder)
    run_as(ALICE, make_repository, root)
    before = state(private)
    with forked(swap, root, private) as bob:
        for _ in range(5):
            # A directory can be missing for a moment, too.
            assert run_as(ALICE, use, root, private, (PermissionError, FileNotFoundError, KeyError)) == []
        os.kill(bob, signal.SIGKILL)
        status_of(bob)
    assert state(private) == before
    assert leaks(root) == []
