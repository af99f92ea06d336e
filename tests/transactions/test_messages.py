"""What users are told: which commit was first, which line dropped their writes, what is gone, which name is near."""

import gc
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.upkeep import put


def test_a_conflict_names_the_other_commit(repo: txstore.Repository) -> None:
    put(repo, {"a": b"1"})
    late = repo.begin("late")
    late["a"] = b"2"
    with repo.transaction("fix the rain\n\nwith details") as store:
        store["a"] = b"3"
    with pytest.raises(txstore.ConflictError, match=r"another commit \(main@1 by .*, 'fix the rain'\): 'a'"):
        late.commit()
    put(repo, {"b": b"1"})  # a later one: the newest commit alone is described
    with pytest.raises(txstore.ConflictError, match=r"another commit \(main@1\): 'a'"):
        late.commit()
    late.rollback()


def test_a_warning_is_of_the_line_that_dropped_the_writes(repo: txstore.Repository) -> None:
    store = txstore.TxStore(repo)
    zarr.create_array(store, name="a", data=np.arange(4))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del store
        gc.collect()
    assert [(each.category, each.filename) for each in told] == [(txstore.UncommittedChangesWarning, __file__)]


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize("has_written", [False, True])
@pytest.mark.parametrize("call", [lambda repo: repo.erase("a"), lambda repo: repo.head()], ids=["erase", "head"])
def test_a_repository_that_is_deleted_meanwhile(
    tmp_path: Path, call: Callable[[txstore.Repository], object], has_written: bool, is_made_again: bool
) -> None:
    root = tmp_path / "gone.tx"
    repo = txstore.Repository(root)
    put(repo, {"a/c/0": b"1"})
    writer = repo.begin("late")
    if has_written:
        writer["a/c/0"] = b"2" * 10_000_000
    shutil.rmtree(root)
    if is_made_again:
        root.mkdir()
    with pytest.raises(txstore.RepositoryNotFoundError, match="was here and is gone"):
        writer["a/c/1"] = b"2"
        writer.commit()
    with pytest.raises(txstore.RepositoryNotFoundError, match="was here and is gone"):
        call(repo)
    writer.rollback()


def test_a_tag_that_is_mistyped(repo: txstore.Repository) -> None:
    put(repo, {"a": b"1"})
    repo.tags["v1.0"] = repo.head()
    with pytest.raises(txstore.CommitNotFoundError, match=r"tag 'v1': there is no such tag; there is 'v1.0'"):
        repo.snapshot(tag="v1")
    with pytest.raises(txstore.CommitNotFoundError, match=r"see repo.tags"):
        repo.snapshot(tag="release")
