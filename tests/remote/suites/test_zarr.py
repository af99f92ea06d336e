"""`tests/conformance/test_zarr.py`, on what `conftest.py` says."""

from tests.conformance.conftest import pipeline
from tests.conformance.test_zarr import *
