"""Bits of repositories are flipped: the reader in JavaScript returns what is right, or raises an error of its own.

`TXSTORE_FLIPS` says how many times.
"""

import json
import os
import subprocess
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zarr

import txstore
from tests.reader_js.node import node

FLIPS = int(os.environ.get("TXSTORE_FLIPS", "1000"))


def filled(url: str) -> txstore.Repository:
    """Small values, so that a flip rarely meets one; more commits than one carries."""
    repo = txstore.Repository(url)
    with repo.transaction("first") as store:
        zarr.create_array(store, name="a", data=np.arange(12), chunks=(3,))
        zarr.create_group(store, path="old/group")
    repo.tags["v1"] = repo.head()
    repo.branches["Dev"] = repo.head()
    with repo.transaction("on dev", branch="Dev") as store:
        store.move("a", "b")
    for number in range(20):
        with repo.begin(f"{number}") as transaction:
            transaction[f"n/{number}"] = b"%d" % number
            if number == 7:
                transaction.delete_dir("old")
    return repo


@pytest.mark.long
def test_flipped_bits(tmp_path: Path) -> None:
    filled(str(tmp_path / "plain.tx"))
    filled(str(tmp_path / "kept.tx")).optimize()
    url = f"memory://flips-{os.getpid()}/data.tx"
    filled(url)
    fsspec.filesystem("memory").get(url.removeprefix("memory:/"), str(tmp_path / "objects.tx"), recursive=True)
    node()  # fails or skips without Node
    places = [str(tmp_path / name) for name in ("plain.tx", "kept.tx", "objects.tx")]
    command = ["node", str(Path(__file__).with_name("flips.js")), str(FLIPS), "1", *places]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    counts = json.loads(ran.stdout)
    assert counts["answered"] > FLIPS
    assert counts["refused"] > FLIPS / 4
