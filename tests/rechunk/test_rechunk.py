"""Rechunk gives an array another grid in one commit, with every element that anybody has committed."""

import gc
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import txstore
import txstore.rechunk.job
from tests.tools.arrays import HAS_RECTILINEAR
from tests.tools.commits import commit, create_array, write_array
from tests.tools.faults import Killed
from txstore.constraints import Fixed, Frozen
from txstore.format import names
from txstore.rechunk.job import RechunkJob
from txstore.storage.interface import paths_in

#: The branch of a job that rechunks "x" on "main".
JOB = "rechunk-58e373b1c47a"


def written(repo: txstore.Repository, data: Any, **options: Any) -> Any:
    with repo.transaction("the array") as store:
        zarr.create_group(store, zarr_format=options.get("zarr_format", 3))
        zarr.create_array(store, name="x", data=data, **options)
    return data


def read(repo: txstore.Repository, **which: Any) -> zarr.Array[Any]:
    return zarr.open_array(repo.snapshot(**which), path="x", mode="r")


def is_equal(found: Any, expected: Any) -> bool:
    found, expected = np.asarray(found), np.asarray(expected)
    return found.shape == expected.shape and bool(np.array_equal(found.astype(object), expected.astype(object)))


@pytest.fixture
def each_piece(monkeypatch):
    """The copy is committed after each piece."""
    monkeypatch.setattr(txstore.rechunk.job, "_COMMITTED", 1 << 40)


class Meanwhile:
    """A `progress=` that commits something to the array each time that it is called."""

    def __init__(self, repo: txstore.Repository, *changes: Callable[[Any], object]) -> None:
        self.repo = repo
        self.left = list(changes)

    def __call__(self, done: int, total: int) -> None:
        if self.left:
            change = self.left.pop(0)
            commit(self.repo, lambda store: change(zarr.open_array(store, path="x", mode="r+")), message="meanwhile")


SHAPES = [
    ((23,), (5,), (7,)),
    ((20, 31), (4, 31), (20, 3)),
    ((9, 8, 7), (2, 8, 3), (9, 1, 7)),
    ((), (), ()),
    ((0, 4), (2, 2), (3, 4)),
]


@pytest.mark.parametrize(("shape", "old", "new"), SHAPES)
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("memory", ["tight", "ample"])
def test_grids(repo, shape, old, new, zarr_format, memory):
    data = written(
        repo, np.arange(np.prod(shape, dtype=int), dtype="i4").reshape(shape), chunks=old, zarr_format=zarr_format,
        attributes={"units": "K"}, fill_value=-1,
    )  # fmt: skip
    if not shape:
        assert repo.rechunk("x", chunks=new) is None
        assert repo.rechunk("x", chunks=new, compressors=None) is not None
    else:
        most = max(np.prod(old), np.prod(new)) * 4 * txstore.rechunk.job._SHARE
        made = repo.rechunk("x", chunks=new, max_memory=int(most) if memory == "tight" else 1 << 28, workers=1)
        assert made == repo.head()
    array = read(repo)
    assert array.chunks == new
    assert is_equal(array[...], data)
    assert (array.attrs.asdict(), array.fill_value, array.dtype) == ({"units": "K"}, -1, np.dtype("i4"))
    assert read(repo, at=0).chunks == old
    assert is_equal(read(repo, at=0)[...], data)
    assert list(repo.branches) == ["main"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"chunks": (4, 4)}, {"chunks": (5, 3), "shards": (10, 6)}),
        ({"chunks": (2, 2), "shards": (4, 8)}, {"chunks": (5, 3)}),
        ({"chunks": (2, 2), "shards": (4, 8)}, {"chunks": (3, 3), "shards": (9, 3)}),
        ({"chunks": (2, 2), "shards": (4, 8)}, {"chunks": None, "compressors": None}),
        ({"chunks": (4, 4), "chunk_key_encoding": {"name": "v2", "separator": "."}}, {"chunks": (9, 2)}),
        ({"chunks": (4, 4), "compressors": None}, {"chunks": (4, 4), "compressors": zarr.codecs.GzipCodec(level=1)}),
    ],
)
def test_shards_and_codecs(repo, before, after):
    data = written(repo, np.random.default_rng(1).integers(0, 9, (30, 17)), dimension_names=("y", "x"), **before)
    assert repo.rechunk("x", **after) is not None
    array = read(repo)
    assert is_equal(array[...], data)
    assert array.chunks == (after["chunks"] or before["chunks"])
    assert array.shards == after.get("shards", before.get("shards") if after["chunks"] is None else None)
    assert array.metadata.dimension_names == ("y", "x")
    assert repo.rechunk("x", **after) is None


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_text(repo, zarr_format):
    text = np.array(["", "a", "bc", "déf", "x" * 100] * 5, dtype=object).reshape(5, 5)
    with repo.transaction() as store:
        z = zarr.create_array(store, name="x", shape=text.shape, chunks=(1, 5), dtype=str, zarr_format=zarr_format)
        z[:] = text
    repo.rechunk("x", chunks=(5, 2))
    assert is_equal(read(repo)[:], text)


