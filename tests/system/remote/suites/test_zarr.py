"""`tests/store/test_zarr.py`, on what `conftest.py` says."""

import pytest

from tests.conftest import pipeline
from tests.store.test_zarr import *

pytestmark = pytest.mark.long
