"""`tests/transactions/test_parts.py`, on what `conftest.py` says."""

import pytest

from tests.transactions.test_parts import *

pytestmark = pytest.mark.long
