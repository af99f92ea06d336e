"""Makes zarr use our pipeline, and the caller's thread, for arrays over a `TxStore` only. Opens arrays that we read.

A stranger may have written the documents and chunks of the arrays that TxStore reads on its own. All other reads are
the user's, and zarr does them. `tests/test_layers.py` finds an array that is opened elsewhere.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

import zarr
from zarr.registry import register_pipeline

from txstore.codecs.allowed_codecs import check_array
from txstore.pipeline.chunk_store import ChunkStore
from txstore.pipeline.codec_pipeline import TxCodecPipeline, zarr_default
from txstore.sessions import calling_thread

_SETTING = "codec_pipeline.path"
_NAME = f"{TxCodecPipeline.__module__}.{TxCodecPipeline.__qualname__}"


def register() -> None:
    """Make the pipeline known to zarr, and its default unless another is configured; replace zarr's `sync`."""
    register_pipeline(TxCodecPipeline)
    if _is_wanted("TXSTORE_PIPELINE") and zarr.config.get(_SETTING) == zarr_default():
        zarr.config.set({_SETTING: _NAME})
    if _is_wanted("TXSTORE_CALLING_THREAD"):
        calling_thread.install(ChunkStore)


def _is_wanted(variable: str) -> bool:
    return os.environ.get(variable, "on").lower() not in ("off", "0", "false", "no")


def describe(array: Any) -> str:
    """Return which codec pipeline an array has, and whether chunks go through the C libraries in batches.

    Examples
    --------
    >>> import tempfile, zarr, txstore, txstore.pipeline
    >>> store = txstore.TxStore(tempfile.mkdtemp() + "/data.tx")
    >>> z = zarr.create_array(store, name="x", shape=(4,), chunks=(2,), dtype="i4")
    >>> txstore.pipeline.describe(z)
    'txstore: batches of chunks'
    """
    pipeline = getattr(array, "async_array", array).codec_pipeline
    return str(pipeline) if isinstance(pipeline, TxCodecPipeline) else f"zarr: {type(pipeline).__name__}"


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
