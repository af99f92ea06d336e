"""`tests/conformance/test_retention.py`, on what `conftest.py` says."""

from tests.conformance.test_retention import *
