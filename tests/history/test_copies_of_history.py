"""Copies that are not whole: no commit is lost in silence."""

import shutil
from pathlib import Path

import pytest

import txstore
from tests.tools.commits import set_keys
from txstore.errors import CorruptionError


def test_the_first_commit_is_missing(repo: txstore.Repository, tmp_path: Path) -> None:
    """It was durable: the others vouch for it. Where it lies would otherwise look like an empty repository."""
    for number in range(3):
        set_keys(repo, {f"{number}": b"1"})
    copy = shutil.copytree(repo.url, tmp_path / "copy.tx")
    (copy / "commits/main/0000000000").unlink()
    with pytest.raises(CorruptionError, match="there is version 2, and a commit below it is missing"):
        txstore.Repository(copy).head()
    with pytest.raises(CorruptionError, match="copy again"), txstore.Repository(copy).begin() as transaction:
        transaction["late"] = b"1"
    (copy / "heads/main").unlink()  # what tells that this is a copy
    with pytest.raises(CorruptionError):
        txstore.Repository(copy).mapping()["0"]


@pytest.mark.parametrize("is_copy", [True, False])
def test_a_commit_in_the_middle_is_missing(repo: txstore.Repository, tmp_path: Path, is_copy: bool) -> None:
    """Those above are no orphans, which a writer could move aside: they vouch for it."""
    for number in range(4):
        set_keys(repo, {f"{number}": b"1"})
    path = shutil.copytree(repo.url, tmp_path / "other.tx")
    if not is_copy:
        (path / "heads/main").unlink()
    (path / "commits/main/0000000002").unlink()
    before = sorted((path / "commits/main").iterdir())
    for use in (txstore.Repository.head, txstore.Repository.log, txstore.Repository.mapping):
        with pytest.raises(CorruptionError, match="there is version 3, and a commit below it is missing"):
            use(txstore.Repository(path))
    with pytest.raises(CorruptionError, match="copy again"), txstore.Repository(path).begin() as transaction:
        transaction["late"] = b"1"
    assert sorted((path / "commits/main").iterdir()) == before
    report = txstore.Repository(path).verify(repair=True)
    lost = ["commits/main/0000000002", "commits/main/0000000003"]
    assert [fault.path for fault in report.faults] == lost[: 1 + is_copy]  # without head caches, nothing tells of 3
    assert sorted(txstore.Repository(path).mapping()) == ["0", "1"]
    set_keys(txstore.Repository(path), {"late": b"1"})
    assert txstore.Repository(path).verify().ok
    (record,) = [each for each in txstore.Repository(path).log(operations=True) if each.operation == "repair"]
    assert "version 2 was durable and is lost" in str(record.result["lost"])
    assert next((path / "quarantine/commits/main").iterdir()).name.startswith("0000000003")


def test_the_first_commit_of_a_branch_is_missing(repo: txstore.Repository, tmp_path: Path) -> None:
    """Where it lies would otherwise look like a branch without commits of its own."""
    set_keys(repo, {"a": b"1"})
    repo.branches["dev"] = repo.head()
    for number in range(3):
        set_keys(repo, {f"{number}": b"1"}, branch="dev")
    copy = shutil.copytree(repo.url, tmp_path / "copy.tx")
    (directory,) = [each for each in (copy / "commits").iterdir() if each.name != "main"]
    (directory / "0000000001").unlink()
    assert txstore.Repository(copy).head() == repo.head()
    with pytest.raises(CorruptionError, match="there is version 3, and a commit below it is missing"):
        txstore.Repository(copy).head("dev")


def test_the_first_commit_was_lost_with_the_power(repo: txstore.Repository, tmp_path: Path) -> None:
    """It was not synced, so the repository is as empty as one whose commits were all lost."""
    for number in range(2):
        set_keys(txstore.Repository(repo.url, durability="none"), {f"{number}": b"1"})
    directory = Path(repo.url)
    (directory / "commits/main/0000000000").unlink()
    (directory / "heads/main").unlink()
    assert txstore.Repository(repo.url).head() is None
    shutil.rmtree(directory)
