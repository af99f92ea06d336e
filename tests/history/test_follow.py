"""Following a branch: what is yielded, where it begins, what wakes it, and what it leaves behind."""

import errno
import gc
import importlib
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path

import pytest

import txstore
from tests.tools.disk import in_child
from tests.tools.faults import always
from tests.tools.faults import watch as watched
from txstore import CommitNotFoundError, CorruptionError, RepositoryNotFoundError, SnapshotExpiredError
from txstore.history import follow as following

#: Seconds after which a test fails: a wait for something that happens.
DEADLINE = 60

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def put(repo: txstore.Repository, *keys: str) -> None:
    for key in keys:
        with repo.begin(key) as mapping:
            mapping[key] = b"1"


def messages(commits: Iterator[txstore.Commit]) -> list[str]:
    return [commit.message for commit in commits]


def woken(commits: Iterator[txstore.Commit]) -> txstore.Commit:
    """The next commit; an error if it was found only because the wait was over."""
    began = time.monotonic()
    commit = next(commits)
    assert time.monotonic() - began < DEADLINE / 2, "slept until the end of its timeout"
    return commit


def descriptors() -> list[str]:
    """Which watches and files of repositories this process has open, where it can be told; but not the mapped files.

    Before Python 3.13 a mapping that Python itself makes keeps its descriptor. Sockets and the like are no business of
    a local repository: threads that other tests have left may open some at any time.
    """
    if not os.path.isdir("/proc/self/fd"):
        return []
    gc.collect()  # what other tests have left
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue  # that of the listing
        if target == "anon_inode:inotify" or (".tx" in target and ".tx/commits/" not in target):
            found.append(target)
    return found


def new_descriptors(before: list[str]) -> list[str]:
    """What has come since. What other tests have left may go at any time."""
    return list((Counter(descriptors()) - Counter(before)).elements())


