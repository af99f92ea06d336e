"""Tasks of Dask stage into one transaction; it repeats those whose worker was killed, and whose results are gone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.engines import jobs

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def run(client: Any, store: Any, flag: Path, place: str) -> None:
    tasks = [client.submit(jobs.work, store, part, flag, place, pure=False) for part in range(jobs.PARTS)]
    client.gather(tasks)


@pytest.mark.parametrize("place", jobs.PLACES)
def test_a_killed_worker(client: Any, repo: txstore.Repository, flag: Path, place: str) -> None:
    with repo.transaction("by Dask") as store:
        run(client, store, flag, place)
    assert flag.exists()
    jobs.check_complete(repo)


def test_a_job_that_is_given_up(client: Any, repo: txstore.Repository) -> None:
    with pytest.raises(RuntimeError, match="out of luck"), repo.transaction("by Dask") as store:
        client.gather([client.submit(jobs.fail, store, part, pure=False) for part in range(jobs.PARTS)])
    client.cancel(list(client.futures))
    jobs.check_nothing(repo)
