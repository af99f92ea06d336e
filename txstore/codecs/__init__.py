"""Chunks: decoding, comparing and encoding them. No I/O."""
