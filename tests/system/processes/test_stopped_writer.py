"""A writer that stands still at any step of its commit: readers go on as if it were not there, and so does it later."""

import os
import signal
from pathlib import Path

import pytest

import txstore
from tests.tools.inside import staged
from tests.tools.steps import commit_with_signal, forked, status_of
from tests.tools.workers import QUICK, Worker, ended, in_time

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP here")]


def look(repo: txstore.Repository) -> list[str]:
    """Read in every way, and return the messages of all commits, oldest first."""
    log = [commit.message for commit in repo.log()][::-1]
    assert [commit.message for commit in repo.follow(since=-1, timeout=0)] == log
    snapshot = repo.snapshot()
    transaction = repo.begin()
    for view in (snapshot, transaction):
        assert sorted(view) == sorted({*(message.replace(" ", "/") for message in log), *(["last"] if log else [])})
        if log:
            assert view["last"] == log[-1].rpartition(" ")[2].encode()
    transaction["mine"] = b"1"
    transaction.rollback()
    assert repo.verify().faults == []
    return log


def look_anew(url: str) -> list[str]:
    repo = txstore.Repository(url)
    return look(repo) if repo.exists else []


def test_each_step_of_a_commit(repo):
    commit_with_signal(repo.url, -1, 0)
    seen_before_the_rename = seen_after_it = 0
    for step in range(200):
        before = look(repo)
        old = repo.snapshot()
        with forked(commit_with_signal, repo.url, step, signal.SIGSTOP) as writer:
            status = status_of(writer)
            if not os.WIFSTOPPED(status):
                break
            anew = Worker(look_anew, repo.url, context=QUICK)
            now = in_time(lambda: look(repo))
            assert in_time(lambda old=old: old["last"]) == before[-1].rpartition(" ")[2].encode()
            with ended(anew):
                assert anew.result() == now
            assert now in (before, [*before, f"step {step}"])
            seen_before_the_rename += now == before
            seen_after_it += now != before

            os.kill(writer, signal.SIGCONT)
            assert status_of(writer) == 0
        assert look(repo) == [*before, f"step {step}"]
        assert not staged(repo)
    assert status == 0
    assert seen_before_the_rename > 5
    assert seen_after_it > 0


def commit_other(url: str) -> None:
    with txstore.Repository(url).begin("other") as transaction:
        transaction["other"] = b"1"


def test_another_writer_beside_one_that_stopped_before_its_commit(open_repo):
    """Only who holds the commit lock is waited for: one that stages, or is creating the repository, is not."""
    large = bytes(300_000)  # written before the commit begins
    has_staged = 0
    for step in range(200):
        repo = open_repo(f"{step}.tx")
        with forked(commit_with_signal, repo.url, step, signal.SIGSTOP, "fsync", large) as writer:
            assert os.WIFSTOPPED(status_of(writer)), "the lock was never taken"
            if Path(repo.url, "locks", "commit").exists():
                break
            has_staged += bool(staged(repo))
            in_time(lambda repo=repo: commit_other(repo.url))
            os.kill(writer, signal.SIGCONT)
            assert status_of(writer) == 0
        assert [commit.message for commit in repo.log()] == [f"step {step}", "other"]
        assert sorted(repo.snapshot()) == ["last", "other", f"step/{step}"]
    assert has_staged > 1
