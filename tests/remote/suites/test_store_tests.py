"""`tests/conformance/test_store_tests.py`, on what `conftest.py` says."""

from tests.conformance.test_store_tests import *
