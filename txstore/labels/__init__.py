"""Writes data by the labels of coordinates, and moves rows of arrays: built on stores alone."""

from txstore.labels.upsert import Upserted, upsert
from txstore.labels.window import prepend, roll

__all__ = ["Upserted", "prepend", "roll", "upsert"]
