"""Workers of Beam's DirectRunner stage into one transaction, which ends with the pipeline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.engines import jobs
from tests.tools.waiting import wait_until

pytest.importorskip("apache_beam")

TIMEOUT = 120


@contextmanager
def pipeline(repo: txstore.Repository, *arguments: Any) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.engines.run_beam", repo.url, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("place", jobs.PLACES)
@pytest.mark.parametrize("options", [[], ["--direct_runner_bundle_repeat=1"]], ids=["once", "each bundle twice"])
def test_all_is_well(repo: txstore.Repository, flag: Path, place: str, options: list[str]) -> None:
    flag.touch()
    with pipeline(repo, flag, place, *options) as process:
        assert process.wait(TIMEOUT) == 0
    jobs.check_complete(repo)


@pytest.mark.parametrize("place", jobs.PLACES)
def test_a_killed_worker(repo: txstore.Repository, flag: Path, place: str) -> None:
    """The DirectRunner waits for ever for a worker that was killed: the job is given up, and run again."""
    with pipeline(repo, flag, place) as process:
        wait_until(flag.exists)
        assert process.poll() is None
    jobs.check_nothing(repo)
    with pipeline(repo, flag, place) as process:
        assert process.wait(TIMEOUT) == 0
    jobs.check_complete(repo)


def test_an_exception(repo: txstore.Repository, flag: Path) -> None:
    with pipeline(repo, flag, "fails") as process:
        assert process.wait(TIMEOUT) == 1
    jobs.check_nothing(repo)
