"""A lock table in C, and two owners of it."""

import pytest

from tests.tools.lock_clients import native, open_table


@pytest.fixture
def path(tmp_path):
    native()
    return tmp_path / "chunks"


@pytest.fixture
def table(path):
    return open_table(path)


@pytest.fixture
def owners(table):
    return table.owner(), table.owner()
