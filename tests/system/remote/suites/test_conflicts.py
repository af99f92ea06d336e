"""`tests/transactions/test_conflicts.py`, on what `conftest.py` says."""

import pytest

from tests.transactions.test_conflicts import *

pytestmark = pytest.mark.long
