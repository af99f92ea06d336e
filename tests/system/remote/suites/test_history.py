"""`tests/system/bad_input/test_history.py`, on what `conftest.py` says."""

from tests.system.bad_input.test_history import *
