"""Commits that change nothing: with a message or properties they are made, without they are not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.commits import set_keys
from tests.tools.steps import forked, status_of
from txstore import ConflictError, Repository, TxStore
from txstore.segments import compaction
from txstore.segments import runs as index


@pytest.fixture
def filled(repo: Repository) -> Repository:
    with repo.transaction("make x") as store:
        zarr.create_array(store, name="x", data=np.arange(4), chunks=(2,))
    return repo


def again(store: TxStore) -> None:
    zarr.open_array(store, path="x")[:] = np.arange(4)


def nothing(store: TxStore) -> None:
    zarr.open_array(store, path="x")[:]


CHANGES = pytest.mark.parametrize("work", [again, nothing])


@CHANGES
def test_a_message_is_a_commit_though_nothing_changes(filled: Repository, work: Callable[[TxStore], None]) -> None:
    with filled.transaction("checked", properties={"run": 7}) as store:
        work(store)
    head = filled.head()
    assert (head.message, head.properties, head.version) == ("checked", {"run": 7}, 1)
    assert store.unchanged
    assert head.statistics["keys_set"] == 0


@CHANGES
def test_properties_alone_are_a_commit(filled: Repository, work: Callable[[TxStore], None]) -> None:
    store = filled.transaction(properties={"run": 7})
    work(store)
    made = store.commit()
    assert made == filled.head()
    assert made.properties == {"run": 7}


def test_what_a_user_does_to_the_properties_of_a_commit_stays_with_that_user(filled: Repository) -> None:
    set_keys(filled, {"new": b"1"}, properties={"run": {"number": 7}})
    head = filled.head()
    head.properties["run"]["number"] = 8
    assert [commit.properties for commit in filled.log(limit=1)] == [{"run": {"number": 7}}]


@CHANGES
def test_without_either_there_is_none(filled: Repository, work: Callable[[TxStore], None]) -> None:
    store = filled.transaction()
    assert not store.unchanged
    work(store)
    set_keys(filled, {"else": b"1"}, "by another")
    assert store.commit() is None  # and not what another has committed
    assert store.unchanged
    store["y"] = b"1"
    assert store.commit() == filled.head()
    assert not store.unchanged
    assert filled.head().version == 2  # type: ignore[union-attr]


def test_the_message_of_the_commit_counts(filled: Repository) -> None:
    store = filled.transaction()
    assert store.commit("looked at it") == filled.head()
    assert store.commit("") is None
    assert store.commit() is None
    assert filled.head().message == "looked at it"  # type: ignore[union-attr]


def test_a_block_makes_one_commit_for_its_message(filled: Repository) -> None:
    with filled.transaction("once") as store:
        store["y"] = b"1"
        store.commit()
        assert store["y"] == b"1"
    assert [commit.message for commit in filled.log()] == ["once", "make x"]
    assert not store.unchanged
    with filled.transaction("twice") as store:
        store["y"] = b"2"
        store.commit()
        store["y"] = b"3"
    assert [commit.message for commit in filled.log(limit=3)] == ["twice", "twice", "once"]


def test_a_run_records_that_it_was_run(filled: Repository) -> None:
    filled.run(again, message="nightly")
    filled.run(again)
    assert [commit.message for commit in filled.log()] == ["nightly", "make x"]


def test_a_named_transaction_ends_with_a_commit(filled: Repository) -> None:
    with filled.transaction("a survey", name="survey") as store:
        again(store)
    made = filled.transaction(name="survey").commit()
    assert made == filled.head()
    assert made.message == "a survey"
    with filled.transaction(name="other") as store:
        again(store)
    assert filled.transaction(name="other").commit() is None


def test_what_children_rewrite_is_a_commit_too(filled: Repository) -> None:
    with filled.transaction("by a child") as store:

        def work() -> None:
            with store:
                again(store)

        with forked(work) as child:
            assert status_of(child) == 0
    assert filled.head().message == "by a child"  # type: ignore[union-attr]
    assert store.unchanged


def test_synchronized_arrays_record_their_message(filled: Repository) -> None:
    txstore.synchronized(filled, "x", message="calibrated")[:] = np.arange(4)
    assert filled.head().message == "calibrated"  # type: ignore[union-attr]
    txstore.synchronized(filled, "x")[:] = np.arange(4)
    assert filled.head().version == 1  # type: ignore[union-attr]


def test_a_message_makes_the_first_commit(open_repo: Callable[..., Repository]) -> None:
    repo = open_repo()
    with repo.transaction() as store:
        pass
    assert not repo.exists
    with repo.transaction("begin") as store:
        assert store.base is None
    assert repo.head().message == "begin"  # type: ignore[union-attr]
    assert list(repo.mapping()) == []


def test_runs_that_others_have_merged_meanwhile_leave_no_gap(filled, monkeypatch):
    """Also where a commit has no run of its own, and has merged some of the head in vain."""
    merged = []
    merged_by_commit, find_runs = compaction.merged_by_commit, index.find_runs
    monkeypatch.setattr(
        compaction, "merged_by_commit", lambda *how: merged.append(merged_by_commit(*how)) or merged[-1]
    )
    for number in range(20):
        set_keys(filled, {f"a/c/{number}": b"1"})
        monkeypatch.setattr(index, "find_runs", lambda *_: None)
        store = filled.transaction("again")
        again(store)
        assert store.commit() is not None
        monkeypatch.setattr(index, "find_runs", find_runs)
    assert any(merged)
    assert filled.verify().faults == []


@pytest.mark.parametrize("names", ["tags", "branches"])
def test_no_commit_gets_no_name(filled: Repository, names: str) -> None:
    store = filled.transaction()
    with pytest.raises(txstore.CommitNotFoundError, match="or commit\\(\\) had no changes"):
        getattr(filled, names)["v1"] = store.commit()
    assert "v1" not in getattr(filled, names)


# --- values that the base has take no bytes

VALUES = np.random.default_rng(1).random(40_000)
NAMES = ("raw", "zstd", "sharded")[: 2 if zarr.__version__.startswith("3.1.") else 3]  # 3.1 reads shards first


@pytest.fixture(params=["here", "far"])
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    repo = Repository(tmp_path / "data.tx" if request.param == "here" else f"memory://{tmp_path.name}.tx")
    with repo.transaction("make") as store:
        for name, options in {"raw": {"compressors": None}, "zstd": {}, "sharded": {"shards": (20_000,)}}.items():
            zarr.create_array(store, name=name, data=VALUES, chunks=(10_000,), **options)
    return repo


def rewrite(store: TxStore, part: slice) -> None:
    for name in NAMES:
        zarr.open_array(store, path=name)[part] = VALUES[part]


@pytest.mark.parametrize("part", [slice(None), slice(50, 35_000), slice(10_000, 20_000)], ids=["all", "odd", "chunk"])
@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_values_that_are_there_take_no_bytes(packed: Repository, isolation: str, part: slice) -> None:
    before = packed.usage().total
    for _ in range(3):
        with packed.transaction("again", isolation=isolation) as store:
            rewrite(store, part)
        assert store.unchanged
    assert packed.usage().total - before < 16 << 10


def test_values_over_others_of_their_own_transaction_are_written(packed: Repository) -> None:
    with packed.transaction() as store:
        zarr.open_array(store, path="zstd")[:] = 1
        rewrite(store, slice(None))
    assert store.unchanged
    with packed.transaction() as store:
        store.delete_dir_sync("zstd/c")
        rewrite(store, slice(0, 10_000))
        zarr.open_array(store, path="raw")[:] = 1
    assert (zarr.open_array(packed.snapshot(), path="zstd")[:] == np.where(np.arange(40_000) < 10_000, VALUES, 0)).all()
    with packed.transaction() as store:  # the values of an older commit are not the base's
        rewrite(store, slice(0, 10_000))
    assert (zarr.open_array(packed.snapshot(), path="raw")[:] == np.where(np.arange(40_000) < 10_000, VALUES, 1)).all()


def test_a_serializable_transaction_relies_on_what_it_wrote_again(packed: Repository) -> None:
    first, second = (packed.transaction(isolation=isolation) for isolation in ("serializable", "snapshot"))
    rewrite(first, slice(0, 10_000))
    first["other"] = b"1"
    zarr.open_array(second, path="zstd")[:10] = 1
    second.commit()
    with pytest.raises(ConflictError):
        first.commit()
    first.rollback()


@pytest.mark.parametrize("packed", ["here"], indirect=True)
def test_a_value_that_is_damaged_is_written_again(packed: Repository) -> None:
    [file] = Path(packed.url).glob("commits/*/*")
    content = bytearray(file.read_bytes())
    content[content.index(VALUES[:10_000].tobytes()) + 5] ^= 1
    file.write_bytes(content)
    with packed.transaction() as store:
        rewrite(store, slice(0, 10_000))
    assert (zarr.open_array(packed.snapshot(), path="raw")[:] == VALUES).all()
