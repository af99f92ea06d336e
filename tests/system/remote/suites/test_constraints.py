"""`tests/transactions/test_constraints.py`, on what `conftest.py` says."""

from tests.transactions.test_constraints import *
