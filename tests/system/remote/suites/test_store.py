"""`tests/store/test_store.py`, on what `conftest.py` says."""

import pytest

from tests.store.test_store import *

pytestmark = pytest.mark.long
