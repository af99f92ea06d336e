"""`tests/system/bad_input/test_keys_and_values.py`, on what `conftest.py` says."""

from tests.system.bad_input.test_keys_and_values import *
