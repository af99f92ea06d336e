"""`tests/conformance/test_usage.py`, on what `conftest.py` says."""

from tests.conformance.test_usage import *
