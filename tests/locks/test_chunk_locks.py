"""The chunk-key locks, every kind of them by the same tests, with real processes; and how a kind is chosen."""

import contextlib
import os
import pickle
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore.locks.chunk_locks
from tests.locks.lock_words import is_wanted_badly
from tests.tools.disk import NOBODY, in_child
from tests.tools.lock_clients import KINDS
from tests.tools.waiting import wait_until
from tests.tools.workers import QUICK
from txstore.errors import LocksLostError, LocksUnavailableError, LockTimeoutError, TransactionStateError
from txstore.locks.chunk_locks import ChunkLocks
from txstore.locks.lock_file import HEADER, KIND_NUMBERS, MAGIC, Holders, LockHeader, find_holders
from txstore.locks.slot_hash import SlotHash

LINUX = sys.platform == "linux"
HAS_C = txstore.locks.chunk_locks.locktable is not None

SOON = 30  # seconds: what happens at all happens long before

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and forks")


class Peer:
    """Another process that does with the locks what it is told."""

    def __init__(self, directory: Path, kind: str | None = None, *, has_c: bool = True) -> None:
        self.pipe, theirs = QUICK.Pipe()
        self.process = QUICK.Process(target=_obey, args=(theirs, str(directory), kind, has_c), daemon=True)
        self.process.start()
        theirs.close()
        self.pid = self.process.pid

    def tell(self, command: str, *arguments: Any) -> None:
        self.pipe.send((command, arguments))

    def answer(self) -> Any:
        assert self.pipe.poll(SOON), "the other process does not answer"
        well, answer = self.pipe.recv()
        if not well:
            raise answer
        return answer

    def ask(self, command: str, *arguments: Any) -> Any:
        self.tell(command, *arguments)
        return self.answer()

    def is_busy(self, seconds: float = 0.1) -> bool:
        return not self.pipe.poll(seconds)

    def begin_to_wait(self, keys: Any, number: int = 0) -> None:
        """Let it acquire what it can't have yet. From here on a signal finds it at that, not on the way to it."""
        assert self.ask("acquire_aloud", keys, number) == "begins"
        assert self.is_busy()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(SOON)


def _obey(pipe: Any, directory: str, kind: str | None, has_c: bool) -> None:
    if not has_c:
        txstore.locks.chunk_locks.locktable = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    locks = ChunkLocks(directory, directory, kind=kind)
    owners: dict[int, Any] = {}

    def owner(number: int) -> Any:
        if number not in owners:
            owners[number] = locks.owner()
        return owners[number]

    def acquire_aloud(keys: Any, number: int) -> tuple[str, ...]:
        pipe.send((True, "begins"))
        return tuple(owner(number).acquire(keys, SOON))

    commands: dict[str, Callable[..., Any]] = {
        "acquire": lambda keys, timeout=SOON, number=0: tuple(owner(number).acquire(keys, timeout)),
        "acquire_aloud": acquire_aloud,
        "release": lambda keys: owner(0).release(keys),
        "fence": lambda: owner(0).fence(),
        "close": lambda: owner(0).close(),
        "kind": lambda: locks.kind,
        "leave": locks.close,
        "count": lambda path, rounds: _count(owner(0), path, rounds),
        "fork": lambda key: in_child(lambda: _what_a_fork_sees(locks, owner(0), key)),
        "leave_child": lambda: _leave_child(),
    }
    while True:
        command, arguments = pipe.recv()
        try:
            answer = True, commands[command](*arguments)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C, too, is for the test to judge
            answer = False, error
        pipe.send(answer)


def _count(owner: Any, path: str, rounds: int) -> None:
    """Add to the number in a file, as only one at a time may."""
    for _ in range(rounds):
        owner.acquire("counter/c/0", SOON)
        number = int(Path(path).read_text())
        time.sleep(0)
        Path(path).write_text(str(number + 1))
        owner.release("counter/c/0")


