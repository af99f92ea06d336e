"""Followers beside writers that commit flat out, and beside writers that are killed: no commit missed, none twice."""

import os
import signal

import pytest

import txstore
from tests.tools.steps import BeforeEachChange, commit_with_signal, forked, status_of
from tests.tools.workers import SPAWN, TIMEOUT
from txstore._native import local, local_fallback

pytestmark = pytest.mark.long


def follow_by(way: str) -> None:
    if way == "poll":
        local.open_watch = local_fallback.open_watch


def tell(path, way: str, pipe) -> None:
    """Tell of each commit, from the first on, until killed."""
    follow_by(way)
    for commit in txstore.Repository(path).follow(since=-1):
        pipe.send((commit.version, commit.id, commit.message))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("way", ["watch", "poll"])
@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_a_writer_killed_at_each_step(repo, durability, way):
    """Of a commit that was made the follower is told, though nobody is left to tell it; of others it never is.

    Only steps that change something count. Each writer that dies before it has cached the head leaves the next one a
    commit more to read, so that the steps that only look would never come to an end.
    """
    reading, writing = SPAWN.Pipe(duplex=False)
    follower = SPAWN.Process(target=tell, args=(repo.url, way, writing), daemon=True)
    follower.start()
    writing.close()
    told: list[tuple[int, str, str]] = []
    kept: list[bool] = []  # the commit, for each step before which the writer was killed
    try:
        for step in range(200):
            arguments = repo.url, step, signal.SIGKILL, durability, b"1", BeforeEachChange
            with forked(commit_with_signal, *arguments) as writer:
                status = status_of(writer)
            log = list(txstore.Repository(repo.url).log())[::-1] if repo.exists else []
            while len(told) < len(log):
                assert reading.poll(TIMEOUT), f"not told of version {len(told)} after a kill at step {step}"
                told.append(reading.recv())
            assert told == [(commit.version, commit.id, commit.message) for commit in log]
            if not os.WIFSIGNALED(status):
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
            kept.append(any(commit.message == f"step {step}" for commit in log))
        assert os.WIFEXITED(status)
        assert os.WEXITSTATUS(status) == 0
        assert not reading.poll(0.1)
    finally:
        follower.kill()
        follower.join()
    assert len(kept) > 8
    assert set(kept) == {True, False}  # killed before the rename, and between it and the end
