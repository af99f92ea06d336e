"""The stores that many processes write to at once, each used as its own documentation has processes share it.

A transaction of writer `w` with number `n` fills chunk (`w`, `n`) of the array `shared` with a value of its own, so it
can be told afterwards whether it is there. Writer 0 fills in the same transaction both chunks of the array `pair` with
`n + 1`: a reader who finds them unequal has read a torn state. Chunks are 64 × 64 float32, 16 KiB, not compressed.

The key stores below the array stores leave out zarr and the codecs: a transaction is one chunk's bytes under a key of
its own. They measure the commit alone.

TxStore and OCDBT make every transaction durable before they acknowledge it. LocalStore and Icechunk sync nothing: after
a power loss, what they had acknowledged may be gone. Icechunk itself warns that its local storage is not safe for
several processes that commit; it is measured because people use it all the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

SIDE = 64
WRITERS = 8
#: Transactions that there is room for, for each writer.
MOST = 4096

Write = Callable[[int], None]  # one transaction, by its number


class ConflictedError(Exception):
    """The transaction was refused, because of somebody else's: nothing of it was written."""


class Store(Protocol):
    """What the processes need of a store at a path. Each process makes its own object."""

    name: ClassVar[str]
    package: ClassVar[str]

    def __init__(self, path: Path) -> None: ...

    def create(self) -> None: ...

    def open_to_write(self, writer: int) -> Write: ...

    def count_found(self, writer: int, acknowledged: int) -> int:
        """Return how many of a writer's transactions are in the newest state."""


class ReadableStore(Store, Protocol):
    """A store whose newest state a reader reads while others write."""

    def read_pair(self) -> np.ndarray:
        """Open the newest state and read both chunks of the pair."""


def value_of(writer: int, number: int) -> float:
    """Return what a chunk is filled with: exact as float32, never zero, different for each."""
    return float((writer << 20) + number + 1)


class _Arrays:
    """Creating, finding and reading, where an array can be opened by name."""

    path: Path

    def __init__(self, path: Path) -> None:
        self.path = path

    def open_newest(self, name: str) -> Any:
        raise NotImplementedError

    def read_whole(self, selected: Any) -> np.ndarray:
        return np.asarray(selected)

    def count_found(self, writer: int, acknowledged: int) -> int:
        row = self.open_newest("shared")[writer * SIDE : (writer + 1) * SIDE, : acknowledged * SIDE]
        chunks = self.read_whole(row).reshape(SIDE, acknowledged, SIDE)
        wanted = np.array([value_of(writer, number) for number in range(acknowledged)], dtype="f4")
        found = (chunks == wanted[None, :, None]).all(axis=(0, 2))
        if writer == 0 and acknowledged and not (self.read_pair() == acknowledged).all():
            found[-1] = False  # the last transaction is there only if its part in the pair is
        return int(found.sum())

    def read_pair(self) -> np.ndarray:
        return self.read_whole(self.open_newest("pair")[:])


def _fill(shared: Any, pair: Any, writer: int, number: int) -> None:
    columns = slice(number * SIDE, (number + 1) * SIDE)
    shared[writer * SIDE : (writer + 1) * SIDE, columns] = np.full((SIDE, SIDE), value_of(writer, number), dtype="f4")
    if writer == 0:
        pair[:] = np.full((2 * SIDE, SIDE), number + 1, dtype="f4")


_SHAPES = {"shared": (WRITERS * SIDE, MOST * SIDE), "pair": (2 * SIDE, SIDE)}


class _ZarrArrays(_Arrays):
    def create_arrays(self, store: Any) -> None:
        import zarr

        for name, shape in _SHAPES.items():
            zarr.create_array(store, name=name, shape=shape, chunks=(SIDE, SIDE), dtype="f4", compressors=None)

    def open_in(self, store: Any, name: str, mode: Any = "r") -> Any:
        import zarr

        return zarr.open_array(store, path=name, mode=mode)


