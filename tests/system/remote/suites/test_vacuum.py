"""`tests/maintenance/test_vacuum.py`, on what `conftest.py` says."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import txstore
from tests.maintenance.test_vacuum import *
from tests.maintenance.test_vacuum import Steps
from tests.tools.inside import objects_of
from tests.tools.upkeep import below

REQUESTS = ("get", "get_range", "get_ranges", "get_tail", "list", "list_after", "now", "put", "create", "delete")


class ObjectSteps(Steps):
    """The same, of repositories on an object store, which are copied object by object: a step is a request."""

    operations = 2

    def __init__(self, open_repo: Callable[..., txstore.Repository]) -> None:
        self.open = open_repo
        super().__init__(Path())

    def copy(self, name: str) -> None:
        source, target = objects_of(self.repo), objects_of(self.open(name))
        for path, _ in below(source):
            target.put(path, [source.get(path)])

    def remove(self, name: str) -> None:
        """The server is there for the tests alone."""

    def watch(self, repo: txstore.Repository) -> None:
        objects = objects_of(repo)
        for name in REQUESTS:
            setattr(objects, name, self._watched(getattr(objects, name)))

    def _watched(self, request: Callable[..., object]) -> Callable[..., object]:
        def watched(*args: object) -> object:
            if threading.current_thread().name != "txstore head cache":  # which comes whenever it does
                self.before_each()
            return request(*args)

        return watched


@pytest.fixture
def steps(open_repo: Callable[..., txstore.Repository]) -> Steps:
    return ObjectSteps(open_repo)
