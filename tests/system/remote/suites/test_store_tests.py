"""`tests/store/test_store_tests.py`, on what `conftest.py` says."""

from tests.store.test_store_tests import *
