"""What the tests of all loaders read."""

import pytest

import txstore
from tests.loaders.training_data import COUNT, write
from txstore.loaders import Samples


@pytest.fixture
def samples(repo: txstore.Repository) -> Samples:
    write(repo, COUNT)
    return Samples(repo, ["x", "y"])
