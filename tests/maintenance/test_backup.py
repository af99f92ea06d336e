"""Backups of a repository in use, and what a plain copy is worth."""

import itertools
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.maintenance import small
from tests.tools.disk import tree
from tests.tools.faults import watch
from txstore.format import names
from txstore.history.opening import open_storage
from txstore.maintenance.backup import back_up
from txstore.storage.local import LocalStorage

pytestmark = pytest.mark.long


def contents_of(path: Path | str) -> list[dict[str, bytes]]:
    repo = txstore.Repository(path)
    return [
        {key: bytes(value) for key, value in repo.mapping(at=version).items()}
        for version in range(repo.head().version + 1)
    ]


def put(repo: txstore.Repository, key: str, value: bytes = b"value") -> None:
    with repo.begin() as transaction:
        transaction[key] = value


@pytest.fixture
def source(tmp_path: Path) -> tuple[txstore.Repository, small.Contents]:
    contents = small.build(tmp_path / "data.tx")
    return txstore.Repository(tmp_path / "data.tx"), contents


def test_a_backup_is_the_repository(source, tmp_path):
    repo, contents = source
    before = tree(Path(repo.url))
    made = repo.backup(tmp_path / "copy")
    assert tree(Path(repo.url)) == before
    copy = txstore.Repository(tmp_path / "copy")
    assert (copy.id, list(copy.log()), dict(copy.tags)) == (repo.id, list(repo.log()), dict(repo.tags))
    assert contents_of(tmp_path / "copy") == contents
    assert copy.verify().faults == []
    assert (made.version, made.commit) == (5, repo.head().id)
    put(copy, "restored/c/0")  # it can be written, like any
    assert copy.verify().faults == []


def test_a_second_backup_copies_what_is_new(source, tmp_path):
    repo, _ = source
    repo.backup(tmp_path / "copy")
    before = {path: os.stat(tmp_path / "copy" / path).st_ino for path in tree(tmp_path / "copy")}
    again = repo.backup(tmp_path / "copy")
    assert (again.files, again.bytes) == (0, 0)
    put(repo, "new", b"n" * 5000)
    repo.tags["v2"] = repo.head()
    third = repo.backup(tmp_path / "copy")
    assert third.files == 2
    assert 5000 < third.bytes < 8000
    after = {path: os.stat(tmp_path / "copy" / path).st_ino for path in tree(tmp_path / "copy")}
    assert {path: after[path] for path in before} == before
    assert contents_of(tmp_path / "copy") == contents_of(repo.url)
    assert txstore.Repository(tmp_path / "copy").verify().faults == []


def test_the_backup_of_a_repository_without_commits(tmp_path):
    repo = txstore.Repository(tmp_path / "data.tx")
    with pytest.raises(txstore.RepositoryNotFoundError):
        repo.backup(tmp_path / "copy")
    repo.engine.commits.identity.create(durable=False)
    made = repo.backup(tmp_path / "copy")
    assert (made.version, made.commit) == (-1, "")
    assert txstore.Repository(tmp_path / "copy").head() is None


def test_where_a_backup_can_not_go(source, tmp_path):
    repo, _ = source
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    other = txstore.Repository(tmp_path / "other.tx")
    put(other, "a")
    begun = tmp_path / "begun"
    shutil.copytree(other.url, begun)
    (begun / "format.json").unlink()
    for place, words in [
        (tmp_path / "full", "thesis.tex"), (tmp_path / "file", "is a file"), (other.url, "another repository"),
        (begun, "beginnings of another repository"), (repo.url, "in the repository"),
        (Path(repo.url) / "copy", "inside of the repository"), (tmp_path, "in the repository"),
    ]:  # fmt: skip
        before = tree(tmp_path)
        with pytest.raises(txstore.BackupError, match=words):
            repo.backup(place)
        assert tree(tmp_path) == before


def test_a_backup_that_somebody_has_committed_into(source, tmp_path):
    repo, _ = source
    repo.backup(tmp_path / "copy")
    put(txstore.Repository(tmp_path / "copy"), "mine")
    with pytest.raises(txstore.BackupError, match="committed into it"):
        repo.backup(tmp_path / "copy")
    before = tree(tmp_path / "copy")
    for key in ("theirs", "again"):
        put(repo, key)
        with pytest.raises(txstore.BackupError, match="committed into it"):
            repo.backup(tmp_path / "copy")
    assert tree(tmp_path / "copy") == before


