"""Stores in memory that count as far away."""

from __future__ import annotations

from typing import Any

import pytest

from txstore.history import remote_commits
from txstore.storage.objects import client


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory costs requests; who has looked at a head does not look again, however slow the machine is."""
    begin = client.ObjectClient.__init__

    def begin_far(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self.is_remote = True

    monkeypatch.setattr(client.ObjectClient, "__init__", begin_far)
    monkeypatch.setattr(remote_commits, "_STAYS", 1000.0)
    monkeypatch.setattr(remote_commits, "_STANDS", -1.0)  # nor does a vacuum wait
