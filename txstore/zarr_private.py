"""The private parts of zarr that TxStore uses: no other module imports any.

A version of zarr may rename what is not public. Without the first group TxStore has no arrays, and importing it says
which versions have them. Without a name of the second group it is slower, never wrong.
`tests/test_zarr_private.py` takes each name away.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zarr

#: The versions that TxStore is tried with.
TRIED = "3.1.6 to 3.4"

try:
    # The codec of an array of format 2: V2Codec(filters=..., compressor=...), of numcodecs.
    from zarr.codecs._v2 import V2Codec
    from zarr.core import codec_pipeline, sync

    # What codecs are told of a chunk: a dataclass. `ArrayConfig.from_dict` takes what is missing from zarr.config.
    from zarr.core.array_spec import ArrayConfig, ArraySpec

    # A pipeline that works on codecs of any kind: `from_codecs`, `decode`, `encode`, `read`, `write`.
    from zarr.core.codec_pipeline import BatchedCodecPipeline

    # An array's document, checked: `from_dict`, `to_buffer_dict`.
    from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

    # The event loop that runs zarr's calls: the only item of a list, None until the first call, and after a fork.
    from zarr.core.sync import loop
except ImportError as error:
    raise ImportError(
        f"TxStore works with zarr {TRIED}, and this is zarr {zarr.__version__} ({error}): install one of these, or a "
        "newer TxStore"
    ) from error

#: Runs a coroutine on `loop`, and waits: sync(coro, loop, timeout). Without it, calls stay on zarr's own thread,
#: and an open store can't be imported.
zarr_sync: Any = getattr(sync, "sync", None)

#: The pipeline of zarr 3.4 and later that codes chunks in threads. Without it, `BatchedCodecPipeline` does the work.
FusedCodecPipeline: Any = getattr(codec_pipeline, "FusedCodecPipeline", None)

#: Whether TxStore finds the threads of that pipeline. If not, they may not write: each chunk that is written is a task.
FINDS_CODEC_THREADS = hasattr(codec_pipeline, "_pool")


def codec_threads() -> ThreadPoolExecutor | None:
    """Return the threads of `FusedCodecPipeline`, which call stores; None until it has any."""
    return getattr(codec_pipeline, "_pool", None)


__all__ = [
    "FINDS_CODEC_THREADS",
    "ArrayConfig",
    "ArraySpec",
    "ArrayV2Metadata",
    "ArrayV3Metadata",
    "BatchedCodecPipeline",
    "FusedCodecPipeline",
    "V2Codec",
    "codec_threads",
    "loop",
    "zarr_sync",
]