def test_what_is_damaged_is_not_copied(source, tmp_path):
    repo, _ = source
    file = Path(repo.url) / "commits/main/0000000000"
    content = file.read_bytes()
    at = content.index(b"oneone")
    file.write_bytes(content[:at] + b"X" + content[at + 1 :])
    with pytest.raises(txstore.CorruptionError, match="0000000000") as caught:
        repo.backup(tmp_path / "copy")
    assert caught.value.key == "a/c/1"
    assert not (tmp_path / "copy/commits/main/0000000000").exists()
    repo.backup(tmp_path / "copy", verify=False)
    assert txstore.Repository(tmp_path / "copy").mapping()["d"] == b"d"
    assert len(txstore.Repository(tmp_path / "copy").verify().faults) == 1


class Killed(BaseException):
    pass


class Dying(LocalStorage):
    """Dies at the n-th call that writes anything."""

    left = 0

    def __getattribute__(self, name: str) -> Any:
        if name in ("create", "rename_noreplace", "write_once", "sync_directory", "replace", "link", "make_directory"):
            Dying.left -= 1
            if Dying.left < 0:
                raise Killed
        return super().__getattribute__(name)


def test_an_interrupted_backup_is_run_again(source, tmp_path, monkeypatch):
    repo, contents = source
    put(repo, "more", b"m" * 3000)
    contents = contents_of(repo.url)
    copy = tmp_path / "copy"
    monkeypatch.setattr("txstore.maintenance.backup._BATCH", 2)
    rounds = 0
    for step in range(0, 500, 3):
        with monkeypatch.context() as patched:
            patched.setattr("txstore.maintenance.backup.open_storage", lambda url, access: Dying(os.path.abspath(url)))
            Dying.left = step
            try:
                back_up(open_storage(repo.url), copy)
            except Killed:
                rounds += 1
            else:
                break
        if (copy / names.FORMAT).exists():
            there = txstore.Repository(copy)
            assert there.verify().faults == []
        Dying.left = 1 << 60
        if step % 2:  # else from where it has come to
            shutil.rmtree(copy, ignore_errors=True)
    assert rounds > 10
    Dying.left = 1 << 60
    repo.backup(copy)
    assert contents_of(copy) == contents
    assert not [name for name in os.listdir(copy / ".staging") if not name.endswith(".new")]


def _write(url: str, ready: Any, stop: Any) -> None:
    repo = txstore.Repository(url)
    number = 0
    while not stop.is_set():
        with repo.begin() as transaction:
            transaction[f"a/{number % 7}"] = transaction["b"] = b"%d" % number * 50
        number += 1
        ready.set()


def test_while_others_commit(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=_write, args=(str(tmp_path / "data.tx"), ready, stop))
    process.start()
    try:
        assert ready.wait(60)
        repo = txstore.Repository(tmp_path / "data.tx")
        versions = []
        for _ in range(5):
            made = repo.backup(tmp_path / "copy")
            versions.append(made.version)
            copy = txstore.Repository(tmp_path / "copy")
            assert copy.head().id == made.commit == repo.commit(made.version).id
            found = dict(copy.mapping())
            assert bytes(found["b"]) == bytes(found[f"a/{int(bytes(found['b'])[: len(str(made.version))]) % 7}"])
        assert versions == sorted(versions)
    finally:
        stop.set()
        process.join(60)
    assert process.exitcode == 0
    assert txstore.Repository(tmp_path / "copy").verify().faults == []
    repo.backup(tmp_path / "copy")
    assert contents_of(tmp_path / "copy") == contents_of(repo.url)


# --- plain copies
@pytest.mark.parametrize("missed", [1, 3, 4])
def test_a_copy_that_missed_a_commit_ends_before_it_once_repaired(source, tmp_path, missed):
    """`cp -r` may list a directory while it grows. What the head cache says was true of the original."""
    repo, contents = source
    shutil.copytree(repo.url, tmp_path / "copy")
    (tmp_path / f"copy/commits/main/{missed:010d}").unlink()
    (tmp_path / "copy/tags/v1").unlink()
    with pytest.raises(txstore.CorruptionError, match="copy again"):
        txstore.Repository(tmp_path / "copy").head()
    copy = txstore.Repository(tmp_path / "copy")
    assert [fault.path for fault in copy.verify(repair=True).faults] == [f"commits/main/{missed:010d}"]
    assert copy.head().version == missed - 1
    assert dict(copy.mapping()) == contents[missed - 1]
    put(copy, "e", b"another way")
    assert copy.head().version == missed
    assert dict(txstore.Repository(tmp_path / "copy").mapping())["e"] == b"another way"


