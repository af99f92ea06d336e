"""Calls that do not fit the state: on readers, after the end, while writes are in flight, with a wrong clock."""

import gc
import threading
import time
import types
import warnings
from datetime import timedelta

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.inside import staged
from tests.tools.upkeep import tree
from txstore.history import new_commit as publishing


@pytest.fixture
def filled(repo) -> txstore.Repository:
    with repo.transaction("first") as store:
        store["a"] = b"1"
    return repo


# --- readers
def test_writing_to_a_reader(filled):
    before = tree(filled)
    filled.tags["v1"] = 0
    after_tag = tree(filled)
    assert set(after_tag) - set(before) == {"tags/v1"}
    for reader in (
        filled.snapshot(),
        filled.snapshot(at=0),
        txstore.TxStore(filled, tag="v1"),
        txstore.TxStore(filled.url, read_only=True),
        txstore.TxStore(filled).with_read_only(True),
    ):
        for write in (
            lambda s=reader: s.__setitem__("a", b"2"),
            lambda s=reader: s.__delitem__("a"),
            reader.commit,
            reader.rollback,
            reader.changes,
            lambda s=reader: zarr.create_array(s, name="x", shape=(1,), dtype="i1"),
        ):
            with pytest.raises(ValueError, match=r"read-only"):
                write()
        assert reader["a"] == b"1"
    assert tree(filled) == after_tag


async def test_zarrs_methods_on_a_reader(filled):
    reader = filled.snapshot()
    value = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(b"2")
    for write in (
        lambda: reader.set("a", value),
        lambda: reader.set_if_not_exists("b", value),
        lambda: reader.delete("a"),
        lambda: reader.delete_dir(""),
        lambda: reader.clear(),
    ):
        with pytest.raises(ValueError, match="read-only"):
            await write()


def test_a_mapping_of_a_commit_has_no_way_to_write(filled):
    with pytest.raises(TypeError):
        filled.mapping()["a"] = b"2"


# --- after the end
ENDED = [
    ("written", lambda store: store.__setitem__("a", b"2")),
    ("deleted", lambda store: store.__delitem__("a")),
    ("read", lambda store: store["a"]),
    ("listed", list),
    ("committed", lambda store: store.commit()),
    ("rolled back", lambda store: store.rollback()),
    ("entered", lambda store: store.__enter__().__setitem__("a", b"2")),
]


@pytest.mark.parametrize(("what", "use"), ENDED)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_use_of_a_store_after_its_block(filled, what, use, end):
    class Stop(Exception):
        pass

    try:
        with filled.transaction() as store:
            store["b"] = b"1"
            if end == "rollback":
                raise Stop
    except Stop:
        pass
    versions = len(list(filled.log()))
    with pytest.raises(txstore.TransactionStateError, match=r"block has ended.*repo\.transaction\(\)") as caught:
        use(store)
    assert caught.value.state == "ended"
    assert len(list(filled.log())) == versions


def test_arrays_that_outlive_the_block(filled):
    with filled.transaction() as store:
        array = zarr.create_array(store, name="x", data=np.arange(4))
    for use in (lambda: array.append(np.arange(4)), lambda: array[:], lambda: array.__setitem__(0, 5)):
        with pytest.raises(txstore.TransactionStateError, match="block has ended"):
            use()
    assert zarr.open_array(filled.snapshot(), path="x", mode="r")[:].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_writing_to_a_transaction_that_has_ended(filled, end):
    tx = filled.begin()
    tx["b"] = b"1"
    getattr(tx, end)()
    for use in (lambda: tx.set("b", b"2"), lambda: tx.delete("b"), lambda: tx.delete_dir(""), tx.commit):
        with pytest.raises(txstore.TransactionStateError, match=r"is (committed|rolled back): begin a new one"):
            use()
    assert ("b" in filled.snapshot()) == (end == "commit")


def test_a_failed_write_refuses_all_but_rollback(filled, monkeypatch):
    tx = filled.begin()
    tx["b"] = b"1"
    monkeypatch.setattr(tx.staging.part.writer, "append", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "no disk")))
    with pytest.raises(OSError, match="no disk"):
        tx["c"] = b"1"
    monkeypatch.undo()
    for use in (lambda: tx.set("c", b"2"), tx.commit):
        with pytest.raises(txstore.TransactionStateError, match=r"no disk.*call rollback\(\)"):
            use()
    tx.rollback()
    assert list(filled.snapshot()) == ["a"]


# --- writes in flight
def test_a_block_within_a_block_that_failed_is_not_committed(filled):
    head = filled.head()

    def fail_within(store):
        with pytest.raises(ValueError, match="half"), store:
            store["half"] = b"done"
            raise ValueError("half")

    with pytest.raises(txstore.TransactionStateError, match="exception left an inner"), filled.transaction() as store:
        fail_within(store)
    assert filled.head() == head


