"""docs/how-to/undo.md: a bad month with another appended behind it; undone late, again, at once, or killed."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import txstore
from tests.tools.recipes import Recipe

pytestmark = pytest.mark.long

IMPORTS = "import numpy as np\nimport zarr\nimport txstore\n"
#: The blocks of the page on it: three months, gaps, no rows.
MONTHS, GAPS, REMOVED = 3, 4, 5


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    recipe = Recipe("docs/how-to/undo.md", tmp_path)
    recipe.run(IMPORTS + recipe.code(MONTHS))
    return recipe


def weather(recipe: Recipe) -> txstore.Repository:
    repo = txstore.Repository(recipe.directory / "weather.tx")
    assert repo.verify().faults == []
    return repo


def values(repo: txstore.Repository) -> dict[str, list[float]]:
    ds = xr.open_dataset(repo, engine="txstore")
    assert ds.sizes["time"] == ds.t2m.size == ds["count"].size
    months = {str(day)[:7] for day in ds.time.values}
    return {month: sorted(set(ds.t2m.sel(time=month).values.tolist())) for month in sorted(months)}


def opened(recipe: Recipe) -> str:
    return (
        IMPORTS + 'import xarray as xr\nweather = txstore.Repository("weather.tx")\n'
        'bad = xr.open_dataset(weather, engine="txstore").sel(time="2026-02")\n'
    )


def test_revert_says_how(recipe: Recipe) -> None:
    repo = weather(recipe)
    with pytest.raises(txstore.MergeConflictError, match=r"go by label: `upsert`"):
        repo.revert(1)
    assert values(repo) == {"2026-01": [1], "2026-02": [-99], "2026-03": [3]}


def test_gaps_then_values_that_come_late(recipe: Recipe) -> None:
    for _ in range(2):
        recipe.run(opened(recipe) + recipe.code(GAPS))
    repo = weather(recipe)
    assert len(repo.log()) == 4  # the second time nothing is changed
    ds = xr.open_dataset(repo, engine="txstore")
    assert ds.sizes["time"] == 84
    assert np.isnan(ds.t2m.values[28:56]).all()
    assert set(ds["count"].values[28:56]) == {-1}
    repo.upsert(ds[["t2m"]].sel(time="2026-02").load().fillna(2.0))
    assert values(repo) == {"2026-01": [1], "2026-02": [2], "2026-03": [3]}


def test_rows_are_removed_once(recipe: Recipe) -> None:
    """Also if a row before them was corrected since, and if months come behind at the same time."""
    repo = weather(recipe)
    repo.upsert(xr.open_dataset(repo, engine="txstore")[["t2m"]].sel(time=["2026-01-05"]).load() * 0 + 1.5)
    remove = recipe.code(REMOVED, before="ds = xr.open_dataset(weather")
    months = recipe.code(MONTHS, before="weather = ")
    append = f'{months}\nweather.upsert(month("2026-04-01", 4.0))'
    recipe.race(opened(recipe), [remove, append, remove])
    expected = {"2026-01": [1, 1.5], "2026-03": [3], "2026-04": [4]}
    assert values(weather(recipe)) == expected
    recipe.run(opened(recipe) + f'bad = np.datetime64("2026-02-03")\nbad = xr.Dataset({{"time": [bad]}})\n{remove}')
    assert values(weather(recipe)) == expected
