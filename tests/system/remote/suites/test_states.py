"""`tests/system/bad_input/test_states.py`, on what `conftest.py` says."""

import pytest

from tests.system.bad_input.test_states import *

pytestmark = pytest.mark.long