@pytest.mark.parametrize("dtype", ["M8[s]", "f2", "c8", "?", "S3", "U4", [("a", "i2"), ("b", "f8")]])
def test_dtypes(repo, dtype):
    data = np.zeros((6, 5), dtype)
    data.reshape(-1)[7:9] = np.ones(2, data.dtype)
    written(repo, data, chunks=(2, 5))
    repo.rechunk("x", chunks=(6, 1))
    assert read(repo)[:].tobytes() == data.tobytes()


@pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear grids")
def test_irregular_chunks(repo):
    with zarr.config.set({"array.rectilinear_chunks": True}):
        data = written(repo, np.arange(60).reshape(10, 6), chunks=([1, 6, 3], [2, 4]))
        with pytest.raises(ValueError, match="several lengths"):
            repo.rechunk("x", chunks=None)
        meanwhile = Meanwhile(repo, lambda z: z.__setitem__((slice(0, 2), 3), -5))
        repo.rechunk("x", chunks=(4, 3), progress=meanwhile)
    data[:2, 3] = -5
    assert is_equal(read(repo)[:], data)


@pytest.mark.parametrize("retention", [None, 1])
def test_two_passes(open_repo, monkeypatch, each_piece, retention):
    repo = open_repo(retention=retention)
    monkeypatch.setattr(txstore.rechunk.plans, "_SMALLEST", 16)
    data = written(repo, np.random.default_rng(2).random((64, 64)), chunks=(1, 64))
    told: list[tuple[int, int]] = []
    repo.rechunk("x", chunks=(64, 1), max_memory=4096 * 3, workers=1, progress=lambda *each: told.append(each))
    assert is_equal(read(repo)[:], data)
    assert told[-1] == (2 * data.nbytes, 2 * data.nbytes)
    assert list(zarr.open_group(repo.snapshot(), mode="r").array_keys()) == ["x"]


def test_chunks_that_are_not_stored_stay_so(repo):
    with repo.transaction() as store:
        z = zarr.create_array(store, name="x", shape=(1000, 1000), chunks=(10, 10), dtype="f4")
        z[40:60, 500:505] = 1
    repo.rechunk("x", chunks=(20, 20), max_memory=1 << 20)
    assert len(list(repo.mapping().keys_below("x/c"))) == 1


