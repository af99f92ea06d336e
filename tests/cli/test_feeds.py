"""`txstore feed`: what it prints, what it runs, and what comes again."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.command_line import assert_refused, run, run_json


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction("first") as store:
        zarr.create_array(store, name="x", data=np.arange(9), chunks=(2,), attributes={"nan": float("nan")})
    with repo.transaction("second") as store:
        zarr.open_array(store, path="x")[3] = 8
    return repo


def test_a_command_for_each_change(filled: txstore.Repository, tmp_path: Path) -> None:
    told = run_json("feed", "create", filled.url, "f", "--from-beginning", "--path", "x", "--keep", "7")
    assert (told["version"], told["paths"], told["keep_commits"]) == (-1, ["x"], 7)
    out = tmp_path / "out"
    assert_refused(
        run("feed", "watch", filled.url, "f", "--timeout", "0", "--exec", f"cat >> {out}; exit 3"), "status 3"
    )
    assert json.loads(out.read_text())["message"] == "first"
    out.unlink()
    command = f"cat >> {out}; echo >> {out}; echo $TXSTORE_TOKEN >> {out}"
    result = run("feed", "watch", filled.url, "f", "--timeout", "0", "--json", "--exec", command)
    assert result.exit_code == 0, result.output
    lines = out.read_text().splitlines()
    changes = [json.loads(line) for line in lines[::2]]
    assert [change["token"] for change in changes] == lines[1::2]
    assert [change["message"] for change in changes] == ["first", "second"]  # the first one came again
    assert [json.loads(line) for line in result.stdout.splitlines()] == changes
    assert changes[1]["nodes"][0]["regions"] == [[[2, 4]]]
    assert changes[0]["nodes"][0]["attributes"][0]["after"] == "NaN"
    assert run_json("feed", "show", filled.url, "f")["pending"] is False
    assert run("feed", "watch", filled.url, "f", "--timeout", "0").stdout == ""


def test_a_command_for_all_that_is_pending(filled: txstore.Repository, tmp_path: Path) -> None:
    run("feed", "create", filled.url, "f")
    out = tmp_path / "out"
    watch = "feed", "watch", filled.url, "f", "--timeout", "0.1", "--combine", "--exec", f"cat >> {out}"
    with filled.transaction() as store:
        store.restore("", at=0)
    with filled.transaction() as store:
        store.restore("", at=1)
    assert run(*watch).stdout == ""  # it ends, though there are commits: together they change nothing
    with filled.transaction() as store:
        zarr.open_array(store, path="x")[:] = 5
    assert run(*watch).stdout.count("main@") == 1
    assert json.loads(out.read_text())["version"] == 5


def test_what_is_printed(filled: txstore.Repository) -> None:
    assert "before the first commit" in run("feed", "create", filled.url, "f", "--from-beginning").stdout
    assert "3 commits behind" in run("feed", "list", filled.url).stdout
    shown = run("feed", "watch", filled.url, "f", "--timeout", "0").stdout
    assert "added    x, 1 region\n" in shown
    assert run("feed", "watch", filled.url, "f", "--timeout", "0", "--combine").stdout.count("main@") == 1
    assert "30 days" in run("feed", "show", filled.url, "f").stdout
    assert "is at main@0" in run("feed", "reset", filled.url, "f", "--since", "0").stdout
    assert "is deleted" in run("feed", "delete", filled.url, "f").stdout
    assert_refused(run("feed", "show", filled.url, "f"), "there is none")
    for wrong in (["--keep", "1", "--keep-for", "1d"], ["--since", "0", "--from-beginning"], ["--keep-for", "soon"]):
        assert run("feed", "create", filled.url, "g", *wrong).exit_code == 2