class TxStoreArrays(_ZarrArrays):
    """A session: the arrays stay open, each commit is one transaction."""

    name = "TxStore"
    package = "txstore"

    def create(self) -> None:
        import txstore

        with txstore.Repository(self.path).transaction() as store:
            self.create_arrays(store)

    def open_to_write(self, writer: int) -> Write:
        import txstore

        session = txstore.TxStore(self.path)
        shared, pair = (self.open_in(session, name, "r+") for name in _SHAPES)

        def write(number: int) -> None:
            _fill(shared, pair, writer, number)
            try:
                session.commit()
            except txstore.ConflictError as error:
                session.rollback()
                raise ConflictedError from error

        return write

    def open_newest(self, name: str) -> Any:
        import txstore

        return self.open_in(txstore.Repository(self.path).snapshot(), name)


class _LocalStoreArrays(_ZarrArrays):
    """Plain zarr. The reader takes no lock."""

    def create(self) -> None:
        self.create_arrays(str(self.path))

    def open_newest(self, name: str) -> Any:
        return self.open_in(str(self.path), name)

    def open_to_write(self, writer: int) -> Write:
        shared, pair = (self.open_in(str(self.path), name, "r+") for name in _SHAPES)

        def write(number: int) -> None:
            with self.locked(writer, number):
                _fill(shared, pair, writer, number)

        return write

    def locked(self, writer: int, number: int) -> Any:
        raise NotImplementedError


class FileLockArrays(_LocalStoreArrays):
    """One lock file for everything, as is usual with `filelock`."""

    name = "LocalStore + filelock"
    package = "filelock"

    def locked(self, writer: int, number: int) -> Any:
        import filelock

        return filelock.FileLock(f"{self.path}.lock")


class FastenersArrays(_LocalStoreArrays):
    """One lock file for each chunk, as zarr 2's `ProcessSynchronizer` had it."""

    name = "LocalStore + fasteners"
    package = "fasteners"

    @contextmanager
    def locked(self, writer: int, number: int) -> Iterator[None]:
        import fasteners

        chunks = [f"shared.{writer}.{number}", *(("pair.0", "pair.1") if writer == 0 else ())]
        with ExitStack() as stack:
            for chunk in sorted(chunks):
                stack.enter_context(fasteners.InterProcessLock(f"{self.path}.locks/{chunk}"))
            yield


class IcechunkArrays(_ZarrArrays):
    """A writable session for each transaction, rebased over what others have committed meanwhile."""

    name = "Icechunk"
    package = "icechunk"

    def _storage(self) -> Any:
        import icechunk

        icechunk.set_logs_filter("error")  # a warning about local storage from each process: the docstring above has it
        return icechunk.local_filesystem_storage(str(self.path))

    def create(self) -> None:
        import icechunk

        session = icechunk.Repository.create(self._storage()).writable_session("main")
        self.create_arrays(session.store)
        session.commit("create")

    def open_to_write(self, writer: int) -> Write:
        import icechunk

        repository = icechunk.Repository.open(self._storage())

        def write(number: int) -> None:
            session = repository.writable_session("main")
            shared, pair = (self.open_in(session.store, name, "r+") for name in _SHAPES)
            _fill(shared, pair, writer, number)
            try:
                session.commit("write", rebase_with=icechunk.ConflictDetector())
            except (icechunk.ConflictError, icechunk.RebaseFailedError) as error:
                raise ConflictedError from error

        return write

    def open_newest(self, name: str) -> Any:
        import icechunk

        return self.open_in(icechunk.Repository.open(self._storage()).readonly_session("main").store, name)


