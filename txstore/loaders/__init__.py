"""Feeds training pipelines from one commit: `docs/how-to/training.md`. Imports PyTorch and TensorFlow on demand."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txstore.loaders.samples import Field, Samples
from txstore.loaders.stream import SampleStream

if TYPE_CHECKING:
    from txstore.loaders.tensorflow_dataset import tensorflow_dataset
    from txstore.loaders.torch_datasets import TorchDataset, TorchIterableDataset

__all__ = ["Field", "SampleStream", "Samples", "TorchDataset", "TorchIterableDataset", "tensorflow_dataset"]

_LATE = {
    "TorchDataset": "torch_datasets",
    "TorchIterableDataset": "torch_datasets",
    "tensorflow_dataset": "tensorflow_dataset",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'txstore.loaders' has no attribute {name!r}")
    found = getattr(import_module(f"txstore.loaders.{_LATE[name]}"), name)
    globals()[name] = found  # replaces a module of the same name
    return found


def __dir__() -> list[str]:
    return __all__
