"""`tests/bad_input/test_history.py`, on what `conftest.py` says."""

from tests.bad_input.test_history import *
