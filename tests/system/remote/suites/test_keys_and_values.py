"""`tests/system/bad_input/test_keys_and_values.py`, on what `conftest.py` says."""

import pytest

from tests.system.bad_input.test_keys_and_values import *

pytestmark = pytest.mark.long
