"""Clients that run random transactions and say what each has read and written: in one process, or in one each."""

from __future__ import annotations

import os
import pickle
import random
import struct
import time
from collections.abc import MutableMapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import zarr

import txstore
from tests.isolation.histories import LAST, SETUP, Op, Txn
from tests.tools.faults import watch
from txstore.format.regions import Region
from txstore.transactions import conflicts

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

LISTS = [f"l/c/{number}" for number in range(5)]
REGISTERS = [f"r/c/{number}" for number in range(5)]
#: Registers that are elements of one chunk: that of the array `e`, of 8-byte integers.
ELEMENTS, CHUNK = [f"r/e/{number}" for number in range(5)], "e/c/0"
DIRECTORIES = ["s/a", "s/b"]
REMOVABLE = 40  # members of each directory that the setup makes
ROW = 512  # elements that a list of the zarr workload has room for

MIXED = ("read list", "append", "read register", "write")

#: Which operations a workload is made of.
WORKLOADS = {
    "lists": ("read list", "append", "append"),
    "registers": ("read register", "read register", "write"),
    "sets": ("names", "keys", "make", "remove"),
    "mixed": (*MIXED, "names", "keys", "make", "remove"),
    "elements": ("read element", "write element", "write element"),
    "shared": (*MIXED, "read element", "write element", "names", "keys", "any", "make", "remove", "clear"),
    "arrays": ("read list", "append", "append"),
}


class Client:
    """Runs operations in one transaction, and remembers what they were. Elements are numbered from `first`."""

    def __init__(self, mapping: MutableMapping[str, bytes], chance: Chance, first: int, objects: int = 5) -> None:
        self.mapping = mapping
        self.chance = chance
        self.ops: list[Op] = []
        self.next = first
        self.objects = objects  # so many lists and registers

    def do(self, what: str) -> None:
        match what:
            case "read list":
                self.read_list(self.chance.choice(LISTS[: self.objects]))
            case "append":
                self.append(self.chance.choice(LISTS[: self.objects]))
            case "read register":
                self.read_register(self.chance.choice(REGISTERS[: self.objects]))
            case "write":
                self.write(self.chance.choice(REGISTERS[: self.objects]))
            case "read element":
                self.read_element(self.chance.choice(range(self.objects)))
            case "write element":
                self.write_element(self.chance.choice(range(self.objects)))
            case "names" | "keys":
                self.names(self.chance.choice(DIRECTORIES), how=what)
            case "make":
                self.make(self.chance.choice(DIRECTORIES))
            case "remove":
                self.remove(self.chance.choice(DIRECTORIES))
            case "clear":
                self.clear(self.chance.choice(DIRECTORIES))
            case "any":
                self.any(self.chance.choice(DIRECTORIES))

    def number(self) -> int:
        self.next += 1
        return self.next

    def get(self, key: str) -> bytes | None:
        return self.mapping.get(key)

    def read_list(self, key: str) -> tuple[int, ...]:
        value = tuple(map(int, (self.get(key) or b"").split()))
        self.ops.append(Op("read", key, value))
        return value

    def append(self, key: str) -> None:
        number = self.number()
        value = (*self.read_list(key), number)
        self.mapping[key] = b" ".join(b"%d" % each for each in value)
        self.ops.append(Op("append", key, number))

    def read_register(self, key: str) -> None:
        self.ops.append(Op("read", key, self.get(key)))

    def write(self, key: str) -> None:
        value = b"%d" % self.number()
        self.mapping[key] = value
        self.ops.append(Op("write", key, value))

    def read_element(self, number: int) -> None:
        value = _elements(self.get(CHUNK))[number]
        self.ops.append(Op("read", ELEMENTS[number], b"%d" % value if value else None))

    def write_element(self, number: int) -> None:
        value = self.number()

        def change(chunk: memoryview | None) -> bytes:
            elements = _elements(chunk)
            elements[number] = value
            return struct.pack("<5q", *elements)

        self.mapping.modify(CHUNK, change, Region.of_box(((number, number + 1),)))  # type: ignore[attr-defined]
        self.ops.append(Op("write", ELEMENTS[number], b"%d" % value))

    def names(self, directory: str, how: str = "names") -> frozenset[str]:
        mapping: Any = self.mapping
        if how == "names":
            found = frozenset(f"{directory}/{name}" for name in mapping.list_dir(directory))
        else:
            found = frozenset(mapping.keys_below(directory))
        self.ops.append(Op("list", directory, found))
        return found

    def make(self, directory: str) -> None:
        key = f"{directory}/{self.number()}"
        self.mapping[key] = b""
        self.ops.append(Op("make", key))

    def remove(self, directory: str) -> None:
        there = sorted(key for key in self.names(directory) if "old" in key)
        if there:
            key = there[0]  # others choose the same
            del self.mapping[key]
            self.ops.append(Op("remove", key))

    def clear(self, directory: str) -> None:
        there = self.names(directory)
        self.mapping.delete_dir(directory)  # type: ignore[attr-defined]
        self.ops.append(Op("clear", directory, there))

    def any(self, directory: str) -> None:
        self.ops.append(Op("any", directory, self.mapping.has_keys_below(directory)))  # type: ignore[attr-defined]


def _elements(chunk: Buffer | None) -> list[int]:
    return [0] * len(ELEMENTS) if chunk is None else list(struct.unpack("<5q", chunk))


class Chance(Protocol):
    def choice(self, among: Sequence[T], /) -> T: ...


