"""Several processes create one repository at the same moment: one id, and the commits of all."""

import pytest

import txstore
from tests.tools.workers import run_together

ROUNDS = 40


def create(barrier, folder, number: int) -> list[str]:
    ids = []
    for i in range(ROUNDS):
        path = folder / f"{i}.tx"
        repo = txstore.Repository(path) if i % 2 else None
        barrier.wait()
        repo = repo or txstore.Repository(path, durability="none")
        with repo.transaction(f"by {number}") as store:
            store[f"key/{number}"] = b"%d" % number
        ids.append(repo.id)
    return ids


@pytest.mark.long
def test_processes_that_create_one_repository(tmp_path, open_repo):
    processes = 3
    found = run_together(create, *((tmp_path, number) for number in range(processes)))
    assert found == [found[0]] * processes
    for i in range(ROUNDS):
        repo = open_repo(f"{i}.tx")
        assert repo.id == found[0][i]
        assert sorted(commit.message for commit in repo.log()) == [f"by {number}" for number in range(processes)]
        assert dict(repo.mapping()) == {f"key/{number}": b"%d" % number for number in range(processes)}
