"""Processes that are killed while they commit."""

import subprocess
import sys
from itertools import islice

import txstore
from tests.tools.waiting import TIMEOUT


def killed_after(commits: int, repo: txstore.Repository, program: str) -> None:
    """Run a program, whose argument is where the repository is, and kill it when so many commits have come."""
    following = repo.follow(timeout=TIMEOUT)
    process = subprocess.Popen([sys.executable, "-c", program, repo.url])
    try:
        assert len(list(islice(following, commits))) == commits
    finally:
        process.kill()
        process.wait()
