"""Makes each write of an array a locked, durable transaction, in place of zarr 2's `synchronizer=`.

A synchronized array keeps no metadata. Each operation opens the array again: a read at the newest commit, a write at a
base that is not older than its locks. So any number of processes and threads may use it, and it never becomes stale.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from txstore.errors import LocksUnavailableError, NodeNotFoundError, TxStoreError
from txstore.format.documents import kind_of_node
from txstore.format.keys import document_key
from txstore.repository import Repository
from txstore.transactions.regions import METADATA, Append, Blocks, Points, Resize, Whole

if TYPE_CHECKING:
    import numpy.typing as npt
    import zarr

T = TypeVar("T")

#: Retries of a write. With locks, only writers that take no locks cause retries; without locks, all writers do.
_RETRIES, _RETRIES_WITHOUT_LOCKS = 20, 200


def synchronized(
    repo: Repository | str | os.PathLike[str],
    path: str = "",
    *,
    lock_timeout: float | None = 60.0,
    message: str | None = None,
) -> SynchronizedArray | SynchronizedGroup:
    """Return an array or group that any number of processes and threads may write.

    Each write (`a[...] = x`, `a.append(x)`, `a.resize(...)`, `a.attrs[...] = x`) locks the chunks that it changes, and
    is committed when it returns. Each read sees the newest commit. Two operations are two transactions: if several
    processes run `a[i] += 1` on one element, use `repo.transaction(lock={path: i})`.

    If the storage has no locks, a write that conflicts runs again. A write also runs again if it conflicts with a
    writer that takes no locks. Raises `NodeNotFoundError` if there is no array or group at the path.

    Parameters
    ----------
    repo : Repository, str or PathLike
        The repository, or its location.
    path : str
        The path of the array or group in the repository.
    lock_timeout : float, optional
        Seconds that a write waits for other writers of the same chunks before it raises `LockTimeoutError`. None waits
        without limit.
    message : str, optional
        The message of the commits.

    Examples
    --------
    >>> import numpy as np, tempfile, txstore, zarr
    >>> from txstore import synchronized
    >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
    >>> with repo.transaction() as store:
    ...     z = zarr.create_array(store, name="x", data=np.arange(4), chunks=(3,))
    >>> a = synchronized(repo, "x")
    >>> a[1:3] = 7
    >>> a.append([4, 5])
    (6,)
    >>> a[:]
    array([0, 7, 7, 3, 4, 5])
    """
    repository = repo if isinstance(repo, Repository) else Repository(repo)
    return _Place(repository, path.strip("/"), lock_timeout, message).open()


@dataclass(frozen=True)
class _Place:
    """The location of an array or group, and the options of its writes."""

    repo: Repository
    path: str
    lock_timeout: float | None
    message: str | None

    def below(self, name: str) -> _Place:
        return replace(self, path=document_key(self.path, name.strip("/")))

    def open(self) -> SynchronizedArray | SynchronizedGroup:
        kind = kind_of_node(self.repo.mapping(), self.path)
        if kind == "absent":
            raise NodeNotFoundError(self.path)
        return SynchronizedGroup(self) if kind == "group" else SynchronizedArray(self)

    def change(self, lock: Mapping[str, Any], change: Callable[[Any], T]) -> T:
        """Run `change(node)` in a transaction that holds the locks. The node is opened at the transaction's base."""
        import zarr

        def run(store: Any) -> T:
            return change(zarr.open(store, path=self.path, mode="r+"))

        try:
            return self.repo.run(run, retries=_RETRIES, message=self.message, lock=lock, lock_timeout=self.lock_timeout)
        except LocksUnavailableError:
            return self.repo.run(run, retries=_RETRIES_WITHOUT_LOCKS, message=self.message)