def _what_a_fork_sees(locks: ChunkLocks, inherited: Any, key: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name, call in {
        "acquire": lambda: inherited.acquire("fork/other", 0),
        "release": lambda: inherited.release(key),
        "park": lambda: inherited.park(key),
        "fence": inherited.fence,
        "close": inherited.close,
    }.items():
        try:
            call()
            seen[name] = None
        except Exception as error:  # noqa: BLE001 - the test looks at it
            seen[name] = type(error)
    seen["holds"] = inherited.holds(key)
    mine = locks.owner()
    try:
        mine.acquire(key, 0.05)
        seen["parent's"] = None
    except LockTimeoutError as error:
        seen["parent's"] = error.holder
    mine.acquire("fork/mine", 0)
    mine.fence()
    mine.close()
    return seen


def _leave_child() -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(SOON)
        os._exit(0)
    return pid


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def directory(tmp_path) -> Path:
    path = tmp_path / "data.tx" / "locks"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def locks(directory, kind) -> Iterator[ChunkLocks]:
    locks = ChunkLocks(str(directory), "data.tx", kind=kind)
    yield locks
    locks.close()


@pytest.fixture
def start(directory) -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def start(*arguments: Any, where: Path = directory, **options: Any) -> Peer:
        peers.append(Peer(where, *arguments, **options))
        return peers[-1]

    yield start
    for peer in peers:
        peer.kill()


@pytest.fixture
def peer(start, kind) -> Peer:
    return start(kind)


# --- exclusion
@pytest.mark.long
def test_processes_exclude_each_other(locks, peer):
    mine = locks.owner()
    assert peer.ask("acquire", "a/c/0") == ()
    with pytest.raises(LockTimeoutError) as caught:
        mine.acquire("a/c/0", 0.02)
    assert caught.value.keys == ("a/c/0",)
    assert caught.value.holder == f"process {peer.pid}"
    peer.ask("release", "a/c/0")
    mine.acquire("a/c/0", 0)
    with pytest.raises(LockTimeoutError):
        peer.ask("acquire", "a/c/0", 0)
    peer.tell("acquire", "a/c/0")
    assert peer.is_busy()
    mine.release("a/c/0")
    peer.answer()


def test_what_says_that_it_came_too_late_says_what_to_do(locks):
    locks.owner().acquire("x")
    first = locks.owner()
    first.acquire("a/c/0")
    with pytest.raises(LockTimeoutError, match=r"'a/c/0'.*this process.*lock_timeout=.*deadlock") as caught:
        locks.owner().acquire("a/c/0", 0)
    assert isinstance(caught.value, TimeoutError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.keys, again.holder, str(again)) == (caught.value.keys, caught.value.holder, str(caught.value))


def test_two_threads_may_use_one_owner(locks):
    owner, other = locks.owner(), locks.owner()
    other.acquire("a")
    got = []

    def work() -> None:
        owner.acquire("a", SOON)
        got.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    other.release("a")
    for thread in threads:
        thread.join(SOON)
    assert len(got) == 2
    owner.release("a")
    assert owner.holds("a")  # once for each thread
    owner.release("a")
    assert not owner.holds("a")
    other.acquire("a", 0)


def test_who_has_just_had_a_lock_lets_those_who_wait_go_first(locks, peer, directory):
    """Else a process that hardly ever lets go would starve the others, who only look now and then."""
    if locks.kind == "files":
        pytest.skip("stripes are had by whoever looks at the right moment")
    mine = locks.owner()
    mine.acquire("a/c/0")

    def is_wanted() -> bool:
        if locks.kind == "table":
            return is_wanted_badly(directory / "chunks", "a/c/0")
        return mine._exclusion._is_wanted(range(slot := mine._exclusion.slot_of("a/c/0"), slot + 1))

    patience = 0.002 if locks.kind == "table" else 0.02
    stood_back = 0
    for _ in range(100):  # two will do: nobody stands back where the other one is just about to look, and is stopped
        peer.tell("acquire", "a/c/0")
        wait_until(is_wanted)
        begun = time.monotonic()
        mine.release("a/c/0")
        try:
            mine.acquire("a/c/0", 0.2)
        except LockTimeoutError:
            stood_back += 1
        else:
            stood_back += time.monotonic() - begun >= patience  # the other one does not run: it need not wait for ever
            mine.release("a/c/0")
        peer.answer()
        peer.ask("release", "a/c/0")
        mine.acquire("a/c/0", SOON)
        if stood_back == 2:
            break
    assert stood_back == 2


# --- all of the keys, or none
def test_a_failed_call_leaves_what_was_held_before(locks, peer):
    mine = locks.owner()
    mine.acquire(["a", "b"])
    peer.ask("acquire", "c")
    with pytest.raises(LockTimeoutError):
        mine.acquire(["a", "b", "c", "d"], 0.01)
    assert [mine.holds(key) for key in "abcd"] == [True, True, False, False]
    mine.release(["a", "b"])
    assert not mine.holds("a")


# --- all of the keys, or none


def test_two_keys_of_one_slot_are_two(locks):
    slots: dict[int, str] = {}
    hashed = SlotHash(1 << 20, LockHeader().seed)
    for number in range(100_000):
        key = f"{number}/zarr.json"
        other = slots.setdefault(hashed.slot_of(key), key)
        if other != key:
            break
    mine = locks.owner()
    mine.acquire([key, other])
    mine.release(key)
    assert mine.holds(other)
    with pytest.raises(LockTimeoutError):
        locks.owner().acquire(key, 0)
    mine.release(other)
    locks.owner().acquire([other, key], 0)


# --- ends
def test_the_locks_of_a_killed_process_are_free(locks, start, kind):
    keys = [f"a/c/{row}/{column}" for row in range(30) for column in range(100)]
    mine, victim = locks.owner(), start(kind)
    victim.ask("acquire", keys)
    with pytest.raises(LockTimeoutError):
        mine.acquire(keys[-1], 0)
    victim.kill()
    dirty = mine.acquire(keys, SOON)
    assert sorted(dirty) == (sorted(keys) if kind == "table" else [])
    mine.release(keys)
    assert tuple(mine.acquire(keys, 0)) == ()


@pytest.mark.long
def test_ctrl_c_ends_waiting_and_nothing_else(locks, peer):
    mine = locks.owner()
    mine.acquire("a/c/5")
    peer.ask("acquire", "a/c/1")
    peer.begin_to_wait(["a/c/4", "a/c/5", "a/c/6"])
    peer.signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        peer.answer()
    locks.owner().acquire(["a/c/4", "a/c/6"], 0)
    peer.ask("fence")
    mine.release("a/c/5")
    peer.ask("acquire", ["a/c/5"])


# --- fork
def test_a_fork_inherits_no_locks(locks, peer):
    peer.ask("acquire", "a")
    seen = peer.ask("fork", "a")
    assert seen.pop("parent's") == f"process {peer.pid}"
    assert seen.pop("close") is None
    assert seen.pop("holds") is False
    assert seen == dict.fromkeys(["acquire", "release", "park", "fence"], TransactionStateError)
    with pytest.raises(LockTimeoutError):
        locks.owner().acquire("a", 0)
    peer.ask("fence")
    locks.owner().acquire("fork/mine", 0)


def test_a_fork_does_not_keep_the_locks_of_its_dead_parent(locks, peer):
    peer.ask("acquire", ["a", "b"])
    child = peer.ask("leave_child")
    try:
        peer.kill()
        locks.owner().acquire(["a", "b"], SOON)
    finally:
        os.kill(child, signal.SIGKILL)


# --- the file
def test_a_copied_repository_has_locks_of_its_own(locks, start, kind, directory, tmp_path):
    mine = locks.owner()
    mine.acquire("a")
    copy = tmp_path / "copy.tx" / "locks"
    shutil.copytree(directory, copy)
    with open(copy / "chunks") as old:  # so that its inode is not used again
        other = start(kind, where=copy)
        assert other.ask("acquire", "a", 0) == ()
        # It may as well have been seen through an overlay, with users that can't be seen: it is not written to.
        assert not os.path.samestat(os.fstat(old.fileno()), os.stat(copy / "chunks"))
    assert other.ask("kind") == kind
    mine.fence()
    other.ask("fence")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_lock_file_that_is_gone_is_noticed(locks, start, kind, directory, is_replaced):
    mine = locks.owner()
    mine.acquire(["a", "b"])
    mine.fence()
    for path in directory.iterdir():
        if is_replaced:
            shutil.copy(path, directory.parent / "copy")
            os.replace(directory.parent / "copy", path)
        else:
            path.unlink()
    with pytest.raises(LocksLostError) as caught:
        mine.fence()
    assert set(caught.value.keys) == {"a", "b"}
    assert "rollback()" in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).keys == caught.value.keys
    # Whoever begins now meets the others in the new file.
    other = start(kind)
    other.ask("acquire", "a")
    with pytest.raises(LockTimeoutError):
        locks.owner().acquire("a", 0)
    mine.close()
    other.ask("fence")


