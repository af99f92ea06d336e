"""`txstore diff`, and what `show` says of a commit's changes."""

import json
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.command_line import run, run_json
from txstore.transactions.transaction import Transaction


@pytest.fixture
def changed(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction("first") as store:
        zarr.create_array(store, name="x", data=np.arange(6), chunks=(2,))
        zarr.create_group(store, path="g")
    with repo.transaction("second") as store:
        zarr.open_array(store, path="x")[5] = 9
        store.mapping.delete_dir("g")
    repo.tags["v1"] = 1
    return repo


def test_diff(changed: txstore.Repository) -> None:
    text = run("diff", changed.url).stdout
    assert text.splitlines()[0].startswith("main@0 to main@1: 1 removed, 1 changed")
    assert text.splitlines()[1:] == ["- g/", "~ x: chunks 1 changed", "    [4:6]"]
    assert run("diff", changed.url, "v1").stdout == text == run("diff", changed.url, "0", "1").stdout
    assert run_json("diff", changed.url, "0", "1") == json.loads(json.dumps(changed.diff(0, 1).as_dict()))
    assert "nothing differs" in run("diff", changed.url, "1", "0", "--three-dot").stdout
    assert run("diff", changed.url, "7").exit_code == 2


def test_show_names_what_was_changed(changed: txstore.Repository) -> None:
    assert "~ x: chunks 1 changed" in run("show", changed.url).stdout
    assert [node["path"] for node in run_json("show", changed.url)["changes"]] == ["g", "x"]
    changed.vacuum(keep=1)
    assert "is no longer kept" in run("show", changed.url, "v1").stdout
    assert run_json("show", changed.url, "v1")["changes"] is None


def test_blame_and_the_log_of_a_path(changed: txstore.Repository) -> None:
    lines = run("blame", changed.url, "x").stdout.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["main@1", "main@0"]
    assert "zarr.json" in lines[3]
    told = run_json("blame", changed.url, "x")
    assert told == json.loads(json.dumps(changed.blame("x").as_dict()))
    assert told["chunks"] == [1, 1, 0]
    assert run_json("blame", changed.url, "x", "--at", "0")["chunks"] == [0, 0, 0]
    assert run("blame", changed.url, "nothing").exit_code == 2
    assert [commit["message"] for commit in run_json("log", changed.url, "--path", "g")] == ["second", "first"]
    with changed.transaction("third") as store:
        zarr.create_group(store, path="other")
    assert [commit["message"] for commit in run_json("log", changed.url, "--path", "x")] == ["second", "first"]


def test_mv_cp_and_restore(changed: txstore.Repository) -> None:
    assert run("mv", changed.url, "x", "y").stdout.startswith("main@2 ")
    assert run_json("cp", changed.url, "x", "z", "--at", "0")["message"] == "copy x to z, as at 0"
    assert run("restore", changed.url, "g", "--at", "0", "-m", "back").exit_code == 0
    assert run("restore", changed.url, "y", "--at", "v1").exit_code == 0  # it was not there
    assert sorted(zarr.open_group(changed.snapshot(), mode="r")) == ["g", "z"]
    assert [commit.message for commit in changed.log()][:2] == ["restore y, as at v1", "back"]
    assert zarr.open_array(changed.snapshot(), path="z", mode="r")[5] == 5
    for arguments in (["mv", "z", "g"], ["mv", "no", "n"], ["cp", "z", "z/inside"], ["restore", "no", "--at", "0"]):
        result = run(arguments[0], changed.url, *arguments[1:])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert run("restore", changed.url, "g").exit_code == 2


def test_what_is_told_is_the_commit_that_was_made(changed: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may commit before it is told."""
    commit = Transaction.commit

    def and_others(transaction: Transaction, *arguments: Any) -> Any:
        made = commit(transaction, *arguments)
        monkeypatch.setattr(Transaction, "commit", commit)
        with changed.begin("another one") as other:
            other["other"] = b""
        return made

    monkeypatch.setattr(Transaction, "commit", and_others)
    assert run_json("mv", changed.url, "x", "y")["message"] == "move x to y"
    assert changed.head().message == "another one"
