"""Copies that are not whole: no commit is lost in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import txstore
from txstore.errors import CorruptionError


def test_the_first_commit_is_missing(repo: txstore.Repository, tmp_path: Path) -> None:
    """It was durable: the others vouch for it. Where it lies would otherwise look like an empty repository."""
    for number in range(3):
        with repo.begin() as transaction:
            transaction[f"{number}"] = b"1"
    copy = shutil.copytree(repo.url, tmp_path / "copy.tx")
    (copy / "commits/main/0000000000").unlink()
    with pytest.raises(CorruptionError, match="there is version 1, and a commit below it is missing"):
        txstore.Repository(copy).head()
    with pytest.raises(CorruptionError, match="copy again"), txstore.Repository(copy).begin() as transaction:
        transaction["late"] = b"1"
    (copy / "heads/main").unlink()  # what tells that this is a copy
    with pytest.raises(CorruptionError):
        txstore.Repository(copy).mapping()["0"]


def test_the_first_commit_of_a_branch_is_missing(repo: txstore.Repository, tmp_path: Path) -> None:
    """Where it lies would otherwise look like a branch without commits of its own."""
    with repo.begin() as transaction:
        transaction["a"] = b"1"
    repo.branches["dev"] = repo.head()
    for number in range(3):
        with repo.begin(branch="dev") as transaction:
            transaction[f"{number}"] = b"1"
    copy = shutil.copytree(repo.url, tmp_path / "copy.tx")
    (directory,) = [each for each in (copy / "commits").iterdir() if each.name != "main"]
    (directory / "0000000001").unlink()
    assert txstore.Repository(copy).head() == repo.head()
    with pytest.raises(CorruptionError, match="there is version 2, and a commit below it is missing"):
        txstore.Repository(copy).head("dev")


def test_the_first_commit_was_lost_with_the_power(repo: txstore.Repository, tmp_path: Path) -> None:
    """It was not synced, so the repository is as empty as one whose commits were all lost."""
    for number in range(2):
        with txstore.Repository(repo.url, durability="none").begin() as transaction:
            transaction[f"{number}"] = b"1"
    directory = Path(repo.url)
    (directory / "commits/main/0000000000").unlink()
    (directory / "heads/main").unlink()
    assert txstore.Repository(repo.url).head() is None
    shutil.rmtree(directory)