def test_a_descriptor_closed_behind_our_back_is_noticed(locks, kind, directory):
    if not LINUX:
        pytest.skip("needs /proc")
    mine = locks.owner()
    mine.acquire("a")
    victim = next(
        number for number in map(int, os.listdir("/proc/self/fd")) if _name_of(number) == str(directory / "chunks")
    )
    os.close(victim)
    with open(os.devnull) as other:  # takes the number
        with pytest.raises(LocksLostError):
            mine.fence()
        assert not other.closed
        other.read()


def _name_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def overwrite(directory: Path, header: bytes) -> None:
    with open(directory / "chunks", "r+b") as file:
        file.write(header)


def header_of(directory: Path) -> LockHeader:
    return header_of_file(directory / "chunks")


def header_of_file(path: Path) -> LockHeader:
    return LockHeader(*HEADER.unpack(path.read_bytes()[: HEADER.size]))


def test_a_file_of_another_version_is_refused_while_it_is_in_use(locks, start, kind, directory):
    peer = start(kind)
    peer.ask("acquire", "a")
    header = header_of(directory)
    assert (header.magic, header.version, header.kind) == (MAGIC, 2, KIND_NUMBERS[kind])
    overwrite(directory, HEADER.pack(*header._replace(version=9)))
    with pytest.raises(LocksUnavailableError, match=r"version 9.*version 2"):
        locks.owner()
    peer.kill()
    locks.owner().acquire("a", 0)
    assert header_of(directory).version == 2
    assert header_of(directory).epoch == header.epoch + 1


