"""Erasures of one repository beside and after each other: each finds whole what the others have left."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.maintenance.erased_rows import Contents, array_of, check, contents, leaks
from tests.tools.faults import Hook, watch
from txstore.format import names

LABELS = np.arange(10, 18)
#: Of each array a row of values for each label: no other bytes are like these.
VALUES = {
    path: np.frombuffer(random.Random(path).randbytes(8 * 8), np.uint64) for path in ("v", "w", "x", "changed", "dev")
}


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    """Two arrays whose rows are in two chunks, in several versions, and on two branches."""
    with repo.transaction("first") as store:
        array_of(store, "p", LABELS, ["p"], (4,))
        for path in ("v", "w"):
            array_of(store, path, VALUES[path], ["p"], (4,))
    with repo.transaction("changed") as store:
        zarr.open_array(store, path="v")[:4] = VALUES["changed"][:4]
    repo.branches["dev"] = repo.head()  # type: ignore[assignment]
    with repo.transaction("on dev", branch="dev") as store:
        zarr.open_array(store, path="v")[:] = VALUES["dev"]
    del store
    gc.collect()
    return repo


def erased(**rows: list[int]) -> Callable[[str, int, str], Any]:
    """Return what says which elements of an array these labels have."""
    return lambda _branch, _version, path: np.isin(LABELS, rows[path]) if path in rows else None


def secrets(path: str, labels: list[int]) -> list[bytes]:
    sources = ("v", "changed", "dev") if path == "v" else (path,)
    return [VALUES[source][np.flatnonzero(label == LABELS)[0]].tobytes() for source in sources for label in labels]


def check_erased(repo: txstore.Repository, before: Contents, **rows: list[int]) -> None:
    """These rows are gone from all files, and nothing else is."""
    again = txstore.Repository(repo.url)
    check(before, contents(again), erased(**rows), lambda _: 0)
    pieces = [piece for path, labels in rows.items() for piece in secrets(path, labels)]
    assert leaks(repo.url, *pieces) == []
    assert again.verify().faults == []
    assert all(each.finished is not None for each in again.erasures())


def at(path: str, number: int, stop: Callable[[], object]) -> Hook:
    """Return a hook that stops at the n-th file that takes a place below a path."""
    left = iter(range(number))

    def hook(_: str, target: str, *__: Any) -> None:
        if target.startswith(path) and next(left, None) is None:
            stop()

    return hook


def interrupted() -> None:
    raise KeyboardInterrupt


def interrupt(repo: txstore.Repository, call: str, hook: Hook, erase: Callable[[txstore.Repository], object]) -> None:
    """Erase, and be killed at a call of the storage."""
    killed = txstore.Repository(repo.url)
    watch(killed).before[call] = hook
    with pytest.raises(KeyboardInterrupt):
        erase(killed)
    del killed
    gc.collect()


# --- interrupted


def stops() -> list[tuple[str, str, int]]:
    """Return call, path and number of what an erasure of rows is killed at."""
    records = [("replace", names.ERASED, number) for number in (0, 1, 3, 4, 5)]
    return records + [("replace_blanked", "", number) for number in (0, 2)]


@pytest.mark.parametrize("stop", stops())
@pytest.mark.parametrize("other", ["other rows", "other arrays", "more arrays", "the same"])
def test_one_that_was_interrupted_is_finished_by_whichever_comes(
    filled: txstore.Repository, stop: tuple[str, str, int], other: str
) -> None:
    before = contents(filled)
    call, path, number = stop
    interrupt(filled, call, at(path, number, interrupted), lambda repo: repo.erase("v", {"p": [11, 16]}))
    gone: dict[str, list[int]] = {"v": [11, 16]}
    if other == "other rows":
        filled.erase("v", {"p": 12})
        gone["v"] = [11, 12, 16]
    elif other == "other arrays":
        filled.erase("w", {"p": [11, 12]})
        gone["w"] = [11, 12]
    elif other == "more arrays":
        filled.erase("", {"p": 13})
        gone = {"v": [11, 13, 16], "w": [13]}
    filled.erase("v", {"p": [11, 16]})
    check_erased(filled, before, **gone)


@pytest.mark.parametrize("by", ["an erasure", "an erasure of labels", "a user"])
def test_its_rows_were_overwritten_and_their_commits_have_expired(filled: txstore.Repository, by: str) -> None:
    """Files have them that are kept for other values."""
    del filled.branches["dev"]

    def erase(repo: txstore.Repository) -> Any:
        return repo.erase("v", {"p": [11, 16]}, labels=by == "an erasure of labels")

    if by == "a user":
        with filled.transaction("overwritten") as store:
            zarr.open_array(store, path="v")[[1, 6]] = 0
        del store
        gc.collect()
    else:
        interrupt(filled, "replace", at(names.ERASED, 1, interrupted), erase)
    filled.vacuum(keep=1)
    assert leaks(filled.url, *secrets("v", [11, 16]))
    before = contents(filled)
    assert erase(filled).values
    check_erased(filled, before)
    assert leaks(filled.url, *secrets("v", [11, 16])) == []


@pytest.mark.parametrize("rows", [[{"p": 11}], []], ids=["rows", "whole"])
@pytest.mark.parametrize("how", ["copy", "move"])
def test_nothing_is_copied_to_what_is_being_erased(filled: txstore.Repository, how: str, rows: list[Any]) -> None:
    interrupt(filled, "replace_blanked", at("", 0, interrupted), lambda repo: repo.erase("w", *rows))
    with filled.begin() as mapping:
        mapping.delete_dir("w")
    with pytest.raises(txstore.ErasedError, match="being erased"), filled.transaction() as store:
        getattr(store, how)("v", "w")
    del store, mapping
    gc.collect()
    filled.erase("w", *rows)
    with filled.transaction() as store:
        getattr(store, how)("v", "w")


@pytest.mark.parametrize("expires", [False, True])
def test_an_array_of_which_nothing_was_erased_yet_is_not_finished_by_another(
    filled: txstore.Repository, expires: bool
) -> None:
    """A transaction that the erasure was about to wait for has copied values since: only the same call finds them."""
    copying = contextlib.ExitStack()

    def copy() -> None:
        store = copying.enter_context(txstore.Repository(filled.url).transaction("copies"))
        store.restore("v", at=0)
        zarr.open_array(store, path="v")[0] = 1

    killed = txstore.Repository(filled.url)
    watched = watch(killed)
    watched.before["replace"] = at(names.ERASED, 0, copy)
    watched.after["replace"] = at(names.ERASED, 0, interrupted)
    with pytest.raises(KeyboardInterrupt):
        killed.erase("v")
    copying.close()
    del killed, watched
    gc.collect()
    filled.erase("w", {"p": 11})
    [fault] = filled.verify().faults
    assert "the erasure of 'v' by" in fault.reason
    if expires:
        del filled.branches["dev"]
        with filled.begin() as mapping:
            mapping.delete_dir("v")
        del mapping
        gc.collect()
        filled.optimize()
        filled.vacuum(keep=1)
    assert (filled.erase("v").commit is None) == expires
    assert leaks(filled.url, *secrets("v", LABELS.tolist())) == []
    assert filled.verify().faults == []


def test_a_reader_of_what_was_interrupted_is_waited_for(filled: txstore.Repository) -> None:
    interrupt(filled, "replace_blanked", at("", 0, interrupted), lambda repo: repo.erase("w"))
    reader = filled.snapshot(at=1)
    reader["v/c/0"]
    with pytest.raises(txstore.ErasureTimeoutError, match="was interrupted, and has to be finished"):
        txstore.Repository(filled.url).erase("v", {"p": 11}, timeout=0)
    del reader
    filled.erase("v", {"p": 11})


# --- copies


@pytest.mark.parametrize("rows", [[], [{"p": 12}]], ids=["whole", "rows"])
@pytest.mark.parametrize("erased_before", [False, True])
def test_a_backup_keeps_no_values_of_a_branch_that_was_deleted_here(
    filled: txstore.Repository, tmp_path: Path, erased_before: bool, rows: list[Any]
) -> None:
    """The erasure knows nothing of its commits: there, each version of each chunk is erased as a whole."""
    copy = tmp_path / "copy.tx"
    if erased_before:
        filled.erase("v", {"p": 11})
    filled.backup(copy)
    before = {place: data for place, data in contents(txstore.Repository(copy)).items() if place[2] != "v"}
    del filled.branches["dev"]
    gc.collect()
    filled.vacuum()
    filled.erase("v", *rows)
    with pytest.raises(txstore.BackupErasureError):
        filled.backup(copy)
    filled.backup(copy, erase=True)
    again = txstore.Repository(copy)
    assert leaks(copy, *secrets("v", [12])) == []
    assert leaks(copy, *(row.tobytes() for row in VALUES["dev"])) == []
    for key in ("v/c/0", "v/c/1"):
        with pytest.raises(txstore.ErasedError):
            again.mapping(branch="dev")[key]
    for (branch, version, path), was in before.items():
        found = zarr.open_array(again.snapshot(at=version, branch=branch), path=path, mode="r")[...]
        np.testing.assert_array_equal(found, was)
    assert again.verify().faults == []
    assert filled.backup(copy).erasures == 0


# --- refused before anything is changed


def test_all_branches_are_asked_before_the_first_is_changed(filled: txstore.Repository) -> None:
    filled.freeze("as it is", branch="dev")
    heads = {name: filled.head(name) for name in filled.branches}
    before = contents(filled)
    for erase in (lambda: filled.erase("v", {"p": 11}), lambda: filled.erase("v")):
        with pytest.raises(txstore.ConstraintError):
            erase()
        assert {name: filled.head(name) for name in filled.branches} == heads
    check(before, contents(filled), erased(), lambda _: 0)
    assert filled.erasures() == []
    filled.unfreeze(branch="dev")
    filled.erase("v", {"p": 11})
    check_erased(filled, before, v=[11])


# --- after an array was erased as a whole
