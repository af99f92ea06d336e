"""Every promise of `txstore._native.local`, on the C extension and on its Python fallback."""

import array
import contextlib
import errno
import importlib
import mmap
import os
import socket
import stat
import sys
import threading
from functools import partial

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.sandbox import without_openat2
from tests.tools.disk import in_child
from tests.tools.workers import run_threads

MODULES = {"c": "txstore._native._local", "python": "txstore._native.local_fallback"}
GIL_THRESHOLD = 64 * 1024

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
posix_only = pytest.mark.skipif(os.name != "posix", reason="POSIX only")


def load(implementation):
    try:
        return importlib.import_module(MODULES[implementation])
    except ImportError:
        if implementation == "c":
            pytest.skip("the C extension is not built")
        raise


@pytest.fixture(params=MODULES, scope="module")
def local(request):
    return load(request.param)


def checksum(data):
    return google_crc32c.value(bytes(data))


@pytest.fixture
def make_file(tmp_path):
    def make(data, name="pack"):
        path = tmp_path / name
        path.write_bytes(data)
        return str(path)

    return make


def split(*paths):
    """The directory that these lie in, and where they lie there: as functions take what is below a root."""
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    return root, *(os.path.relpath(path, root) for path in paths)


# --- crc32c
def test_crc32c_check_value(local):
    assert local.crc32c(b"123456789") == 0xE3069283
    assert local.crc32c(b"") == 0
    assert local.crc32c(b"", 7) == 7


@pytest.mark.parametrize("size", [1, 7, 8, 383, 384, 4079, 4080, 5000, GIL_THRESHOLD - 1, GIL_THRESHOLD, 1_000_003])
def test_crc32c_of_every_length_class(local, size):
    data = np.random.default_rng(size).bytes(size)
    assert local.crc32c(data) == checksum(data)
    cut = size // 3
    assert local.crc32c(data[cut:], local.crc32c(data[:cut])) == checksum(data)