@pytest.mark.parametrize("content", [b"", MAGIC + b"\xff" * 5000, b"TXSLOCK-", b"TXSLOCK-".ljust(300_000, b"\0")])
def test_what_is_empty_or_was_a_lock_file_is_made_anew(locks, directory, content):
    (directory / "chunks").write_bytes(content)
    locks.owner().acquire(["a", "b/c/0"])
    assert header_of(directory).magic == MAGIC


@pytest.mark.parametrize("content", [b"x", b"\0", b"garbage " * 100, os.urandom(200_000), bytes(200_000)])
def test_what_is_no_lock_file_is_left_alone(locks, directory, content):
    (directory / "chunks").write_bytes(content)
    (directory / "chunks").chmod(0o640)
    with pytest.raises(LocksUnavailableError, match="remove it"):
        locks.owner()
    assert (directory / "chunks").read_bytes() == content
    assert stat.S_IMODE((directory / "chunks").stat().st_mode) == 0o640
    (directory / "chunks").unlink()
    locks.owner().acquire("a", 0)


def test_a_file_that_is_overwritten_while_it_is_in_use_is_refused(locks, start, kind, directory):
    locks.owner().acquire("a")
    overwrite(directory, b"garbage " * 20)
    with pytest.raises(LocksUnavailableError, match="locks/chunks"):
        start(kind).ask("acquire", "a", 0)


