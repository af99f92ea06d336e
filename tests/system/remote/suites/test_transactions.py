"""`tests/transactions/test_transactions.py`, on what `conftest.py` says."""

from tests.transactions.test_transactions import *
