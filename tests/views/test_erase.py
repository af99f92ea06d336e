"""What views have derived from values tells of them: an erasure wants both gone."""

import gc
import threading
import time

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.faults import watch
from txstore.views import Coarsen


def test_sources_of_views_are_not_erased_before_the_view_is_dropped(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name="group/x", data=np.arange(8.0), chunks=(2,), dimension_names=["t"])
        zarr.create_array(store, name="group/t", data=np.arange(8), chunks=(8,), dimension_names=["t"])
        store.views["half"] = Coarsen("group/x", "group/levels/{level}/x", (2,))
    head = repo.head()
    for paths, rows in ((["group/x"], {}), (["group"], {}), (["group/x"], {"t": 3}), (["group"], {"t": 3})):
        with pytest.raises(txstore.ErasureError, match="the view 'half' derives 'group/levels/1/x'"):
            repo.erase(*paths, rows) if rows else repo.erase(*paths)
    assert repo.head() == head
    del repo.views["half"]
    repo.erase("group/x", {"t": 3})
    repo.erase("group/levels/1/x")
    assert zarr.open_array(repo.snapshot(), path="group/x", mode="r")[:].tolist() == [0, 1, 2, 0, 4, 5, 6, 7]
    assert not repo.verify().faults


@pytest.mark.parametrize("when", ["commit", "follow"])
def test_outputs_of_views_are_not_erased_before_the_view_is_dropped(repo: txstore.Repository, when: str) -> None:
    """The next commit, or update, would derive them again."""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(8.0), chunks=(2,), dimension_names=["t"])
        store.views["half"] = Coarsen("x", "x{level}", (2,), when=when)
    if when == "follow":
        repo.views["half"].update()
    head = repo.head()
    for rows in ({}, {"t": 1}):
        with pytest.raises(txstore.ErasureError, match="'half' derives it from 'x'"):
            repo.erase("x1", rows, positions=True, timeout=1) if rows else repo.erase("x1", timeout=1)
    assert repo.head() == head
    del repo.views["half"]
    repo.erase("x1", {"t": 1}, positions=True)
    assert zarr.open_array(repo.snapshot(), path="x1", mode="r")[:].tolist() == [0.5, 0, 4.5, 6.5]


@pytest.mark.parametrize("rows", [False, True])
def test_a_view_that_is_declared_while_the_erasure_waits(repo: txstore.Repository, rows: bool) -> None:
    """What it has derived until then would stay in the history."""
    with repo.transaction() as store:
        for name, data in (("x", np.arange(4)), ("v", np.arange(4) + 10)):
            zarr.create_array(store, name=name, data=data, dimension_names=["x"])
    reader = repo.snapshot()
    failed: list[BaseException] = []

    def erase() -> None:
        try:
            txstore.Repository(repo.url).erase("v", *([{"x": 2}] if rows else []))
        except txstore.ErasureError as error:
            failed.append(error)

    thread = threading.Thread(target=erase)
    thread.start()
    time.sleep(1)
    repo.views["half"] = Coarsen("v", "levels/{level}/v", (2,))
    reader.close()
    del reader, store
    gc.collect()
    thread.join()
    assert "drop the view" in str(*failed)
    assert zarr.open_array(repo.snapshot(), path="v", mode="r")[2] == 12


@pytest.mark.parametrize("when", ["commit", "follow"])
@pytest.mark.parametrize("rows", [[], [{"x": 2}]])
def test_a_view_that_is_declared_just_before_the_first_commit_of_an_erasure(
    repo: txstore.Repository, rows: list[dict[str, int]], when: str
) -> None:
    with repo.transaction() as store:
        for name, data in (("x", np.arange(4)), ("v", np.arange(4) + 10)):
            zarr.create_array(store, name=name, data=data, dimension_names=["x"])
    del store
    erasing = txstore.Repository(repo.url)
    watched = watch(erasing)

    def declare(*_: object) -> None:
        watched.before.clear()
        watched.calls.clear()  # they name the transaction, which pins what it is based on
        repo.views["half"] = Coarsen("v", "levels/{level}/v", (2,), when=when)
        if when == "follow":
            repo.views["half"].update()

    watched.before["lock"] = declare
    with pytest.raises(txstore.ErasureError, match=r"drop the view.*(Nothing was changed|no more, the older ones)"):
        erasing.erase("v", *rows, timeout=5)
    watched.calls.clear()
    del repo.views["half"]
    repo.erase("levels", timeout=5)
    repo.erase("v", *rows, timeout=5)
    assert not [each for each in repo.erasures() if each.finished is None]