@pytest.mark.long
def test_no_flipped_bit_lets_two_processes_have_one_lock(locks, directory, kind):
    keys = ["a", "b/c/0", "b/c/1", "zarr.json"]
    seed = range(24 * 8, 32 * 8)
    for bit in {*seed, *range(0, HEADER.size * 8, 11)}:
        mine = locks.owner()
        mine.acquire(keys, 0)  # while nobody used it, it was mended
        content = bytearray((directory / "chunks").read_bytes()[: HEADER.size])
        content[bit // 8] ^= 1 << bit % 8
        overwrite(directory, bytes(content))
        other = ChunkLocks(str(directory), "data.tx", kind=kind)
        for key in keys:
            with pytest.raises((LocksUnavailableError, LockTimeoutError)):
                other.owner().acquire(key, 0)
        other.close()
        mine.close()
        locks.close()


@pytest.mark.parametrize("content", [b"", b"private", "lock file"])
def test_a_file_of_somebody_else_under_this_name_is_left_alone(locks, directory, content):
    """By a hard link, which some systems let anybody make."""
    private = directory.parent / "private"
    if content == "lock file":
        locks.owner()
        locks.close()
        os.rename(directory / "chunks", private)
        content = HEADER.pack(*header_of_file(private)._replace(boot=b"another"))
        private.write_bytes(content)
    else:
        private.write_bytes(content)
    private.chmod(0o600)
    os.link(private, directory / "chunks")
    if content == b"private":
        with pytest.raises(LocksUnavailableError, match="remove it"):
            locks.owner()
    else:
        locks.owner().acquire("a", 0)
        assert (directory / "chunks").stat().st_ino != private.stat().st_ino
    assert private.read_bytes() == content
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


@pytest.mark.parametrize("replaced", ["chunks", "."])
@pytest.mark.parametrize("content", [b"", b"private"])
def test_a_link_is_not_followed(locks, directory, replaced, content):
    private = directory.parent / "private"
    private.mkdir()
    (private / "chunks").write_bytes(content)
    (private / "chunks").chmod(0o600)
    if replaced == ".":
        directory.rmdir()
        directory.symlink_to(private)
    else:
        (directory / "chunks").symlink_to(private / "chunks")
    with pytest.raises(LocksUnavailableError):
        locks.owner()
    assert [path.name for path in private.iterdir()] == ["chunks"]
    assert (private / "chunks").read_bytes() == content
    assert stat.S_IMODE((private / "chunks").stat().st_mode) == 0o600


def test_what_is_no_file_is_refused(locks, directory):
    (directory / "chunks").mkdir()
    with pytest.raises(LocksUnavailableError):
        locks.owner()
    (directory / "chunks").rmdir()
    os.mkfifo(directory / "chunks")
    with pytest.raises(LocksUnavailableError):
        locks.owner()


def as_nobody(function: Callable[[], Any]) -> Any:
    return in_child(function, user=NOBODY if os.getuid() == 0 else None)


@pytest.fixture
def shared(tmp_path_factory) -> Iterator[Path]:
    """A directory that other users can reach, as they can't pytest's."""
    path = Path("/tmp") / f"txstore-locks-{os.getpid()}-{time.monotonic_ns()}"
    path.mkdir()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_who_may_not_write_has_no_locks_and_is_told_why(shared, kind):
    locks = ChunkLocks(str(shared), "data.tx", kind=kind)

    def use() -> tuple[str, str]:
        with pytest.raises(LocksUnavailableError) as caught:
            locks.owner()
        return caught.value.url, str(caught.value)

    shared.chmod(0o555)
    url, message = as_nobody(use)
    assert url == "data.tx"
    assert "write permission" in message
    assert str(shared) in message
    shared.chmod(0o755)
    locks.owner()  # as root, the file is made; it can't be opened
    assert "write permission" in as_nobody(use)[1]


@pytest.mark.parametrize(("mode", "expected"), [(0o775, 0o660), (0o2770, 0o660), (0o777, 0o666), (0o755, 0o600)])
def test_the_files_can_be_used_by_all_who_can_write_the_directory(locks, directory, mode, expected):
    directory.chmod(mode)
    before = os.umask(0o077)
    try:
        owner = locks.owner()
        owner.acquire([f"a/c/{number}" for number in range(100)])
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {expected}


# --- between the kinds
@pytest.mark.skipif(not (HAS_C and LINUX), reason="there are not two kinds to choose from")
@pytest.mark.parametrize("present", ["ranges", "files"])
def test_what_the_living_use_is_adopted(start, directory, present):
    first = start(present)
    first.ask("acquire", "a")
    second = start()
    assert second.ask("kind") == present
    with pytest.raises(LockTimeoutError) as caught:
        second.ask("acquire", "a", 0.05)
    assert caught.value.holder == f"process {first.pid}"
    first.ask("release", "a")
    second.ask("acquire", "a", 0)


@pytest.mark.skipif(not (HAS_C and LINUX), reason="there are not two kinds to choose from")
def test_who_can_not_join_the_living_has_no_locks(start, directory):
    first, second = start(), start(has_c=False)
    first.ask("acquire", "a")
    assert first.ask("kind") == "table"
    with pytest.raises(LocksUnavailableError, match=r"C extension.*until those processes have ended") as caught:
        second.ask("acquire", "a", 0)
    assert caught.value.url == str(directory)
    first.ask("fence")
    first.kill()
    assert second.ask("acquire", "a", 0) == ()
    assert second.ask("kind") == "ranges"


@pytest.mark.long
@pytest.mark.skipif(not (HAS_C and LINUX), reason="there are not two kinds to choose from")
def test_many_that_begin_at_once_agree(start, directory):
    """Half of them would like the one kind, half of them the other; half of those without C find that they can't."""
    path = directory.parent / "number"
    for _ in range(5):
        path.write_text("0")
        peers = [start(has_c=number % 2 == 0) for number in range(6)]
        for peer in peers:
            peer.tell("count", str(path), 20)
        counted = 0
        for peer in peers:
            try:
                peer.answer()
                counted += 20
            except LocksUnavailableError:
                pass
        assert path.read_text() == str(counted)
        assert counted
        for peer in peers:
            peer.kill()


def test_on_a_network_file_system_bytes_are_locked(directory, monkeypatch):
    if not LINUX:
        pytest.skip("byte locks")
    monkeypatch.setattr(txstore.locks.chunk_locks, "file_system_type", lambda path: "nfs4")
    locks = ChunkLocks(str(directory), "data.tx")
    locks.owner().acquire("a/c/0")
    assert locks.kind == "ranges"
    locks.close()
    with pytest.raises(LocksUnavailableError, match="'nfs4'" if HAS_C else "C extension"):
        ChunkLocks(str(directory), "data.tx", kind="table").owner()


@pytest.mark.skipif(not (HAS_C and LINUX), reason="there are not two kinds to choose from")
def test_a_table_in_use_on_the_server_itself_is_nothing_for_its_clients(start, directory, monkeypatch):
    start("table").ask("acquire", "a")
    monkeypatch.setattr(txstore.locks.chunk_locks, "file_system_type", lambda path: "nfs4")
    with pytest.raises(LocksUnavailableError, match=r"'table'.*'nfs4'"):
        ChunkLocks(str(directory), "data.tx").owner()


# --- turns within one process, where Python keeps them
@pytest.fixture(params=[kind for kind in KINDS if kind != "table"])
def fallback(request, directory) -> Iterator[ChunkLocks]:
    locks = ChunkLocks(str(directory), "data.tx", kind=request.param)
    yield locks
    locks.close()


class Waiting:
    """A thread that acquires."""

    def __init__(self, owner: Any, keys: Any, timeout: float = SOON) -> None:
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(owner, keys, timeout))
        before = len(owner._turns._waiting)
        self.thread.start()
        wait_until(lambda: len(owner._turns._waiting) > before or self.done.is_set())

    def run(self, owner: Any, keys: Any, timeout: float) -> None:
        with contextlib.suppress(LockTimeoutError):
            owner.acquire(keys, timeout)
        self.done.set()


