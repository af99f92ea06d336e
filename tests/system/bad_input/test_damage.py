"""Commit files cut short, with a flipped bit, or gone. Reading returns what was written, or raises an error that names
the file: of a newer version, where a bit of a run's kind is flipped. `verify` reports every fault."""

import contextlib
import itertools
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests.tools.commits import set_keys
from tests.tools.disk import tree
from txstore._native import index
from txstore.format import commitfile, encoding, packfile, records

pytestmark = pytest.mark.long

HEAD = 4  # the version of the newest commit of `written`
PACK = f"commits/main/{HEAD:010d}"
BELOW = f"commits/main/{HEAD - 1:010d}"

UNREADABLE = (txstore.CorruptionError, txstore.UnsupportedFormatError)

Contents = dict[str, bytes]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, list[Contents]]:
    """A repository whose packs have every part, and what each commit holds."""
    path = tmp_path_factory.mktemp("written") / "data.tx"
    repo = txstore.Repository(path)
    contents: list[Contents] = []
    for version in range(HEAD + 1):
        with repo.transaction(f"commit {version}", properties={"version": version}) as store:
            if version == HEAD - 1:
                store.mapping.delete_dir("a")
            store[f"a/{version}"] = b"%d" % version * 37
            store["a/large"] = b"%d" % version * 1500  # aligned, with padding before it
            store["a/empty"] = b""
            if version == HEAD - 1:
                store["b/1"] = b"b"
            if version == HEAD:
                del store["b/1"]
                for i in range(400):  # more than one block
                    store[f"many/with/a/rather/long/name/{i:04d}"] = b"%d" % i
        contents.append(dict(repo.mapping()))
    repo.tags["v1"] = 1
    assert repo.verify().faults == []
    return path, contents


@pytest.fixture
def damaged(written, tmp_path) -> Path:
    shutil.copytree(written[0], tmp_path / "data.tx")
    commits = txstore.Repository(tmp_path / "data.tx").engine.commits
    commits.store.head_caches.write(commits.head(), durable=True)  # the original's says nothing of a copy
    return tmp_path / "data.tx"


def parts(content: bytes) -> dict[str, tuple[int, int]]:
    """Where every part of a pack lies: its name, from and to."""
    footer = commitfile.Footer.decode(content[-commitfile.FOOTER_SIZE :])
    header = commitfile.Header.decode(content[footer.header_offset : footer.header_offset + footer.header_length])
    found = {"head": (0, packfile.HEAD_SIZE)}
    position, data = packfile.HEAD_SIZE, memoryview(content)
    while position < header.sections[0].offset:
        frame = packfile.decode_frame(data, position)
        key_at = position + packfile.FRAME_SIZE
        key_end = key_at + len(frame.key)
        number = frame.sequence
        found[f"frame {number} header"] = position, key_at
        found[f"frame {number} key"] = key_at, key_end
        found[f"frame {number} padding before the value"] = key_end, frame.offset
        found[f"frame {number} value"] = frame.offset, frame.offset + frame.length
        found[f"frame {number} padding after the value"] = frame.offset + frame.length, frame.end
        position = frame.end
    for number, section in enumerate(header.sections):
        start, end = section.offset, section.offset + section.length
        trailer = index_at, prefixes_at, packs_at = trailer_of(content[start:end])
        assert list(trailer) == sorted(trailer)
        found[f"run {number} blocks"] = start, start + index_at
        found[f"run {number} index"] = start + index_at, start + prefixes_at
        found[f"run {number} prefixes"] = start + prefixes_at, start + packs_at
        found[f"run {number} packs"] = start + packs_at, end - 64
        found[f"run {number} trailer"] = end - 64, end
        following = [s.offset for s in header.sections if s.offset >= end] or [footer.header_offset]
        found[f"padding after run {number}"] = end, following[0]
    fixed = footer.header_offset + commitfile.HEADER.size
    found["header, fixed"] = footer.header_offset, fixed
    found["header, typed"] = fixed, len(content) - commitfile.FOOTER_SIZE
    found["footer"] = len(content) - commitfile.FOOTER_SIZE, len(content)
    assert sum(end - start for start, end in found.values()) == len(content)  # each byte is in one part
    return {name: (start, end) for name, (start, end) in found.items() if start < end}


