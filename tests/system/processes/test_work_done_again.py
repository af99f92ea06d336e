"""I8: work of a block that failed, or of a process that was killed, is gone from the owner's view, and can be redone.

By the owner, or by anybody else. Until all of it was written again, the commit is refused.
"""

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.members import committed, enter, members
from txstore.store import TxStore

pytestmark = pytest.mark.long

Operation = tuple[str, int, int, int]  # "set" or "add", from, to, the value


def do(store: TxStore, operation: Operation) -> None:
    kind, start, stop, value = operation
    z = zarr.open_array(store, path="x", mode="r+")
    z[start:stop] = z[start:stop] + value if kind == "add" else value


def leave(store: TxStore) -> None:
    store.__exit__(RuntimeError, RuntimeError(), None)


def refused(store: TxStore, *keys: str) -> None:
    with pytest.raises(txstore.ParticipantLostError) as caught:
        store.commit()
    assert caught.value.keys == keys


def test_what_the_owner_has_read_of_it_is_not_written_as_if_it_was_not_there(repo, store):
    with members(store, 1) as (worker,):
        worker.do(enter)
        worker.do(do, ("set", 0, 4, 1))
        z = zarr.open_array(store, path="x", mode="r+")
        seen = z[0:4]
        worker.do(leave)
        assert z[4:8].tolist() == [0] * 4  # it learns of the end
        z[0:4] = seen + 1
        with pytest.raises(txstore.ConflictError):
            store.commit()


def create(store: TxStore, path: str, value: int, fails: bool = False) -> None:
    with store:
        zarr.create_array(store, name=path, shape=(8,), chunks=(4,), dtype="i8")[:] = value
        if fails:
            raise RuntimeError


def delete(store: TxStore, path: str) -> None:
    with store:
        del zarr.open_group(store, mode="r+")[path]
        raise RuntimeError


def append(store: TxStore, value: int) -> None:
    with store:
        zarr.open_array(store, path="x", mode="r+").append(np.full(4, value, "i8"))
        raise RuntimeError


@pytest.mark.parametrize("early", [False, True])
def test_nodes_that_a_failed_block_has_created_deleted_or_changed(repo, store, early):
    with repo.transaction() as before:
        zarr.create_array(before, name="g/y", data=np.ones(4, "i8"))
    store = repo.transaction()
    group = zarr.open_group(store, mode="r+")
    x = zarr.open_array(store, path="x", mode="r+")
    with members(store, 1) as (worker,):
        for what, *arguments in ((create, "new", 1, True), (delete, "g"), (append, 5)):
            with pytest.raises(RuntimeError):
                worker.do(what, *arguments)
    if not early:
        with pytest.raises(txstore.ParticipantLostError):
            store.commit()
    assert sorted(group) == ["g", "x"]
    assert group["g/y"][:].tolist() == [1] * 4
    assert zarr.open_array(store, path="x").shape == (32,)
    zarr.create_array(store, name="new", shape=(8,), chunks=(4,), dtype="i8")[:] = 2
    with pytest.raises(txstore.ParticipantLostError):
        store.commit()
    del group["g"]
    with pytest.raises(txstore.ParticipantLostError) as caught:
        store.commit()
    assert caught.value.keys == ("x/c/8", "x/zarr.json")
    x = zarr.open_array(store, path="x", mode="r+")
    x.append(np.full(4, 6, "i8"))
    store.commit()
    assert committed(repo, "new") == [2] * 8
    assert committed(repo) == [0] * 32 + [6] * 4
    assert "g/y/zarr.json" not in repo.mapping()
