"""`tests/maintenance/test_branches.py`, on what `conftest.py` says."""

import pytest

from tests.maintenance.test_branches import *

pytestmark = pytest.mark.long
