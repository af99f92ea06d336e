"""`tests/maintenance/test_merged.py`, on what `conftest.py` says."""

import pytest

from tests.maintenance.test_merged import *

pytestmark = pytest.mark.long
