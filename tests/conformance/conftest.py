"""What the tests of zarr over a TxStore share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zarr
import zarr.core.codec_pipeline

PIPELINES = [name for name in ("Batched", "Fused") if hasattr(zarr.core.codec_pipeline, f"{name}CodecPipeline")]


@pytest.fixture(params=PIPELINES)
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each of zarr's codec pipelines; the fused one, of zarr 3.2 and later, uses the store from threads."""
    with zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{request.param}CodecPipeline"}):
        yield request.param
