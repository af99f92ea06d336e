"""Views beside other processes, maintenance, and other storage."""

import multiprocessing
import pickle
import shutil
import sys
import uuid
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.hostile import declare_unchecked
from tests.views.images import PYRAMID, VALUES, commit, halved, image, put, value
from tests.views.workers import write_part
from txstore import ViewError
from txstore.views import Apply, Coarsen, Reduce


def check(repo: txstore.Repository, **where: Any) -> None:
    """Each output is what its source makes it."""
    np.testing.assert_array_equal(value(repo, "image/1", **where), halved(value(repo, "image/0", **where)))
    np.testing.assert_array_equal(value(repo, "image/2", **where), halved(value(repo, "image/1", **where)))


def check_log(repo: txstore.Repository) -> None:
    for made in repo.log():
        if repo.snapshot(at=made).views:
            check(repo, at=made)


# --- other processes


def test_several_processes_in_one_transaction(repo: txstore.Repository) -> None:
    """Rows of one chunk, which the commit puts together before it derives."""
    commit(repo, image(), pyramid=PYRAMID)
    context = multiprocessing.get_context("spawn")
    with repo.transaction("together") as store:
        zarr.open_array(store, path="image/0")[0] = 100
        workers = [context.Process(target=write_part, args=(pickle.dumps(store), row)) for row in (1, 2, 3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(120)
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert value(repo, "image/0")[:4, 0].tolist() == [100, 1, 2, 3]
    check(repo)


# --- other storage
@pytest.mark.parametrize("when", ["commit", "follow"])
def test_an_object_store(when: Any) -> None:
    repo = txstore.Repository(f"memory://{uuid.uuid4().hex}/data.tx")
    view = Coarsen("image/0", "image/{level}", (2, 2), 2, when=when)
    commit(repo, image(), pyramid=view)
    for number in range(4):
        repo.run(lambda store, number=number: put(np.s_[number, :], number * 7)(store))  # type: ignore[misc]
        if when == "follow":
            assert repo.views["pyramid"].update() is not None
        check(repo)
    assert repo.verify().faults == []


# --- maintenance
def test_vacuum_optimize_and_backup(repo: txstore.Repository, tmp_path: Path) -> None:
    follows = Reduce("image/0", "y", "max", "row", when="follow")
    commit(repo, image(), pyramid=PYRAMID, row=follows)
    for number in range(3):
        commit(repo, put(np.s_[number], number + 500))
        repo.views["row"].update()
    repo.optimize()
    repo.vacuum(keep=1)
    repo.backup(str(tmp_path / "backup.tx"))
    for each in (repo, txstore.Repository(tmp_path / "backup.tx")):
        assert each.snapshot().views == {"pyramid": PYRAMID, "row": follows}
        check(each)
        commit(each, put(np.s_[5], 9))
        check(each)
        assert each.views["row"].update() is not None
        assert value(each, "row").tolist() == value(each, "image/0").max(axis=0).tolist()


def test_rechunk_of_a_source_and_of_an_output(repo: txstore.Repository) -> None:
    commit(repo, image(), pyramid=PYRAMID)
    repo.rechunk("image/0", chunks=(3, 5))
    check(repo)
    repo.rechunk("image/1", chunks=(2, 3))
    assert zarr.open_array(repo.snapshot(), path="image/1", mode="r").chunks == (2, 3)
    commit(repo, put(np.s_[1:6, 2:5], 70))
    check_log(repo)


def test_erase_of_a_source(repo: txstore.Repository) -> None:
    commit(repo, image(), pyramid=PYRAMID)
    del repo.views["pyramid"]
    repo.erase("image/0", "image/1", "image/2")
    assert "image/1/zarr.json" not in repo.mapping()


def test_copies_by_reference(repo: txstore.Repository) -> None:
    """Their keys are not staged one by one."""
    commit(repo, image(), image("other/0", VALUES * 5), pyramid=PYRAMID)

    def replace(store: txstore.TxStore) -> None:
        del zarr.open_group(store)["image/0"]
        store.copy("other/0", "image/0")

    commit(repo, replace)
    check(repo)


def test_no_function_of_a_repository_is_imported(repo: txstore.Repository) -> None:
    commit(repo, image())
    with pytest.raises(ViewError):
        repo.views["v"] = Apply("antigravity:fly", ["image/0"], "v")
    assert "antigravity" not in sys.modules


# --- headers of strangers
def strange(repo: txstore.Repository, path: Path, change: Any) -> txstore.Repository:
    """A copy whose view says something else."""
    shutil.copytree(repo.url, path)
    declare_unchecked(path, change)
    return txstore.Repository(path)


@pytest.mark.parametrize("rows", [2, 30])
def test_views_derived_from_each_other_are_looked_at_once(repo: txstore.Repository, tmp_path: Path, rows: int) -> None:
    """Each of two is derived from both above it, and, at last, the first ones from the last ones."""
    with repo.transaction() as store:
        zarr.create_array(store, name="a", shape=(4,), dtype="u1")
        zarr.create_array(store, name="b", shape=(4,), dtype="u1")
        store.views["v"] = Apply("m:f", ["a", "b"], "c", when="follow")

    def change(views: Any) -> Any:
        found = {}
        for row in range(rows):
            inputs = [f"{(row - 1) % rows}.{side}" for side in (0, 1)]
            for side in (0, 1):
                found[f"v{row}.{side}"] = views["v"] | {"when": "commit", "inputs": inputs, "to": f"{row}.{side}"}
        return found

    stranger = strange(repo, tmp_path / "stranger.tx", change)
    assert stranger.views["v0.0"].is_current()


@pytest.mark.parametrize(
    "view",
    [
        Coarsen("long", to="out/{level}", factors=(2,)),
        Reduce("time", "time", "mean", by="day", to="days"),
        Reduce("long", "x", "mean", to="mean"),
    ],
    ids=["an output", "labels", "what one element depends on"],
)
def test_what_a_stranger_declares_costs_no_commit_to_elsewhere(repo, tmp_path, view):
    """And a commit to the array itself ends in a moment, be it refused."""
    with repo.transaction() as store:
        for name, length in (("small", 4), ("out/1", 4), ("days", 1), ("day", 1)):
            zarr.create_array(store, name=name, shape=(length,), chunks=(1,), dtype="f8", dimension_names=["x"])
        zarr.create_array(store, name="mean", shape=(), dtype="f8")
        long = {"shape": (10**15,), "chunks": (1,), "dtype": "f8"}
        zarr.create_array(store, name="long", **long, dimension_names=["x"])
        units = {"units": "days since 2000-01-01"}
        zarr.create_array(store, name="time", **long, dimension_names=["time"], attributes=units)
        store.views["v"] = Coarsen("small", to="out/{level}", factors=(2,))
    written = {"kind": view.kind, **view.as_dict()}
    stranger = strange(repo, tmp_path / "stranger.tx", lambda _: {"v": written})
    with stranger.transaction() as store:
        zarr.open_array(store, path="small")[:] = 1
    assert [commit.version for commit in stranger.log()] == [1, 0]
    is_refused = isinstance(view, Reduce)
    with pytest.raises(ViewError, match="at once") if is_refused else nullcontext(), stranger.transaction() as store:
        zarr.open_array(store, path=view.sources[0])[0] = 1
        zarr.open_array(store, path=view.sources[0]).resize((10**15 + 1,))
