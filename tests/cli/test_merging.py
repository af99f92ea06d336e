"""`txstore merge`, `cherry-pick`, `revert` and `tag`."""

import pytest
import zarr

import txstore
from tests.tools.command_line import assert_refused, run, run_json


@pytest.fixture
def branched(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction("create") as store:
        for name in ("x", "y"):
            zarr.create_array(store, name=name, shape=(4,), chunks=(2,), dtype="i4")
    repo.branches["dev"] = repo.head()
    put(repo, "dev", x=1)
    return repo


def put(repo: txstore.Repository, branch: str = "main", at: int = 0, **arrays: int) -> txstore.Commit:
    with repo.transaction(f"put {arrays}", branch=branch) as store:
        for path, value in arrays.items():
            zarr.open_array(store, path=path)[at] = value
    return repo.branches[branch]


def value(repo: txstore.Repository, path: str, at: int = 0, branch: str = "main") -> object:
    return zarr.open_array(repo.snapshot(branch=branch), path=path, mode="r")[at]


def test_merge(branched: txstore.Repository) -> None:
    url, dev = branched.url, branched.head("dev")
    put(branched, y=2)
    head = branched.head()
    shown = run("merge", url, "dev", "--dry-run").stdout
    assert shown == "would change main: 1 taken\n"
    plan = run_json("merge", url, "dev", "--dry-run")
    assert (plan["plan"]["taken"], plan["commit"], branched.head()) == ({"x/c/0": "x/c/0"}, None, head)
    assert run("merge", url, "dev").stdout.endswith("merge of dev@1\n")
    merged = branched.head()
    assert (merged.parent, merged.merged) == (head.id, dev.id)
    assert run("merge", url, "dev").stdout == "nothing to do: main has all of these changes, at main@2\n"
    told = run_json("merge", url, "dev")
    assert (told["commit"]["id"], told["is_new"], told["conflicts"]) == (merged.id, False, [])
    told = run_json("merge", url, "main", "--branch", "dev", "-m", "both")
    assert (told["commit"]["message"], told["is_new"]) == ("both", True)
    assert value(branched, "y", branch="dev") == 2


def test_conflicts(branched: txstore.Repository) -> None:
    url, head = branched.url, put(branched, x=5, y=2)
    for more in ([], ["--dry-run"]):
        result = run("merge", url, "dev", *more)
        assert result.exit_code == 1
        rows = [line.split() for line in result.stdout.splitlines() if "both" in line]
        assert [row[:3] for row in rows] == [["x", "[0:1]", "elements"]]
        assert "1 conflicts; nothing was changed" in result.stderr
        result = run("merge", url, "dev", "--json", *more)
        assert result.exit_code == 1
        assert '"kind": "elements"' in result.stdout
    assert branched.head() == head
    assert_refused(run("merge", url, "main"), "into itself")
    assert_refused(run("merge", url, "none"), "branch 'none'")
    assert run("merge", url, "dev", "--resolve", "x=both").exit_code == 2
    assert run("merge", url, "dev", "--resolve", "x").exit_code == 2
    assert run("merge", url, "dev", "--resolve", "=ours", "--resolve", "x=theirs").exit_code == 0
    assert (value(branched, "x"), value(branched, "y")) == (1, 2)


def test_cherry_pick_and_revert(branched: txstore.Repository) -> None:
    url = branched.url
    put(branched, "dev", y=7)
    assert "pick of dev@2" in run("cherry-pick", url, "dev").stdout
    assert (value(branched, "x"), value(branched, "y")) == (0, 7)
    assert run("revert", url, "1", "--dry-run").stdout == "would change main: 1 deleted\n"
    assert run_json("revert", url, "1")["commit"]["message"].startswith("revert of main@1")
    assert value(branched, "y") == 0
    assert run("revert", url, "1", "--branch", "dev", "-m", "no").exit_code == 0
    assert (value(branched, "x", branch="dev"), value(branched, "y", branch="dev")) == (0, 7)
    put(branched, x=3)
    put(branched, x=4)
    assert run("revert", url, "3").exit_code == 1
    assert_refused(run("revert", url, "77"), "version 77")
    assert_refused(run("cherry-pick", url, "none"), "none")


def test_tags(branched: txstore.Repository) -> None:
    url, head = branched.url, branched.head()
    assert run("tag", "create", url, "v1").stdout == f"v1 is main@0 ({head.id})\n"
    assert run_json("tag", "create", url, "d1", "--branch", "dev")["commit"]["version"] == 1
    assert run("tag", "create", url, "d2", "dev").exit_code == 0
    assert branched.tags["d2"] == branched.head("dev")
    assert list(run_json("tag", "list", url)) == ["d1", "d2", "v1"]
    assert "create" in run("tag", "list", url).stdout
    assert_refused(run("tag", "create", url, "v1", "dev"), "'v1' exists")
    assert run_json("tag", "delete", url, "v1")["commit"]["id"] == head.id
    assert_refused(run("tag", "delete", url, "v1"), "no tag 'v1'")
    assert list(branched.tags) == ["d1", "d2"]
