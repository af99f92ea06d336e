"""`tests/conflicts/test_conflicts.py`, on what `conftest.py` says."""

from tests.conflicts.test_conflicts import *
