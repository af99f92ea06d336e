"""Every codec pipeline of this zarr, and a latch that is open again when a test ends."""

from collections.abc import Iterator

import pytest
import zarr

import txstore
from tests.threads.harness import PIPELINES, POOL
from tests.threads.latches import Latch


@pytest.fixture(params=PIPELINES)
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    with zarr.config.set({"codec_pipeline.path": PIPELINES[request.param], "threading.max_workers": POOL}):
        yield request.param


@pytest.fixture
def store(repo: txstore.Repository, pipeline: str) -> Iterator[txstore.TxStore]:
    Latch.open()
    yield txstore.TxStore(repo)
    Latch.open()
