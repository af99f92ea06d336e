"""Commit files cut short, exchanged, or gone. Reading returns what was written, or an error that names the file; and
`verify` reports every fault."""

import contextlib
import os
import random
import re
import shutil
from pathlib import Path

import pytest

import txstore
from tests.tools.commits import set_keys
from tests.tools.disk import tree
from txstore.format import commitfile, encoding, records

pytestmark = pytest.mark.long

HEAD = 4  # the version of the newest commit of `written`
PACK = f"commits/main/{HEAD:010d}"
BELOW = f"commits/main/{HEAD - 1:010d}"

UNREADABLE = (txstore.CorruptionError, txstore.UnsupportedFormatError)

Contents = dict[str, bytes]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, list[Contents]]:
    """A repository of a few commits, and what each of them holds."""
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
def test_a_file_of_another_length(written, damaged, name):
    """Bits that are turned: tests/maintenance/test_bit_flips.py."""
    path, contents = written
    whole = (path / name).read_bytes()
    chance = random.Random(1)
    for length in {0, 1, len(whole) - 1, len(whole) - 64, *chance.sample(range(len(whole)), 30), len(whole) + 1}:
        (damaged / name).write_bytes(whole[:length].ljust(length, b"\0"))
        assert read_all(damaged, contents) > 0
        assert_reported(damaged, name, length)
    (damaged / name).write_bytes(whole)
    assert read_all(damaged, contents) == 0


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


def test_a_commit_file_of_another_repository(damaged, tmp_path):
    other = txstore.Repository(tmp_path / "other.tx")
    for _ in range(HEAD + 1):
        set_keys(other, {"a/1": os.urandom(8)})
    shutil.copy(tmp_path / "other.tx" / PACK, damaged / PACK)
    with pytest.raises(txstore.CorruptionError, match="another repository, branch or version"):
        txstore.Repository(damaged).snapshot()["a/1"]
    assert_reported(damaged, PACK, "foreign")


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