@pytest.fixture
def repo(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    """A repository with three commits."""
    repo = open_repo(durability="none")
    put(repo, "0", "1", "2")
    return repo


@pytest.fixture(params=["watch", "poll"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[txstore.Repository], str]:
    """Let a repository be woken by a watch alone, or by polling alone."""
    if request.param == "watch":
        if following.local.IMPLEMENTATION == "python":
            pytest.skip("the C extension is not built")
        monkeypatch.setattr(following, "_LONGEST_PAUSE", 2 * DEADLINE)

    def choose(repo: txstore.Repository) -> str:
        if request.param == "poll":
            cannot_watch(repo)
        return request.param

    return choose


def cannot_watch(repo: txstore.Repository, number: int = errno.ENOSPC) -> None:
    watched(repo).before["watch"] = always(OSError(number, os.strerror(number)))


# --- where it begins
def test_from_the_head_when_it_is_called(repo):
    following = repo.follow(timeout=0)
    put(repo, "3", "4")
    assert messages(following) == ["3", "4"]


@pytest.mark.parametrize("since", ["version", "id", "digits", "commit", "time"])
def test_since(repo, since):
    commit = repo.commit(1)
    value = {"version": 1, "id": commit.id, "digits": commit.id[:8], "commit": commit, "time": commit.time}[since]
    assert list(repo.follow(since=value, timeout=0)) == [repo.commit(2)]
    assert messages(repo.follow(since=-1, timeout=0)) == ["0", "1", "2"]
    assert list(repo.follow(timeout=0)) == []


def test_a_repository_without_commits(open_repo):
    repo = open_repo()
    repo.transaction(name="job").rollback()
    commits = repo.follow(timeout=DEADLINE)
    put(repo, "0", "1")
    assert messages(islice(commits, 2)) == ["0", "1"]
    assert list(repo.follow(timeout=0)) == []


def test_a_since_that_is_not_there(repo, open_repo):
    other = open_repo("other.tx", durability="none")
    put(other, "0", "1", "2", "3")
    for since in (3, -2, "ffff", other.commit(1), other.commit(3), repo.commit(0).time - timedelta(days=1)):
        with pytest.raises(CommitNotFoundError):
            repo.follow(since=since)


def test_arguments_that_make_no_sense(repo):
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="seconds"):
            repo.follow(timeout=timeout)
    with pytest.raises(CommitNotFoundError, match="branch"):
        repo.follow("no such branch")
    with pytest.raises(TypeError):
        repo.follow(since=1.5)


# --- a repository that is not there
def test_a_repository_that_does_not_exist_yet_is_waited_for(open_repo, way):
    reader = open_repo()
    way(reader)
    commits = reader.follow(timeout=DEADLINE)
    with later(lambda: put(open_repo(), "0", "1")):
        assert woken(commits).message == "0"
        assert woken(commits).message == "1"


def test_waiting_for_a_repository_ends_and_creates_nothing(open_repo, tmp_path):
    assert list(open_repo().follow(timeout=0.02)) == []
    assert list(open_repo().follow(since=-1, timeout=0)) == []
    with pytest.raises(RepositoryNotFoundError):
        open_repo().follow(since=0)
    assert list(tmp_path.iterdir()) == []


def test_something_else_in_its_place(tmp_path):
    commits = txstore.Repository(tmp_path / "data.tx").follow(timeout=DEADLINE)
    (tmp_path / "data.tx").mkdir()
    (tmp_path / "data.tx" / "zarr.json").write_text("{}")
    with pytest.raises(RepositoryNotFoundError, match="plain Zarr"):
        next(commits)


# --- being woken
class later:
    """Do something in a thread while the block waits; what it raises is raised at the end of the block."""

    def __init__(self, act: Callable[[], object], delay: float = 0.05) -> None:
        self.act = act
        self.delay = delay
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        try:
            time.sleep(self.delay)
            self.act()
        except BaseException as error:  # noqa: BLE001 - the test is told
            self.error = error

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.thread.join(DEADLINE)
        if self.error is not None:
            raise self.error


def test_woken_by_a_commit(repo, open_repo, way):
    way(repo)
    commits = repo.follow(timeout=DEADLINE)
    for i in range(5):
        with later(lambda i=i: put(open_repo(), f"new{i}")):
            assert woken(commits).message == f"new{i}"


@pytest.mark.parametrize(
    "moment",
    ["before read_tail", "before read_range", "after read_range", "after exists", "before watch", "after watch"],
)
@pytest.mark.parametrize("way", ["watch"], indirect=True)
def test_a_commit_between_looking_and_arming_is_seen(repo, open_repo, way, moment):
    """Whatever the follower does with the storage, a commit made right before or after it is not slept through."""
    reader = open_repo()
    commits = reader.follow(timeout=DEADLINE)
    storage = watched(reader)
    left = ["3"]

    def commit_once(*_: object) -> None:
        if left:
            put(repo, left.pop())

    when, call = moment.split()
    getattr(storage, when)[call] = commit_once
    assert woken(commits).message == "3"


def test_the_linked_file_of_an_old_kernel_wakes_it(repo, open_repo, way):
    """Where renames can't refuse to replace, a commit comes by link and unlink."""
    writer = open_repo(durability="none")
    way(repo)

    def link(source: str, target: str) -> None:
        os.link(f"{writer.url}/{source}", f"{writer.url}/{target}")
        os.unlink(f"{writer.url}/{source}")

    watched(writer).rename_noreplace = link
    with later(lambda: put(writer, "linked")):
        assert woken(repo.follow(timeout=DEADLINE)).message == "linked"


class Clock:
    """A clock that only sleeping advances, and what happens at certain times of it."""

    def __init__(self, events: dict[float, Callable[[], object]]) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.events = events

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 6))
        self.now += seconds
        for when in sorted(self.events):
            if when <= self.now:
                self.events.pop(when)()


def test_the_timeout_is_of_each_wait(repo, monkeypatch):
    cannot_watch(repo, errno.ENOSYS)
    clock = Clock({0.9: lambda: put(repo, "3"), 1.7: lambda: put(repo, "4")})
    monkeypatch.setattr(following, "time", clock)
    commits = repo.follow(timeout=1)
    assert next(commits).message == "3"
    clock.now += 0.5  # what the consumer takes does not count
    assert next(commits).message == "4"
    before = clock.now
    assert next(commits, None) is None
    assert clock.now == pytest.approx(before + 1)
    put(repo, "5")
    assert next(commits, None) is None  # it has ended


def test_a_consumer_that_takes_long_misses_nothing(repo):
    commits = repo.follow(timeout=0.05)
    put(repo, "3")
    assert next(commits).message == "3"
    put(repo, *(str(i) for i in range(4, 400)))  # more events than are read at once
    time.sleep(0.1)
    assert messages(commits) == [str(i) for i in range(4, 400)]


def test_the_pauses_of_polling(repo, monkeypatch):
    cannot_watch(repo, errno.EACCES)
    clock = Clock({4.5: lambda: put(repo, "3"), 5.3: lambda: put(repo, "4")})
    monkeypatch.setattr(following, "time", clock)
    commits = repo.follow()
    next(commits)
    assert clock.pauses == [0.005 * 2**i for i in range(8)] + [1.0] * 4
    next(commits)
    assert clock.pauses[12:] == [0.005, 0.01, 0.02]  # after a commit, the next may come as soon


def test_the_safety_look(repo, open_repo):
    """A commit that no event tells of, as on a network file system, is seen by looking once in a while."""
    deaf_end, other_end = os.pipe()
    watched(repo).watch = lambda path: os.dup(deaf_end)
    try:
        with later(lambda: put(open_repo(), "3")):
            assert woken(repo.follow(timeout=DEADLINE)).message == "3"
    finally:
        os.close(deaf_end)
        os.close(other_end)