def test_those_who_wait_are_served_in_their_order(fallback):
    first, second, third, fourth = (fallback.owner() for _ in range(4))
    first.acquire("a")
    both = Waiting(second, ["a", "b"])
    later = Waiting(third, "b")
    assert not later.done.is_set()  # b is free, but somebody waits for it
    fourth.acquire("b", 0)  # whoever only tries may pass
    fourth.close()
    first.close()
    assert both.done.wait(SOON)
    assert not later.done.is_set()
    second.close()
    assert later.done.wait(SOON)


def test_who_gives_up_lets_those_behind_go_on(fallback):
    first, second, third = (fallback.owner() for _ in range(3))
    first.acquire("a")
    both = Waiting(second, ["a", "b"], 0.2)
    later = Waiting(third, "b", 2 * SOON)  # it has to be told, not to find out when its own time is over
    assert both.done.wait(SOON)
    assert later.done.wait(SOON)
    assert third.holds("b")


# --- slots


@pytest.mark.parametrize("slots", [0, 3, 1 << 21, 0xFFFFFFFF])
def test_of_a_file_that_claims_impossible_slots_no_memory_is_taken_to_show_it(tmp_path, slots):
    owner = ChunkLocks(str(tmp_path), "url").owner()
    assert [each.pid for each in find_holders(str(tmp_path)).holders] == [os.getpid()]
    overwrite(tmp_path, HEADER.pack(*header_of(tmp_path)._replace(slots=slots)))
    assert find_holders(str(tmp_path)) == Holders(None)
    owner.close()
