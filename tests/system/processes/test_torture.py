"""Writers killed at any point of lock, stage and commit: no lock stays, none is broken, no acknowledged commit is lost.

TXSTORE_KILL_ROUNDS says how many are killed; `make histories WHAT=torture` kills ten thousand.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests import reliability
from tests.system.processes.torture import KEYS, LOCK_TIMEOUT, WRITERS, key
from tests.system.processes.torture_roles import check

pytestmark = pytest.mark.long

ROUNDS = int(os.environ.get("TXSTORE_KILL_ROUNDS", "40"))
ROOT = Path(__file__).parents[3]

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child"]


def may_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def tortured(url: str, rounds: int, *families: Sequence[str], namespaces: bool = False) -> list[str]:
    """Let families of processes work on one repository, kill them one by one, and return what they said."""
    running = [
        subprocess.Popen(
            [
                *(UNSHARE if namespaces else []),
                *(sys.executable, "-m", "tests.system.processes.torture"),
                *(url, str(seed), str(rounds // len(families)), ",".join(roles)),
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        for seed, roles in enumerate(families, 1)
    ]
    try:
        said = [line for family in running for line in json.loads(family.communicate(timeout=240 + 2 * rounds)[0])]
    finally:
        for family in running:
            family.kill()
    assert [line for line in said if line.startswith("failed")] == []
    return said


def names_said(said: list[str], what: str) -> set[str]:
    return {line.split()[1] for line in said if line.startswith(what + " ")}


def make_array(repo: txstore.Repository) -> None:
    with repo.transaction("first") as store:
        zarr.create_array(store, name="x", shape=(KEYS,), chunks=(1,), dtype="i8")
        for number in range(KEYS):
            store[key(number)] = b"0"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("namespaces", [False, True], ids=["one namespace", "two pid namespaces"])
@pytest.mark.timeout(300 + 2 * ROUNDS)
def test_writers_that_are_killed(repo: txstore.Repository, namespaces: bool) -> None:
    if namespaces and not may_unshare():
        pytest.skip("pid namespaces can't be made here")
    make_array(repo)
    with reliability.counting("processes killed") as counts:
        said = tortured(repo.url, ROUNDS, WRITERS, WRITERS, namespaces=namespaces)
        counts["kills"] += ROUNDS
        check_writers(repo, said)
        counts["commits"] += len(names_said(said, "done"))
    check_usable(repo)


def check_writers(repo: txstore.Repository, said: list[str]) -> None:
    begun, done = names_said(said, "begun"), names_said(said, "done")
    made = Counter(commit.message for commit in repo.log())
    del made["first"]
    assert set(made.values()) <= {1}, "a commit was made twice"
    assert done <= set(made), "an acknowledged commit is missing"
    assert set(made) <= begun
    assert len(done) > ROUNDS // 10, "hardly anything was done"
    assert set(check(repo.snapshot())) == set(made), "an increment was lost"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.timeout(300 + 2 * ROUNDS)
def test_all_kinds_of_processes_that_are_killed(repo: txstore.Repository) -> None:
    """Beside writers: cooperating ones, readers, followers, and those that optimize and vacuum."""
    make_array(repo)
    families = ("write", "cooperate", "vacuum", "read"), ("write", "cooperate", "optimize", "follow")
    with reliability.counting("processes killed") as counts:
        said = tortured(repo.url, ROUNDS, *families)
        counts["kills"] += ROUNDS
        check_all_kinds(repo, said)
        counts["commits"] += len(names_said(said, "done"))


def check_all_kinds(repo: txstore.Repository, said: list[str]) -> None:
    begun, done = names_said(said, "begun"), names_said(said, "done")
    made = set(check(repo.snapshot()))
    assert done <= made, "an acknowledged commit is missing"
    assert made <= begun
    missing = {"done", "read", "followed", "optimized", "vacuumed"} - {line.split()[0] for line in said}
    assert not missing, "some never got to do anything"
    check_usable(repo)
    repo.optimize()
    repo.vacuum(keep=1)
    assert set(check(repo.snapshot())) >= made
    assert repo.usage().orphan == repo.usage().staged == 0
    assert repo.verify().faults == []


def check_usable(repo: txstore.Repository) -> None:
    """Look whether the dead have left anything in the way of the living."""
    assert repo.verify().faults == []
    fresh = txstore.Repository(repo.url)  # the first write of which also deletes what the dead left
    with fresh.transaction(lock={"x": np.s_[:]}, lock_timeout=LOCK_TIMEOUT) as store:  # no lock has stayed behind
        store["after"] = b"1"
    assert os.listdir(Path(repo.url, ".staging")) == []