@pytest.mark.parametrize("way", ["watch"], indirect=True)
def test_a_directory_that_was_made_anew_is_watched_anew(open_repo, tmp_path, way):
    repo = open_repo()
    repo.transaction(name="job").rollback()
    directory = Path(repo.url, "commits", "main")
    commits = repo.follow(timeout=DEADLINE)

    def remake() -> None:
        shutil.rmtree(directory)
        time.sleep(0.05)  # it is told, and there is nothing to watch
        directory.mkdir()
        time.sleep(0.05)
        put(open_repo(), "0")

    with later(remake):
        assert woken(commits).message == "0"


@pytest.mark.parametrize("way", ["watch"], indirect=True)
def test_what_woke_it_once_does_not_wake_it_again(repo, way):
    commits, looks = repo.follow(timeout=0.3), watched(repo).calls
    put(repo, "3")
    with later(lambda: put(repo, "4")):
        assert messages(islice(commits, 2)) == ["3", "4"]
    looks.clear()
    assert next(commits, None) is None
    assert len(looks) < 30


# --- what is no commit
def test_an_orphan_is_never_yielded(open_repo, tmp_path):
    repo = open_repo(durability="none")
    put(repo, "0", "1", "lost", "orphan")
    directory = Path(repo.url, "commits", "main")
    lost, orphan = directory / "0000000002", directory / "0000000003"
    os.unlink(lost)  # a power loss, and the head cache went with it
    os.unlink(Path(repo.url, "heads", "main"))
    reader = open_repo(durability="none")
    with pytest.raises(CommitNotFoundError, match="orphan"):
        reader.follow(since=3)
    commits = reader.follow(since=0, timeout=0.02)
    assert next(commits).message == "1"
    writer = open_repo(durability="none")
    put(writer, "2")
    assert next(commits).message == "2"  # the orphan stands in the next version now
    assert orphan.exists()
    assert next(commits, None) is None
    commits = reader.follow(since=2, timeout=DEADLINE)
    put(writer, "3")
    assert next(commits).message == "3"


def test_a_damaged_commit_is_an_error(repo, tmp_path):
    commits = repo.follow(since=1, timeout=DEADLINE)
    damaged = Path(repo.url, "commits", "main", "0000000002")
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-8] + bytes(8))
    with pytest.raises(CorruptionError, match="0000000002"):
        next(commits)
    damaged.write_bytes(content)


def test_what_a_vacuum_removed(repo):
    put(repo, "a", "b", "c")
    follower, late = repo.follow(since=0, timeout=DEADLINE), repo.follow(since=-1, timeout=DEADLINE)
    repo.vacuum(keep=1)
    for each in (follower, late):
        with pytest.raises(SnapshotExpiredError, match=r"main@[01]"):
            next(each)


def test_a_commit_below_the_oldest_kept_that_is_still_there(repo):
    """It holds values of later ones. What follows it may be gone, or nothing of the history."""
    put(repo, "a", "b", "c")
    repo.vacuum(keep=1)
    first = min(int(path.name) for path in Path(repo.url, "commits/main").iterdir() if path.name.isdigit())
    assert first < repo.head().version - 1, "an old one has to be there"
    with pytest.raises(SnapshotExpiredError):
        next(repo.follow(since=first, timeout=DEADLINE))


# --- a repository that goes away
def test_a_deleted_repository(tmp_path):
    repo = txstore.Repository(tmp_path / "deleted.tx", durability="none")
    put(repo, "0", "1")
    commits = repo.follow(timeout=DEADLINE)
    # format.json may be there a moment longer than the commits.
    gone = pytest.raises((RepositoryNotFoundError, CorruptionError), match=r"was here and is gone|deleted or replaced")
    with later(lambda: shutil.rmtree(repo.url)), gone:
        next(commits)


def test_a_repository_that_was_replaced_by_another(tmp_path):
    repo = txstore.Repository(tmp_path / "replaced.tx", durability="none")
    put(repo, "0", "1")
    commits = repo.follow(timeout=DEADLINE)
    shutil.rmtree(repo.url)
    put(txstore.Repository(repo.url), "0", "1", "2")
    with pytest.raises(CorruptionError, match="another repository"):
        next(commits)


