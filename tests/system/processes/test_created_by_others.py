"""What one participant creates, others open: also those that had joined before."""

import numpy as np
import pytest
import zarr

from tests.tools.members import committed, fill, members
from txstore.store import TxStore


def create(store: TxStore, path: str, zarr_format: int = 3) -> None:
    zarr.create_array(store, name=path, data=np.zeros(8, "i8"), chunks=(4,), zarr_format=zarr_format)


def names(store: TxStore, path: str = "") -> list[str]:
    return sorted(zarr.open_group(store, path=path, mode="r").keys())


def create_again(store: TxStore, path: str) -> str:
    try:
        create(store, path)
    except zarr.errors.ContainsArrayError:
        return "there is one"
    return "created"


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("path", ["y", "group/y"])
def test_an_array_that_another_has_created_is_opened(repo, store, path, zarr_format):
    with members(store, 3) as (creator, *others):
        creator.do(create, path, zarr_format)
        for number, other in enumerate(others):
            other.do(fill, path, 4 * number, 4 * number + 4, number + 1)
        for member in (creator, *others):
            member.leave()
    store.commit()
    assert committed(repo, path) == [1] * 4 + [2] * 4


def test_a_group_is_listed_with_what_others_have_created(repo, store):
    with members(store, 2) as (creator, other):
        creator.do(create, "group/y")
        assert other.do(names, "group") == ["y"]
        creator.do(create, "group/z")
        assert other.do(names, "group") == ["y", "z"]
        assert other.do(create_again, "group/z") == "there is one"
        for member in (creator, other):
            member.leave()
    store.commit()
    assert committed(repo, "group/z") == [0] * 8


def opens(store: TxStore, path: str) -> bool:
    try:
        zarr.open_array(store, path=path)
    except FileNotFoundError:
        return False
    return True


def create_and_die(store: TxStore, path: str) -> None:
    """Die when the operation has staged all, and has not ended."""
    import os
    import signal

    staging = store.mapping.staging
    staging.part.end_operation = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    create(store, path)


def test_what_a_dead_process_has_left_half_done_is_not_opened(repo, store):
    with members(store, 2) as (creator, other):
        creator.begin(create_and_die, "y")
        creator.process.join()
        assert not other.do(opens, "y")
        other.do(create, "y")
        other.leave()
    store.commit()
    assert committed(repo, "y") == [0] * 8
