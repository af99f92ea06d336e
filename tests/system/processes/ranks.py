"""Ranks: processes that share nothing with the test but the disk, and stage into a transaction as they are told."""

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import txstore
from tests.tools.inside import commits_of, options_of
from tests.tools.workers import QUICK, TIMEOUT
from txstore.format import names

NAME = "run-17"
KEYS = ["a", "b", "c"]


class Seat:
    """What a rank does."""

    def __init__(self, url: str, **options: Any) -> None:
        self.repo = txstore.Repository(url, **options)
        self.store: Any = None

    def join(self, name: str = NAME) -> str:
        self.store = self.repo.transaction(name=name).__enter__()
        return str(self.store.mapping.id)

    def put(self, *keys: str) -> None:
        for key in keys:
            self.store[key] = value_of(key)

    def leave(self, error: Exception | None = None) -> None:
        self.store.__exit__(None if error is None else type(error), error, None)

    def drop(self) -> None:
        """End without a word, as an interpreter does that exits by an error outside of all blocks."""
        self.store = None

    def unpickle(self, sent: bytes) -> None:
        """Stage into a store that another process has sent."""
        pickle.loads(sent)["sent"] = value_of("sent")

    def rest(self) -> None:
        """Be about to be killed, on an object store."""
        from tests.system.remote import lease_times

        lease_times.rest(self.store)

    def commit(self) -> str | None:
        made = self.store.commit()
        return None if made is None else str(made.id)

    def rollback(self) -> None:
        self.store.rollback()

    def add(self, path: str, index: int, value: int, *, lock: bool) -> None:
        """Add to one element: read, and write its chunk."""
        import zarr

        if lock:
            with self.store.lock(path, index, timeout=TIMEOUT):
                zarr.open_array(self.store, path=path)[index] += value
        else:
            zarr.open_array(self.store, path=path)[index] += value


class Refused(Exception):
    """What a rank was told to do raised this. (Not all exceptions can be pickled.)"""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}")


class Rank:
    """A process that is told what to do. It dies with the test. `first` is called there before all."""

    def __init__(
        self, repo: txstore.Repository, durability: str = "none", first: Callable[[], object] | None = None
    ) -> None:
        self.pipe, theirs = QUICK.Pipe()
        options: dict[str, Any] = {"durability": durability}
        if commits_of(repo).staged.uploads:
            options["storage_options"] = options_of(repo)
        self.process = QUICK.Process(target=_obey, args=(theirs, repo.url, options, first), daemon=True)
        self.process.start()
        theirs.close()

    def do(self, what: str, *arguments: Any, **options: Any) -> Any:
        """Return what `Seat.<what>` returned. Raises `Refused`."""
        self.begin(what, *arguments, **options)
        return self.answer()

    def begin(self, what: str, *arguments: Any, **options: Any) -> None:
        self.pipe.send((what, arguments, options))

    def answer(self) -> Any:
        assert self.pipe.poll(TIMEOUT), "the rank does not answer"
        well, answer = self.pipe.recv()
        if well:
            return answer
        raise Refused(*answer)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(TIMEOUT)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


def _obey(pipe: Connection, url: str, options: dict[str, Any], first: Callable[[], object] | None) -> None:
    if first is not None:
        first()
    seat = Seat(url, **options)
    while True:
        try:
            what, arguments, options = pipe.recv()
        except EOFError:
            return
        try:
            answer = True, getattr(seat, what)(*arguments, **options)
        except Exception as error:  # noqa: BLE001 - the test is told, whatever it is
            answer = False, (type(error).__name__, str(error))
        pipe.send(answer)


@contextmanager
def ranks(
    count: int, repo: txstore.Repository, durability: str = "none", *, first: Callable[[], object] | None = None
) -> Iterator[list[Rank]]:
    """Start ranks, and kill what is left of them at the end."""
    found: list[Rank] = []
    try:
        for _ in range(count):
            found.append(Rank(repo, durability, first))
        yield found
    finally:
        for rank in found:
            rank.kill()


def value_of(key: str) -> bytes:
    return key.encode() * 50


def stage(repo: txstore.Repository, *keys: str, name: str = NAME) -> None:
    """Be a process that stages some keys and leaves."""
    with repo.transaction(name=name) as store:
        for key in keys:
            store[key] = value_of(key)


def content(repo: txstore.Repository) -> list[str]:
    """Return the keys that the newest commit has, after comparing their values."""
    found = dict(txstore.Repository(repo.url).mapping())
    assert found == {key: value_of(key) for key in found}
    return sorted(found)


def named(repo: txstore.Repository) -> list[str]:
    return [transaction.name for transaction in txstore.Repository(repo.url).transactions()]


def assert_tidy(repo: txstore.Repository) -> None:
    """Nothing is left but what commits refer to."""
    root = Path(repo.url)
    assert os.listdir(root / names.STAGING) == []
    packs = {path.name for path in (root / names.PACKS).rglob("*") if path.is_file()}
    commits = commits_of(repo)
    referred = {
        pack.name.id.hex() for stored in commits.chain.ancestors(commits.head()) for pack in stored.header.packs
    }
    assert packs == referred


def stage_all(repo: txstore.Repository) -> str:
    """Let three processes, so to speak, stage one key each; return the id of the transaction."""
    for key in KEYS:
        stage(repo, key)
    return repo.transactions()[0].id


def is_committed(repo: txstore.Repository, transaction: str) -> bool:
    """Tell whether a transaction was committed, which must be once."""
    ids = [commit.id for commit in txstore.Repository(repo.url).log()]
    assert ids.count(transaction) <= 1
    return transaction in ids
