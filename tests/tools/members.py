"""Processes that have been sent a store in a transaction, and do with it what they are told."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import zarr

import txstore
from tests.tools.workers import QUICK, TIMEOUT
from txstore.store import TxStore
from txstore.transactions.participants.shared import SharedTransaction
from txstore.transactions.transaction import Transaction


def get(store: TxStore, key: str) -> bytes | None:
    return bytes(store[key]) if key in store else None


def put(store: TxStore, key: str, value: bytes) -> None:
    store[key] = value


def remove(store: TxStore, key: str) -> None:
    del store[key]


def clear(store: TxStore, path: str) -> None:
    store.mapping.delete_dir(path)


def locked(store: TxStore, path: str, selection: Any, then: Callable[..., Any], *arguments: Any) -> Any:
    with store.lock(path, selection):
        return then(store, *arguments)


def fill(store: TxStore, path: str, start: int, stop: int, value: int) -> None:
    zarr.open_array(store, path=path)[start:stop] = value


def fill_chunk(store: TxStore, number: int) -> None:
    fill(store, "x", 4 * number, 4 * number + 4, number + 1)


def fill_region(store: TxStore, number: int) -> None:
    fill(store, "x", 8 * number, 8 * number + 8, number + 1)


def append(store: TxStore, path: str, value: int) -> None:
    zarr.open_array(store, path=path).append(np.full(2, value, "i8"))


def seal(store: TxStore) -> None:
    store.mapping.lifecycle.seal()


def enter(store: TxStore) -> None:
    """Enter a block, at the end of which the work of this process is whole, and not at the end of each operation."""
    store.__enter__()


def join(store: TxStore) -> None:
    store.mapping.staging.part.begin()


def join_in_this_process(repo: txstore.Repository, transaction: bytes) -> Transaction:
    """Join as one more participant; `Engine.join` makes one of a process, however often it is called."""
    engine = repo.engine
    staging = engine._staging_of(SharedTransaction.find(engine.commits, transaction))
    staging.members.join_others()
    staging.part.begin()
    return Transaction(engine.commits, engine.snapshots, staging)


class Member:
    """A process that has been sent a store, and does with it what it is told; `first` is called there before all."""

    def __init__(self, store: TxStore, context: Any = QUICK, first: Callable[[], object] | None = None) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, store, first), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.pipe.send((function, arguments))

    def answer(self) -> Any:
        assert self.pipe.poll(TIMEOUT), "the process does not answer"
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.begin(function, *arguments)
        return self.answer()

    def leave(self) -> None:
        """End in good order."""
        self.pipe.send(None)
        self.process.join(TIMEOUT)
        assert self.process.exitcode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.join(TIMEOUT)


def _serve(pipe: Any, store: TxStore, first: Callable[[], object] | None) -> None:
    if first is not None:
        first()
    while (told := pipe.recv()) is not None:
        function, arguments = told
        try:
            answer = function(store, *arguments)
        except Exception as error:  # noqa: BLE001 - the test is told, whatever it is
            answer = error
        pipe.send(answer)


@contextmanager
def members(
    store: TxStore, count: int, context: Any = QUICK, *, joined: bool = True, first: Callable[[], object] | None = None
) -> Iterator[list[Member]]:
    """Start processes that have joined a transaction; kill what is left of them at the end."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(Member(store, context, first))
            stack.callback(found[-1].kill)
        for member in found if joined else ():
            member.do(get, "x/zarr.json")  # one joins with the first use
        yield found


def committed(repo: txstore.Repository, path: str = "x") -> list[int]:
    return zarr.open_array(repo.snapshot(), path=path, mode="r")[:].tolist()
