"""`tests/transactions/test_constraints.py`, on what `conftest.py` says."""

import pytest

from tests.transactions.test_constraints import *

pytestmark = pytest.mark.long