# --- beside others
CHANGES: dict[str, Callable[[Any], object]] = {
    "some elements": lambda z: z.__setitem__((slice(3, 11), 5), 77),
    "to fill value": lambda z: z.__setitem__((slice(0, 8), slice(0, 8)), 0),
    "attributes": lambda z: z.attrs.update(more=[1]),
    "append": lambda z: z.append(np.full((9, z.shape[1]), 8, z.dtype)),
    "append along the other axis": lambda z: z.append(np.full((z.shape[0], 5), 9, z.dtype), axis=1),
    "grow": lambda z: z.resize((z.shape[0] + 3, z.shape[1] + 8)),
    "shrink": lambda z: z.resize((z.shape[0] - 9, z.shape[1] - 3)),
    "everything": lambda z: z.__setitem__(slice(None), 5),
}


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from(sorted(CHANGES)), max_size=6),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from([0, 500, 1 << 20]),
    st.sampled_from([2, 3]),
)
def test_any_changes(tmp_path_factory, names, old, new, few, zarr_format):
    if old == new:
        return
    repo = txstore.Repository(tmp_path_factory.mktemp("any") / "data.tx", durability="none")
    written(repo, np.random.default_rng(4).integers(1, 9, (31, 23)), chunks=old, zarr_format=zarr_format)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(txstore.rechunk.job, "_COMMITTED", 1 << 40)
        patched.setattr(txstore.rechunk.job, "_FEW", few)
        meanwhile = Meanwhile(repo, *(CHANGES[name] for name in names))
        repo.rechunk("x", chunks=new, max_memory=4000, progress=meanwhile)
    after, before = read(repo), read(repo, at=-2)
    assert after.chunks == new
    assert is_equal(after[:], before[:])
    # An array that grows again shows what lies behind its end: both have the fill value there, or the same.
    commit(repo, lambda store: zarr.open_array(store, path="x", mode="r+").resize((60, 60)))
    assert not repo.verify().faults


def test_objects_of_the_old_grid_are_stale(repo):
    written(repo, np.arange(20), chunks=(5,))
    reader = read(repo)
    writer = repo.transaction("a change")
    array = zarr.open_array(writer, path="x", mode="r+")
    array[0] = 100
    waiting = txstore.TxStore(repo)
    old = zarr.open_array(waiting, path="x", mode="r+")
    repo.rechunk("x", chunks=(7,))
    assert reader.chunks == (5,)
    assert is_equal(reader[:], np.arange(20))
    with pytest.raises(txstore.ConflictError, match=r"repo\.run"):
        writer.commit()
    writer.rollback()
    for use in (lambda: array[1], lambda: array.__setitem__(1, 5)):
        with pytest.raises(txstore.StaleArrayError, match="open it again"):
            use()
    old[3] = 9  # it is still at its own commit
    with pytest.raises(txstore.ConflictError):
        waiting.commit()
    waiting.rollback()
    with pytest.raises(txstore.StaleArrayError):
        old[3] = 9
    repo.run(lambda store: zarr.open_array(store, path="x", mode="r+").__setitem__(3, 9))
    assert read(repo)[3] == 9


def test_nothing_else_changes(repo):
    written(repo, np.arange(20), chunks=(5,))
    create_array(repo, "y", data=np.arange(3))
    repo.rechunk("x", chunks=(7,), message="other chunks")
    (changed,) = repo.diff(-2, -1)
    assert (changed.path, changed.change) == ("x", "changed")
    assert [each.name for each in changed.fields] == ["chunks"]
    assert repo.head().message == "other chunks"


def test_another_branch(repo):
    written(repo, np.arange(20), chunks=(5,))
    repo.branches["dev"] = repo.head()
    repo.rechunk("x", chunks=(7,), branch="dev")
    assert read(repo).chunks == (5,)
    assert read(repo, branch="dev").chunks == (7,)
    write_array(repo, "x", 0, 5)
    with pytest.raises(txstore.MergeConflictError):
        repo.merge("dev")


