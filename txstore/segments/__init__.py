"""Segments: packs of values and sorted runs of keys. Written once, then read through a map or by ranges."""
