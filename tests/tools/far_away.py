"""Stores in memory that count as far away, and what is asked of them."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.tools.waiting import wait_for_requests
from txstore.history import branches_in_objects, object_head_caches
from txstore.storage.objects import client


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory costs requests; who has looked at a head does not look again, however slow the machine is."""
    begin = client.ObjectClient.__init__

    def begin_far(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self.makes_requests = True

    monkeypatch.setattr(client.ObjectClient, "__init__", begin_far)
    for module, name, seconds in ((object_head_caches, "STAYS", 1000.0), (branches_in_objects, "_STANDS", -1.0)):
        monkeypatch.setattr(module, name, seconds)  # nor does a vacuum wait


class Requests(list[str]):
    """The paths that were asked for, but for head caches, which are written when it suits them.

    What is asked for in the background belongs to what came before `clear`.
    """

    def clear(self) -> None:
        wait_for_requests()
        super().clear()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    found = Requests()
    send = client.ObjectClient._request

    def counted(self: Any, path: str, request: Callable[[Any], Any], **how: Any) -> Any:
        if threading.current_thread().name != "txstore head cache":
            found.append(path)
        return send(self, path, request, **how)

    monkeypatch.setattr(client.ObjectClient, "_request", counted)
    return found
