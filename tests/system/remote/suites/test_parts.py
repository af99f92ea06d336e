"""`tests/transactions/test_parts.py`, on what `conftest.py` says."""

from tests.transactions.test_parts import *