def trailer_of(run: bytes) -> tuple[int, int, int]:
    return tuple(int.from_bytes(run[at : at + 8], "little") for at in range(len(run) - 28, len(run) - 4, 8))


def flips(content: bytes) -> Iterator[tuple[str, int, int]]:
    """Bits to flip: in each part the first and last byte, and some between. Name of the part, byte, bit."""
    chance = random.Random(1)
    for name, (start, end) in parts(content).items():
        if name.startswith("frame") and int(name.split()[1]) not in (0, 1, 2, 3, 150):
            continue  # two hundred frames are alike
        chosen = {start, end - 1, *(chance.randrange(start, end) for _ in range(4))}
        if name.endswith("trailer"):
            chosen |= {start + 4, start + 6}  # the kind of the run, and the codec of its blocks
        yield from ((name, at, chance.randrange(8)) for at in sorted(chosen))


def read_all(path: Path, contents: list[Contents]) -> int:
    """Read every key of every commit: the right value, or an error with a file's name. Counts the errors."""
    errors = 0
    keys = {key for content in contents for key in content} | {"absent", "a/absent", "many/absent"}
    for version, content in enumerate(contents):
        try:
            snapshot = txstore.Repository(path).mapping(at=version)
        except UNREADABLE as error:
            assert_names_a_file(error)
            errors += 1
            continue
        for key in keys:
            try:
                assert snapshot.get(key) == content.get(key), key
            except UNREADABLE as error:
                assert_names_a_file(error)
                errors += 1
        try:
            assert list(snapshot) == sorted(content)
        except UNREADABLE as error:
            assert_names_a_file(error)
            errors += 1
    return errors


def assert_names_a_file(error: txstore.CorruptionError | txstore.UnsupportedFormatError) -> None:
    assert error.path in (PACK, BELOW)
    assert str(error).startswith(error.path)
    if isinstance(error, txstore.UnsupportedFormatError):
        assert re.fullmatch(r"unknown (run kind|block codec) \d+", error.found)
    else:
        assert "restore" in str(error)


def assert_reported(path: Path, name: str, what: object) -> None:
    before = tree(path)
    faults = txstore.Repository(path).verify().faults
    assert name in [fault.path for fault in faults], what
    assert tree(path) == before  # verify changes nothing


@pytest.mark.parametrize("name", [PACK, BELOW])
def test_a_flipped_bit_is_never_wrong_data(written, damaged, name):
    path, contents = written
    whole = (path / name).read_bytes()
    file = damaged / name
    for part, at, bit in flips(whole):
        content = bytearray(whole)
        content[at] ^= 1 << bit
        file.write_bytes(content)
        errors = read_all(damaged, contents)
        if "padding" not in part and part.endswith((" value", "footer", "fixed", "typed")):
            assert errors, (part, at, bit)
    file.write_bytes(whole)
    assert read_all(damaged, contents) == 0


@pytest.mark.parametrize("name", [PACK, BELOW])
def test_verify_reports_every_flipped_bit(written, damaged, name):
    whole = (written[0] / name).read_bytes()
    for part, at, bit in flips(whole):
        content = bytearray(whole)
        content[at] ^= 1 << bit
        (damaged / name).write_bytes(content)
        assert_reported(damaged, name, (part, at, bit))


def test_every_byte_of_a_small_pack(tmp_path):
    path = tmp_path / "data.tx"
    repo = txstore.Repository(path)
    set_keys(repo, {"a": b"1"})
    file = path / "commits/main/0000000000"
    whole = file.read_bytes()
    for at in range(len(whole)):
        content = bytearray(whole)
        content[at] ^= 1 << at % 8
        file.write_bytes(content)
        assert not repo.verify().ok, at


