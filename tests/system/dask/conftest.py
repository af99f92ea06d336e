"""A cluster of worker processes, started once for a module, and repositories on a disk and on S3."""

import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.system.remote import lease_times
from tests.system.remote.conftest import server_of, short_leases  # noqa: F401 - fixtures
from tests.system.remote.repositories import opened
from tests.system.remote.servers import Server

WORKERS = 2


@pytest.fixture(scope="module")
def client_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")

    class ShortLeases(distributed.WorkerPlugin):
        def setup(self, worker: Any) -> None:
            lease_times.shorten()

    with (
        distributed.LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=2,
            processes=True,
            dashboard_address="127.0.0.1:0",  # or all clusters of this machine would go for one port
            silence_logs=logging.CRITICAL,
            local_directory=str(tmp_path_factory.mktemp("dask")),
        ) as cluster,
        distributed.Client(cluster, set_as_default=True) as client,
    ):
        # Also those that a nanny starts in the place of one that was killed.
        client.register_plugin(ShortLeases(), name="short leases")
        yield client


@pytest.fixture
def client(client_of_module: Any) -> Iterator[Any]:
    yield client_of_module
    # Dask would do the tasks of futures that are left again, after the test, when the worker dies that has the results.
    gc.collect()
    assert not client_of_module.futures, "release the futures: the client keeps the error that `gather` has raised"


@pytest.fixture(params=["local", "s3"])
def repo(
    request: pytest.FixtureRequest,
    short_leases: None,  # noqa: F811
    tmp_path: Path,
    server_of: Callable[[str], Server],  # noqa: F811
) -> Iterator[txstore.Repository]:
    repo = txstore.Repository(tmp_path / "data.tx") if request.param == "local" else opened(server_of("s3"))
    yield repo
    assert not repo.exists or repo.verify().faults == []