@pytest.mark.parametrize("more", [0, 1, 2, 3])
def test_a_repository_that_was_replaced_by_its_backup(tmp_path, more):
    """The backup has the same id. It ends below what was followed, and may have grown in another way since."""
    repo = txstore.Repository(tmp_path / "replaced.tx", durability="none")
    put(repo, "0")
    shutil.copytree(repo.url, tmp_path / "backup")
    commits = txstore.Repository(repo.url).follow(timeout=DEADLINE)
    put(repo, "1", "2")
    assert messages(islice(commits, 2)) == ["1", "2"]
    shutil.rmtree(repo.url)
    shutil.move(tmp_path / "backup", repo.url)
    put(txstore.Repository(repo.url), *(f"other{i}" for i in range(more)))
    with pytest.raises(CorruptionError, match="deleted or replaced"):
        next(commits)


# --- what it holds
@linux_only
@pytest.mark.parametrize("end", ["close", "drop", "timeout"])
def test_it_leaves_no_descriptor(repo, end):
    before = descriptors()
    commits = repo.follow(timeout=0.02 if end == "timeout" else DEADLINE)
    assert new_descriptors(before) == []  # nothing is held before it waits
    put(repo, "3")
    assert next(commits).message == "3"
    if end == "timeout":
        assert list(commits) == []
    else:
        with later(lambda: put(repo, "4")):
            next(commits)
        if end == "close":
            commits.close()
        else:
            del commits
            gc.collect()
    assert new_descriptors(before) == []


def test_an_interrupt_ends_the_wait(repo, way):
    """SIGINT in the middle of a wait raises at once, not when the wait ends."""
    way(repo)
    before = descriptors()
    with pytest.raises(KeyboardInterrupt), later(lambda: os.kill(os.getpid(), signal.SIGINT)):
        next(repo.follow(timeout=DEADLINE))
    gc.collect()
    assert new_descriptors(before) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("whose", ["its own", "inherited"])
def test_a_forked_child_follows(repo, open_repo, whose, way):
    chosen, calls = way(repo), watched(repo)
    commits = repo.follow(timeout=DEADLINE)
    with later(lambda: put(open_repo(), "3")):
        assert woken(commits).message == "3"  # it holds a watch now
    reading, writing = os.pipe()

    def follow_in_child() -> list[str]:
        mine = repo.follow(timeout=DEADLINE) if whose == "its own" else commits
        calls.calls.clear()
        os.write(writing, b"1")
        found = [woken(mine).message for _ in range(2)]
        assert chosen == "poll" or calls.named("watch"), "of a watch that both have, each event goes to one of them"
        return found

    def write() -> None:
        assert os.read(reading, 1)
        for key in ("4", "5"):
            put(open_repo(durability="none"), key)
            # The parent takes all events of the queue that the child has inherited.
            if chosen == "watch":
                assert woken(commits).message == key

    with later(write):
        assert in_child(follow_in_child) == ["4", "5"]
    put(repo, "6")
    assert next(commits).message == ("6" if chosen == "watch" else "4")  # the child closed nothing of ours
    os.close(reading)
    os.close(writing)


# --- the watch itself
@pytest.fixture
def native():
    try:
        return importlib.import_module("txstore._native._local")
    except ImportError:
        pytest.skip("the C extension is not built")


def readable(descriptor: int, seconds: float = 0) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


@pytest.mark.parametrize("how", ["create", "rename", "rename within", "delete", "move"])
def test_what_rings(native, tmp_path, how):
    directory, source = tmp_path / "directory", tmp_path / "source"
    directory.mkdir()
    source.touch()
    (directory / "old").touch()
    descriptor = native.open_watch(str(directory))
    assert (os.get_inheritable(descriptor), os.get_blocking(descriptor)) == (False, False)
    (directory / "old").write_bytes(b"1")
    assert not readable(descriptor)
    assert native.drain_watch(descriptor)
    if how == "create":
        for i in range(1000):
            (directory / f"{i:0100}").touch()
    elif how == "delete":
        shutil.rmtree(directory)
    elif how == "move":
        directory.rename(tmp_path / "elsewhere")
    else:
        os.rename(source if how == "rename" else directory / "old", directory / "new")
    assert readable(descriptor, DEADLINE)
    is_there = how not in ("delete", "move")
    while is_there and readable(descriptor):
        assert native.drain_watch(descriptor)
    assert native.drain_watch(descriptor) == is_there
    os.close(descriptor)


def test_what_can_not_be_watched(native, tmp_path):
    (tmp_path / "file").touch()
    for path, kind in (("absent", FileNotFoundError), ("file", NotADirectoryError)):
        before = descriptors()
        with pytest.raises(kind, match=path):
            native.open_watch(str(tmp_path / path))
        assert new_descriptors(before) == []
    for argument in (7, None):
        with pytest.raises(TypeError):
            native.open_watch(argument)
    with pytest.raises(ValueError):
        native.open_watch("a\0b")
    for argument in (-1, "x"):
        with pytest.raises((TypeError, ValueError)):
            native.drain_watch(argument)
    with pytest.raises(OSError):
        native.drain_watch(1 << 20)
