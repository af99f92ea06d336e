"""What views have derived from values tells of them: an erasure wants both gone."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import txstore
from txstore.views import Coarsen


def test_sources_of_views_are_not_erased_before_the_view_is_dropped(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name="group/x", data=np.arange(8.0), chunks=(2,), dimension_names=["t"])
        zarr.create_array(store, name="group/t", data=np.arange(8), chunks=(8,), dimension_names=["t"])
        store.views["half"] = Coarsen("group/x", "group/x{level}", (2,))
    head = repo.head()
    for paths, rows in ((["group/x"], {}), (["group"], {}), (["group/x"], {"t": 3}), (["group"], {"t": 3})):
        with pytest.raises(txstore.ErasureError, match="the view 'half' derives 'group/x1'"):
            repo.erase(*paths, rows) if rows else repo.erase(*paths)
    assert repo.head() == head
    del repo.views["half"]
    repo.erase("group/x", {"t": 3})
    repo.erase("group/x1")
    assert zarr.open_array(repo.snapshot(), path="group/x", mode="r")[:].tolist() == [0, 1, 2, 0, 4, 5, 6, 7]
    assert not repo.verify().faults
