"""I8: work of a block that failed, or of a process that was killed, is missed at the commit until it was done again.

Blocks come one by one, in one transaction, by its owner and by workers that get it as pickles, as Dask's do, or by
processes that enter it by its name. So what each place holds is known; and until all that was lost is written again, by
whoever does it, the commit is refused and says what is missing.
"""

import os
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
import zarr

import txstore
from tests.tools.members import Member
from txstore.store import TxStore

pytestmark = pytest.mark.long

LENGTH, CHUNK = 8, 4
KEYS, ATTRIBUTES = ["k/0", "k/1"], ["a", "b"]
PLACES = [*range(LENGTH), *KEYS, *ATTRIBUTES]
NAME = "job"

Place = int | str
#: "set" or "add" to elements, "put" a key, "delete" it, or give an "attribute"; where; and the value.
Operation = tuple[str, list[Place], int]
#: "own", or how the block of a worker ends; and what is done in it.
Step = tuple[Any, ...]
State = dict[Place, Any]


def do(store: TxStore, operation: Operation) -> None:
    kind, where, value = operation
    if kind == "put":
        store[where[0]] = b"%d" % value
    elif kind == "delete":
        store.mapping.delete(where[0])
    else:
        z = zarr.open_array(store, path="x", mode="r+")
        if kind == "attribute":
            z.attrs[where[0]] = value
        else:
            step = where[1] - where[0] if len(where) > 1 else 1
            part = slice(where[0], where[-1] + 1, step)
            z[part] = z[part] + value if kind == "add" else value


def shown(store: Any) -> State:
    z = zarr.open_array(store, path="x", mode="r")
    found: State = dict(enumerate(z[:].tolist()))
    return {**found, **{key: get(store, key) for key in KEYS}, **{name: z.attrs.get(name) for name in ATTRIBUTES}}


def get(store: Any, key: str) -> int | None:
    return int(bytes(store[key])) if key in store else None


# --- in a worker
_open: list[TxStore] = []


def opens(_: None, sent: bytes) -> None:
    found = pickle.loads(sent)
    _open[:] = [found if isinstance(found, TxStore) else found.transaction(name=NAME)]
    _open[0].__enter__()


def works(_: None, operation: Operation) -> None:
    shown(_open[0])
    do(_open[0], operation)


def closes(_: None, is_whole: bool) -> None:
    store = _open.pop()
    store.__exit__(None if is_whole else RuntimeError, None if is_whole else RuntimeError(), None)


