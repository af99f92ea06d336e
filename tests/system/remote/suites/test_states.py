"""`tests/system/bad_input/test_states.py`, on what `conftest.py` says."""

from tests.system.bad_input.test_states import *
