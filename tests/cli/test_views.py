"""`txstore views`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.command_line import assert_refused, run, run_json
from tests.tools.waiting import wait_until
from txstore.views import Apply, Coarsen, Reduce

MODULE = """
from txstore.views import register

@register
def negative(block):
    return -block
"""


@pytest.fixture
def declared(repo: txstore.Repository) -> txstore.Repository:
    """A pyramid that each commit derives, and a chain of two that follow."""
    with repo.transaction("create") as store:
        zarr.create_array(store, name="a/0", data=np.arange(16.0).reshape(4, 4), chunks=(2, 2), dimension_names="yx")
        store.views["pyramid"] = Coarsen("a/0", "a/{level}", (2, 2))
        store.views["row"] = Reduce("a/0", "y", "max", "row", when="follow")
        store.views["largest"] = Reduce("row", "x", "max", "largest", when="follow")
    return repo


def put(repo: txstore.Repository, value: float) -> None:
    with repo.transaction(f"put {value}") as store:
        zarr.open_array(store, path="a/0")[0, 0] = value


def value(repo: txstore.Repository, path: str = "largest") -> object:
    return zarr.open_array(repo.snapshot(), path=path, mode="r")[...]


def states(repo: txstore.Repository) -> dict[str, str]:
    rows = [line.split() for line in run("views", "list", repo.url).stdout.splitlines()[2:]]
    return {row[0]: " ".join(row[3:-2]) for row in rows if row}


def test_list(declared: txstore.Repository) -> None:
    url = declared.url
    told = run_json("views", "list", url)
    assert sorted(told) == ["largest", "pyramid", "row"]
    assert list(told).index("row") < list(told).index("largest")  # which is made of it
    assert told["pyramid"]["current"]
    assert told["pyramid"]["outputs"] == ["a/1"]
    assert told["row"] == {
        "kind": "reduce", "source": "a/0", "dim": "y", "method": "max", "to": "row", "by": None, "when": "follow",
        "sources": ["a/0"], "outputs": ["row"], "current": False, "as_of": None,
    }  # fmt: skip
    run("views", "run", url, "--once")
    assert run_json("views", "list", url)["row"]["as_of"]["version"] == 0
    assert {told["current"] for told in run_json("views", "list", url).values()} == {True}
    put(declared, 99)
    assert states(declared) == {"pyramid": "current", "row": "of main@0", "largest": "of main@1"}
    declared.branches["dev"] = 1
    assert run_json("views", "list", url, "--branch", "dev")["row"]["current"]


def test_once(declared: txstore.Repository) -> None:
    url = declared.url
    result = run("views", "run", url, "--once")
    assert [line.split()[0::2] for line in result.stdout.splitlines()] == [["main@1", "row"], ["main@2", "largest"]]
    assert value(declared) == 15
    assert run("views", "run", url, "--once").stdout == ""
    assert run_json("views", "run", url, "--once") == {"row": None, "largest": None}
    put(declared, 99)
    told = run_json("views", "run", url, "row", "--once")
    assert told["row"]["message"] == "view 'row' updated"
    assert value(declared) == 15
    run("views", "run", url, "--once")
    assert value(declared) == 99


def test_of_a_branch(declared: txstore.Repository) -> None:
    declared.branches["dev"] = declared.head()
    run("views", "run", declared.url, "--once", "--branch", "dev")
    dev = declared.head("dev")
    assert (dev.version, declared.head().version) == (2, 0)  # type: ignore[union-attr]
    assert run("views", "drop", declared.url, "row", "--branch", "dev").exit_code == 0
    assert sorted(declared.snapshot(branch="dev").views) == ["largest", "pyramid"]
    assert len(declared.views) == 3


def test_drop(declared: txstore.Repository) -> None:
    told = run_json("views", "drop", declared.url, "row")
    assert (told["view"], told["commit"]["message"]) == ("row", "view 'row' dropped")
    assert "is dropped: main@2" in run("views", "drop", declared.url, "pyramid").stdout
    assert sorted(declared.views) == ["largest"]
    assert value(declared, "a/1").shape == (2, 2)  # type: ignore[attr-defined]
    head = declared.head()
    assert_refused(run("views", "drop", declared.url, "row"), "'row'", "txstore views list")
    assert declared.head() == head


def test_what_can_not_be_run(declared: txstore.Repository) -> None:
    assert_refused(run("views", "run", declared.url, "none", "--once"), "'none'", "txstore views list")
    assert_refused(run("views", "run", declared.url, "pyramid"), "each commit")
    assert_refused(run("views", "run", declared.url, "--import", "no_such_module"), "no_such_module")


def test_a_view_that_fails_keeps_no_other_from_it(declared: txstore.Repository) -> None:
    with declared.transaction("delete") as store:
        del zarr.open_group(store)["row"]
    result = run("views", "run", declared.url, "--once")
    assert result.exit_code == 1
    assert {line.split("'")[1] for line in result.stderr.splitlines()} == {"row", "largest"}
    declared.views["mean"] = Reduce("a/0", "y", "mean", "mean", when="follow")
    result = run("views", "run", declared.url, "--once")
    assert result.exit_code == 1
    assert result.stdout.endswith("mean\n")


def test_functions_of_a_module(declared: txstore.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_mine.py").write_text(MODULE)
    declared.views["negative"] = Apply("of_mine:negative", ["a/0"], "negative", when="follow")
    assert "of_mine:negative" in run("views", "run", declared.url, "--once").stderr
    command = [sys.executable, "-m", "txstore", "views", "run", declared.url, "--once", "--import", "of_mine"]
    environment = {**os.environ, "PYTHONPATH": str(Path(txstore.__file__).parents[1])}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    np.testing.assert_array_equal(value(declared, "negative"), -np.arange(16.0).reshape(4, 4))


def _interrupted(worker: subprocess.Popen[bytes]) -> bool:
    """Send a signal as Ctrl-C does. Python loses one that comes in a finalizer, so there may be several."""
    worker.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(1)
    return worker.returncode is not None


def test_it_goes_on_with_each_commit(declared: txstore.Repository, tmp_path: Path) -> None:
    """Two workers, a view that can't be derived for a while, and the end that Ctrl-C makes."""
    environment = {**os.environ, "PYTHONPATH": str(Path(txstore.__file__).parents[1])}
    out, err = tmp_path / "out", tmp_path / "err"
    command = [sys.executable, "-m", "txstore", "views", "run", declared.url, "--json"]
    with out.open("w") as stdout, err.open("w") as stderr:
        workers = [subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr) for _ in range(2)]
        try:
            wait_until(lambda: declared.views["largest"].is_current() or err.read_text())
            assert err.read_text() == ""
            for number in range(20, 30):
                put(declared, number)
            wait_until(lambda: declared.views["largest"].is_current() and value(declared) == 29)
            with declared.transaction("delete") as store:
                del zarr.open_group(store)["largest"]
            wait_until(lambda: "there is no array 'largest'" in err.read_text())
            declared.views["largest"] = Reduce("row", "x", "min", "largest", when="follow")
            wait_until(lambda: value(declared) == 13 and declared.views["largest"].is_current())
        finally:
            for worker in workers:
                wait_until(lambda worker=worker: _interrupted(worker))  # type: ignore[misc]
        assert {worker.returncode for worker in workers} <= {130, -signal.SIGINT}  # the latter in the middle of its end
    assert err.read_text().count("there is no array 'largest'") <= 2  # each says it once
    commits = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({each["commit"]["id"] for each in commits}) == len(commits)
    assert {each["view"] for each in commits} == {"row", "largest"}
