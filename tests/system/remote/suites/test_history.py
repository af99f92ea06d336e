"""`tests/system/bad_input/test_history.py`, on what `conftest.py` says."""

import pytest

from tests.system.bad_input.test_history import *

pytestmark = pytest.mark.long
