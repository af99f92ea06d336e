"""`tests/conformance/test_optimize.py`, on what `conftest.py` says."""

from tests.conformance.test_optimize import *
