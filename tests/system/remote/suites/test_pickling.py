"""`tests/store/test_pickling.py`, on what `conftest.py` says."""

from tests.store.test_pickling import *
