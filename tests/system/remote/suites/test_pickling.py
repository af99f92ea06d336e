"""`tests/store/test_pickling.py`, on what `conftest.py` says."""

import pytest

from tests.store.test_pickling import *

pytestmark = pytest.mark.long
