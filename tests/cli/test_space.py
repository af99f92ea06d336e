"""The commands that free space and say what it is used for."""

import gc

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.command_line import run, run_json
from tests.tools.upkeep import content, oldest_kept_of, rewrite, tree


@pytest.fixture
def rewritten(repo: txstore.Repository) -> txstore.Repository:
    rewrite(repo, 12)
    return repo


def test_optimize(rewritten):
    before = content(rewritten)
    made = run_json("optimize", rewritten.url)["commit"]
    assert made["message"] == "optimize"
    assert made["version"] == 12
    assert content(rewritten) == before
    assert run_json("optimize", rewritten.url) == {"commit": None}
    assert run("optimize", rewritten.url).stdout == "nothing to do\n"
    rewrite(rewritten, 3)
    assert run("optimize", rewritten.url).stdout.startswith("optimized as main@16; ")


def test_vacuum(rewritten):
    before = tree(rewritten)
    told = run_json("vacuum", rewritten.url, "--keep", 3, "--dry-run")
    assert tree(rewritten) == before
    assert told["dry_run"]
    done = run_json("vacuum", rewritten.url, "--keep", 3)
    assert done == {**told, "dry_run": False}
    assert done["oldest_kept"] == oldest_kept_of(rewritten) == 9
    assert run("vacuum", rewritten.url).stdout == (
        "0 files (0 B) deleted, 0 commits expired; commits are kept from version 9 on\n"
    )
    assert "would be expired" in run("vacuum", rewritten.url, "--keep", 1, "--dry-run").stdout


def test_vacuum_by_age(rewritten):
    for age in ("", "30", "d", "30x", "-1d", "1 year"):
        result = run("vacuum", rewritten.url, "--older-than", age)
        assert result.exit_code == 2
        assert "30d" in result.stderr
    for age, expired in (("30d", 0), ("1.5h", 0), ("0s", 11)):
        assert run_json("vacuum", rewritten.url, "--older-than", age)["expired"] == expired


def test_du(rewritten):
    usage = rewritten.usage()
    told = run_json("du", rewritten.url)
    assert told["total"] == usage.total
    assert told["arrays"] == {"": {"keys": 10, "bytes": usage.live}}
    shown = run("du", rewritten.url).stdout
    for number in (usage.live, usage.history, usage.total):
        assert f"{number:,}" in shown


def test_erase(rewritten):
    refused = run("erase", rewritten.url, "a", "--json")
    assert (refused.exit_code, "--yes" in refused.output) == (2, True)
    asked = run("erase", rewritten.url, "a")
    assert (asked.exit_code, "for good?" in asked.output) == (1, True)
    assert run("erase", rewritten.url, "b", "--yes").exit_code == 2
    assert rewritten.erasures() == []
    done = run_json("erase", rewritten.url, "a", "--yes")
    assert (done["paths"], done["commit"]["message"]) == (["a"], "erased 'a'")
    assert done["values"] > 0
    again = run("erase", rewritten.url, "a", "--yes")
    assert (again.exit_code, again.output) == (0, "nothing is left to erase\n")
    assert len(rewritten.erasures()) == 1


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["p=20"], [1, 0, 3, 4]),
        (["p=20", "p=40"], [1, 0, 3, 0]),
        (["p=20..30"], [1, 0, 0, 4]),
        (["p=..20"], [0, 0, 3, 4]),
        (["who=b"], [1, 0, 3, 4]),
        (['who="4"'], [1, 2, 3, 0]),
        (["p=1..3", "--positions"], [1, 0, 0, 4]),
    ],
)
def test_erase_rows(repo, rows, expected):
    with repo.transaction() as store:
        dim = rows[0].partition("=")[0]
        coordinate = {"p": np.array([10, 20, 30, 40]), "who": np.array(["a", "b", "c", "4"], dtype="U1")}[dim]
        for path, data in {dim: coordinate, "v": np.arange(1, 5)}.items():
            zarr.create_array(store, name=path, data=data, dimension_names=[dim])
    del store
    gc.collect()
    given = [each for row in rows for each in ([row] if row.startswith("--") else ["--rows", row])]
    asked = run("erase", repo.url, "v", *given)
    assert (asked.exit_code, f"Erase rows of 'v' along '{dim}', for good?" in asked.output) == (1, True)
    done = run_json("erase", repo.url, "v", *given, "--yes")
    assert done["commit"]["message"] == f"erased rows of 'v' along '{dim}'"
    assert list(zarr.open_array(repo.snapshot(at=0), path="v", mode="r")[:]) == expected


@pytest.mark.parametrize("rows", [["p"], ["=2"], ["p="], ["p=.."], ["p=1..2", "p=3"], ["p=3", "p=1..2"]])
def test_rows_that_name_none(repo, rows):
    refused = run("erase", repo.url, "v", "--yes", *(each for row in rows for each in ("--rows", row)))
    assert refused.exit_code == 2
    assert run("erase", repo.url, "v", "--yes", "--labels").exit_code == 2
