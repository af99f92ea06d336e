"""Every codec pipeline of this zarr, and a gate that is open again when a test ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zarr

import txstore
from tests.threads.gates import Gate
from tests.threads.harness import PIPELINES, POOL


@pytest.fixture(params=PIPELINES)
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    with zarr.config.set({"codec_pipeline.path": PIPELINES[request.param], "threading.max_workers": POOL}):
        yield request.param


@pytest.fixture
def store(repo: txstore.Repository, pipeline: str) -> Iterator[txstore.TxStore]:
    Gate.open()
    yield txstore.TxStore(repo)
    Gate.open()
