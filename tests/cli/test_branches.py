"""`txstore branch`, `txstore log --graph`, and `--branch` of all that reads or looks after one."""

from pathlib import Path

import pytest
import zarr

import txstore
from tests.history.test_branches import commit
from tests.tools.command_line import assert_refused, run, run_json
from txstore.cli.branches import draw, newest_first
from txstore.commit import EPOCH, Commit


@pytest.fixture
def branched(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction("create") as store:
        zarr.create_array(store, name="x", shape=(4,), chunks=(2,), dtype="i4")
    repo.branches["dev"] = repo.head()
    with repo.transaction("on dev", branch="dev") as store:
        zarr.open_array(store, path="x")[:] = 1
    with repo.transaction("on main") as store:
        zarr.create_group(store, path="g")
    repo.tags["v1"] = 0
    return repo


@pytest.mark.long
def test_list_create_rename_delete(branched: txstore.Repository) -> None:
    url, dev = branched.url, branched.head("dev")
    assert list(run_json("branch", "list", url)) == ["main", "dev"]
    assert run_json("branch", "list", url)["dev"]["id"] == dev.id
    assert "dev@1" in run("branch", "list", url).stdout
    for at in ("v1", "0", branched.commit(0).id[:8], branched.commit(0).time.isoformat()):
        assert run("branch", "create", url, "new", at).exit_code == 0
        assert branched.branches["new"].version == 0
        assert run("branch", "delete", url, "new").exit_code == 0
    assert run_json("branch", "create", url, "new", "dev")["commit"]["id"] == dev.id
    assert run_json("branch", "rename", url, "new", "newer") == {"branch": "newer"}
    assert run_json("branch", "delete", url, "newer")["commit"]["id"] == dev.id
    assert list(branched.branches) == ["main", "dev"]
    assert run("branch", "create", url, "new").exit_code == 0
    assert branched.branches["new"] == branched.head()


def test_what_is_refused(branched: txstore.Repository) -> None:
    url = branched.url
    assert_refused(run("branch", "create", url, "dev"), "'dev' exists")
    assert_refused(run("branch", "delete", url, "main"), "is the first one")
    assert_refused(run("branch", "rename", url, "other", "more"), "no branch 'other'")
    assert_refused(run("log", url, "--branch", "other"), "branch 'other'", "'dev'")
    assert list(branched.branches) == ["main", "dev"]


def test_log_shows_branches_and_tags(branched: txstore.Repository) -> None:
    shown = run("log", branched.url).stdout
    assert "(main) on main" in shown
    assert "(tag: v1) create" in shown
    assert "on dev" not in shown
    shown = run("log", branched.url, "--branch", "dev").stdout
    assert "(dev) on dev" in shown
    assert "main@0" in shown
    assert [each["names"] for each in run_json("log", branched.url, "--branch", "dev")] == [["dev"], ["tag: v1"]]


def test_each_command_takes_a_branch(branched: txstore.Repository, tmp_path: Path) -> None:
    url, dev = branched.url, branched.head("dev")
    assert run_json("show", url, "--branch", "dev")["id"] == dev.id
    assert run_json("show", url, "1", "--branch", "dev")["id"] == dev.id
    assert run_json("show", url, dev.id[:10])["id"] == dev.id
    assert "g" in [each["name"] for each in run_json("ls", url)]
    assert "g" not in [each["name"] for each in run_json("ls", url, "--branch", "dev")]
    assert [each["chunks_stored"] for each in run_json("ls", url, "x", "--at", "dev")] == [2]
    assert run_json("constraints", url, "--branch", "dev") == {}
    assert run_json("export", url, tmp_path / "plain", "--branch", "dev")["commit"]["id"] == dev.id
    assert run_json("publish", url, tmp_path / "copy", "--branch", "dev")["commit"]["id"] == dev.id
    commit(branched, {"y/c/0": b"1"}, "dev")
    assert run_json("optimize", url, "--branch", "dev")["commit"]["branch"] == "dev"
    assert run_json("vacuum", url, "--branch", "dev", "--keep", 1)["expired"] == 2
    assert run_json("du", url, "--branch", "dev")["total"] == run_json("du", url)["total"]


def test_the_graph(branched: txstore.Repository) -> None:
    drawn = run("log", branched.url, "--graph").stdout.splitlines()
    assert [line.split(" main@")[0].split(" dev@")[0] for line in drawn] == ["*", "| *", "|/", "*"]
    assert [line.partition(")")[0].rpartition("(")[2] for line in drawn if "@" in line] == ["main", "dev", "tag: v1"]
    assert [each["branch"] for each in run_json("log", branched.url, "--graph")] == ["main", "dev", "main"]
    assert len(run_json("log", branched.url, "--graph", "--limit", 2)) == 2


def made(name: str, time: int, parent: str | None = None, merged: str | None = None) -> Commit:
    at = EPOCH.replace(second=time)
    return Commit(name, "b", time, time, parent, at, "", "", {}, {}, merged)


def test_graphs_of_merges_and_of_three_branches() -> None:
    a, b, c, d = made("a", 0), made("b", 1, "a"), made("c", 2, "a"), made("d", 3, "b", "c")
    assert [drawn for drawn, _ in draw(newest_first([[d, b, a], [c, a]]))] == ["*", "|\\", "| *", "* |", "|/", "*"]
    e, f = made("e", 4, "a"), made("f", 5, "a")
    rows = list(draw(newest_first([[f, a], [e, a], [c, a]])))
    assert [drawn for drawn, _ in rows] == ["*", "| *", "| | *", "|__/", "|/", "*"]
    assert [commit.id for _, commit in rows if commit is not None] == ["f", "e", "c", "a"]
