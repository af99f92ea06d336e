"""Branches on an object store, where nobody waits for anybody: whoever deletes one meets those who commit to it."""

from collections.abc import Callable
from typing import Any

import pytest

import txstore
from tests.system.remote.conftest import with_engine
from tests.system.remote.repositories import again, opened, paths
from tests.tools.inside import branch_id, objects_of
from txstore.errors import CommitNotFoundError

pytestmark = pytest.mark.long


@pytest.fixture
def repo(server_of) -> txstore.Repository:
    repo = opened(with_engine(server_of("memory"), "fsspec"))
    for number in range(3):
        with repo.begin() as transaction:
            transaction["a"] = b"%d" % number
    repo.branches["dev"] = 1
    return repo


def before(repo: txstore.Repository, request: str, path: str, act: Callable[[], object]) -> None:
    """Do something once, right before a request for a path that begins like this."""
    objects = objects_of(repo)
    real, left = getattr(objects, request), [act]

    def watched(first: Any, *rest: Any) -> Any:
        if left and str(first).startswith(path):
            left.pop()()
        return real(first, *rest)

    setattr(objects, request, watched)


@pytest.mark.parametrize("has_own", [False, True])
def test_deleted_right_before_the_version_is_taken(repo, has_own):
    if has_own:
        with repo.begin(branch="dev") as transaction:
            transaction["b"] = b"1"
    rival = again(repo)
    transaction = repo.begin(branch="dev")
    transaction["x"] = b"1"

    def delete() -> None:
        del rival.branches["dev"]

    before(repo, "create", f"commits/{branch_id(repo, 'dev')}/", delete)
    with pytest.raises(CommitNotFoundError, match=r"branch 'dev'.*deleted meanwhile"):
        transaction.commit()
    transaction.rollback()
    rival.branches["dev"] = 1
    assert dict(again(repo).mapping(branch="dev")) == {"a": b"1"}
    rival.vacuum()
    assert [path for path in paths(rival, "commits") if path != "main"] == []
    assert rival.verify().faults == []


def test_the_name_is_created_though_the_answer_is_lost(repo):
    objects = objects_of(repo)
    real = objects.create

    def sent_again(path: str, *rest: Any) -> None:
        real(path, *rest)
        if path.startswith("branches/"):
            raise FileExistsError(path)

    objects.create = sent_again
    repo.branches["late"] = 2
    assert again(repo).branches["late"].version == 2
