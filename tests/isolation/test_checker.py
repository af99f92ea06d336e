"""The checker on histories made by hand: each anomaly is found, under its name, and what is allowed is not."""

import pytest

from tests.isolation.checker import check
from tests.isolation.histories import SETUP, Op, Txn


def read(key: str, value: object) -> Op:
    return Op("read", key, value)


def append(key: str, element: int) -> Op:
    return Op("append", key, element)


def write(key: str, value: bytes) -> Op:
    return Op("write", key, value)


def listed(directory: str, *names: str) -> Op:
    return Op("list", directory, frozenset(f"{directory}/{name}" for name in names))


def make(key: str) -> Op:
    return Op("make", key)


def remove(key: str) -> Op:
    return Op("remove", key)


def txn(
    number: int, *ops: Op, base: int = 0, commit: int | None = None, process: int | None = None, **more: bool
) -> Txn:
    return Txn(number, number if process is None else process, ops, base, commit, **more)


def names(history: list[Txn], isolation: str) -> set[str]:
    return {anomaly.name for anomaly in check(history, isolation)}


X, Y, A = "l/x", "l/y", "s/a"
SKEW = [
    txn(1, read(X, ()), read(Y, ()), append(X, 1), base=0, commit=1),
    txn(2, read(X, ()), read(Y, ()), append(Y, 2), base=0, commit=2),
]
SET_SKEW = [txn(1, listed(A), make("s/b/1"), base=0, commit=1), txn(2, listed("s/b"), make("s/a/2"), base=0, commit=2)]
MADE = txn(0, make("s/a/old"), commit=1, process=SETUP)


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
@pytest.mark.parametrize(
    "history",
    [
        [],
        [
            txn(1, read(X, ()), append(X, 1), read(X, (1,)), append(X, 2), read(X, (1, 2)), commit=1),
            txn(2, read(X, (1, 2)), append(X, 3), base=1, commit=2),
            txn(3, read(X, (1, 2)), base=1),
            txn(4, read(X, (1, 2)), append(X, 4), base=1, aborted=True),
            txn(5, read(X, (1, 2, 3)), base=2, is_last=True),
        ],
        [txn(1, write("r/x", b"1"), commit=1), txn(2, write("r/x", b"2"), commit=2), txn(3, read("r/x", b"2"), base=2)],
        [MADE, txn(1, listed(A, "old"), remove("s/a/old"), listed(A), base=1, commit=2), txn(2, listed(A), base=2)],
        [  # what was made meanwhile is gone again
            txn(1, make("s/a/1"), base=0, commit=1),
            txn(2, listed(A, "1"), remove("s/a/1"), base=1, commit=2),
            txn(3, listed(A), write("r/x", b"3"), base=0, commit=3),
            txn(4, read("r/x", None), listed(A, "1"), base=1, process=1),
        ],
        [txn(1, make("s/a/1"), listed(A, "1"), commit=1), txn(2, listed(A)), txn(3, listed(A, "1"), base=1)],
        # A reader between two writers that it does not see, and one that it does.
        [
            txn(1, read(X, ()), append(X, 1), commit=1),
            txn(2, read(X, (1,)), read(Y, ()), base=1),
            txn(3, read(Y, ()), append(Y, 3), base=0, commit=2),
        ],
    ],
    ids=["empty", "lists", "registers", "removed", "gone again", "made", "three"],
)  # fmt: skip
def test_what_is_allowed(history: list[Txn], isolation: str) -> None:
    assert check(history, isolation) == []


@pytest.mark.parametrize("history", [SKEW, SET_SKEW], ids=["lists", "sets"])
def test_write_skew_is_forbidden_to_the_serializable_only(history: list[Txn]) -> None:
    assert names(history, "snapshot") == set()
    assert names(history, "serializable") == {"G2"}