class OcdbtArrays(_Arrays):
    """TensorStore's zarr3 driver over OCDBT: the arrays stay open, each atomic transaction is committed."""

    name = "TensorStore OCDBT"
    package = "tensorstore"

    def __init__(self, path: Path) -> None:
        import tensorstore

        super().__init__(path)
        self._context = tensorstore.Context()  # of both arrays: else no transaction could span them

    def _open(self, name: str, **options: Any) -> Any:
        import tensorstore

        keys = {"driver": "ocdbt", "base": f"file://{self.path}/", "path": f"{name}/"}
        return tensorstore.open({"driver": "zarr3", "kvstore": keys}, context=self._context, **options).result()

    def create(self) -> None:
        import tensorstore

        for name, shape in _SHAPES.items():
            layout = tensorstore.ChunkLayout(chunk_shape=(SIDE, SIDE))
            self._open(name, create=True, dtype="float32", shape=shape, chunk_layout=layout)

    def open_to_write(self, writer: int) -> Write:
        import tensorstore

        shared, pair = (self._open(name, open=True) for name in _SHAPES)

        def write(number: int) -> None:
            with tensorstore.Transaction(atomic=True) as transaction:
                _fill(shared.with_transaction(transaction), pair.with_transaction(transaction), writer, number)

        return write

    def open_newest(self, name: str) -> Any:
        return self._open(name, open=True)

    def read_whole(self, selected: Any) -> np.ndarray:
        return selected.read().result()


def _content(writer: int, number: int) -> bytes:
    return np.full((SIDE, SIDE), value_of(writer, number), dtype="f4").tobytes()


class _Keys:
    """One chunk's bytes under a key of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count_found(self, writer: int, acknowledged: int) -> int:
        get = self.open_to_read()
        return sum(get(_key(writer, number)) == _content(writer, number) for number in range(acknowledged))

    def open_to_read(self) -> Callable[[str], bytes | None]:
        raise NotImplementedError


def _key(writer: int, number: int) -> str:
    return f"shared/c/{writer}/{number}"


class TxStoreKeys(_Keys):
    """A transaction as a mapping."""

    name = "TxStore"
    package = "txstore"

    def create(self) -> None:
        import txstore

        with txstore.Repository(self.path).begin() as transaction:
            transaction["zarr.json"] = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'

    def open_to_write(self, writer: int) -> Write:
        import txstore

        repository = txstore.Repository(self.path)

        def write(number: int) -> None:
            transaction = repository.begin()
            transaction[_key(writer, number)] = _content(writer, number)
            try:
                transaction.commit()
            except txstore.ConflictError as error:
                transaction.rollback()
                raise ConflictedError from error

        return write

    def open_to_read(self) -> Callable[[str], bytes | None]:
        import txstore

        return txstore.Repository(self.path).mapping().get


class OcdbtKeys(_Keys):
    """An atomic transaction of TensorStore's `KvStore`."""

    name = "TensorStore OCDBT"
    package = "tensorstore"

    def _open(self) -> Any:
        import tensorstore

        return tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{self.path}/"}).result()

    def create(self) -> None:
        self._open()["zarr.json"] = b"{}"

    def open_to_write(self, writer: int) -> Write:
        import tensorstore

        keys = self._open()

        def write(number: int) -> None:
            with tensorstore.Transaction(atomic=True) as transaction:
                keys.with_transaction(transaction)[_key(writer, number)] = _content(writer, number)

        return write

    def open_to_read(self) -> Callable[[str], bytes | None]:
        keys = self._open()
        return lambda key: keys.read(key).result().value


class BareFiles(_Keys):
    """Write, fdatasync, rename, fsync of the directory: what nobody who is durable can do without."""

    name = "bare files"
    package = "numpy"

    def create(self) -> None:
        self.path.mkdir()

    def open_to_write(self, writer: int) -> Write:
        temporary = f"{self.path}/new-{writer}"

        def write(number: int) -> None:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.write(descriptor, _content(writer, number))
            os.fdatasync(descriptor)
            os.close(descriptor)
            os.rename(temporary, self._file(_key(writer, number)))
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            os.close(descriptor)

        return write

    def _file(self, key: str) -> Path:
        return self.path / key.replace("/", ".")

    def open_to_read(self) -> Callable[[str], bytes | None]:
        return lambda key: self._file(key).read_bytes()
