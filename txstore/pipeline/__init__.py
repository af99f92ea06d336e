"""The codec pipeline of arrays over a `TxStore`: it turns `z[a:b] = x` into batches of chunks for the store.

Importing the store makes it zarr's default. Arrays over any other store get the same pipeline as before. It is not
installed if the user has configured `codec_pipeline.path`, or if the environment says `TXSTORE_PIPELINE=off`.
"""

from txstore.pipeline.codec_pipeline import TxCodecPipeline
from txstore.pipeline.registration import describe, made_own, open_own

__all__ = ["TxCodecPipeline", "describe", "made_own", "open_own"]
