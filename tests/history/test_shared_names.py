"""A tag and a branch never have one name, since `at=` takes both."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import txstore
from tests.tools.workers import QUICK, Worker, ended
from txstore import Repository
from txstore.cli.main import app
from txstore.history.branches_on_disk import BranchesOnDisk


@pytest.fixture
def made(repo: Repository) -> Repository:
    for number in range(2):
        with repo.begin() as mapping:
            mapping["a"] = b"%d" % number
    repo.tags["v1"] = 0
    repo.branches["dev"] = 1  # type: ignore[assignment]
    return repo


def test_whatever_comes_second_is_refused(made: Repository) -> None:
    for name in ("dev", "main"):
        with pytest.raises(ValueError, match=f"branch '{name}' exists, and at="):
            made.tags[name] = 0
    with pytest.raises(ValueError, match="tag 'v1' exists, and at="):
        made.branches["v1"] = 0  # type: ignore[assignment]
    with pytest.raises(ValueError, match="tag 'v1' exists, and at="):
        made.branches.rename("dev", "v1")
    assert (list(made.tags), list(made.branches)) == (["v1"], ["main", "dev"])
    del made.tags["v1"]
    made.branches.rename("dev", "v1")
    made.tags["dev"] = 0


@pytest.mark.parametrize("command", [["tag", "create", "dev"], ["branch", "create", "v1"]])
def test_so_does_the_command_line(made: Repository, command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command[:2], made.url, command[2]])
    assert done.exit_code != 0
    assert "would name either" in " ".join(done.output.split())


def tag(url: str) -> None:
    txstore.Repository(url).tags["new"] = 0


def branch(url: str) -> None:
    txstore.Repository(url).branches["new"] = 0  # type: ignore[assignment]


@pytest.mark.parametrize(("first", "second"), [(tag, branch), (branch, tag)])
def test_of_two_at_the_same_time_at_most_one_stays(made, monkeypatch, first, second):
    """The second one begins and ends between the first one's look and its write."""
    method = "make_durable" if first is tag else "ensure"
    original = getattr(BranchesOnDisk, method)
    done: list[int] = []

    def overtaken(self: BranchesOnDisk, *arguments: object) -> None:
        if not done:
            done.append(1)
            worker = Worker(second, made.url, context=QUICK)
            with ended(worker):
                worker.result()
        original(self, *arguments)

    monkeypatch.setattr(BranchesOnDisk, method, overtaken)
    with pytest.raises(ValueError, match="would name either"):
        first(made.url)
    assert ("new" in made.tags) != ("new" in made.branches)


def test_where_both_have_it_nothing_is_guessed(made: Repository) -> None:
    (Path(made.url) / "tags" / "dev").write_bytes((Path(made.url) / "tags" / "v1").read_bytes())
    with pytest.raises(txstore.CommitNotFoundError, match="a tag and a branch have this name"):
        made.snapshot(at="dev")
    assert made.snapshot(tag="dev")["a"] == b"0"
    assert made.snapshot(branch="dev")["a"] == b"1"
    made.branches.rename("dev", "other")
    assert made.snapshot(at="dev")["a"] == b"0"
