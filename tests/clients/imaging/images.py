"""An image and its labels, the same in each test of imaging."""

from __future__ import annotations

import numpy as np

AXES = "czyx"
#: Physical size of a pixel along each axis.
SCALE = {"c": 1.0, "z": 0.5, "y": 0.1, "x": 0.1}


def image(channels: int = 2, depth: int = 2, side: int = 512) -> np.ndarray:
    """Return blobs with noise, of shape (channels, depth, side, side), unsigned 16 bit."""
    rows, columns = np.mgrid[:side, :side]
    blobs = 1000 + 900 * np.sin(rows / 40) * np.cos(columns / 60)
    noise = np.random.default_rng(0).integers(0, 50, (channels, depth, side, side))
    return (blobs + noise).astype("u2")


def labels(depth: int = 2, side: int = 512) -> np.ndarray:
    """Return labels of squares, of shape (depth, side, side)."""
    rows, columns = np.mgrid[:side, :side] // 64
    return np.broadcast_to(rows * (side // 64) + columns, (depth, side, side)).astype("u4")
