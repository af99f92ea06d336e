"""Samples for TensorFlow: a `tf.data.Dataset`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import tensorflow as tf

from txstore.loaders.samples import Sample, Samples
from txstore.loaders.stream import WINDOW, SampleStream, check_shard


def tensorflow_dataset(
    samples: Samples,
    *,
    batch_size: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    window: int = WINDOW,
    num_shards: int = 1,
    shard_index: int = 0,
    parallel: int = 2,
    deterministic: bool = True,
) -> tf.data.Dataset:
    """Return one epoch of samples as a `tf.data.Dataset` of dicts, or of batches of them.

    Parameters
    ----------
    samples, batch_size, shuffle, seed, window
        As for `SampleStream`.
    epoch : int
        The number of the epoch: each epoch is another dataset.
    num_shards, shard_index : int
        The number of replicas, and the index of this one, such as those of `tf.distribute.InputContext`.
    parallel : int
        Number of parts of the shard that threads read at the same time and interleave; each has its own window.
    deterministic : bool
        Whether the order must be the same each time. `.skip(items)` then resumes an epoch.
    """
    check_shard(shard_index, num_shards)
    if parallel < 1:
        raise ValueError(f"parallel is {parallel}: it has to be at least 1")
    leading = [] if batch_size is None else [None]
    signature = {
        name: tf.TensorSpec([*leading, *field.shape], tf.as_dtype(field.dtype))
        for name, field in samples.schema.items()
    }
    read = partial(_items, samples, batch_size, shuffle, seed, epoch, window, num_shards * parallel)
    parts = tf.data.Dataset.range(shard_index * parallel, (shard_index + 1) * parallel)
    return parts.interleave(
        lambda part: tf.data.Dataset.from_generator(read, args=(part,), output_signature=signature),
        cycle_length=parallel,
        num_parallel_calls=parallel,
        deterministic=deterministic,
    )


def _items(
    samples: Samples, batch_size: int | None, shuffle: bool, seed: int, epoch: int, window: int, shards: int, part: Any
) -> Iterator[Sample]:
    stream = SampleStream(
        samples, batch_size=batch_size, shuffle=shuffle, seed=seed, window=window, num_shards=shards,
        shard_index=int(part),
    )  # fmt: skip
    stream.set_epoch(epoch)
    return iter(stream)