def test_on_an_object_store(monkeypatch, each_piece):
    """There nobody has the turn: who never pauses may be first each time, until the time is up."""
    repo = txstore.Repository(f"memory://{uuid.uuid4().hex}")
    data = written(repo, np.arange(200).reshape(20, 10), chunks=(1, 10))
    swap = txstore.rechunk.job.RechunkJob._bring_up

    def overtaken(self: Any, store: Any, *arguments: Any) -> None:
        swap(self, store, *arguments)
        data[3, 4] += 1
        write_array(repo, "x", (3, 4), data[3, 4])

    monkeypatch.setattr(txstore.rechunk.job.RechunkJob, "_bring_up", overtaken)
    with pytest.raises(txstore.ConflictError) as caught:
        repo.rechunk("x", chunks=(20, 1), timeout=0)
    assert "the same call continues" in caught.value.__notes__[-1]
    monkeypatch.setattr(txstore.rechunk.job.RechunkJob, "_bring_up", swap)
    meanwhile = Meanwhile(repo, lambda z: z.__setitem__((0, 0), -1))
    data[0, 0] = -1
    repo.rechunk("x", chunks=(20, 1), progress=meanwhile)
    if meanwhile.left:
        data[0, 0] = 0  # the copy was there already
    assert is_equal(read(repo)[:], data)
    assert repo.verify().faults == []


# --- interrupted
def interrupt_at(call: int) -> Callable[[int, int], None]:
    calls = iter(range(call + 1))

    def progress(done: int, total: int) -> None:
        if next(calls, call) == call:
            raise Killed

    return progress


@pytest.mark.parametrize("call", [0, 1, 3, 6])
@pytest.mark.parametrize("vacuum", [False, True])
def test_the_same_call_continues(repo, monkeypatch, each_piece, call, vacuum):
    monkeypatch.setattr(txstore.rechunk.plans, "_ENOUGH", 100)
    data = written(repo, np.random.default_rng(5).integers(0, 9, (60, 9)), chunks=(2, 9))
    with pytest.raises(Killed) as caught:
        repo.rechunk("x", chunks=(4, 9), workers=1, progress=interrupt_at(call))
    assert JOB in caught.value.__notes__[-1]
    assert list(repo.branches) == ["main", JOB]
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[3, 3] = data[3, 3] = -4
    if vacuum:
        repo.vacuum(keep=1)
    assert read(repo).chunks == (2, 9)
    told: list[int] = []
    repo.rechunk("x", chunks=(4, 9), workers=1, progress=lambda done, _: told.append(done))
    assert (told[0] > 0) is (call > 1)
    assert is_equal(read(repo)[:], data)
    assert list(repo.branches) == ["main"]


def test_a_commit_that_the_copy_is_like_may_be_expired(repo, monkeypatch):
    """What was copied again on the branch has to be copied once more, if nobody knows what has changed since."""
    monkeypatch.setattr(txstore.rechunk.job, "_FEW", 0)
    data = written(repo, np.arange(100), chunks=(10,))

    def change(value: int, place: int) -> None:
        write_array(repo, "x", place, value)

    finish, calls = txstore.rechunk.job.RechunkJob._turn, iter(range(2))

    def turn(self: Any) -> Any:
        if not next(calls):
            raise Killed
        return finish(self)

    monkeypatch.setattr(txstore.rechunk.job.RechunkJob, "_turn", turn)
    with pytest.raises(Killed):
        repo.rechunk("x", chunks=(7,), progress=lambda *_: change(-1, 5))
    change(5, 5)  # as it was when the copy began: no difference from there
    change(-2, 80)
    repo.vacuum(keep=1)
    repo.rechunk("x", chunks=(7,))
    data[80] = -2
    assert is_equal(read(repo)[:], data)


def test_the_branch_of_another_job(repo):
    written(repo, np.arange(20), chunks=(5,))
    with pytest.raises(Killed):
        repo.rechunk("x", chunks=(7,), progress=interrupt_at(0))
    with pytest.raises(txstore.TransactionStateError, match="another name="):
        repo.rechunk("x", chunks=(8,))
    assert repo.rechunk("x", chunks=(8,), name="other") is not None
    with pytest.raises(txstore.ConflictError, match="other chunks") as caught:
        repo.rechunk("x", chunks=(7,))
    assert JOB in caught.value.__notes__[-1]
    del repo.branches[JOB]
    assert repo.rechunk("x", chunks=(7,)) is not None