def test_commit_while_a_write_is_in_flight(filled, monkeypatch):
    tx = filled.begin()
    tx["b"] = b"1"
    writing, go_on = threading.Event(), threading.Event()
    append = tx.staging.part.writer.append

    def slow(*arguments, **options):
        writing.set()
        assert go_on.wait(60)
        return append(*arguments, **options)

    monkeypatch.setattr(tx.staging.part.writer, "append", slow)
    thread = threading.Thread(target=tx.set, args=("c", b"2"))
    thread.start()
    assert writing.wait(60)
    with pytest.raises(txstore.TransactionStateError, match="1 writes are in flight: wait for the threads"):
        tx.commit()
    go_on.set()
    thread.join()
    tx.commit()
    assert dict(filled.mapping()) == {"a": b"1", "b": b"1", "c": b"2"}


# --- clocks
def at(seconds: float) -> types.SimpleNamespace:
    return types.SimpleNamespace(**vars(time) | {"time_ns": lambda: int(seconds * 1e9)})


@pytest.fixture
def in_three_hours(filled, monkeypatch):
    """A commit of a machine whose clock is three hours ahead; here the time is right."""
    now = filled.head().time.timestamp()
    monkeypatch.setattr(publishing, "time", at(now + 3 * 3600))
    monkeypatch.setattr(publishing, "this_user", lambda: "ann@fast")
    with filled.transaction("from the future") as store:
        store["a"] = b"2"
    monkeypatch.setattr(publishing, "time", at(now + 1))
    monkeypatch.setattr(publishing, "this_user", lambda: "bob@right")
    return filled.head()


def put(repo, value):
    with repo.begin() as tx:
        tx["a"] = value


def test_a_commit_from_the_future_stops_nobody(open_repo, filled, in_three_hours):
    said = (
        rf"main@{in_three_hours.version} \({in_three_hours.id[:12]}\) by ann@fast is dated .*, 3 h ahead of the clock"
    )
    with pytest.warns(txstore.ClockWarning, match=said):
        put(filled, b"3")
    put(filled, b"4")  # said once: a warning would be an error
    other = open_repo()
    with pytest.warns(txstore.ClockWarning, match=said):  # also above those that bob has made
        put(other, b"5")
    assert filled.vacuum(keep=2).expired
    assert filled.snapshot()["a"] == b"5"


def test_times_ascend_after_a_commit_from_the_future(filled, in_three_hours, monkeypatch):
    with pytest.warns(txstore.ClockWarning):
        put(filled, b"3")
    put(filled, b"4")
    tick = timedelta(microseconds=1)
    assert [commit.time - in_three_hours.time for commit in filled.log()][:3] == [2 * tick, tick, 0 * tick]
    later = in_three_hours.time + timedelta(seconds=1)
    monkeypatch.setattr(publishing, "time", at(later.timestamp()))
    put(filled, b"5")
    assert abs(filled.head().time - later) <= tick  # a float is not exact
    assert filled.snapshot(at=in_three_hours.time + tick)["a"] == b"3"


@pytest.mark.parametrize("upkeep", ["optimize", "vacuum"])
def test_maintenance_after_a_commit_from_the_future(filled, in_three_hours, upkeep):
    with pytest.warns(txstore.ClockWarning, match="by ann@fast"):
        filled.optimize() if upkeep == "optimize" else filled.vacuum(keep=1)


@pytest.mark.filterwarnings("error")
def test_who_makes_an_error_of_the_warning_publishes_nothing(filled, in_three_hours):
    tx = filled.begin()
    tx["a"] = b"3"
    with pytest.raises(txstore.ClockWarning):
        tx.commit()
    assert filled.head() == in_three_hours
    tx.commit()  # nothing was lost
    assert filled.snapshot()["a"] == b"3"


def test_commits_in_one_instant_have_times_that_ascend(filled, monkeypatch):
    monkeypatch.setattr(publishing, "time", at(filled.head().time.timestamp()))
    for value in (b"2", b"3"):
        with filled.transaction() as store:
            store["a"] = value
    times = [commit.time for commit in filled.log()]
    assert times == sorted(set(times), reverse=True)


# --- staged and never committed
def test_dropping_what_is_staged_warns_and_counts(filled):
    store = txstore.TxStore(filled)
    for i in range(3):
        store[f"b/{i}"] = bytes(200_000)
    del store["a"]
    assert len(staged(filled)) == 1
    stores = [store]
    del store
    with pytest.warns(txstore.UncommittedChangesWarning, match=r"4 staged writes were NOT COMMITTED.*call commit\(\)"):
        stores.clear()
    assert staged(filled) == []
    assert list(filled.snapshot()) == ["a"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_no_warning_after_the_end(filled, end):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for writer in (filled.begin(), txstore.TxStore(filled), filled.transaction()):
            writer["b"] = end.encode() + type(writer).__name__.encode()
            if end == "commit" and writer.base is not None and isinstance(writer, txstore.Transaction):
                writer.commit()
            else:
                writer.rollback()
            del writer
            gc.collect()


def test_no_warning_where_nothing_was_staged(filled):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for writer in (filled.begin(), txstore.TxStore(filled), filled.transaction()):
            assert writer["a"] == b"1"
            del writer
            gc.collect()


def test_the_state_can_be_seen(filled):
    store = txstore.TxStore(filled)
    store["b"] = b"1"
    assert "main@0, 1 staged, NOT COMMITTED" in repr(store)
    assert "NOT COMMITTED" in store._repr_html_()
    store.rollback()
    assert "NOT COMMITTED" not in repr(store)
