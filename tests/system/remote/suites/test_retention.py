"""`tests/maintenance/test_retention.py`, on what `conftest.py` says."""

from tests.maintenance.test_retention import *