class History:
    """One transaction, of an owner and two workers, or with a name, and what is known of it."""

    def __init__(self, repo: txstore.Repository, workers: list[Member], rng: random.Random, *, is_named: bool) -> None:
        with repo.transaction() as store:
            options: dict[str, Any] = {"shape": (LENGTH,), "chunks": (CHUNK,), "dtype": "i8"}
            zarr.create_array(store, name="x", **options)[:] = rng.choice([0, 1])
        self.repo, self.workers, self.rng, self.is_named = repo, workers, rng, is_named
        self.store = None if is_named else repo.transaction()
        self.state = shown(repo.snapshot())
        self.owed: list[set[Place]] = []  # the places that each lost block wrote, and nobody since
        self.told: list[Any] = []

    @property
    def sent(self) -> bytes:
        return pickle.dumps(self.repo if self.store is None else self.store)

    def seen(self) -> TxStore:
        return self.repo.transaction(name=NAME) if self.store is None else self.store

    def operation(self, places: list[Place] | None = None) -> Operation:
        """Draw what to do, of `places` only; to an element, add or set; else, each value is a new one."""
        rng = self.rng
        place, value = rng.choice(places or PLACES), 100 + len(self.told)
        if place in ATTRIBUTES:
            return "attribute", [place], value
        if place in KEYS:
            return rng.choice(["put", "put", "delete"]), [place], value
        if places is not None:
            return rng.choice(["set", "add"]), [place], 1
        assert isinstance(place, int)
        where = rng.choice([range(place, rng.randrange(place, LENGTH) + 1), range(CHUNK), range(place, LENGTH, 3)])
        return rng.choice(["set", "add"]), list(where), rng.choice([0, 1, 2])

    def steps(self) -> Iterator[Step]:
        for _ in range(self.rng.randrange(3, 9)):
            if self.rng.random() < 0.4:
                yield "own", self.operation()
            else:
                how = self.rng.choice(["ends", "fails", "fails", "is killed"])
                yield how, *(self.operation() for _ in range(self.rng.randrange(1, 4)))

    def count(self, operation: Operation) -> None:
        """Note what holds after an operation of a block that counts."""
        kind, where, value = operation
        for place in where:
            self.state[place] = self.state[place] + value if kind == "add" else None if kind == "delete" else value
        self.owed = [left for owed in self.owed if (left := owed - set(where))]

    def check(self) -> None:
        assert shown(self.seen()) == self.state, self.told

    def own(self, operation: Operation) -> None:
        self.told.append(operation)
        self.check()  # it reads what it changes
        if self.store is not None:
            do(self.store, operation)
        else:
            with self.seen() as store:
                do(store, operation)
        self.count(operation)

    def block(self, how: str, *operations: Operation) -> None:
        """Let a worker do something. In a transaction with a name, an exception in the block says nothing."""
        number, looks = self.rng.randrange(2), self.rng.random() < 0.3
        self.told.append((number, how, operations))
        self.workers[number].do(opens, self.sent)
        for operation in operations:
            self.workers[number].do(works, operation)
            if looks and self.store is not None:
                self.store.changes()
        if how == "is killed":
            self.workers[number].kill()
            self.workers[number] = Member(None)
        else:
            self.workers[number].do(closes, how == "ends")
        if how == "ends" or (how == "fails" and self.is_named):
            for operation in operations:
                self.count(operation)
            return
        self.owed.append({place for operation in operations for place in operation[1]})
        if how == "is killed":
            self.commit()  # the owner learns of it here

    def commit(self) -> bool:
        """Commit if nothing is owed; else it has to be refused for the right keys."""
        keys = sorted({key_of(place) for owed in self.owed for place in owed})
        self.told.append(("commit", keys))
        if keys:
            with pytest.raises(txstore.ParticipantLostError) as caught:
                self.seen().commit()
            assert sorted(caught.value.keys) == keys, self.told
            self.check()
            return False
        self.seen().commit()
        assert shown(self.repo.snapshot()) == self.state, self.told
        return True

    def run(self, *steps: Step) -> None:
        for how, *operations in steps or self.steps():
            if how == "own":
                self.own(*operations)
            else:
                self.block(how, *operations)
        while not self.commit():
            left = sorted(set[Place]().union(*self.owed), key=str)
            for place in self.rng.sample(left, self.rng.randrange(1, len(left) + 1)):
                operation = self.operation([place])
                if self.rng.random() < 0.5:
                    self.own(operation)
                else:
                    self.block("ends", operation)


#: What has gone wrong once, and what the documents say.
CASES: dict[str, list[Step]] = {
    "who leaves only fill values does not hide what was lost beside": [
        ("is killed", ("set", [0], 5)), ("ends", ("set", [1, 2, 3], 0)),
    ],
    "a part that is lost, beside another": [("is killed", ("set", [0, 1], 1)), ("ends", ("set", [3], 7))],
    "elements here and there": [("is killed", ("set", [1, 3], 9)), ("ends", ("set", [0, 2], 8))],
    "attributes of one document that two have lost": [
        ("fails", ("attribute", ["b"], 1)), ("is killed", ("attribute", ["a"], 2)), ("own", ("attribute", ["a"], 3)),
    ],
    "attributes beside those that were lost": [
        ("is killed", ("attribute", ["a"], 1), ("attribute", ["b"], 2)), ("ends", ("attribute", ["a"], 4)),
    ],
    "it had done something before": [
        ("ends", ("set", [0, 1], 1)), ("is killed", ("add", [1], 1)), ("own", ("set", [2, 3], 9)),
    ],
    "what was lost is not added twice": [("is killed", ("add", [0, 1], 1)), ("own", ("add", [0, 1], 1))],
    "a deletion that was lost": [("ends", ("put", ["k/0"], 1)), ("fails", ("delete", ["k/0"], 0))],
}  # fmt: skip


def key_of(place: Place) -> str:
    return f"x/c/{place // CHUNK}" if isinstance(place, int) else "x/zarr.json" if place in ATTRIBUTES else place


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Member]]:
    found = [Member(None) for _ in range(2)]
    yield found
    for worker in found:
        worker.kill()


@pytest.mark.parametrize("is_named", [False, True], ids=["pickled", "named"])
@pytest.mark.parametrize("case", CASES)
def test_by_hand(open_repo, workers, case, is_named):
    History(open_repo(durability="none"), workers, random.Random(0), is_named=is_named).run(*CASES[case])


@pytest.mark.parametrize("is_named", [False, True], ids=["pickled", "named"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("TXSTORE_HISTORIES", "20"))))
def test_histories(open_repo, workers, seed, is_named):
    """In the end all that is owed was done again, and the commit is just what was written; before, it is refused."""
    History(open_repo(durability="none"), workers, random.Random(seed), is_named=is_named).run()
