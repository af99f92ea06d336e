"""`tests/maintenance/test_branches.py`, on what `conftest.py` says."""

from tests.maintenance.test_branches import *
