"""Several workers share one change: who gets what, who is told, and what happens when one dies. More: histories.py."""

from collections.abc import Iterator

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.commits import commit, create_array, write_array
from txstore.feeds import Share


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction("begin") as store:
        zarr.create_array(store, name="src", data=np.zeros((40, 4)), chunks=(4, 2))
        zarr.create_array(store, name="out", data=np.zeros(40), chunks=(1,))
    repo.feeds.create("f", paths="src")
    write_array(repo, "src", ..., 1)
    return repo


def do(repo: txstore.Repository, share: Share) -> None:
    commit(repo, lambda store: stage(store, share))


def stage(store: txstore.TxStore, share: Share) -> None:
    out = zarr.open_array(store, path="out")
    for _, (rows, columns) in share.regions:
        out[rows] += columns.stop - columns.start
    share.done(store)


def counts(repo: txstore.Repository) -> list[float]:
    return zarr.open_array(repo.snapshot(), path="out", mode="r")[:].tolist()


def test_workers_hold_different_shares(filled: txstore.Repository) -> None:
    workers = [filled.feeds["f"].claim(4) for _ in range(3)]
    shares = [next(worker) for worker in workers]
    assert len({share.number for share in shares}) == 3
    assert {share.number for share in shares} < {1, 2, 3, 4}
    for share in shares:
        do(filled, share)
    (last,) = {1, 2, 3, 4} - {share.number for share in shares}
    assert [share.number for share in iterated(filled, workers[0])] == [last]
    for worker in workers[1:]:
        assert list(worker) == []
    assert counts(filled) == [4] * 40  # columns: each once
    assert not filled.feeds["f"].status().pending
    assert list(filled.snapshot().cursors) == ["f"]
    assert list(filled.feeds["f"].claim(4)) == []


def iterated(repo: txstore.Repository, worker: Iterator[Share]) -> Iterator[Share]:
    for share in worker:
        do(repo, share)
        yield share


def test_a_share_is_done_once(filled: txstore.Repository) -> None:
    share = next(filled.feeds["f"].claim(2))
    stores = [filled.transaction() for _ in range(2)]
    for store in stores:  # as of a worker that was taken for dead
        stage(store, share)
    stores[0].commit()
    with pytest.raises(txstore.ConflictError):
        stores[1].commit()
    stores[1].rollback()
    with pytest.raises(txstore.FeedMovedError, match="another worker has done"):
        share.done(stores[1])
    stores[1].rollback()


@pytest.mark.parametrize("moved", ["reset", "deleted", "made anew"])
def test_a_reset_while_it_is_shared(filled: txstore.Repository, moved: str) -> None:
    """Whoever commits first, the other one is told."""
    feed = filled.feeds["f"]

    def move() -> None:
        if moved == "reset":
            feed.reset(-1)
        else:
            del filled.feeds["f"]
            if moved == "made anew":
                filled.feeds.create("f", paths="src", since=0)

    share = next(feed.claim(2))
    store = filled.transaction()
    stage(store, share)
    move()
    with pytest.raises(txstore.ConflictError):
        store.commit()
    store.rollback()
    with pytest.raises(txstore.FeedMovedError):
        share.done(store)
    store.rollback()
    assert [name for name in filled.snapshot().cursors if "#" in name] == []


def test_no_worker_advances_what_is_shared(filled: txstore.Repository) -> None:
    feed = filled.feeds["f"]
    (change,) = feed
    next(feed.claim(2))
    with filled.transaction() as store, pytest.raises(txstore.FeedMovedError, match="share"):
        feed.advance(store, to=change)
    feed.advance()  # does nothing
    assert feed.status().shared


def test_what_concerns_whole_nodes_comes_first(filled: txstore.Repository) -> None:
    with filled.transaction() as store:
        zarr.open_array(store, path="src").resize((44, 4))
        zarr.open_array(store, path="src")[40:] = 1
        zarr.open_array(store, path="out").resize((44,))
    one, other = filled.feeds["f"].claim(2), filled.feeds["f"].claim(7)
    first = next(one)
    assert (first.regions, [node.path for node in first.nodes]) == ([], ["src"])
    commit(filled, first.done)
    shares = [next(one), next(other)]
    assert sorted(share.number for share in shares) == [1, 2]  # the second one joins, with the first one's number
    assert all(share.nodes == [] for share in shares)
    for share in shares:
        do(filled, share)
    assert [*one, *other] == []
    assert counts(filled) == [4] * 44


def test_who_would_divide_it_otherwise_begins_anew(filled: txstore.Repository) -> None:
    create_array(filled, "src2", data=np.ones(8), chunks=(1,))
    feed = filled.feeds.create("g", paths=["src", "src2"], since=-1)
    share = next(feed.claim(3))
    commit(filled, share.done)
    del share
    filled.erase("src2")
    (first, *rest) = iterated(filled, feed.claim(3))
    assert (first.number, [node.path for node in first.nodes]) == (0, ["src"])
    assert len(rest) == 3
    assert [change.erased for change in feed] == [("src2",)]  # after the commit up to which they share


def test_numbers_of_shares(filled: txstore.Repository) -> None:
    for wrong in (0, 257):
        with pytest.raises(ValueError, match="1 to 256"):
            next(filled.feeds["f"].claim(wrong))
