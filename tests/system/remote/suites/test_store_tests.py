"""`tests/store/test_store_tests.py`, on what `conftest.py` says."""

import pytest

from tests.store.test_store_tests import *

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::txstore.UncommittedChangesWarning")]
