"""Transactions of one process, interleaved step by step as a source of chance says; and which of them must conflict."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import txstore
from tests.isolation.clients import Chance, Client, read_all, set_up
from tests.isolation.histories import READS, Op, Txn, optimize, replay, seen, written
from txstore.transactions.transaction import Transaction

OPS = (
    *("read list", "append", "read register", "write", "read element", "write element"),
    *("names", "keys", "any", "make", "remove", "clear"),
)
VERSIONS = 3
OPTIMIZED = 12  # one step in so many is to optimize the repository
FEW = 2  # lists, registers, and members of each directory


@dataclass
class _Open:
    transaction: Transaction
    client: Client
    number: int


class Interleaving:
    """A history that is made step by step. What is unexpected of a conflict is in `surprises`."""

    def __init__(self, repo: txstore.Repository, chance: Chance, isolation: str, ops: tuple[str, ...] = OPS) -> None:
        self.repo = repo
        self.chance = chance
        self.isolation = isolation
        self.ops = ops
        self.history = [set_up(repo, removable=FEW)]
        self.surprises: list[str] = []
        self.open: dict[int, _Open] = {}
        self.begun = 0

    def step(self) -> None:
        if self.chance.choice(range(OPTIMIZED)) == OPTIMIZED - 1:
            self.history += optimize(self.repo)
            return
        version = self.chance.choice(range(VERSIONS))
        if version not in self.open:
            self.begun += 1
            transaction = self.repo.begin(isolation=self.isolation)
            client = Client(transaction, self.chance, 100 * self.begun, FEW)
            self.open[version] = _Open(transaction, client, self.begun)
            return
        what = self.chance.choice((*self.ops, "commit", "commit", "rollback"))
        if what == "commit":
            self.commit(version)
        elif what == "rollback":
            self.roll_back(version)
        else:
            self.open[version].client.do(what)

    def commit(self, version: int) -> None:
        txn = self._end(version)
        transaction = self.open.pop(version).transaction
        expected = must_conflict(txn, self.history, self.isolation)
        try:
            made = transaction.commit()
            txn = txn if made is None else txn._replace(commit=made.seq)
        except txstore.ConflictError as error:
            transaction.rollback()
            txn = txn._replace(aborted=True)
            if not expected:
                self.surprises.append(f"{txn} {txn.ops} should not conflict: {error}")
        else:
            if expected:
                self.surprises.append(f"{txn} {txn.ops} should conflict")
        self.history.append(txn)

    def roll_back(self, version: int) -> None:
        txn = self._end(version)
        self.open.pop(version).transaction.rollback()
        self.history.append(txn._replace(aborted=True))

    def _end(self, version: int) -> Txn:
        ended = self.open[version]
        return Txn(ended.number, version, tuple(ended.client.ops), ended.transaction.base.seq)

    def end(self) -> list[Txn]:
        for version in list(self.open):
            self.commit(version)
        return [*self.history, read_all(self.repo)]


def interleave(chance: Chance, steps: int, isolation: str, ops: tuple[str, ...] = OPS) -> tuple[list[Txn], list[str]]:
    """Return a history, and which of its transactions should have conflicted, or should not."""
    with tempfile.TemporaryDirectory() as directory:
        made = Interleaving(txstore.Repository(Path(directory, "data.tx"), durability="none"), chance, isolation, ops)
        for _ in range(steps):
            made.step()
        return made.end(), made.surprises


def must_conflict(txn: Txn, history: list[Txn], isolation: str) -> bool:
    """Tell whether a transaction that is about to commit writes or relies on what others have changed since."""
    states = replay(history)
    base, head = states[txn.base], states[max(states)]
    mine, cleared = _staged(txn)
    if not mine and not any(key.startswith(tuple(cleared)) for key in base):
        return False  # nothing would change
    since = [other for other in history if other.commit is not None and other.commit > txn.base]
    changed = {_checked(key, isolation) for other in since for op in other.ops for key in written(op)}
    cleared_since = tuple(
        prefix
        for other in since
        for prefix in _staged(other)[1]
        if any(key.startswith(prefix) for key in states[other.base])  # else there was nothing to delete
    )
    if any(_checked(key, isolation) in changed or key.startswith(cleared_since) for key in mine):
        return True
    if any(key not in base and key.startswith(tuple(cleared)) for key in head):
        return True
    reads = [op for op in txn.ops if op.kind in READS] if isolation == "serializable" else []
    if any(_checked(op.key, isolation) in changed for op in reads if op.kind == "read"):
        return True
    return any(seen(op, base) != seen(op, head) for op in _first_listings(txn) if isolation == "serializable")


def _checked(key: str, isolation: str) -> str:
    """Return what is compared: of a serializable transaction all elements of a chunk as one."""
    return "r/e" if isolation == "serializable" and key.startswith("r/e/") else key


def _staged(txn: Txn) -> tuple[set[str], set[str]]:
    """Return the keys that a transaction has staged in the end, and the prefixes that it has cleared."""
    keys: set[str] = set()
    prefixes: set[str] = set()
    for op in txn.ops:
        if op.kind == "clear":
            prefixes.add(op.key + "/")
            keys = {key for key in keys if not key.startswith(op.key + "/")}
        else:
            keys.update(written(op))
    return keys, prefixes


def _first_listings(txn: Txn) -> Iterator[Op]:
    """Yield the listings that are of the base: nothing that was staged before has answered them."""
    cleared, made = set(), set()
    for op in txn.ops:
        if op.kind == "clear":
            cleared.add(op.key)
        elif op.kind == "make":
            made.add(op.key.rpartition("/")[0])
        elif op.kind in ("list", "any") and op.key not in cleared and not (op.kind == "any" and op.key in made):
            yield op
