"""`tests/conformance/test_store.py`, on what `conftest.py` says."""

from tests.conformance.test_store import *