@pytest.mark.parametrize(
    "buffer",
    [
        b"abcdefgh",
        bytearray(b"abcdefgh"),
        memoryview(b"abcdefgh"),
        memoryview(bytearray(b"xabcdefghx"))[1:9],
        array.array("H", b"abcdefgh"),
        np.frombuffer(b"abcdefgh", "u1"),
        np.frombuffer(b"abcdefgh", "<u4").reshape(2, 1).copy(),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_crc32c_takes_any_contiguous_buffer(local, buffer):
    assert local.crc32c(buffer) == checksum(b"abcdefgh")


def test_crc32c_refuses_what_is_no_contiguous_buffer(local):
    with pytest.raises((BufferError, ValueError)):
        local.crc32c(memoryview(b"abcdefgh")[::2])
    for wrong in ("text", 7, None):
        with pytest.raises((TypeError, AttributeError)):
            local.crc32c(wrong)
    for value in (-1, 1 << 32, 1 << 70):
        with pytest.raises(OverflowError):
            local.crc32c(b"a", value)


@given(data=st.binary(max_size=5000), value=st.integers(0, 0xFFFFFFFF))
def test_crc32c_fallbacks_agree(data, value):
    assert load("c").crc32c(data, value) == load("python").crc32c(data, value)


# --- open_below, list_directory
@pytest.fixture
def tree(tmp_path):
    """A root with something of every kind in it, and links that lead out of it."""
    root, private = tmp_path / "root", tmp_path / "private"
    (root / "a" / "b").mkdir(parents=True)
    private.mkdir()
    (private / "file").write_bytes(b"private")
    (root / "a" / "b" / "file").write_bytes(b"content")
    for name, target in [("a/link", "b/file"), ("a/out", private / "file"), ("a/b/up", "../.."), ("away", private)]:
        (root / name).symlink_to(target)
    os.mkfifo(root / "a" / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(root / "a" / "socket"))
    return str(root)


@pytest.fixture(params=["openat2", "segments"])
def opening(request, local):
    """Run a function in a child, with openat2 or, as on an older system, without."""

    def run(function):
        def act():
            if request.param == "segments":
                without_openat2()
            return function()

        return in_child(act)

    if request.param == "segments" and local.IMPLEMENTATION == "python":
        pytest.skip("the fallback never asks for it")
    return run


def refused(function, *arguments):
    try:
        function(*arguments).close()
    except OSError as error:
        return errno.errorcode[error.errno], error.filename
    return None


@linux_only
def test_open_below_opens_files_and_directories(local, tree, opening):
    def act():
        found = []
        for path, flags in [("a/b/file", os.O_RDONLY), ("a/b", os.O_DIRECTORY), ("", os.O_DIRECTORY), ("a", os.O_PATH)]:
            with local.open_below(tree, path, flags) as fd:
                found.append(os.path.samestat(os.fstat(fd), os.stat(os.path.join(tree, path))))
                found.append(os.get_inheritable(fd))
        with local.open_below(tree, "a/new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640) as fd:
            os.write(fd, b"new")
            found.append((os.fstat(fd).st_mode & 0o7777, os.pread(fd, 9, 0)))
        found.append(refused(local.open_below, tree, "a/new", os.O_RDWR | os.O_CREAT | os.O_EXCL))
        return found

    made = [(0o640, b"new"), ("EEXIST", f"{tree}/a/new")]
    os.umask(0o022)
    assert opening(act) == [True, False] * 4 + made


@pytest.mark.long
@linux_only
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_CREAT])
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a/link", "ELOOP"),
        ("a/out", "ELOOP"),
        ("a/b/up/a/b/file", "ELOOP ENOTDIR"),
        ("away/file", "ELOOP ENOTDIR"),
        ("a/b/file/below", "ENOTDIR"),
        ("a/b", "EISDIR"),
        ("a/fifo", "EINVAL ENXIO"),
        ("a/socket", "ENXIO"),
        ("../private/file", "EXDEV"),
        ("a/../../private/file", "EXDEV"),
    ],
)
def test_open_below_follows_nothing_and_opens_no_other_files(local, tree, opening, path, why, flags):
    code, name = opening(lambda: refused(local.open_below, tree, path, flags))
    assert code in why.split()
    assert name == f"{tree}/{path}"


@linux_only
@pytest.mark.parametrize("path", ["a/link", "away", "a/b/up/a", "a/b/file", "a/fifo"])
def test_only_directories_are_opened_as_such(local, tree, opening, path):
    code, _ = opening(lambda: refused(local.open_below, tree, path, os.O_RDONLY | os.O_DIRECTORY))
    assert code in ("ELOOP", "ENOTDIR")


@linux_only
def test_a_link_itself_can_be_looked_at(local, tree, opening):
    def act():
        with local.open_below(tree, "a/out", os.O_PATH | os.O_NOFOLLOW) as fd:
            return stat.S_ISLNK(os.fstat(fd).st_mode)

    assert opening(act)


@linux_only
def test_a_root_that_is_a_link(local, tree, opening, tmp_path):
    (tmp_path / "other").symlink_to(tree)
    code, _ = opening(lambda: refused(local.open_below, str(tmp_path / "other"), "a/b/file", os.O_RDONLY))
    assert code in ("ELOOP", "ENOTDIR")


