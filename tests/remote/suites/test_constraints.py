"""`tests/conflicts/test_constraints.py`, on what `conftest.py` says."""

from tests.conflicts.test_constraints import *
