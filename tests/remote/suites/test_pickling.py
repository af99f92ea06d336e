"""`tests/conformance/test_pickling.py`, on what `conftest.py` says."""

from tests.conformance.test_pickling import *