@linux_only
def test_a_device_is_not_opened(local, tmp_path):
    try:
        os.mknod(tmp_path / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root can make one")
    assert refused(local.open_below, str(tmp_path), "zero", os.O_RDWR)[0] in ("EINVAL", "EACCES")


@linux_only
def test_list_directory(local, tree, opening):
    assert sorted(opening(lambda: local.list_directory(tree, "a"))) == ["b", "fifo", "link", "out", "socket"]
    assert sorted(opening(lambda: local.list_directory(tree, ""))) == ["a", "away"]
    for path in ("away", "a/b/up", "a/b/file"):
        with pytest.raises(OSError):
            local.list_directory(tree, path)
    with pytest.raises(FileNotFoundError):
        local.list_directory(tree, "absent")


@linux_only
def test_renames_and_maps_go_through_no_link(local, tree, opening):
    for call in (
        lambda: local.map_file(tree, "away/file"),
        lambda: local.map_file(tree, "a/out"),
        lambda: local.rename_noreplace(tree, "a/b/file", "away/new"),
        lambda: local.rename_noreplace(tree, "away/file", "a/new"),
        lambda: local.rename_noreplace(tree, "a/b/file", "a/out"),
    ):

        def act(call=call):
            try:
                call()
            except OSError as error:
                return errno.errorcode[error.errno]

        assert opening(act) in ("ELOOP", "ENOTDIR", "EEXIST")
    assert os.listdir(os.path.join(tree, "..", "private")) == ["file"]
    assert not os.path.exists(os.path.join(tree, "a", "new"))


@linux_only
def test_a_descriptor_closes_itself(local, tree):
    def is_open(fd):
        try:
            return os.readlink(f"/proc/self/fd/{fd}") == f"{tree}/a/b/file"
        except FileNotFoundError:
            return False

    def opened():
        return local.open_below(tree, "a/b/file", os.O_RDONLY)

    one = opened()
    number = one.fileno()
    assert is_open(number)
    one.close()
    assert not is_open(number)
    assert one.fileno() == -1
    other = opened()  # with the same number
    one.close()
    del one
    assert is_open(other.fileno())
    with other as fd:
        assert fd == number
    assert not is_open(number)
    with pytest.raises(LookupError), opened() as fd:
        raise LookupError
    assert not is_open(fd)
    forgotten = opened()
    number = forgotten.fileno()
    del forgotten
    assert not is_open(number)
    kept = opened()
    number = kept.detach()
    assert kept.fileno() == -1
    del kept
    assert is_open(number)
    os.close(number)


@linux_only
def test_a_descriptor_that_another_has_closed(local, tree):
    one = local.open_below(tree, "a/b/file", os.O_RDONLY)
    os.close(one.fileno())
    with pytest.raises(OSError, match="descriptor"):
        one.close()
    one.close()


@linux_only
def test_nothing_stays_open(local, tree, opening):
    def act():
        before = sorted(os.listdir("/proc/self/fd"))
        for path in ("a/b/file", "away/file", "a/fifo", "a/b", "absent/x", "a/b/file/x"):
            refused(local.open_below, tree, path, os.O_RDONLY)
            with contextlib.suppress(OSError):
                local.list_directory(tree, path)
        with contextlib.suppress(OSError):
            local.rename_noreplace(tree, "absent", "away/x")
        with contextlib.suppress(OSError):
            local.rename_noreplace(tree, "away/file", "a/x")
        return before == sorted(os.listdir("/proc/self/fd"))

    assert opening(act)


def test_a_path_is_text(local, tmp_path):
    for wrong in ((os.fsencode(tmp_path), "a", 0), (str(tmp_path), b"a", 0), (str(tmp_path), "a")):
        with pytest.raises(TypeError):
            local.open_below(*wrong)
    with pytest.raises(ValueError, match="null"):
        local.open_below(str(tmp_path), "a\0b", os.O_RDONLY)
    with pytest.raises(OSError):
        local.open_below(str(tmp_path), "a/" * 3000 + "a", os.O_RDONLY)


# --- map_file
@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 1_000_000])
def test_map_file(local, make_file, size):
    data = np.random.default_rng(size).bytes(size)
    mapped = local.map_file(*split(make_file(data)))
    assert len(mapped) == size
    assert bytes(memoryview(mapped)) == bytes(local.view(mapped, 0, size, checksum(data))) == data
    assert memoryview(mapped).readonly
    if size:
        with pytest.raises((TypeError, ValueError)):
            np.frombuffer(mapped, "u1")[0] = 1


