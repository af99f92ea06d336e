"""Verify, repair and backup of repositories that were optimized and vacuumed."""

import random
import shutil
from pathlib import Path

import pytest

import txstore
from tests.maintenance.test_backup import put
from tests.tools.disk import tree
from txstore.commit import MAIN
from txstore.format import names
from txstore.history.opening import open_commits, open_storage
from txstore.maintenance.check_file import frames_end
from txstore.maintenance.repair import verify_and_repair


@pytest.fixture
def maintained(tmp_path: Path) -> tuple[Path, dict[str, bytes], dict[str, bytes]]:
    """A oldest kept version above 0, a tagged commit below it, merged and copied runs; what the head holds, and the
    tag.
    """
    repo = txstore.Repository(tmp_path / "data.tx")
    chance = random.Random(1)
    for number in range(20):
        with repo.begin() as transaction:
            for _ in range(3):
                transaction[f"a/{chance.randrange(8)}"] = b"%d" % number * 40
            if number % 5 == 4:
                transaction.delete_dir("a")
                transaction["b"] = b"%d" % number
        if number == 6:
            repo.tags["kept"] = repo.head()
    repo.optimize()
    put(repo, "c")
    repo.vacuum(keep=2)
    put(repo, "d")
    contents = [{k: bytes(v) for k, v in repo.mapping(**at).items()} for at in ({}, {"tag": "kept"})]
    assert repo.verify().faults == []
    return tmp_path / "data.tx", contents[0], contents[1]


def test_it_is_backed_up(maintained, tmp_path):
    path, head, tagged = maintained
    repo = txstore.Repository(path)
    repo.backup(tmp_path / "copy")
    copy = txstore.Repository(tmp_path / "copy")
    assert copy.verify().faults == []
    assert {k: bytes(v) for k, v in copy.mapping().items()} == head
    assert {k: bytes(v) for k, v in copy.mapping(tag="kept").items()} == tagged
    put(repo, "e")
    repo.backup(tmp_path / "copy")
    assert "e" in txstore.Repository(tmp_path / "copy").mapping()
    for number in range(5):
        put(repo, f"f{number}")
    repo.vacuum(keep=1)
    try:
        repo.backup(tmp_path / "copy")  # the file of the commit that the copy ends with is still there, for its values
    except txstore.BackupError:
        repo.backup(tmp_path / "another")
        (tmp_path / "another").rename(tmp_path / "copied")
    else:
        (tmp_path / "copy").rename(tmp_path / "copied")
    assert txstore.Repository(tmp_path / "copied").verify().faults == []
    assert txstore.Repository(tmp_path / "copied").head() == repo.head()
    shutil.copytree(path, tmp_path / "plain")
    assert txstore.Repository(tmp_path / "plain").verify().faults == []
    assert txstore.Repository(tmp_path / "plain").head() == repo.head()


def test_its_runs_are_rebuilt_or_its_keys_are_errors(maintained, tmp_path):
    path, head, _ = maintained
    commits = open_commits(open_storage(path))
    oldest_kept = commits.head(MAIN).header.oldest_kept
    assert oldest_kept > 0
    for version in sorted(commits.files.versions(MAIN)):
        stored = commits.files.read(MAIN, version)
        for section in stored.header.sections:
            work = tmp_path / "work"
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(path, work)
            file = work / names.commit_path(MAIN, version)
            content = bytearray(file.read_bytes())
            content[section.offset : section.offset + section.length] = bytes(section.length)
            file.write_bytes(content)
            report = verify_and_repair(open_storage(work))
            assert report.ok or all(fault.part in ("run", "tag") for fault in report.faults)
            try:
                found = {k: bytes(v) for k, v in txstore.Repository(work).mapping().items()}
            except txstore.CorruptionError:
                assert not report.ok
            else:
                assert found == head, (version, section, report.repairs)


def test_it_is_not_changed(maintained):
    path, _, _ = maintained
    before = tree(path)
    assert verify_and_repair(open_storage(path)).ok
    assert tree(path) == before


def test_a_damaged_value_of_a_tagged_commit(maintained):
    path, _, _ = maintained
    version = txstore.Repository(path).tags["kept"].version
    stored = open_commits(open_storage(path)).files.read(MAIN, version)
    file = path / stored.path
    content = bytearray(file.read_bytes())
    content[frames_end(stored) - 8] ^= 1
    file.write_bytes(content)
    (fault,) = txstore.Repository(path).verify().faults
    assert fault.path == stored.path
