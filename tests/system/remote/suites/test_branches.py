"""`tests/history/test_branches.py`, on what `conftest.py` says."""

from tests.history.test_branches import *