@posix_only
def test_only_regular_files_are_mapped(local, make_file, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    below = os.path.join(make_file(b"x"), "below")
    for path, number in [
        (str(tmp_path / "missing"), errno.ENOENT),
        (below, errno.ENOTDIR),
        (str(tmp_path), errno.EISDIR),
        (str(tmp_path / "fifo"), errno.EINVAL),  # and it does not wait for a writer
    ]:
        with pytest.raises(OSError) as caught:
            local.map_file(*split(path))
        assert (caught.value.errno, caught.value.filename) == (number, path)
    with pytest.raises(ValueError, match="null"):
        local.map_file(str(tmp_path), "a\0b")
    for wrong in ((None, "a"), (str(tmp_path), None), (str(tmp_path),)):
        with pytest.raises(TypeError):
            local.map_file(*wrong)


@posix_only
def test_a_path_of_any_bytes(local, tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        with open(path, "wb") as file:
            file.write(b"abc")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert bytes(memoryview(local.map_file(*split(os.fsdecode(path))))) == b"abc"


def test_a_mapped_file_can_not_be_made_otherwise():
    c = load("c")
    with pytest.raises(TypeError):
        c.MappedFile()
    with pytest.raises(TypeError):
        c.MappedFile.__len__ = lambda self: 0


# --- view
def test_a_view_holds_its_buffer_and_nothing_else_does(local):
    data = bytearray(b"0123456789")
    part = local.view(data, 2, 3, checksum(b"234"))
    data[2] = ord("x")
    assert bytes(part) == b"x34"
    with pytest.raises(BufferError):
        data.append(0)
    del part
    for arguments in ((0, 10, 0), (0, 11, 0)):
        with pytest.raises(ValueError):
            local.view(data, *arguments)
    data.append(0)


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "memoryview", "mmap", "mapped", "numpy"])
@pytest.mark.parametrize(("offset", "length"), [(0, 0), (0, 10), (3, 0), (200_000, 0), (100, 70_000), (0, 200_000)])
def test_view_is_the_slice(local, make_file, kind, offset, length):
    data = os.urandom(200_000)
    path = make_file(data)
    if kind == "mmap":
        with open(path, "rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    else:
        buffer = {
            "bytes": lambda: data,
            "bytearray": lambda: bytearray(data),
            "memoryview": lambda: memoryview(b"-" + data + b"-")[1:-1],
            "mapped": lambda: local.map_file(*split(path)),
            "numpy": lambda: np.frombuffer(data, "<u8"),
        }[kind]()
    part = local.view(buffer, offset, length, checksum(data[offset : offset + length]))
    assert type(part) is memoryview
    assert (part.readonly, part.format, part.ndim, part.itemsize) == (True, "B", 1, 1)
    assert bytes(part) == data[offset : offset + length]


HUGE = [1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 200]


@pytest.mark.parametrize(
    ("offset", "length"),
    [(-1, 1), (0, -1), (0, 11), (10, 1), (11, 0), (-1, 0), (-5, 5), (-(1 << 70), 1), (1, -(1 << 70))]
    + [(huge, 1) for huge in HUGE]
    + [(1, huge) for huge in HUGE]
    + [(huge, huge) for huge in HUGE],
)
def test_view_out_of_bounds(local, offset, length):
    with pytest.raises(ValueError, match=rf"^out of bounds: offset {offset}, length {length} in a buffer of 10 bytes$"):
        local.view(b"0123456789", offset, length, 0)


@pytest.mark.parametrize("size", [1, 1000, GIL_THRESHOLD, 300_000])
def test_view_finds_every_flipped_bit(local, size):
    data = bytearray(os.urandom(size))
    stored = checksum(data)
    assert len(local.view(data, 0, size, stored)) == size
    for position in {0, size // 2, size - 1}:
        data[position] ^= 0x10
        message = f"^checksum mismatch: stored 0x{stored:08x}, computed 0x{checksum(data):08x}$"
        with pytest.raises(ValueError, match=message):
            local.view(data, 0, size, stored)
        data[position] ^= 0x10


def test_view_refuses_what_it_can_not_read(local):
    released = memoryview(b"abc")
    released.release()
    with pytest.raises(ValueError):
        local.view(released, 0, 0, 0)
    with pytest.raises(TypeError):
        local.view(memoryview(b"abcdef")[::2], 0, 1, 0)
    for arguments in [("text", 0, 0, 0), (b"", "0", 0, 0), (b"", 0, None, 0), (b"", 0, 0, 0.0), (b"", 0, 0)]:
        with pytest.raises(TypeError):
            local.view(*arguments)
    for wrong in (-1, 1 << 32):
        with pytest.raises(OverflowError):
            local.view(b"", 0, 0, wrong)


# --- rename_noreplace
def test_rename_never_replaces(local, make_file):
    source, target = make_file(b"new", "staged"), make_file(b"old", "0")
    with pytest.raises(FileExistsError) as caught:
        local.rename_noreplace(*split(source, target))
    error = caught.value
    assert (error.errno, error.filename, error.filename2) == (errno.EEXIST, source, target)
    for path, data in [(source, b"new"), (target, b"old")]:
        with open(path, "rb") as file:
            assert file.read() == data


def test_rename_errors_carry_both_names(local, make_file, tmp_path):
    missing, target = str(tmp_path / "missing"), str(tmp_path / "0")
    with pytest.raises(FileNotFoundError) as caught:
        local.rename_noreplace(*split(missing, target))
    assert (caught.value.filename, caught.value.filename2) == (missing, target)
    with pytest.raises(FileNotFoundError):
        local.rename_noreplace(*split(make_file(b"x"), str(tmp_path / "no such folder" / "0")))
    with pytest.raises((TypeError, AttributeError)):
        local.rename_noreplace(str(tmp_path), "missing", None)
    with pytest.raises(TypeError):
        local.rename_noreplace(str(tmp_path), "missing")


def test_one_of_many_wins(local, tmp_path):
    target = str(tmp_path / "version")
    start = threading.Barrier(8)
    winners, losers = [], []

    def take(number):
        source = tmp_path / f"staged-{number}"
        source.write_bytes(str(number).encode())
        start.wait()
        try:
            local.rename_noreplace(*split(str(source), target))
            winners.append(number)
        except FileExistsError:
            losers.append(number)

    run_threads(*(partial(take, number) for number in range(8)))
    assert (len(winners), len(losers)) == (1, 7)
    with open(target) as file:
        assert int(file.read()) == winners[0]


# --- allocate, start_writeback
@posix_only
def test_allocate_extends_or_says_that_it_did_not(local, tmp_path):
    with open(tmp_path / "pack", "w+b") as file:
        file.write(b"abc")
        file.flush()
        allocated = local.allocate(file.fileno(), 0, 1 << 20)
        status = os.fstat(file.fileno())
        assert (status.st_size, status.st_blocks * 512 >= 1 << 20) == ((1 << 20, True) if allocated else (3, False))
        file.seek(0)
        assert file.read(3) == b"abc"  # what was written stays
    if local.IMPLEMENTATION == "python":
        assert allocated is False


@linux_only
def test_allocate_reports_what_fails(tmp_path):
    c = load("c")
    with open(tmp_path / "pack", "wb") as file:
        with pytest.raises(OSError) as caught:
            c.allocate(file.fileno(), 0, 1 << 62)
        assert caught.value.errno in (errno.EFBIG, errno.ENOSPC)
        fd = file.fileno()
    with pytest.raises(OSError) as caught:
        c.allocate(fd, 0, 4096)
    assert caught.value.errno == errno.EBADF


@posix_only
def test_start_writeback_is_a_hint(local, tmp_path):
    with open(tmp_path / "pack", "w+b", buffering=0) as file:
        file.write(bytes(100_000))
        assert local.start_writeback(file.fileno(), 0, 100_000) is None
        assert local.start_writeback(file.fileno(), 1 << 40, 1) is None
        fd = file.fileno()
    assert local.start_writeback(fd, 0, 1) is None  # even of a closed file


@pytest.mark.parametrize("function", ["allocate", "start_writeback"])
@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 0), (0, -1)])
def test_ranges_are_checked(local, tmp_path, function, offset, length):
    with open(tmp_path / "pack", "wb") as file, pytest.raises(ValueError, match="offset must be"):
        getattr(local, function)(file.fileno(), offset, length)


# --- The modules
