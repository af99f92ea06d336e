"""Feeding training pipelines from one commit: `docs/training.md`. PyTorch, TensorFlow: imported when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txstore.bridges.sample_stream import SampleStream
from txstore.bridges.samples import Field, Samples

if TYPE_CHECKING:
    from txstore.bridges.tensorflow_loaders import tensorflow_dataset
    from txstore.bridges.torch_loaders import TorchDataset, TorchIterableDataset

__all__ = ["Field", "SampleStream", "Samples", "TorchDataset", "TorchIterableDataset", "tensorflow_dataset"]

_FRAMEWORKS = {
    "TorchDataset": "torch_loaders",
    "TorchIterableDataset": "torch_loaders",
    "tensorflow_dataset": "tensorflow_loaders",
}


def __getattr__(name: str) -> Any:
    if name not in _FRAMEWORKS:
        raise AttributeError(f"module 'txstore.loaders' has no attribute {name!r}")
    return getattr(import_module(f"txstore.bridges.{_FRAMEWORKS[name]}"), name)
