"""Recipes of jobs that are killed, started twice, or run beside one another; rows that come late."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import txstore
from tests.tools.recipes import Recipe

pytestmark = pytest.mark.long


def rows(repo: txstore.Repository, path: str) -> list[float]:
    """Return the first element of each row."""
    assert repo.verify().faults == []
    return [float(row[0]) for row in zarr.open_array(repo.snapshot(), path=path, mode="r")[:]]


def kill(process: subprocess.Popen[str], when: str) -> None:
    """Kill a program once it has printed a line."""
    assert process.stdout is not None
    try:
        while (line := process.stdout.readline()) != f"{when}\n":
            assert line, process.stderr and process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def stopping(code: str, after: str, then: str) -> str:
    """Return a program that prints a line and waits, after a line of its own, if a condition holds."""
    assert after in code
    return "import sys\n" + code.replace(after, f"{after}; {then} and (print('here', flush=True), sys.stdin.read())")


class TestResume:
    """docs/how-to/resume.md."""

    COMMIT = 'work()\nrepo.transaction(name="nightly").commit("nightly")\n'

    @pytest.fixture
    def recipe(self, tmp_path: Path) -> Recipe:
        return Recipe("docs/how-to/resume.md", tmp_path)

    @pytest.fixture
    def job(self, recipe: Recipe) -> str:
        return recipe.code(before="try:")

    @pytest.fixture
    def repo(self, recipe: Recipe) -> txstore.Repository:
        return txstore.Repository(recipe.directory / "data.tx")

    def test_twice(self, recipe: Recipe, job: str, repo: txstore.Repository) -> None:
        for _ in range(2):
            recipe.run(job + self.COMMIT)
        assert rows(repo, "result") == [*range(10)]

    @pytest.mark.parametrize("part", [0, 4, 9])
    def test_killed_within_a_part(self, recipe: Recipe, job: str, repo: txstore.Repository, part: int) -> None:
        kill(recipe.start(stopping(job, "result[part] = part", f"part == {part}") + "work()"), "here")
        assert rows(repo, "result") == [-1] * 10
        recipe.run(job + self.COMMIT)
        assert rows(repo, "result") == [*range(10)]


class TestSlurm:
    """docs/how-to/slurm.md: tasks of one array job, one of which is killed, and runs again."""

    @pytest.fixture
    def recipe(self, tmp_path: Path) -> Recipe:
        recipe = Recipe("docs/how-to/slurm.md", tmp_path)
        recipe.run(recipe.code(2))
        return recipe

    def task(self, recipe: Recipe, rank: int) -> str:
        return f"import os, sys; os.environ['SLURM_ARRAY_TASK_ID'] = '{rank}'; sys.argv = ['task.py', 'run']\n" + (
            recipe.code(1)
        )

    def commit(self, recipe: Recipe) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "txstore", "tx", "commit", recipe.directory / "data.tx", "run"],
            capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip

    def test_at_once_and_twice(self, recipe: Recipe) -> None:
        recipe.race("", [self.task(recipe, rank) for rank in (0, 1, 2, 3, 4, 5, 6, 7, 3)])
        committed = self.commit(recipe)
        assert committed.returncode == 0, committed.stderr
        expected = np.repeat(np.arange(8.0), 100).tolist()
        assert rows(txstore.Repository(recipe.directory / "data.tx"), "image") == expected

    def test_a_killed_task(self, recipe: Recipe) -> None:
        for rank in range(7):
            recipe.run(self.task(recipe, rank))
        write = "[100 * rank : 100 * (rank + 1)] = rank"
        kill(recipe.start(stopping(self.task(recipe, 7), write, "True")), "here")
        told = self.commit(recipe)
        assert told.returncode != 0
        assert "image/c/7/0" in told.stderr
        recipe.run(self.task(recipe, 7))
        committed = self.commit(recipe)
        assert committed.returncode == 0, committed.stderr
        assert rows(txstore.Repository(recipe.directory / "data.tx"), "image")[-1] == 7


class TestRename:
    """docs/how-to/rename.md."""

    @pytest.fixture
    def recipe(self, tmp_path: Path) -> Recipe:
        recipe = Recipe("docs/how-to/rename.md", tmp_path)
        recipe.run(recipe.code(0))
        return recipe

    JOB = "import txstore\nrepo = txstore.Repository('data.tx')\n"

    def test_twice(self, recipe: Recipe) -> None:
        repo = txstore.Repository(recipe.directory / "data.tx")
        recipe.run(self.JOB + recipe.code(1))
        head = repo.head()
        with pytest.raises(AssertionError, match="there is something at 't2m'"):
            recipe.run(self.JOB + recipe.code(1))
        assert repo.head() == head

    def test_at_once(self, recipe: Recipe) -> None:
        code = "try:\n" + "".join(f"    {line}\n" for line in recipe.code(1).splitlines())
        code += "    print('moved')\nexcept (txstore.ConflictError, ValueError): print('too late')\n"
        assert sorted(recipe.race(self.JOB, [code] * 3)) == ["moved\n", "too late\n", "too late\n"]
        snapshot = txstore.Repository(recipe.directory / "data.tx").snapshot()
        assert sorted(zarr.open_group(snapshot, mode="r").array_keys()) == ["before", "t2m"]
        assert zarr.open_array(snapshot, path="t2m", mode="r")[:].tolist() == [*range(100)]


class TestRollingArchive:
    """docs/how-to/write-by-label.md, "A rolling archive of forecasts"."""

    RUNS = pd.date_range("2026-03-01", periods=14, freq="6h")
    STEP = """\
    archive.upsert(forecast(run), dim="run", missing="insert")
    archive.run(lambda store: txstore.roll(store, "run", keep=8))
