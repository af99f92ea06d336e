"""`tests/maintenance/test_merged.py`, on what `conftest.py` says."""

from tests.maintenance.test_merged import *
