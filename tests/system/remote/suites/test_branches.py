"""`tests/history/test_branches.py`, on what `conftest.py` says."""

import pytest

from tests.history.test_branches import *

pytestmark = pytest.mark.long