def test_another_grid_at_the_last_moment(repo, monkeypatch):
    """It stays: to try again, in the turn to commit, would only let all other committers wait."""
    written(repo, np.arange(20), chunks=(5,))
    turn = RechunkJob._turn

    def after_another(job: RechunkJob) -> Any:
        if not job.work.endswith("other"):
            txstore.Repository(repo.url).rechunk("x", chunks=(8,), name="other")
            monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it tries again"))
        return turn(job)

    monkeypatch.setattr(RechunkJob, "_turn", after_another)
    with pytest.raises(txstore.ConflictError, match="other chunks") as caught:
        repo.rechunk("x", chunks=(7,))
    assert JOB in caught.value.__notes__[-1]
    assert read(repo).chunks == (8,)


def test_two_processes_do_the_same(repo, monkeypatch, each_piece):
    written(repo, np.arange(20), chunks=(5,))

    def other(done: int, total: int) -> None:
        monkeypatch.setattr(txstore.rechunk.job, "_COMMITTED", 1)
        if done < total:
            txstore.Repository(repo.url).rechunk("x", chunks=(7,))

    with pytest.raises(txstore.TransactionStateError, match="another process"):
        repo.rechunk("x", chunks=(7,), progress=other)
    assert is_equal(read(repo)[:], np.arange(20))
    assert read(repo).chunks == (7,)


# --- refused
def test_what_can_not_be(repo):
    with pytest.raises(txstore.RepositoryNotFoundError):
        repo.rechunk("x", chunks=(7,))
    written(repo, np.arange(20).reshape(4, 5), chunks=(2, 5))
    for options, error, told in [
        ({"chunks": (7,)}, ValueError, "2 lengths"),
        ({"chunks": (0, 1)}, ValueError, "1 or more"),
        ({"chunks": (2, 2), "shards": (3, 4)}, ValueError, "whole chunks"),
        ({"chunks": (4, 5), "max_memory": 100}, ValueError, "max_memory="),
        ({"chunks": (4, 5), "max_memory": "much"}, ValueError, "no size"),
        ({"chunks": (4, 5), "workers": 0}, ValueError, "1 or more"),
        ({"chunks": (4, 5), "branch": "dev"}, txstore.CommitNotFoundError, "no such branch"),
        ({"chunks": (4, 5), "compressors": "lz77"}, TypeError, "str"),
    ]:
        with pytest.raises(error, match=told):
            repo.rechunk("x", **options)
    for path in ("y", ""):
        with pytest.raises(txstore.NodeNotFoundError):
            repo.rechunk(path, chunks=(1,))
    assert list(repo.branches) == ["main"]
    assert len(repo.log()) == 1


def test_an_array_that_is_gone(repo):
    written(repo, np.arange(20), chunks=(5,))

    def delete(*_: int) -> None:
        with repo.transaction() as store:
            del zarr.open_group(store)["x"]

    with pytest.raises(txstore.NodeNotFoundError):
        repo.rechunk("x", chunks=(7,), progress=delete)


@pytest.mark.parametrize("constraint", [Fixed("x", ["chunks"]), Frozen("it is published", "x")])
def test_constraints_that_forbid_it(repo, constraint):
    written(repo, np.arange(20), chunks=(5,))
    repo.constraints["no"] = constraint
    with pytest.raises(txstore.ConstraintError):
        repo.rechunk("x", chunks=(7,))
    assert list(repo.branches) == ["main"]  # nothing was copied


