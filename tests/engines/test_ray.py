"""Tasks of Ray stage into one transaction, and Ray repeats those whose worker was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.engines import jobs

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def run(store: Any, flag: Path | None, place: str, retries: int = 2) -> None:
    work = ray.remote(max_retries=retries)(jobs.work)
    ray.get([work.remote(store, part, flag, place) for part in range(jobs.PARTS)])


@pytest.mark.parametrize("place", jobs.PLACES)
def test_a_killed_worker(repo: txstore.Repository, flag: Path, place: str) -> None:
    with repo.transaction("by Ray") as store:
        run(store, flag, place)
    assert flag.exists()
    jobs.check_complete(repo)


@pytest.mark.parametrize("place", jobs.PLACES)
def test_a_job_that_is_given_up(repo: txstore.Repository, flag: Path, place: str) -> None:
    with pytest.raises(ray.exceptions.WorkerCrashedError), repo.transaction("by Ray") as store:
        run(store, flag, place, retries=0)
    jobs.check_nothing(repo)


def test_an_exception(repo: txstore.Repository) -> None:
    fail = ray.remote(jobs.fail)
    with pytest.raises(ray.exceptions.RayTaskError, match="out of luck"), repo.transaction("by Ray") as store:
        ray.get([fail.remote(store, part) for part in range(jobs.PARTS)])
    jobs.check_nothing(repo)


def test_actors(repo: txstore.Repository, flag: Path) -> None:
    """An actor that is started anew, and whose call is tried again."""

    class Writer:
        def __init__(self, store: Any) -> None:
            self.store = store

        def write(self, part: int, flag: Path) -> int:
            return jobs.work(self.store, part, flag, "block")

    actor = ray.remote(max_restarts=2, max_task_retries=2)(Writer)
    with repo.transaction("by actors") as store:
        writers = [actor.remote(store) for _ in range(2)]
        ray.get([writers[part % 2].write.remote(part, flag) for part in range(jobs.PARTS)])
        for writer in writers:
            ray.kill(writer)
    assert flag.exists()
    jobs.check_complete(repo)