def test_a_file_cut_short(written, damaged):
    path, contents = written
    whole = (path / PACK).read_bytes()
    edges = {edge + delta for part in parts(whole).values() for edge in part for delta in (-1, 0, 1)}
    lengths = sorted(length for length in edges if 0 <= length < len(whole))
    for length in [*lengths[:40], *lengths[40:-40:25], *lengths[-40:]]:
        (damaged / PACK).write_bytes(whole[:length])
        assert read_all(damaged, contents) > 0
        assert_reported(damaged, PACK, length)


def test_a_file_with_more_at_its_end(written, damaged):
    path, contents = written
    (damaged / PACK).write_bytes((path / PACK).read_bytes() + b"\0")
    assert read_all(damaged, contents) > 0
    assert_reported(damaged, PACK, "longer")


def test_a_cut_under_an_open_snapshot_is_an_error(written, damaged):
    """Not by truncating, which kills whoever has the file mapped: by a shorter file in its place."""
    snapshot = txstore.Repository(damaged).mapping()
    whole = (damaged / BELOW).read_bytes()
    (damaged / BELOW).unlink()
    (damaged / BELOW).write_bytes(whole[:100])
    with pytest.raises(txstore.CorruptionError, match=BELOW):
        snapshot[f"a/{HEAD - 1}"]


@pytest.mark.parametrize("version", range(HEAD))
def test_a_commit_file_is_missing_in_the_middle(written, damaged, version):
    name = f"commits/main/{version:010d}"
    (damaged / name).unlink()
    assert_reported(damaged, name, version)
    repo = txstore.Repository(damaged)
    with pytest.raises(txstore.CorruptionError, match=name):
        list(repo.log())
    for key, value in written[1][HEAD].items():
        found = None
        with contextlib.suppress(txstore.CorruptionError):
            found = repo.snapshot()[key]
        assert found in (None, value)
    with pytest.raises(txstore.TxStoreError):
        repo.snapshot(at=version)


def test_the_newest_commit_file_is_missing(damaged):
    """The head cache remembers that it was durable."""
    (damaged / PACK).unlink()
    with pytest.raises(txstore.CorruptionError, match="was durable in this version and is not there"):
        txstore.Repository(damaged).head()
    assert_reported(damaged, PACK, "missing")


def test_verify_goes_on_after_a_damaged_commit(damaged):
    for version in (1, 3):
        file = damaged / f"commits/main/{version:010d}"
        file.write_bytes(file.read_bytes()[:-1])
    found = {fault.path for fault in txstore.Repository(damaged).verify().faults}
    assert {"commits/main/0000000001", "commits/main/0000000003"} <= found


def test_commit_files_that_changed_places(damaged):
    one, two = damaged / PACK, damaged / BELOW
    contents = one.read_bytes(), two.read_bytes()
    one.write_bytes(contents[1])
    two.write_bytes(contents[0])
    assert_reported(damaged, PACK, "swapped")
    with pytest.raises(txstore.CorruptionError, match="another repository, branch or version"):
        txstore.Repository(damaged).head()


def test_a_commit_file_of_another_repository(damaged, tmp_path):
    other = txstore.Repository(tmp_path / "other.tx")
    for _ in range(HEAD + 1):
        set_keys(other, {"a/1": os.urandom(8)})
    shutil.copy(tmp_path / "other.tx" / PACK, damaged / PACK)
    with pytest.raises(txstore.CorruptionError, match="another repository, branch or version"):
        txstore.Repository(damaged).snapshot()["a/1"]
    assert_reported(damaged, PACK, "foreign")


@pytest.mark.parametrize("name", ["format.json", "tags/v1"])
def test_every_bit_of_a_small_file(written, damaged, name):
    whole = (damaged / name).read_bytes()
    contents = written[1]
    for at, bit in itertools.product(range(len(whole)), range(8)):
        content = bytearray(whole)
        content[at] ^= 1 << bit
        (damaged / name).write_bytes(content)
        with pytest.raises(UNREADABLE) as caught:
            txstore.Repository(damaged).mapping(tag="v1")
        assert caught.value.path == name
    (damaged / name).write_bytes(whole)
    assert dict(txstore.Repository(damaged).mapping(tag="v1")) == contents[1]