@pytest.mark.parametrize("storage", ["disk", "objects"])
@pytest.mark.parametrize("path", ["ward-7/Ann Lee", "x"])
def test_the_log_of_operations_has_no_path(repo, path, storage):
    """It would stay there when the array is erased."""
    if storage == "objects":
        repo = txstore.Repository(f"memory://{uuid.uuid4().hex}")
    create_array(repo, path, data=np.arange(20), chunks=(5,))
    gc.collect()
    parts = [f"-{path}", *re.split("[^A-Za-z]", path)] if "/" in path else [f"-{path}", f'"{path}']

    def recorded() -> list[str]:
        storage = repo.engine.storage
        return [bytes(storage.read(each)).decode() for each in paths_in(storage, names.OPERATIONS)]

    def check(count: int) -> None:
        assert len(recorded()) == count
        assert not [each for each in recorded() for part in parts if part and part in each]

    with pytest.raises(Killed):
        repo.rechunk(path, chunks=7, progress=interrupt_at(0))
    _, job = repo.branches
    assert path in repo.branches[job].message
    check(2)  # "create branch", "rename branch"
    assert repo.rechunk(path, chunks=7) is not None
    check(3)  # "delete branch"
    repo.rechunk(path, chunks=5)
    with pytest.raises(txstore.NodeNotFoundError):
        repo.rechunk(f"{path}/none", chunks=5)
    check(6)
    repo.erase(path)
    check(7)


def test_one_job_for_each_path_and_branch(repo):
    """Whatever the paths and branches have in common: none is taken for the job of another."""
    jobs = [(path, branch) for path in ("a/b", "a-b", "a b") for branch in ("main", "dev")]
    with repo.transaction() as store:
        for path in ("a/b", "a-b", "a b"):
            zarr.create_array(store, name=path, data=np.arange(20), chunks=(5,))
    repo.branches["dev"] = repo.head()
    for path, branch in jobs:
        with pytest.raises(Killed):
            repo.rechunk(path, chunks=7, branch=branch, progress=interrupt_at(0))
    assert len(list(repo.branches)) == 2 + len(jobs)
    for path, branch in jobs:
        repo.rechunk(path, chunks=7, branch=branch)
        assert zarr.open_array(repo.snapshot(branch=branch), path=path, mode="r").chunks == (7,)
    assert sorted(repo.branches) == ["dev", "main"]


@pytest.mark.parametrize("has_commits", [False, True])
def test_a_branch_of_the_user_with_that_name(repo, has_commits):
    data = written(repo, np.arange(20), chunks=(5,))
    repo.branches[JOB] = repo.head()
    if has_commits:
        write_array(repo, "x", 0, 100, message="of the user", branch=JOB)
    mine = repo.branches[JOB]
    with pytest.raises(txstore.TransactionStateError, match="another name=") as caught:
        repo.rechunk("x", chunks=(7,))
    assert not any("To drop it" in note for note in caught.value.__notes__)
    assert repo.branches[JOB] == mine
    assert repo.rechunk("x", chunks=(7,), name="mine") is not None
    assert repo.branches[JOB] == mine
    assert is_equal(read(repo)[:], data)


@pytest.mark.parametrize("part", [0.0, 0.5])
@pytest.mark.parametrize(
    "what",
    [
        lambda repo: repo.freeze("published", branch=JOB),
        lambda repo: repo.optimize(branch=JOB),
        lambda repo: repo.transaction("of another array", branch=JOB),
    ],
)
def test_it_goes_on_behind_other_commits_on_its_branch(repo, what, part):
    data = written(repo, np.arange(100), chunks=(3,))
    with pytest.raises(Killed):
        repo.rechunk("x", chunks=(7,), progress=lambda done, total: interrupt_at(0)(1, 1) if done > part * total else 0)
    newest = repo.branches[JOB]
    made = what(repo)
    if isinstance(made, txstore.TxStore):
        with made as store:
            zarr.create_array(store, name="y", data=data)
    assert repo.branches[JOB] != newest
    assert repo.rechunk("x", chunks=(7,)) is not None
    assert is_equal(read(repo)[:], data)
    assert list(repo.branches) == ["main"]


def test_another_commit_has_changed_the_copy(repo):
    written(repo, np.arange(100), chunks=(3,))
    with pytest.raises(Killed):
        repo.rechunk("x", chunks=(7,), progress=interrupt_at(1))
    write_array(repo, "x", 0, 100, message="by mistake", branch=JOB)
    with pytest.raises(txstore.TransactionStateError, match=f"delete the branch '{JOB}'"):
        repo.rechunk("x", chunks=(7,))
    assert read(repo).chunks == (3,)
