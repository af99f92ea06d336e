"""`tests/maintenance/test_usage.py`, on what `conftest.py` says."""

import pytest

from tests.maintenance.test_usage import *

pytestmark = pytest.mark.long
