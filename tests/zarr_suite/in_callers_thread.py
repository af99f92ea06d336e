"""A plugin for zarr's own test suite: every call of zarr runs in the caller's thread, as calls over a `TxStore` do.

`make test-on WHAT=zarr-suite` runs the suite of the installed zarr with and without it, and compares what fails.
"""

from __future__ import annotations

import pytest
from zarr.abc.store import Store

from txstore.sessions import calling_thread


def pytest_configure(config: pytest.Config) -> None:
    calling_thread.install(Store)  # for any store
