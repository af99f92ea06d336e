"""Cells with annotations, and what of them has to be the same when they are read again."""

from __future__ import annotations

from typing import Any

import anndata
import numpy as np
import pandas as pd
import scipy.sparse

GENES = 200


def cells(count: int = 2000, seed: int = 0) -> anndata.AnnData:
    """Return counts of genes, sparse, with the kinds of annotations that there are."""
    random = np.random.default_rng(seed)
    return anndata.AnnData(
        X=scipy.sparse.random(count, GENES, 0.2, format="csr", dtype="f4", random_state=seed),
        obs=pd.DataFrame(
            {"kind": pd.Categorical(random.choice(["a", "b"], count)), "depth": random.random(count)},
            index=[f"cell-{seed}-{number}" for number in range(count)],
        ),
        var=pd.DataFrame(index=[f"gene-{number}" for number in range(GENES)]),
        obsm={"pca": random.random((count, 3))},
        layers={"dense": random.random((count, GENES))},
        uns={"title": "cells", "nested": {"numbers": np.arange(3)}},
    )


def parts(data: anndata.AnnData) -> dict[str, Any]:
    """Return all that `cells` has made, dense."""
    return {
        "X": data.X.toarray(),
        "obs": {"": data.obs_names.to_numpy(), **{name: np.asarray(data.obs[name]) for name in data.obs}},
        "var": {"": data.var_names.to_numpy(), **{name: np.asarray(data.var[name]) for name in data.var}},
        "obsm": dict(data.obsm),
        "dense": data.layers["dense"],
        "uns": dict(data.uns),
    }
