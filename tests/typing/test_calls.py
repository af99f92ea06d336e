"""What users write is what type checkers accept: mypy reads `calls.py`, strictly."""

import subprocess
import sys
from pathlib import Path

import pytest

import txstore

CALLS = Path(__file__).with_name("calls.py")


@pytest.mark.long
def test_mypy_accepts_what_users_write() -> None:
    root = CALLS.parents[2]
    subprocess.run([sys.executable, "aio_stub.py"], cwd=root, check=True)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(CALLS)], capture_output=True, text=True, cwd=root
    )
    assert (ran.returncode, ran.stdout) == (0, "Success: no issues found in 1 source file\n"), ran.stdout + ran.stderr


def test_a_name_is_given_to_no_commit(repo: txstore.Repository) -> None:
    """`repo.head()` may be None, and is accepted: where it is, the caller is told."""
    with repo.begin() as transaction:
        transaction["a"] = b"1"
    for names, name in ((repo.tags, "v1"), (repo.branches, "dev")):
        with pytest.raises(txstore.CommitNotFoundError, match="nothing was committed yet"):
            names[name] = None
        names[name] = repo.head()
        assert names[name] == repo.head()
