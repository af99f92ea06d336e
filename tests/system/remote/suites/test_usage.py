"""`tests/maintenance/test_usage.py`, on what `conftest.py` says."""

from tests.maintenance.test_usage import *
