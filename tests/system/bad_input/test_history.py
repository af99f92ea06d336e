"""Commits, branches, tags and dates that do not exist, or that are not even names."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.faults import watch
from tests.tools.inside import staged
from tests.tools.upkeep import tree


@pytest.fixture
def history(repo) -> txstore.Repository:
    for version in range(3):
        with repo.transaction(f"commit {version}") as store:
            store["a"] = b"%d" % version
    return repo


@pytest.mark.parametrize("at", [3, -4, 1 << 70, "0" * 32, "abc", "", "../../etc", "ü" * 5])
def test_an_unknown_commit(history, at):
    for look in (lambda: history.snapshot(at=at), lambda: history.mapping(at=at), lambda: history.commit(at)):
        with pytest.raises(txstore.CommitNotFoundError) as caught:
            look()
        assert str(at) in str(caught.value)
        assert "repo.log()" in str(caught.value) or "versions 0 to 2" in str(caught.value)


def test_a_date_before_the_first_commit(history):
    with pytest.raises(txstore.CommitNotFoundError, match=r"the first commit is later; see repo\.log\(\)"):
        history.snapshot(at=history.commit(0).time - timedelta(microseconds=1))


def test_a_date_means_the_newest_commit_that_is_not_later(history):
    for version in range(3):
        assert history.commit(history.commit(version).time).version == version
    assert history.commit(datetime.max.replace(tzinfo=UTC)).version == 2


def test_a_naive_date(history):
    with pytest.raises(ValueError, match=r"no time zone.*astimezone\(\)"):
        history.snapshot(at=datetime(2024, 1, 1))


@pytest.mark.parametrize("at", [True, 1.0, b"abcd", [0], object(), timedelta(0)])
def test_at_of_the_wrong_type(history, at):
    with pytest.raises(TypeError, match="at= takes a version, a commit, its id, a tag or a date, not"):
        history.snapshot(at=at)


def test_at_and_tag_together(history):
    history.tags["v1"] = 1
    for look in (history.snapshot, history.mapping, lambda **names: txstore.TxStore(history, **names)):
        with pytest.raises(ValueError, match="give at= or tag=, not both"):
            look(at=1, tag="v1")


def test_an_unknown_branch(history):
    for look in (
        lambda: history.snapshot(branch="dev"),
        lambda: history.mapping(branch="dev"),
        lambda: list(history.log("dev")),
        lambda: history.head("dev"),
        lambda: history.commit(0, branch="dev"),
        lambda: history.transaction(branch="dev"),
        lambda: history.begin(branch="dev"),
        lambda: txstore.TxStore(history, branch="dev"),
    ):
        before = tree(history)
        with pytest.raises(txstore.CommitNotFoundError, match=r"branch 'dev'.*'main'"):
            look()
        assert tree(history) == before


def test_an_unknown_tag(history):
    with pytest.raises(txstore.CommitNotFoundError, match=r"tag 'v1'.*see repo\.tags"):
        history.snapshot(tag="v1")
    with pytest.raises(KeyError, match="v1"):
        history.tags["v1"]
    assert "v1" not in history.tags


def test_a_tag_is_written_once(history):
    history.tags["v1"] = 1
    for commit in (0, 1, history.commit(2)):
        with pytest.raises(ValueError, match=r"tag 'v1' exists.*choose another name"):
            history.tags["v1"] = commit
    assert history.tags["v1"] == history.commit(1)
    assert list(history.tags) == ["v1"]
    assert staged(history) == []


def test_a_tag_is_deleted_durably(history):
    history.tags["v1"] = 1
    watched = watch(history)
    del history.tags["v1"]
    done = watched.named("delete", "sync_directory")
    record = ("sync_directory", "operations")
    assert done == [record, ("delete", "tags/v1"), ("sync_directory", "tags"), record]
    assert list(history.tags) == []
    with pytest.raises(KeyError):
        del history.tags["v1"]
    history.tags["v1"] = 2  # the name is free again
    assert history.tags["v1"] == history.commit(2)


@pytest.mark.parametrize("name", ["", ".", "..", ".v1", "-v1", "a/b", "../v1", "a b", "v1\n", "ü", "x" * 101, "a\0", 5])
def test_bad_names_of_tags(history, name):
    before = tree(history)
    with pytest.raises(txstore.KeyFormatError, match=r"tag .*: use 1 to 100 letters, digits"):
        history.tags[name] = 0
    with pytest.raises(txstore.KeyFormatError, match=r"tag .*: use 1 to 100 letters, digits"):
        history.snapshot(tag=name)
    assert tree(history) == before


def test_a_tag_of_a_commit_whose_version_is_another_commits_now(history, open_repo):
    other = open_repo("other.tx")
    with other.transaction() as store:
        store["a"] = b"1"
    with pytest.raises(txstore.CommitNotFoundError):
        history.tags["v1"] = other.head()


# --- no repository at all
@pytest.mark.parametrize("at", [0, -1, 7, "v1", "0" * 32, "2026-01-01T00:00Z", datetime(2026, 1, 1, tzinfo=UTC)])
def test_a_commit_of_a_repository_that_does_not_exist(repo, at):
    """Not even the one in version 0 is an empty store: that would read as fill values."""
    for look in (
        lambda: repo.snapshot(at=at),
        lambda: repo.mapping(at=at),
        lambda: repo.commit(at),
        lambda: repo.diff(at),
        lambda: repo.revert(at),
        lambda: repo.cherry_pick(at),
        lambda: repo.export(f"{repo.url}.zarr", at=at),
        lambda: txstore.TxStore(repo.url, at=at),
    ):
        with pytest.raises(txstore.RepositoryNotFoundError, match="look at the path"):
            look()
    assert not repo.exists


def test_a_repository_that_was_taken_away_is_not_told_to_be_empty(history):
    """As when the disk that it lies on is not mounted any more: no tag, branch or array is missing, all of it is."""
    with history.transaction("an array") as store:
        zarr.create_array(store, name="x", data=np.arange(4))
    history.tags["v1"] = history.branches["dev"] = history.head()
    url = history.url
    looks = {
        "tag": lambda repo: repo.tags["v1"],
        "tags": lambda repo: dict(repo.tags),
        "get": lambda repo: repo.tags.get("v1"),
        "in": lambda repo: "v1" in repo.tags,
        "delete": lambda repo: repo.tags.pop("v1", None),
        "branch": lambda repo: repo.branches["dev"],
        "head": lambda repo: repo.head(),
        "log": lambda repo: list(repo.log()),
        "snapshot": lambda repo: list(repo.snapshot()),
        "of a tag": lambda repo: list(repo.snapshot(tag="v1")),
        "of a branch": lambda repo: list(repo.snapshot(branch="dev")),
        "transaction": lambda repo: list(repo.begin()),
        "open": lambda repo: zarr.open_array(repo.snapshot(), path="x", mode="a"),
        "open a tag": lambda repo: zarr.open_array(repo.snapshot(tag="v1"), path="x", mode="a"),
        "make": lambda repo: zarr.open_array(repo.transaction(), path="x", mode="a", shape=4, dtype="i8"),
    }
    repos = {name: txstore.Repository(url, create=False) for name in looks}  # it is known to be there: nothing more
    away = Path(url).rename(f"{url}.away")
    try:
        for name, look in looks.items():
            for repo in (repos[name], history):
                with pytest.raises(txstore.RepositoryNotFoundError, match="was here and is gone"):
                    pytest.fail(f"{name}: {look(repo)!r}")
        assert not Path(url).exists()
    finally:
        away.rename(url)
    for repo in repos.values():
        assert repo.tags["v1"] == history.head()


# --- moving, copying, restoring
@pytest.mark.parametrize("method", ["move", "copy"])
@pytest.mark.parametrize(
    ("source", "destination", "match"),
    [
        ("g", "g", "inside of it"),
        ("g", "g/sub", "inside of it"),
        ("g/", "/g/x/y", "inside of it"),
        ("g", "y", "something at 'y'"),
        ("y", "g/x", "something at 'g/x'"),
        ("", "z", "the root"),
        ("/", "z", "the root"),
        ("g", "", "the root"),
        ("nothing", "z", "no array or group at 'nothing'"),
        ("g", "nothing/z", "no group at 'nothing'"),
        ("g", "y/z", "no group at 'y': it is an array"),
        ("a/../g", "z", "segment"),
        ("g", "z//z", "empty segment"),
    ],
)
def test_moves_to_nowhere(repo, method, source, destination, match):
    with repo.transaction() as store:
        zarr.create_array(store, name="g/x", data=np.arange(4))
        zarr.create_array(store, name="y", data=np.arange(4))
    head = repo.head()
    errors = (ValueError, txstore.NodeNotFoundError, txstore.KeyFormatError)
    with pytest.raises(errors, match=match), repo.transaction() as store:
        getattr(store, method)(source, destination)
    assert repo.head() == head


# --- branches in use
