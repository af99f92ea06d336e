"""The first block that people run, of README.md and of the first page, runs again in the same place."""

from pathlib import Path

import pytest
import xarray as xr

import txstore
from tests.tools.recipes import Recipe

pytestmark = pytest.mark.long


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_it_runs_twice(page: str, tmp_path: Path) -> None:
    recipe = Recipe(page, tmp_path)
    printed = [recipe.run(recipe.code()) for _ in range(2)]
    assert printed[0] == printed[1]
    repo = txstore.Repository(tmp_path / "weather.tx")
    assert repo.verify().faults == []
    assert xr.open_dataset(repo, engine="txstore").temperature.size == (48 if page == "README.md" else 24)
