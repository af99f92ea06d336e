"""Engines whose workers stage into one transaction: what they write is there at once, or nothing if a task fails."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import executorlib
import ipyparallel
import mpire
import parsl
import pebble
import pytest
import ray

import txstore
from tests.clients.engines import jobs
from tests.clients.trials import Both, tool

#: Runs a job for each part, and returns what it has returned.
Run = Callable[[Callable[[Any, int], Any], Any], list[Any]]
PARTS = range(jobs.PARTS)


@contextmanager
def by_ray(directory: Path) -> Iterator[Run]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        yield lambda job, store: ray.get([ray.remote(job).remote(store, part) for part in PARTS])
    finally:
        ray.shutdown()


@contextmanager
def by_pebble(directory: Path) -> Iterator[Run]:
    with pebble.ProcessPool(2, context=get_context("spawn")) as pool:
        yield lambda job, store: list(pool.map(job, [store] * len(PARTS), PARTS).result())


@contextmanager
def by_executorlib(directory: Path) -> Iterator[Run]:
    with executorlib.SingleNodeExecutor(max_workers=2, block_allocation=True, hostname_localhost=True) as executor:
        yield lambda job, store: [each.result() for each in [executor.submit(job, store, part) for part in PARTS]]


@contextmanager
def by_ipyparallel(directory: Path) -> Iterator[Run]:
    with ipyparallel.Cluster(n=2, profile_dir=str(directory), log_level=50) as client:
        view = client.load_balanced_view()
        yield lambda job, store: view.map_sync(job, [store] * len(PARTS), PARTS)


@contextmanager
def by_mpire(start: str, directory: Path) -> Iterator[Run]:
    with mpire.WorkerPool(2, start_method=start, keep_alive=True) as pool:
        yield lambda job, store: pool.map(job, [(store, part) for part in PARTS], chunk_size=1)


@contextmanager
def by_parsl(directory: Path) -> Iterator[Run]:
    executor = parsl.HighThroughputExecutor(
        address="127.0.0.1",
        max_workers_per_node=2,
        encrypted=False,
        provider=parsl.providers.LocalProvider(init_blocks=1, max_blocks=1),
    )
    config = parsl.Config(
        [executor], run_dir=str(directory), usage_tracking=0, strategy="none", initialize_logging=False
    )
    with parsl.load(config):
        yield lambda job, store: [each.result() for each in [parsl.python_app(job)(store, part) for part in PARTS]]


@contextmanager
def by_processes(start: str, directory: Path) -> Iterator[Run]:
    with ProcessPoolExecutor(2, get_context(start)) as pool:
        yield lambda job, store: list(pool.map(job, [store] * len(PARTS), PARTS))


@contextmanager
def by_threads(directory: Path) -> Iterator[Run]:
    with ThreadPoolExecutor(2) as pool:
        yield lambda job, store: list(pool.map(job, [store] * len(PARTS), PARTS))


@contextmanager
def by_multiprocessing(start: str, directory: Path) -> Iterator[Run]:
    with get_context(start).Pool(2) as pool:
        yield lambda job, store: pool.starmap(job, [(store, part) for part in PARTS], chunksize=1)


def engine(name: str, tried: str, code: str, by: Any, *told: Any, package: str | None = None) -> Any:
    """Give a parameter of a test: what runs the jobs in a directory, with its mark."""
    run = functools.partial(by, *told)
    return pytest.param(run, marks=tool(name, package=package, code=code, tried=tried), id=f"{name}, {tried}")


STARTS = ("fork", "spawn", "forkserver")
ENGINES = [
    engine("ray", "tasks", "ray.get([fill.remote(store, part) for part in parts])", by_ray),
    engine("pebble", "its pool of processes", "pool.map(fill, stores, parts).result()", by_pebble),
    engine("executorlib", "`SingleNodeExecutor`", "executor.submit(fill, store, part)", by_executorlib),
    engine("ipyparallel", "a load-balanced view", "view.map_sync(fill, stores, parts)", by_ipyparallel),
    engine("parsl", "`HighThroughputExecutor`", "parsl.python_app(fill)(store, part)", by_parsl),
]
ENGINES += [engine("mpire", start, "pool.map(fill, [(store, part), ...])", by_mpire, start) for start in STARTS[:2]]
POOL, MAP = "pool.starmap(fill, [(store, part), ...])", "pool.map(fill, stores, parts)"
ENGINES += [engine("multiprocessing", start, POOL, by_multiprocessing, start, package="python") for start in STARTS]
ENGINES += [engine("concurrent.futures", start, MAP, by_processes, start, package="python") for start in STARTS]
ENGINES += [engine("concurrent.futures", "threads", MAP, by_threads, package="python")]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("by", ENGINES)
def test_tasks(both: Both, repo: txstore.Repository, tmp_path: Path, by: Any) -> None:
    (tmp_path / "engine").mkdir()
    with by(tmp_path / "engine") as run:

        def write(store: Any) -> None:
            jobs.create(store)
            assert run(jobs.fill, store) == list(PARTS)

        found = both(write, lambda store: run(jobs.add_up, store), rounds=2)
        assert found == [float(jobs.values(part).sum()) for part in PARTS]

        with repo.transaction() as store:
            jobs.create(store)
        with pytest.raises(Exception, match="out of luck"), repo.transaction() as store:
            run(jobs.fail, store)
        assert run(jobs.add_up, repo.snapshot()) == [0.0] * len(PARTS)
