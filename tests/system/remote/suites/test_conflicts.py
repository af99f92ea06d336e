"""`tests/transactions/test_conflicts.py`, on what `conftest.py` says."""

from tests.transactions.test_conflicts import *
