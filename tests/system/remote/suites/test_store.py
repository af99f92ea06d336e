"""`tests/store/test_store.py`, on what `conftest.py` says."""

from tests.store.test_store import *
