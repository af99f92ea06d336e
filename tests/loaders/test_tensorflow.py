"""TensorFlow: a `tf.data` pipeline with parts that are interleaved in parallel."""

import pytest

from tests.loaders.training_data import COUNT, WINDOW, committing, numbers_of

tf = pytest.importorskip("tensorflow")

from txstore.loaders import tensorflow_dataset  # noqa: E402


def items(dataset):
    return dataset.as_numpy_iterator()


@pytest.mark.parametrize("batch_size", [None, 16])
def test_each_sample_once_an_epoch_of_one_commit_while_others_are_made(samples, repo, batch_size):
    with committing(repo.url):
        for epoch in range(2):
            found = []
            for rank in range(2):
                dataset = tensorflow_dataset(
                    samples, batch_size=batch_size, window=WINDOW, num_shards=2, shard_index=rank, parallel=4,
                    epoch=epoch, deterministic=False,
                )  # fmt: skip
                found += numbers_of(items(dataset.prefetch(tf.data.AUTOTUNE)))
            assert sorted(found) == list(range(COUNT))
    assert repo.head().version > samples.commit.version


def test_dtypes_and_shapes_are_known_before_anything_is_read(samples):
    spec = tensorflow_dataset(samples, batch_size=8).element_spec
    assert (spec["x"].shape.as_list(), spec["x"].dtype) == ([None, 3], tf.float32)
    assert (spec["y"].shape.as_list(), spec["y"].dtype) == ([None], tf.int64)


def test_resumed_by_skipping(samples):
    def dataset():
        return tensorflow_dataset(samples, window=WINDOW, parallel=3, seed=5)

    whole = numbers_of(items(dataset()))
    assert numbers_of(items(dataset().take(70))) + numbers_of(items(dataset().skip(70))) == whole
    assert sorted(whole) == list(range(COUNT))