class ArrayClient(Client):
    """A list is a row, and a chunk, of a zarr array."""

    def __init__(self, store: txstore.TxStore, chance: random.Random, first: int) -> None:
        super().__init__(store.mapping, chance, first)  # type: ignore[arg-type]
        self.array = zarr.open_array(store, path="l", mode="r+")

    def read_list(self, key: str) -> tuple[int, ...]:
        row = self.array[int(key.rpartition("/")[2])]
        value = tuple(row[row != 0].tolist())
        self.ops.append(Op("read", key, value))
        return value

    def append(self, key: str) -> None:
        number, value = self.number(), self.read_list(key)
        if len(value) < ROW:
            self.array[int(key.rpartition("/")[2]), len(value)] = number
            self.ops.append(Op("append", key, number))


def set_up(repo: txstore.Repository, workload: str = "mixed", removable: int = REMOVABLE) -> Txn:
    """Make the first commit of a history."""
    if workload == "arrays":
        with repo.transaction() as store:
            zarr.create_array(store, name="l", shape=(len(LISTS), ROW), chunks=(1, ROW), dtype="i8")
        return Txn(0, SETUP, (), 0, 1)
    with repo.transaction() as store:
        zarr.create_array(store, name="e", shape=(5,), dtype="<i8", compressors=None, fill_value=0)
        mapping = store.mapping
        keys = [f"{directory}/old{number:03}" for directory in DIRECTORIES for number in range(removable)]
        for key in keys:
            mapping[key] = b""
    return Txn(0, SETUP, tuple(Op("make", key) for key in keys), 0, 1)


def read_all(repo: txstore.Repository, workload: str = "mixed") -> Txn:
    """Return what there is in the end."""
    store = repo.transaction()
    client = (ArrayClient if workload == "arrays" else Client)(
        store if workload == "arrays" else store.mapping,  # type: ignore[arg-type]
        random.Random(0),
        0,
    )
    for key in LISTS:
        client.read_list(key)
    if workload != "arrays":
        for key in REGISTERS:
            client.read_register(key)
        for number in range(len(ELEMENTS)):
            client.read_element(number)
        for directory in DIRECTORIES:
            client.names(directory)
    base = store.base
    store.rollback()
    return Txn(-1, LAST, tuple(client.ops), 0 if base is None else base.seq, is_last=True)


def run(
    pipe: Connection, url: str, process: int, seed: int, count: int, isolation: str, workload: str, without: str = ""
) -> None:
    """Run transactions in a process of their own; send each twice: before its commit, with its id, and after.

    `without` is a clause of the rules that does not hold in this process.
    """
    conflicts.CLAUSES = tuple(clause for clause in conflicts.CLAUSES if clause.name != without)
    # Those that sync queue behind one another; the other waits until they have left it.
    repo = txstore.Repository(url, durability="none" if process == 0 else "fsync")
    chance = random.Random(seed)
    storage = watch(repo)

    def delay(*_: Any) -> None:
        if chance.random() < 0.05:
            time.sleep(chance.uniform(0, 0.003))

    for operation in ("create", "file.sync", "rename_noreplace", "lock", "write_in_place", "map"):
        storage.before[operation] = storage.after[operation] = delay
    for number in range(count):
        txn = _run_one(repo, chance, process, seed * 100_000 + number, isolation, workload, pipe)
        pipe.send(("done", txn))
    pipe.send(("end", None))


def _run_one(
    repo: txstore.Repository,
    chance: random.Random,
    process: int,
    number: int,
    isolation: str,
    workload: str,
    pipe: Connection,
) -> Txn:
    store = repo.transaction(isolation=isolation) if workload == "arrays" else None
    transaction = repo.begin(isolation=isolation) if store is None else store.mapping
    base = transaction.base.seq
    client = Client(transaction, chance, number * 100) if store is None else ArrayClient(store, chance, number * 100)
    kinds = WORKLOADS[workload]
    ops = [chance.choice(kinds) for _ in range(chance.randint(1, 4))]
    if chance.random() < 0.15:
        ops = [kind for kind in kinds if kind in ("read list", "read register", "names", "keys")]
    for kind in ops:
        if chance.random() < 0.4:
            time.sleep(chance.uniform(0, 0.002))
        if workload == "shared" and chance.random() < 0.3:
            _do_in_child(client, kind)
        else:
            client.do(kind)
    txn = Txn(number, process, tuple(client.ops), base)
    pipe.send(("about", (txn, transaction.id)))  # so that what a killed process did can be looked up
    try:
        made = transaction.commit() if store is None else store.commit()
        if store is not None:
            store.close()
    except txstore.ConflictError:
        (transaction if store is None else store).rollback()
        return txn._replace(aborted=True)
    return txn if made is None else txn._replace(commit=made.seq)


def _do_in_child(client: Client, kind: str) -> None:
    """Run an operation in a forked process, which becomes a participant of the transaction."""
    mine, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            before = len(client.ops)
            client.do(kind)
            client.mapping.lifecycle.seal()  # type: ignore[attr-defined]
            os.write(theirs, pickle.dumps((client.ops[before:], client.next)))
        finally:
            os._exit(0)
    os.close(theirs)
    said = b"".join(iter(lambda: os.read(mine, 1 << 16), b""))
    os.close(mine)
    os.waitpid(child, 0)
    ops, client.next = pickle.loads(said)
    client.ops += ops
