"""`tests/transactions/test_stale.py`, on what `conftest.py` says."""

import pytest

from tests.transactions.test_stale import *

pytestmark = pytest.mark.long
