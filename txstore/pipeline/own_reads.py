"""Opens the arrays that TxStore reads on its own: a stranger may have written their documents, and their chunks.

All other reads are the user's, and zarr does them. `tests/test_layers.py` finds an array that is opened elsewhere.
"""

from __future__ import annotations

from typing import Any, TypeVar

import zarr

from txstore.codecs.allowed_codecs import check_array
from txstore.pipeline.codec_pipeline import TxCodecPipeline

AnyArray = TypeVar("AnyArray", bound="zarr.Array[Any]")


def open_own(store: Any, path: str, **options: Any) -> zarr.Array[Any]:
    """Open an array as `zarr.open_array` does, for reads of our own. Raises `CodecRefusedError`."""
    return made_own(zarr.open_array(store, path=path, **options))


def made_own(array: AnyArray) -> AnyArray:
    """Return an array that zarr has opened, after this made it fit for reads of our own.

    It decodes no more than its document says that a chunk has. Raises `CodecRefusedError` if it has codecs that may not
    run.
    """
    check_array(array)
    opened = array.async_array
    object.__setattr__(opened, "codec_pipeline", TxCodecPipeline(opened.metadata, is_bounded=True))
    return array
