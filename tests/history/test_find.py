"""Commits by what people call them: names, places, and so many before; and what is said where there is none."""

import pytest

import txstore


@pytest.fixture
def forked(repo: txstore.Repository) -> txstore.Repository:
    """main has versions 0 to 3; dev was begun at version 1, and has two of its own; v1 is version 2 of main."""

    def commit(message: str, branch: str = "main") -> None:
        with repo.begin(message, branch=branch) as transaction:
            transaction[f"a/{message}"] = message.encode()

    commit("zero")
    commit("one")
    repo.branches["dev"] = 1
    commit("two")
    commit("three")
    commit("dev two", "dev")
    commit("dev three", "dev")
    repo.tags["v1"] = 2
    return repo


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("HEAD", "three"),
        ("HEAD~0", "three"),
        ("HEAD~", "two"),
        ("HEAD~1", "two"),
        ("HEAD~3", "zero"),
        ("main~1", "two"),
        ("v1~1", "one"),
        ("v1~1~1", "zero"),
        ("dev~1", "dev two"),
        ("dev~2", "one"),  # where it has forked
        ("dev~3", "zero"),
        ("main@0", "zero"),
        ("dev@3", "dev three"),
        ("dev@1", "one"),
        ("dev@-1", "dev three"),
        ("dev@3~1", "dev two"),
    ],
)
def test_a_name_and_so_many_before(at: str, message: str, forked: txstore.Repository) -> None:
    assert forked.commit(at).message == message
    assert list(forked.mapping(at)) == list(forked.mapping(forked.commit(at)))


def test_as_commits_are_shown_they_are_found(forked: txstore.Repository) -> None:
    for branch in forked.branches:
        for commit in forked.log(branch):
            assert forked.commit(str(commit)) == commit
            assert forked.commit(f"{commit.id}~0") == commit


def test_head_is_that_of_the_branch(forked: txstore.Repository) -> None:
    assert forked.commit("HEAD~1", branch="dev").message == "dev two"
    assert forked.mapping("HEAD", branch="dev").commit == forked.head("dev")
    forked.branches["later"] = "dev~1"
    assert forked.branches["later"].message == "dev two"


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("HEAD~9", "HEAD~9: branch 'main' has versions 0 to 3"),
        ("main@9", "branch 'main' has versions 0 to 3"),
        ("nain", "'main'"),
        ("devv", "'dev'"),
        ("v2", "'v1'"),
        ("none~1", "a commit is named by a version, a tag, a branch, HEAD"),
        ("xyz", "txstore log"),
        ("none@1", "there is no such branch"),
    ],
)
def test_where_there_is_none_it_is_said_what_there_is(at: str, words: str, forked: txstore.Repository) -> None:
    with pytest.raises(txstore.CommitNotFoundError) as caught:
        forked.commit(at)
    assert words in str(caught.value)


def test_what_is_kept_no_more(repo: txstore.Repository) -> None:
    for number in range(3):
        with repo.begin() as transaction:
            transaction["a"] = bytes([number])
    del transaction  # which reads what it is based on
    repo.vacuum(keep=1)
    assert repo.commit("HEAD~1").version == 2  # the head is what the vacuum has made
    with pytest.raises(txstore.SnapshotExpiredError):
        repo.commit("HEAD~3")
