"""The tests of tests/transactions/test_parts.py on a remote repository."""

from tests.transactions.test_parts import *  # noqa: F403
