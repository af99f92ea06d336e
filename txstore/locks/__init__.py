"""Locks on chunk keys, so that one transaction at a time writes a chunk; and pins, which the vacuum respects."""
