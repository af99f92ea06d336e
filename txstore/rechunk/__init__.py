"""Gives an array other chunks, shards or compressors while others write to it: built on branches and references."""

from txstore.rechunk.job import rechunk
from txstore.rechunk.target import KEEP

__all__ = ["KEEP", "rechunk"]