def test_a_whole_copy_is_whole(source, tmp_path):
    repo, contents = source
    shutil.copytree(repo.url, tmp_path / "copy")
    assert contents_of(tmp_path / "copy") == contents
    assert txstore.Repository(tmp_path / "copy").verify().faults == []


def test_while_others_vacuum(source, tmp_path):
    """What is being copied is pinned, down to the oldest commit."""
    repo, contents = source
    reports = []

    def vacuum(*_: int) -> None:
        if not reports:
            other = txstore.Repository(repo.url)
            put(other, "meanwhile")
            other.optimize()
            reports.append(other.vacuum(keep=1))

    repo.backup(tmp_path / "copy", progress=vacuum)
    assert [report.expired for report in reports] == [0]
    assert len(contents_of(tmp_path / "copy")) == len(contents)
    assert repo.vacuum(keep=1).expired > 0


@pytest.mark.parametrize("vacuums", [False, True])
def test_a_tag_is_deleted_at_every_step(tmp_path, vacuums):
    """The copy has it, with all that it names, or not."""
    step, steps = 0, 1
    while step < steps:
        repo = txstore.Repository(tmp_path / f"{step}.tx", durability="none")
        for number in range(3):
            put(repo, "value", b"%d" % number * 100)
            repo.tags[f"v{number}"] = repo.head()
        put(repo, "value", b"last")
        repo.optimize()
        repo.vacuum(keep=1)  # the tagged ones lie below the oldest kept version
        other, calls = txstore.Repository(repo.url), itertools.count()

        class Each(dict):
            def get(self, name, default=None):
                return act if next(calls) == step else default  # noqa: B023

        def act(*_):
            del other.tags["v1"]  # noqa: B023
            if vacuums:
                other.vacuum()  # noqa: B023

        watch(repo).before = Each()
        made = repo.backup(tmp_path / f"{step}.copy")
        steps = next(calls)
        copy = txstore.Repository(tmp_path / f"{step}.copy")
        assert copy.head().id == made.commit == other.head().id
        assert {"v0", "v2"} <= set(copy.tags) <= {"v0", "v1", "v2"}
        for name in copy.tags:
            assert copy.snapshot(tag=name)["value"] == name[1:].encode() * 100
        assert copy.verify().faults == []
        step += 1
    assert steps > 20


@pytest.mark.skipif(os.name != "posix", reason="permissions")
@pytest.mark.parametrize("verified", [True, False])
def test_a_copy_has_no_wider_permissions_than_its_source(source, tmp_path, verified):
    repo, _ = source
    root = Path(repo.url)
    repo.tags["secret"] = 0
    wanted = {}
    for path in [root, *root.rglob("*")]:
        path.chmod(0o750 if path.is_dir() else 0o640)
    for path in ("tags/secret", "commits/main/0000000001"):
        (root / path).chmod(0o600)
    before = os.umask(0o022)
    try:
        repo.backup(tmp_path / "copy", verify=verified)
    finally:
        os.umask(before)
    copy = tmp_path / "copy"
    for path in [copy, *copy.rglob("*")]:
        theirs = root / path.relative_to(copy)
        wanted = theirs.stat().st_mode if theirs.exists() else 0o700
        assert path.stat().st_mode & ~wanted & 0o077 == 0, path


def test_what_is_no_pack_is_not_copied_unchecked_either(source, tmp_path):
    repo, _ = source
    path = next(Path(repo.url).glob("packs/*/*"), Path(repo.url) / "commits/main/0000000001")
    content = b"what is another's, under the name of a pack" * 100
    os.unlink(path)
    path.write_bytes(content)
    with pytest.raises((txstore.CorruptionError, txstore.BackupError)):
        txstore.Repository(repo.url).backup(tmp_path / "copy", verify=False)
    assert not any(content[:40] in found.read_bytes() for found in (tmp_path / "copy").rglob("*") if found.is_file())
