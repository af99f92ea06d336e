"""A process that works on several branches is killed at any moment: what was acknowledged is there, of each branch."""

import os
import random
import struct

import pytest

import txstore
from tests.history.test_branches import on
from tests.maintenance.test_history_races import GROUP
from tests.tools.steps import forked, status_of

pytestmark = pytest.mark.long

_MESSAGE = struct.Struct("<BQ")
_MAIN, _DEV, _BEGUN, _DELETED = range(4)


def merge(url: str, pipe: int, first: int) -> None:
    """Commit to two branches, move what was there, and merge them into each other; say each time what was done."""
    repo = txstore.Repository(url)
    for number in range(first, 1 << 30):
        for what, branch in ((_MAIN, "main"), (_DEV, "dev")):
            with repo.begin(branch=branch) as transaction:
                transaction.nodes.move(f"{branch}{int(transaction[branch])}", f"{branch}{number}")
                transaction[branch] = b"%d" % number
            os.write(pipe, _MESSAGE.pack(what, number))
        repo.merge("dev")
        os.write(pipe, _MESSAGE.pack(_BEGUN, number))
        repo.merge("main", "dev")
        os.write(pipe, _MESSAGE.pack(_DELETED, number))
        if number % 3 == 2:
            repo.optimize()
            repo.vacuum(keep=2, branch=("main", "dev")[number % 2])


@pytest.mark.parametrize("seed", range(2))
def test_merges_and_moves_are_killed(open_repo, seed):
    repo, chance = open_repo(), random.Random(seed)
    with repo.begin() as transaction:
        for branch in ("main", "dev"):
            transaction[branch] = b"0"
            transaction[f"{branch}0/zarr.json"] = GROUP
            transaction[f"{branch}0/c/0"] = branch.encode() * 400
    repo.branches["dev"] = repo.head()
    said = [0, 0, 0, 0]
    for _ in range(4):
        reading, writing = os.pipe()
        with forked(merge, repo.url, writing, max(said) + 1) as child:
            os.close(writing)
            for _ in range(chance.randrange(1, 40)):
                what, number = _MESSAGE.unpack(os.read(reading, _MESSAGE.size))
                said[what] = number
            os.kill(child, 9)
            status_of(child)
        while message := os.read(reading, _MESSAGE.size):
            what, number = _MESSAGE.unpack(message)
            said[what] = number
        os.close(reading)
        there = txstore.Repository(repo.url)
        held = {branch: on(there, branch) for branch in ("main", "dev")}
        for what, branch, other, merged in ((_MAIN, "main", "dev", _BEGUN), (_DEV, "dev", "main", _DELETED)):
            assert int(held[branch][branch]) - said[what] in range(3)
            assert int(held[branch][other]) >= said[merged]
            for each in ("main", "dev"):
                # Moved with each commit, by whoever has made it: in one place, and whole.
                groups = [key for key in held[branch] if key.startswith(each) and key.endswith("/zarr.json")]
                assert groups == [f"{each}{int(held[branch][each])}/zarr.json"]
                assert held[branch][groups[0].replace("zarr.json", "c/0")] == each.encode() * 400
        assert there.verify().faults == []
        said[_MAIN], said[_DEV] = int(held["main"]["main"]), int(held["dev"]["dev"])
