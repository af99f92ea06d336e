"""`tests/conflicts/test_late_writes.py`, on what `conftest.py` says."""

from tests.conflicts.test_late_writes import *
