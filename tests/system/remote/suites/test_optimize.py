"""`tests/maintenance/test_optimize.py`, on what `conftest.py` says."""

from tests.maintenance.test_optimize import *
