"""Calls that do not fit the state: on readers, after the end, while writes are in flight, with a wrong clock."""

import gc
import time
import types
import warnings
from datetime import timedelta

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


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_writing_to_a_transaction_that_has_ended(filled, end):
    tx = filled.begin()
    tx["b"] = b"1"
    getattr(tx, end)()
    for use in (lambda: tx.set("b", b"2"), lambda: tx.delete("b"), lambda: tx.delete_dir(""), tx.commit):
        with pytest.raises(txstore.TransactionStateError, match=r"is (committed|rolled back): begin a new one"):
            use()
    assert ("b" in filled.snapshot()) == (end == "commit")


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


@pytest.mark.filterwarnings("error")
def test_who_makes_an_error_of_the_warning_publishes_nothing(filled, in_three_hours):
    tx = filled.begin()
    tx["a"] = b"3"
    with pytest.raises(txstore.ClockWarning):
        tx.commit()
    assert filled.head() == in_three_hours
    tx.commit()  # nothing was lost
    assert filled.snapshot()["a"] == b"3"


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
