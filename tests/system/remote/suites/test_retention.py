"""`tests/maintenance/test_retention.py`, on what `conftest.py` says."""

import pytest

from tests.maintenance.test_retention import *

pytestmark = pytest.mark.long
