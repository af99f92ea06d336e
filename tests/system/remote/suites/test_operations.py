"""`tests/history/test_operations.py`, on what `conftest.py` says."""

import pytest

from tests.history.test_operations import *

pytestmark = pytest.mark.long
