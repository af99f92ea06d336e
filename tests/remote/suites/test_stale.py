"""`tests/conflicts/test_stale.py`, on what `conftest.py` says."""

from tests.conflicts.test_stale import *