"""

    @pytest.fixture
    def recipe(self, tmp_path: Path) -> Recipe:
        return Recipe("docs/how-to/write-by-label.md", tmp_path)

    @pytest.fixture
    def job(self, recipe: Recipe) -> str:
        number = next(n for n in range(20) if "forecasts.tx" in recipe.code(n))
        code = recipe.code(number, before="for run in ")
        assert self.STEP in recipe.code(number)
        seed = "default_rng(0)"
        assert seed in code
        code = code.replace(seed, "default_rng(pd.Timestamp(run).day_of_year * 24 + pd.Timestamp(run).hour)")
        return f"import numpy as np, pandas as pd, xarray as xr, txstore\n{code}"

    def add(self, numbers: list[int]) -> str:
        dates = [str(self.RUNS[number]) for number in numbers]
        return f"for run in pd.to_datetime({dates}):\n{self.STEP}"

    def check(self, recipe: Recipe, numbers: range) -> None:
        ds = xr.open_dataset(recipe.directory / "forecasts.tx", engine="txstore")
        assert ds.run.values.tolist() == self.RUNS[numbers].values.astype("M8[ns]").tolist()
        for number, run in zip(numbers, ds.t2m.values, strict=True):
            date = self.RUNS[number]
            assert (run == np.random.default_rng(date.day_of_year * 24 + date.hour).random((1, 8))[0]).all()

    def test_late_and_twice(self, recipe: Recipe, job: str) -> None:
        recipe.run(job + self.add([1, 3, 2, 2, 0, 5, 4, 6, 7, 9, 9, 8, 0, 10, 2, 9]))
        self.check(recipe, range(3, 11))

    def test_at_once(self, recipe: Recipe, job: str) -> None:
        recipe.run(job + self.add([*range(6)]))
        recipe.race(job, [self.add([6, 9]), self.add([8, 7]), self.add([7, 10])])
        self.check(recipe, range(3, 11))

    def test_killed(self, recipe: Recipe, job: str) -> None:
        repo = txstore.Repository(recipe.directory / "forecasts.tx")
        for commits in (3, 9, 11):
            recipe.kill_behind(commits, repo, job + self.add([*range(14)]))
            assert xr.open_dataset(repo, engine="txstore").sizes["run"] <= 9
        recipe.run(job + self.add([*range(14)]))
        self.check(recipe, range(6, 14))
