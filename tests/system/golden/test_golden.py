"""Repositories that each format version has written are read, written and verified by this one. On a copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.system.golden.write import NAME, describe
from txstore.format import encoding

HERE = Path(__file__).parent
VERSIONS = sorted(path.parent.name for path in HERE.glob("*/expected.json"))

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


@pytest.fixture(params=VERSIONS)
def golden(request, tmp_path) -> tuple[Path, dict]:
    shutil.copytree(HERE / request.param / "data.tx", tmp_path / "data.tx")
    expected = json.loads((HERE / request.param / "expected.json").read_text(encoding="utf-8"))
    return tmp_path / "data.tx", expected


def test_there_is_one_of_this_version():
    assert str(encoding.VERSION) in VERSIONS


def test_all_that_was_written_is_there(golden):
    path, expected = golden
    assert describe(path) == expected
    assert txstore.Repository(path).verify().faults == []


def test_its_arrays(golden):
    path, _ = golden
    repo = txstore.Repository(path)
    position = np.concatenate([np.arange(60.0).reshape(15, 4), np.full((5, 4), 0.5)])
    at_tag = repo.snapshot(tag="v1.0")
    assert np.array_equal(zarr.open_array(at_tag, path="storm/position", mode="r")[:], position)
    assert np.array_equal(zarr.open_array(at_tag, path="old/u1", mode="r")[:], np.arange(6))
    head = repo.snapshot()
    for number in range(4):
        position[number] = -number
    assert np.array_equal(zarr.open_array(head, path="storm/position", mode="r")[:], position)
    assert zarr.open_array(head, path="old/scalar", mode="r")[()] == 3
    large = zarr.open_array(head, path="large", mode="r")
    assert np.array_equal(large[:], np.concatenate([np.arange(250), np.zeros(250)]))
    assert np.array_equal(zarr.open_array(head, path="shared", mode="r")[:], [0] * 10 + [7] * 10)
    assert "old/u1/.zarray" not in repo.mapping()
    assert zarr.open_group(head, path="storm", mode="r").attrs["title"] == "golden"


def test_its_transaction_is_committed(golden):
    path, expected = golden
    repo = txstore.Repository(path)
    assert [transaction.name for transaction in repo.transactions()] == [NAME]
    with repo.transaction("another") as store:  # a writer tidies up; what has a name stays
        zarr.open_array(store, path="shared")[0] = 5
    with repo.transaction(name=NAME) as store:
        commit = store.commit()
    assert commit.message == "to be committed"
    head = repo.snapshot()
    assert np.array_equal(zarr.open_array(head, path="later", mode="r")[:], np.arange(3))
    assert len(list(repo.log())) == len(expected["commits"]) + 2
    assert repo.verify().faults == []


def test_it_is_backed_up(golden, tmp_path):
    path, expected = golden
    txstore.Repository(path).backup(tmp_path / "copy")
    assert describe(tmp_path / "copy") == expected
