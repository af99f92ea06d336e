"""Makes a transaction or a snapshot a store of zarr 2, so that zarr 2 lists and deletes groups quickly.

zarr 2 also takes a plain mapping: `zarr.open(repo.begin())`. But it wraps any mapping that is not its own `BaseStore`
in a `KVStore`, which uses only the mapping's items. To list a group or delete an array, it then walks every key of the
repository. And if it clears a chunk that did not exist, it stages no deletion (I5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Never

try:
    from zarr.errors import ReadOnlyError  # type: ignore[attr-defined]
    from zarr.storage import Store  # type: ignore[attr-defined]
except ImportError as error:
    raise ImportError("txstore.zarr2 is for zarr 2; with zarr 3 use repo.transaction() and repo.snapshot()") from error

from txstore.transactions.transaction import Transaction

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from txstore.history.snapshot import Snapshot


class MappingStore(Store):  # type: ignore[misc]
    """A store of zarr 2 over `repo.begin()` or, read-only, over `repo.mapping()`.

    Closing the store does not end the transaction. Call the transaction's `commit`, or use it as a context manager.

    Examples
    --------
    >>> import zarr, txstore, txstore.zarr2                     # doctest: +SKIP
    >>> with txstore.Repository("data.tx").begin() as transaction:
    ...     group = zarr.open_group(txstore.zarr2.MappingStore(transaction))
    ...     group.zeros("position", shape=100, chunks=10)
    """

    def __init__(self, mapping: Transaction | Snapshot) -> None:
        self.mapping = mapping
        self._writeable = self._erasable = isinstance(mapping, Transaction)

    @property
    def _transaction(self) -> Transaction:
        if isinstance(self.mapping, Transaction):
            return self.mapping
        raise ReadOnlyError

    def __repr__(self) -> str:
        return f"<MappingStore {self.mapping!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MappingStore) and self.mapping is other.mapping

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Never:
        raise TypeError("a mapping of txstore can't be pickled: open the repository in the other process")

    # --- reading

    def __getitem__(self, key: str) -> bytes:
        return self.mapping[key]

    def __contains__(self, key: object) -> bool:
        return key in self.mapping

    def __iter__(self) -> Iterator[str]:
        return iter(self.mapping)

    def __len__(self) -> int:
        return len(self.mapping)

    def getitems(self, keys: Iterable[str], *, contexts: Mapping[str, Any]) -> dict[str, memoryview]:
        """Return the values of existing keys as views of the mapped files, so that zarr decodes them without a copy."""
        views = ((key, self.mapping.get_view(key)) for key in keys)
        return {key: view for key, view in views if view is not None}

    def getsize(self, path: str = "") -> int:
        return self.mapping.getsize(path)

    def listdir(self, path: str = "") -> list[str]:
        return self.mapping.listdir(path)

    # --- writing

    def __setitem__(self, key: str, value: Buffer) -> None:
        self._transaction[key] = value

    def __delitem__(self, key: str) -> None:
        del self._transaction[key]

    def setitems(self, values: Mapping[str, Buffer]) -> None:
        self._transaction.setitems(values)

    def delitems(self, keys: Iterable[str]) -> None:
        """Stage the deletion of keys, even if they do not exist: a cleared chunk counts as written (I5)."""
        for key in keys:
            self._transaction.delete(key)

    def rmdir(self, path: str = "") -> None:
        self._transaction.rmdir(path)