def test_an_anomaly_of_a_reader_alone() -> None:
    """Two writers that may follow one another in one order only, and a reader that saw only the second."""
    history = [
        txn(1, read(X, ()), read(Y, ()), append(X, 1), commit=2),
        txn(2, read(Y, ()), append(Y, 2), commit=1),
        txn(3, read(X, ()), read(Y, (2,)), base=1),
    ]
    assert names(history, "snapshot") == set()
    assert names(history, "serializable") == {"G2"}


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
@pytest.mark.parametrize(
    ("expected", "history"),
    [
        ("lost update", [
            txn(1, read(X, ()), append(X, 1), commit=1), txn(2, read(X, ()), append(X, 2), commit=2)]),
        ("incompatible orders", [
            txn(1, read(X, ()), append(X, 1), commit=1), txn(2, read(X, (1,)), append(X, 2), base=1, commit=2),
            txn(3, read(X, (2, 1)), base=2)]),
        ("G-SI", [  # a lost update, to be found by its dependencies: of two that both saw the first version
            txn(1, read("r/x", None), write("r/x", b"1"), commit=1),
            txn(2, read("r/x", None), write("r/x", b"2"), commit=2)]),
        ("G-SI", [
            MADE, txn(1, listed(A, "old"), remove("s/a/old"), base=1, commit=2),
            txn(2, listed(A, "old"), remove("s/a/old"), base=1, commit=3)]),
        ("fractured read", [
            txn(1, read(X, ()), append(X, 1), read(Y, ()), append(Y, 2), commit=1),
            txn(2, read(X, (1,)), read(Y, ()))]),
        ("G-SI", [
            txn(1, read(X, ()), append(X, 1), read(Y, ()), append(Y, 2), commit=1),
            txn(2, read(X, (1,)), read(Y, ()))]),
        ("G1a, aborted read", [
            txn(1, read(X, ()), append(X, 1), aborted=True), txn(2, read(X, (1,)))]),
        ("G1a, aborted read", [txn(1, write("r/x", b"1"), aborted=True), txn(2, read("r/x", b"1"))]),
        ("G1a, aborted read", [txn(1, make("s/a/1"), aborted=True), txn(2, listed(A, "1"))]),
        ("G1b, intermediate read", [
            txn(1, read(X, ()), append(X, 1), append(X, 2), commit=1), txn(2, read(X, (1,)), base=1)]),
        ("G1b, intermediate read", [
            txn(1, write("r/x", b"1"), write("r/x", b"2"), commit=1), txn(2, read("r/x", b"1"), base=1)]),
        ("duplicate", [
            txn(1, read(X, ()), append(X, 1), commit=1), txn(2, read(X, (1, 1)), base=1)]),
        ("unwritten", [txn(1, read(X, (7,)))]),
        ("unwritten", [txn(1, read("r/x", b"7"))]),
        ("internal", [txn(1, read(X, ()), append(X, 1), read(X, ()), commit=1)]),
        ("internal", [txn(1, make("s/a/1"), listed(A), commit=1)]),
        ("internal", [  # not repeatable
            txn(1, read(X, ()), append(X, 1), commit=1), txn(2, read(X, ()), read(X, (1,)))]),
        ("G0", [  # each wrote last in one of two objects
            txn(1, read(X, ()), append(X, 1), read(Y, (4,)), append(Y, 2), commit=1),
            txn(2, read(X, (1,)), append(X, 3), read(Y, ()), append(Y, 4), commit=2)]),
        ("G0, interleaved writes", [
            txn(1, read(X, ()), append(X, 1), append(X, 3), commit=1), txn(2, read(X, (1,)), append(X, 2), commit=2),
            txn(3, read(X, (1, 2, 3)), base=2)]),
        ("G1c", [  # each saw the other
            txn(1, read(X, ()), append(X, 1), read(Y, (2,)), commit=1),
            txn(2, read(Y, ()), append(Y, 2), read(X, (1,)), commit=2)]),
        ("G1c", [  # what its own process will write later
            txn(1, read(X, (1,)), process=5), txn(2, read(X, ()), append(X, 1), commit=1, process=5)]),
        ("snapshot goes back", [
            txn(1, read(X, ()), append(X, 1), commit=1, process=5), txn(2, read(X, ()), process=5)]),
        ("G-SI", [txn(1, read(X, ()), append(X, 1), commit=1, process=5), txn(2, read(X, ()), process=5)]),
        ("snapshot goes back", [
            txn(1, read(X, ()), append(X, 1), commit=1), txn(2, read(X, (1,)), base=1, process=5),
            txn(3, read(X, ()), base=0, process=5)]),
        ("G-SI", [  # what was acknowledged is gone in the end
            txn(1, read(X, ()), append(X, 1), commit=1), txn(2, read(X, ()), base=1, is_last=True)]),
        ("not of its snapshot", [
            txn(1, read(X, ()), append(X, 1), commit=1), txn(2, read(X, (1,)), base=0)]),
        ("not of its snapshot", [
            txn(1, read(X, ()), append(X, 1), commit=1), txn(2, read(X, (1,)), base=0, aborted=True)]),
        ("no such commit", [txn(1, read(X, ()), base=3)]),
    ],
)  # fmt: skip
def test_what_is_forbidden(expected: str, history: list[Txn], isolation: str) -> None:
    assert expected in names(history, isolation)


def test_a_long_cycle() -> None:
    """Three transactions, each of which read what the next has written: two rw side by side, all the way round."""
    pairs = [("l/1", "l/2"), ("l/2", "l/3"), ("l/3", "l/1")]
    history = [
        txn(number, read(own, ()), read(other, ()), append(own, number), commit=number)
        for number, (own, other) in enumerate(pairs, 1)
    ]
    assert names(history, "snapshot") == set()
    anomaly = next(iter(check(history, "serializable")))
    assert anomaly.name == "G2"
    assert anomaly.what.count("-rw->") == 3
