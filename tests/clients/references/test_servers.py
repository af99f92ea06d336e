"""Servers of other projects publish what a snapshot has."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
import xpublish
from fastapi import APIRouter, Depends
from starlette.testclient import TestClient
from xpublish.dependencies import get_dataset

from tests.clients.references.fields import field, write
from tests.clients.trials import Both, tool

router = APIRouter()


@router.get("/column/{lat}/{lon}")
def column(lat: float, lon: float, dataset: xr.Dataset = Depends(get_dataset)) -> list[float]:  # noqa: B008 - FastAPI's way
    return dataset.t.sel(lat=lat, lon=lon, method="nearest").to_numpy().tolist()


@tool(
    "xpublish",
    code="xpublish.SingleDatasetRest(xr.open_zarr(repo.snapshot()))",
    tried="its description of a data set, and a route of one's own",
)
def test_xpublish(both: Both) -> None:
    def read(store: Any) -> list[Any]:
        rest = xpublish.SingleDatasetRest(xr.open_zarr(store), routers=[router])
        with TestClient(rest.app) as client:
            columns = [client.get(f"/column/{lat}/10").json() for lat in range(-80, 81, 10)]
            return [client.get("/info").json(), columns]

    _, columns = both(write, read)
    np.testing.assert_array_equal(np.array(columns[8], "f4"), field().t.sel(lat=0, lon=10, method="nearest"))
