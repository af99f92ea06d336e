"""The machines of `tests/store/test_stateful.py`: fewer examples, since each step waits for a server."""

from collections.abc import Callable
from itertools import count

import pytest

import txstore
from tests.store.test_stateful import CommittedHierarchy, CommittedKeys, Hierarchy, Keys, Machine, run
from tests.system.remote.suites.conftest import RUNS_ALL


@pytest.mark.parametrize("machine", [Hierarchy, CommittedHierarchy, Keys, CommittedKeys])
def test_it_behaves_as_in_memory(open_repo: Callable[..., txstore.Repository], machine: Machine) -> None:
    number = count()
    examples, steps = (10, 50) if RUNS_ALL else (3, 20)
    run(machine, lambda: open_repo(f"{next(number)}.tx"), examples=examples, steps=steps)
