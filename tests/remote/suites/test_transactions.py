"""`tests/conflicts/test_transactions.py`, on what `conftest.py` says."""

from tests.conflicts.test_transactions import *