@pytest.mark.parametrize("name", ["format.json", "tags/v1"])
def test_a_small_file_cut_short(damaged, name):
    whole = (damaged / name).read_bytes()
    for length in range(len(whole) - 1):  # the last byte of format.json is a newline
        (damaged / name).write_bytes(whole[:length])
        with pytest.raises(txstore.CorruptionError, match=name):
            txstore.Repository(damaged).mapping(tag="v1")


def test_verify_reports_a_damaged_tag(damaged):
    (damaged / "tags/v1").write_bytes(b"v1")
    assert_reported(damaged, "tags/v1", "tag")


def test_the_head_cache_is_never_trusted(written, damaged):
    contents = written[1]
    head_cache = damaged / "heads/main"
    whole = head_cache.read_bytes()
    broken = [b"", b"x", whole[:-1], bytes(64), os.urandom(64), whole + b"more"]
    broken += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(64)]
    broken += [
        records.HeadCache(version, os.urandom(16), 1, 1, 1, True).encode() for version in (0, HEAD, HEAD + 1, 2**64 - 1)
    ]
    for content in broken:
        head_cache.write_bytes(content)
        repo = txstore.Repository(damaged)
        assert repo.head().version == HEAD
        assert dict(repo.mapping()) == contents[HEAD]
    head_cache.unlink()
    assert txstore.Repository(damaged).head().version == HEAD


def test_an_orphan_is_not_followed_and_is_moved_aside(written, damaged):
    """What a power loss leaves of commits without fsync: a version whose parent is another commit."""
    repo = txstore.Repository(damaged, durability="none")
    set_keys(repo, {"a/1": b"to be an orphan"})
    orphan = damaged / f"commits/main/{HEAD + 1:010d}"
    kept = orphan.read_bytes()
    orphan.unlink()
    (damaged / "heads/main").unlink()
    repo = txstore.Repository(damaged)  # nobody who knew of it is left
    set_keys(repo, {"a/1": b"the true one"})
    (damaged / f"commits/main/{HEAD + 2:010d}").write_bytes(with_version(kept, HEAD + 2))
    assert_reported(damaged, f"commits/main/{HEAD + 2:010d}", "orphan")
    assert repo.snapshot()["a/1"] == b"the true one"
    set_keys(repo, {"a/2": b"next"})
    assert repo.head().version == HEAD + 2
    assert repo.snapshot()["a/1"] == b"the true one"
    assert len(list((damaged / "commits/main").glob("*.orphan-*"))) == 1
    assert repo.verify().faults == []


def with_version(content: bytes, version: int) -> bytes:
    """The same commit file, made for another version."""
    footer = commitfile.Footer.decode(content[-commitfile.FOOTER_SIZE :])
    start = footer.header_offset
    header = bytearray(content[start : start + footer.header_length])
    header[88:104] = version.to_bytes(8, "little") + (version + 1).to_bytes(8, "little")
    assert commitfile.Header.decode(bytes(header)).version == version
    renewed = commitfile.Footer(len(header), start, len(content), footer.pack_id, encoding.crc32c(bytes(header)))
    return content[:start] + bytes(header) + renewed.encode()


def test_the_fixture_has_a_part_of_every_kind(written):
    names = {name for version in (PACK, BELOW) for name in parts((written[0] / version).read_bytes())}
    kinds = {"blocks", "index", "prefixes", "packs", "trailer"}
    assert kinds <= {name.split()[-1] for name in names}
    assert any("padding before" in name for name in names)
    assert any("padding after the value" in name for name in names)
    assert any("padding after run" in name for name in names)
    data = (written[0] / PACK).read_bytes()
    start, _ = parts(data)["run 0 blocks"]
    _, end = parts(data)["run 0 trailer"]
    assert index.Run(data[start:end], HEAD + 1).blocks > 1
