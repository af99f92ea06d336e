"""`tests/store/test_zarr.py`, on what `conftest.py` says."""

from tests.conftest import pipeline
from tests.store.test_zarr import *
