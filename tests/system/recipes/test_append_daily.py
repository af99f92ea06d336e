"""docs/how-to/append-daily.md: days that come in order, late, twice, at once, first, and while the job is killed."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import txstore
from tests.tools.recipes import Recipe

pytestmark = pytest.mark.long
DAYS = [f"2026-03-{day:02}" for day in range(1, 9)]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return Recipe("docs/how-to/append-daily.md", tmp_path)


@pytest.fixture
def job(recipe: Recipe) -> str:
    """The job, up to where the page adds days; its values differ from hour to hour, and from day to day."""
    code = recipe.code(before="for day in ")
    values = "np.full(24, 280.0)"
    assert values in code
    return code.replace(values, "np.arange(24) + 100.0 * int(day[-2:])")


def days_of(path: Path) -> tuple[list[str], txstore.Repository]:
    """Return the days that are there, each of which is whole, and in its place."""
    repo = txstore.Repository(path / "weather.tx")
    assert repo.verify().faults == []
    ds = xr.open_dataset(repo, engine="txstore")
    assert ds.sizes["time"] % 24 == 0
    days = [str(day)[:10] for day in ds.time.values[::24]]
    for number, day in enumerate(days):
        here = ds.isel(time=slice(24 * number, 24 * number + 24))
        assert (here.time.values == np.datetime64(day, "ns") + np.arange(24) * np.timedelta64(1, "h")).all()
        assert here.t2m.values.tolist() == [100.0 * int(day[-2:]) + hour for hour in range(24)]
        assert here.wind.values.tolist() == [0.0] * 24
    return days, repo


def test_the_page_runs_twice(recipe: Recipe) -> None:
    for _ in range(2):
        printed = recipe.run(recipe.code(0) + recipe.code(1))
    assert printed.count("Upserted(updated=0, inserted=0)") == 5
    assert len(txstore.Repository(recipe.directory / "weather.tx").log()) == 4 + 2  # days, and constraints


def test_late_and_repeated_days(recipe: Recipe, job: str) -> None:
    order = [3, 1, 1, 0, 2, 5, 3, 4]
    recipe.run(job + "".join(f"add({DAYS[number]!r})\n" for number in order))
    days, repo = days_of(recipe.directory)
    assert days == DAYS[:6]
    assert [commit.properties["day"] for commit in repo.log()][::-1] == [DAYS[n] for n in dict.fromkeys(order)]


@pytest.mark.parametrize("is_first", [True, False])
def test_days_that_race(recipe: Recipe, job: str, is_first: bool) -> None:
    """Also the first ones, each of which finds no repository; and one of them twice."""
    there = DAYS[:0] if is_first else [DAYS[2]]
    for day in there:
        recipe.run(f"{job}\nadd({day!r})")
    racing = [day for day in (DAYS[4], DAYS[0], DAYS[0], DAYS[3], DAYS[1]) if day not in there]
    printed = recipe.race(job, [f"print(add({day!r}))" for day in racing])
    assert sorted(printed)[0] == "Upserted(updated=0, inserted=0)\n"  # of the two that bring one day
    days, repo = days_of(recipe.directory)
    assert days == sorted({*racing, *there})
    assert sorted(commit.properties["day"] for commit in repo.log()) == days


def test_a_job_that_is_killed(recipe: Recipe, job: str) -> None:
    repo = txstore.Repository(recipe.directory / "weather.tx")
    late = [DAYS[7], *DAYS[:7]]
    for commits in range(1, 8, 2):
        recipe.kill_behind(commits, repo, f"{job}\nfor day in {late}: add(day)")
        days, _ = days_of(recipe.directory)
        assert set(days) <= set(DAYS)
        assert len(days) >= commits
    recipe.run(f"{job}\nfor day in {late}: add(day)")
    days, repo = days_of(recipe.directory)
    assert days == DAYS
    assert len(repo.log()) == len(DAYS)
