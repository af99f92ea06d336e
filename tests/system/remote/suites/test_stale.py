"""`tests/transactions/test_stale.py`, on what `conftest.py` says."""

from tests.transactions.test_stale import *
