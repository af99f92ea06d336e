"""The codec pipeline that an array over a `TxStore` has: what stands between `z[a:b] = x` and the store.

It is on by itself: importing the store makes it zarr's default, and arrays over any other store get just the pipeline
that they would have got. It stays out of the way where `codec_pipeline.path` was configured before, and where the
environment says `TXSTORE_PIPELINE=off`.
"""

from txstore.pipeline.codec_pipeline import TxCodecPipeline
from txstore.pipeline.registration import describe

__all__ = ["TxCodecPipeline", "describe"]
