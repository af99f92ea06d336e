"""mudata writes several kinds of measurement of the same cells; scanpy computes on what was read lazily."""

from __future__ import annotations

from typing import Any

import anndata
import mudata
import numpy as np
import scanpy

from tests.clients.single_cell.cells import cells, parts
from tests.clients.trials import Both, assert_same, tool


@tool("mudata", code="data.write_zarr(store); mudata.read_zarr(repo.snapshot())", tried="`write_zarr`, `read_zarr`")
def test_mudata(both: Both) -> None:
    def read(store: Any) -> dict[str, Any]:
        found = mudata.read_zarr(store)
        return {**{name: parts(found[name]) for name in found.mod}, "all": found.obs_names.to_numpy()}

    data = mudata.MuData({"rna": cells(1000), "protein": cells(1000)})
    found = both(lambda store: mudata.write_zarr(store, data), read)
    assert_same(found["rna"], parts(cells(1000)))


@tool(
    "scanpy",
    code="data = anndata.experimental.read_lazy(repo.snapshot()); scanpy.pp.normalize_total(data)",
    tried="normalization and logarithms with Dask's chunks, principal components, results written",
)
def test_scanpy(both: Both) -> None:
    def write(store: Any) -> None:
        data = cells()
        scanpy.pp.normalize_total(data)
        scanpy.pp.log1p(data)
        scanpy.pp.pca(data, n_comps=10, random_state=0)
        data.write_zarr(store)

    def read(store: Any) -> list[Any]:
        lazy = anndata.experimental.read_lazy(store)
        data = anndata.AnnData(X=lazy.X, obs=lazy.obs.to_memory(), var=lazy.var.to_memory())
        scanpy.pp.normalize_total(data, target_sum=1)
        return [data.X.compute().toarray(), anndata.read_zarr(store).obsm["X_pca"]]

    found, components = both(write, read)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-4)
    assert components.shape == (2000, 10)
