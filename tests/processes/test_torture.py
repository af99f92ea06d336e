"""Writers killed at any point of lock, stage and commit: no lock stays, none is broken, no acknowledged commit is lost.

TXSTORE_KILL_ROUNDS says how many are killed; `make torture` kills ten thousand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.processes.torture import KEYS, LOCK_TIMEOUT, key

ROUNDS = int(os.environ.get("TXSTORE_KILL_ROUNDS", "120"))
ROOT = Path(__file__).parents[2]

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child"]


def may_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("namespaces", [False, True], ids=["one namespace", "two pid namespaces"])
@pytest.mark.timeout(60 + ROUNDS)
def test_writers_that_are_killed(repo: txstore.Repository, namespaces: bool) -> None:
    if namespaces and not may_unshare():
        pytest.skip("pid namespaces can't be made here")
    with repo.transaction("first") as store:
        zarr.create_array(store, name="x", shape=(KEYS,), chunks=(1,), dtype="i8")
        for number in range(KEYS):
            store[key(number)] = b"0"
    families = [
        subprocess.Popen(
            [
                *(UNSHARE if namespaces else []),
                *(sys.executable, "-m", "tests.processes.torture", repo.url, str(seed), str(ROUNDS // 2)),
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        for seed in (1, 2)
    ]
    try:
        said = [line for family in families for line in json.loads(family.communicate(timeout=60 + ROUNDS)[0])]
    finally:
        for family in families:
            family.kill()
    assert [line for line in said if line.startswith("failed")] == []

    begun = {line.split()[1] for line in said if line.startswith("begun")}
    done = {line.split()[1] for line in said if line.startswith("done")}
    made = Counter(commit.message for commit in repo.log())
    del made["first"]
    assert set(made.values()) <= {1}, "a commit was made twice"
    assert done <= set(made), "an acknowledged commit is missing"
    assert set(made) <= begun
    assert len(done) > ROUNDS // 10, "hardly anything was done"

    snapshot = repo.snapshot()
    written = sum(commit.statistics["keys_set"] for commit in repo.log() if commit.message != "first")
    assert sum(int(snapshot[key(number)]) for number in range(KEYS)) == written, "an increment was lost"
    assert repo.verify().faults == []

    began = time.monotonic()
    fresh = txstore.Repository(repo.url)  # the first write of which also deletes what the dead left
    with fresh.transaction(lock={"x": np.s_[:]}, lock_timeout=LOCK_TIMEOUT) as store:  # no lock has stayed behind
        store["after"] = b"1"
    assert time.monotonic() - began < LOCK_TIMEOUT
    assert os.listdir(Path(repo.url, ".staging")) == []