class _Synchronized:
    """The common base of synchronized arrays and groups."""

    _wanted: ClassVar[str]

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._opened: tuple[str, Any] | None = None  # a commit's id, and the node opened at this commit

    @property
    def path(self) -> str:
        return self._place.path

    @property
    def name(self) -> str:
        """The path from the root, with a leading slash."""
        return "/" + self.path

    @property
    def basename(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def read_only(self) -> bool:
        return False

    @property
    def metadata(self) -> Any:
        """The metadata that zarr has parsed from the document."""
        return self._newest().metadata

    @property
    def attrs(self) -> SynchronizedAttributes:
        return SynchronizedAttributes(self)

    def update_attributes(self, attributes: Mapping[str, Any]) -> _Synchronized:
        self.attrs.update(attributes)
        return self

    def _newest(self) -> Any:
        """Return the node at the newest commit. zarr opens it read-only."""
        import zarr

        store = self._place.repo.snapshot()
        commit = store.base.id if store.base is not None else ""
        opened = self._opened
        if opened is None or opened[0] != commit:
            node = zarr.open(store, path=self.path, mode="r")
            found = "group" if isinstance(node, zarr.Group) else "array"
            if found != self._wanted:  # another writer has replaced it by a node of another kind
                raise NodeNotFoundError(self.path, wanted=self._wanted, found=found)
            opened = self._opened = (commit, node)
        return opened[1]

    def _change(self, region: Any, change: Callable[[Any], T]) -> T:
        return self._place.change({self.path: region}, change)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (self._place.repo, self.path) == (other._place.repo, other.path)

    def __hash__(self) -> int:
        return hash((self._place.repo, self.path))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._place,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place.repo.url} {self.path!r}>"


