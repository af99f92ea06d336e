"""`tests/maintenance/test_optimize.py`, on what `conftest.py` says."""

import pytest

from tests.maintenance.test_optimize import *

pytestmark = pytest.mark.long
