"""`tests/transactions/test_transactions.py`, on what `conftest.py` says."""

import pytest

from tests.transactions.test_transactions import *

pytestmark = pytest.mark.long