class SynchronizedArray(_Synchronized):
    """An array where each write is a locked, durable transaction, and each read sees the newest commit.

    Create it with `synchronized`. A write computes its values before it takes locks.
    """

    _wanted = "array"

    # --- properties of the array at the newest commit

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._newest().shape
        return shape

    @property
    def dtype(self) -> Any:
        return self._newest().dtype

    @property
    def chunks(self) -> tuple[int, ...]:
        chunks: tuple[int, ...] = self._newest().chunks
        return chunks

    @property
    def shards(self) -> tuple[int, ...] | None:
        """The shape of a shard, or None without sharding. A write locks whole shards."""
        shards: tuple[int, ...] | None = self._newest().shards
        return shards

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(self._newest().size)

    @property
    def nbytes(self) -> int:
        return int(self._newest().nbytes)

    @property
    def fill_value(self) -> Any:
        return self._newest().fill_value

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        try:
            array = self._newest()
            what = f"{array.shape} {array.dtype}"
        except (OSError, TxStoreError, ValueError) as error:
            what = repr(error)
        return f"<SynchronizedArray {self._place.repo.url} {self.path!r} {what}>"

    # --- reading

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("reading always makes a copy: use copy=None")
        data = self._newest()[...]
        return data if dtype is None else data.astype(dtype)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows of one commit."""
        array = self._newest()
        if not array.shape:
            raise TypeError("an array without dimensions has no rows")
        return (array[row] for row in range(array.shape[0]))

    def __getitem__(self, selection: Any) -> Any:
        return self._newest()[selection]

    @property
    def oindex(self) -> _Indexer:
        return _Indexer(self, "oindex", _itself)

    @property
    def vindex(self) -> _Indexer:
        return _Indexer(self, "vindex", Points)

    @property
    def blocks(self) -> _Indexer:
        return _Indexer(self, "blocks", Blocks)

    def get_basic_selection(self, selection: Any = ..., **options: Any) -> Any:
        return self._newest().get_basic_selection(selection, **options)

    def get_orthogonal_selection(self, selection: Any, **options: Any) -> Any:
        return self._newest().get_orthogonal_selection(selection, **options)

    def get_coordinate_selection(self, selection: Any, **options: Any) -> Any:
        return self._newest().get_coordinate_selection(selection, **options)

    def get_mask_selection(self, mask: Any, **options: Any) -> Any:
        return self._newest().get_mask_selection(mask, **options)

    def get_block_selection(self, selection: Any, **options: Any) -> Any:
        return self._newest().get_block_selection(selection, **options)

    # --- writing

    def __setitem__(self, selection: Any, value: Any) -> None:
        computed = _computed(value)
        self._change(selection, lambda array: array.__setitem__(selection, computed))

    def set_basic_selection(self, selection: Any, value: Any, **options: Any) -> None:
        computed = _computed(value)
        self._change(selection, lambda array: array.set_basic_selection(selection, computed, **options))

    def set_orthogonal_selection(self, selection: Any, value: Any, **options: Any) -> None:
        computed = _computed(value)
        self._change(selection, lambda array: array.set_orthogonal_selection(selection, computed, **options))

    def set_coordinate_selection(self, selection: Any, value: Any, **options: Any) -> None:
        computed = _computed(value)
        self._change(Points(selection), lambda array: array.set_coordinate_selection(selection, computed, **options))

    def set_mask_selection(self, mask: Any, value: Any, **options: Any) -> None:
        computed = _computed(value)
        self._change(Points(mask), lambda array: array.set_mask_selection(mask, computed, **options))

    def set_block_selection(self, selection: Any, value: Any, **options: Any) -> None:
        computed = _computed(value)
        self._change(Blocks(selection), lambda array: array.set_block_selection(selection, computed, **options))

    def append(self, data: Any, axis: int = 0) -> tuple[int, ...]:
        """Append along an axis; return the new shape. Other writers never split the rows of one call."""
        import numpy as np

        computed = np.asanyarray(_computed(data))

        def append(array: zarr.Array[Any]) -> tuple[int, ...]:
            return array.append(computed, axis=range(array.ndim)[axis])

        return self._change(Append(axis), append)

    def resize(self, new_shape: int | tuple[int, ...]) -> None:
        """Change the shape. Values outside the new shape are lost."""
        shape = (new_shape,) if isinstance(new_shape, int) else tuple(new_shape)
        self._change(Resize(shape), lambda array: array.resize(shape))


class _Indexer:
    """`oindex`, `vindex` or `blocks` of a synchronized array."""

    def __init__(self, array: SynchronizedArray, kind: str, region: Callable[[Any], Any]) -> None:
        self._array = array
        self._kind = kind
        self._region = region

    def __getitem__(self, selection: Any) -> Any:
        return getattr(self._array._newest(), self._kind)[selection]

    def __setitem__(self, selection: Any, value: Any) -> None:
        computed = _computed(value)
        self._array._change(
            self._region(selection), lambda array: getattr(array, self._kind).__setitem__(selection, computed)
        )


def _itself(selection: Any) -> Any:
    return selection


def _computed(value: Any) -> Any:
    """Return the value as zarr takes it. This computes a lazy array once, before the write takes locks."""
    import numpy as np

    is_lazy = hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic)
    return np.asarray(value) if is_lazy and not hasattr(value, "__cuda_array_interface__") else value


class SynchronizedAttributes(MutableMapping[str, Any]):
    """The attributes of a synchronized array or group. Each change is a transaction, each read sees the newest commit.

    A returned value is a copy: `attrs["a"].append(1)` changes nothing.
    """

    def __init__(self, node: _Synchronized) -> None:
        self._node = node

    def asdict(self) -> dict[str, Any]:
        return copy.deepcopy(dict(self._node._newest().attrs.asdict()))

    def __getitem__(self, key: str) -> Any:
        return self.asdict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.asdict())

    def __len__(self) -> int:
        return len(self.asdict())

    def __repr__(self) -> str:
        return f"<SynchronizedAttributes {self.asdict()}>"

    def _change(self, change: Callable[[dict[str, Any]], T]) -> T:
        def run(node: Any) -> T:
            values = dict(node.attrs.asdict())
            result = change(values)
            node.attrs.put(values)
            return result

        return self._node._change(METADATA, run)

    def __setitem__(self, key: str, value: Any) -> None:
        self._change(lambda values: values.__setitem__(key, value))

    def __delitem__(self, key: str) -> None:
        self._change(lambda values: values.__delitem__(key))

    def update(self, *others: Any, **more: Any) -> None:
        """Set several attributes in one transaction."""
        new = dict(*others, **more)
        self._change(lambda values: values.update(new))

    def put(self, attributes: Mapping[str, Any]) -> None:
        """Replace all attributes."""

        def replace_all(values: dict[str, Any]) -> None:
            values.clear()
            values.update(attributes)

        self._change(replace_all)

    def clear(self) -> None:
        self.put({})

    def pop(self, key: str, *default: Any) -> Any:
        return self._change(lambda values: values.pop(key, *default))

    def popitem(self) -> tuple[str, Any]:
        return self._change(lambda values: values.popitem())

    def setdefault(self, key: str, default: Any = None) -> Any:
        return self._change(lambda values: values.setdefault(key, default))


class SynchronizedGroup(_Synchronized):
    """A group of synchronized arrays, where each change is a locked, durable transaction.

    Create it with `synchronized`.
    """

    _wanted = "group"

    def __getitem__(self, path: str) -> SynchronizedArray | SynchronizedGroup:
        """Return the array or group at a path below this one. Raises `NodeNotFoundError`, which is a `KeyError`."""
        return self._place.below(path).open()

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self._kind(path) != "absent"

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._members())

    def __len__(self) -> int:
        return sum(1 for _ in self._members())

    def keys(self) -> Iterator[str]:
        return iter(self)

    def arrays(self) -> Iterator[tuple[str, SynchronizedArray]]:
        """Yield name and array of each direct child that is an array."""
        return ((name, SynchronizedArray(self._place.below(name))) for name, kind in self._members() if kind != "group")

    def groups(self) -> Iterator[tuple[str, SynchronizedGroup]]:
        """Yield name and group of each direct child that is a group."""
        return ((name, SynchronizedGroup(self._place.below(name))) for name, kind in self._members() if kind == "group")

    def array_keys(self) -> Iterator[str]:
        return (name for name, _ in self.arrays())

    def group_keys(self) -> Iterator[str]:
        return (name for name, _ in self.groups())

    def _kind(self, path: str) -> str:
        return kind_of_node(self._place.repo.mapping(), self._place.below(path).path)

    def _members(self) -> Iterator[tuple[str, str]]:
        """Yield name and kind of each direct child, at one commit."""
        snapshot = self._place.repo.mapping()
        for name in snapshot.list_dir(self.path):
            kind = kind_of_node(snapshot, document_key(self.path, name))
            if kind != "absent":
                yield name, kind

    # --- writing

    def create_array(self, name: str, **options: Any) -> SynchronizedArray:
        """Create an array, as zarr's `Group.create_array` does."""
        self._create(name, lambda group: group.create_array(name, **options), options)
        return SynchronizedArray(self._place.below(name))

    def create_group(self, name: str, **options: Any) -> SynchronizedGroup:
        """Create a group, as zarr's `Group.create_group` does."""
        self._create(name, lambda group: group.create_group(name, **options), options)
        return SynchronizedGroup(self._place.below(name))

    def require_group(self, name: str, **options: Any) -> SynchronizedGroup:
        """Return a group. Create it if it does not exist."""
        if self._kind(name) != "group":
            self._create(name, lambda group: group.require_group(name, **options), options)
        return SynchronizedGroup(self._place.below(name))

    def __delitem__(self, name: str) -> None:
        """Delete the array or group at a path below this one."""
        below = self._place.below(name).path
        self._place.change({self.path: METADATA, below: Whole()}, lambda group: group.__delitem__(name))

    def _create(self, name: str, create: Callable[[zarr.Group], object], options: Mapping[str, Any]) -> None:
        # The group's documents don't change. Creators lock them, so only one process at a time creates below the group.
        lock: dict[str, Any] = {self.path: METADATA}
        if options.get("overwrite"):
            lock[self._place.below(name).path] = Whole(may_be_missing=True)
        self._place.change(lock, create)
