"""`tests/history/test_operations.py`, on what `conftest.py` says."""

from tests.history.test_operations import *
