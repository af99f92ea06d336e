"""Committers of one machine that have met conflicts repeat their work one after the other: `Repository.run`."""

import threading
from collections.abc import Callable

import txstore


def conflicting(repo: txstore.Repository, key: str, again: Callable[[], object]) -> None:
    """Run a transaction whose first try meets a conflict, and call something in the second one."""
    tries = 0

    def write(store: txstore.TxStore) -> None:
        nonlocal tries
        tries += 1
        store[key] = b"%d" % tries
        if tries == 1:
            with txstore.Repository(repo.url).begin() as other:
                other[key] = b"other"
        else:
            again()

    repo.run(write)
    assert tries == 2


def test_who_has_lost_goes_first(repo: txstore.Repository, open_repo: Callable[..., txstore.Repository]) -> None:
    with repo.begin() as transaction:
        transaction["zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
    others = [txstore.Repository(repo.url) for _ in range(2)]
    order, threads = list[str](), list[threading.Thread]()
    has_begun = [threading.Event() for _ in others]

    def other(number: int) -> None:
        conflicting(others[number], f"c/{number + 1}", lambda: order.append(f"other {number}"))
        # It has met a conflict, and so takes its turn from the beginning.
        others[number].run(lambda store: (has_begun[number].set(), store.__setitem__(f"c/{number + 1}", b"again")))

    def in_turn() -> None:
        threads.extend(threading.Thread(target=other, args=(number,)) for number in range(len(others)))
        for each in threads:
            each.start()
        assert not any(each.wait(0.3) for each in has_begun)
        order.append("first")

    conflicting(repo, "c/0", in_turn)
    for each in threads:
        each.join()
    assert order[0] == "first"
    assert sorted(order[1:]) == ["other 0", "other 1"]


def test_nobody_waits_for_ever_for_work_that_takes_long(repo: txstore.Repository) -> None:
    with repo.begin() as transaction:
        transaction["zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
    unrelated = txstore.Repository(repo.url)
    conflicting(repo, "c/0", lambda: conflicting(unrelated, "c/1", lambda: None))
    assert unrelated.snapshot()["c/1"] == b"2"
