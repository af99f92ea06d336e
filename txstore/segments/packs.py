"""Reads values out of finished packs."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from txstore import processes
from txstore._native import local
from txstore.errors import CorruptionError
from txstore.format import encoding, packfile
from txstore.format.packfile import PackName
from txstore.segments.replaced import ReplacedValues
from txstore.storage.interface import GONE, Mapped, Storage

if TYPE_CHECKING:
    pass


#: Maps without users that a process keeps at once, of all its repositories. The kernel allows it
#: 65,530 by default, for all that it maps.
MAX_MAPS = 16_384


_SWEPT_FROM = 64

Key = TypeVar("Key")
Opened = TypeVar("Opened")


class MissingPackError(CorruptionError):
    """There is no such file. Internal: what that means depends on who wanted it."""


#: Called when a file is missing, before `MissingPackError` is raised: it may raise what it knows better.
Missing = Callable[[], object]


class Pack(Protocol):
    """A finished pack, wherever it lies. Reading raises `CorruptionError`, also where the pack ends too early."""

    path: str

    @property
    def may_be_replaced(self) -> bool:
        """Whether another file may have the same path by now, so that each value's checksum has to be compared."""

    @property
    def size(self) -> int:
        """The length in bytes. A request, of a pack that lies elsewhere."""

    def view(self, offset: int, length: int, checksum: int, key: str | None = None) -> memoryview:
        """Return a whole value, after comparing its checksum."""

    def part(self, offset: int, length: int, part: slice, key: str | None = None) -> memoryview:
        """Return a part of a value without comparing the checksum, which covers the whole."""

    def section(self, offset: int, length: int) -> Mapped:
        """Return the buffer of a run."""


class OpenPack:
    """A finished pack: its values as views of the mapped file."""

    may_be_replaced = False

    def __init__(self, path: str, mapped: Mapped, pack_id: bytes) -> None:
        self.path = path
        self._mapped = mapped
        check_head(path, bytes(memoryview(mapped)[: packfile.HEAD_SIZE]), pack_id)

    @property
    def mapped(self) -> Mapped:
        """The file: a buffer, which stays mapped as long as anybody has it."""
        return self._mapped

    @property
    def size(self) -> int:
        return len(memoryview(self._mapped))

    def view(self, offset: int, length: int, checksum: int, key: str | None = None) -> memoryview:
        try:
            return local.view(self._mapped, offset, length, checksum)
        except ValueError as error:
            raise CorruptionError(self.path, offset=offset, key=key, reason=str(error)) from error

    def part(self, offset: int, length: int, part: slice, key: str | None = None) -> memoryview:
        value = memoryview(self._mapped)[offset : offset + length]
        if len(value) != length:
            raise CorruptionError(self.path, offset=offset, key=key, reason="the value reaches beyond the file")
        return value[part]

    def section(self, offset: int, length: int) -> Mapped:
        return memoryview(self._mapped)[offset : offset + length]


def check_head(path: str, head: bytes, pack_id: bytes) -> None:
    """Raise `CorruptionError` unless these are the first bytes of a pack of this id."""
    if packfile.is_head_of(head, pack_id):
        return
    try:
        found, _, _ = packfile.decode_head(head)
    except encoding.MalformedError as error:
        raise CorruptionError(path, offset=0, reason=error.reason) from error
    raise CorruptionError(path, offset=0, reason=f"this is pack {found.hex()}, expected {pack_id.hex()}")


class PackSource(Protocol):
    """What finished packs are opened by."""

    is_ranged: bool
    """Whether packs are read by ranges, each a request, and not mapped."""

    @property
    def replaced(self) -> ReplacedValues | None:
        """What says where values lie that replace others; None if these packs are of no repository."""

    def get(self, name: PackName, missing: Missing | None = None) -> Pack:
        """Return a pack. Raises `CorruptionError`, here or when the pack is read."""


class Kept(dict[Key, Opened]):
    """What is kept open to be used again: it is let go with this, or, the oldest first, when a process has too much."""

    __slots__ = ("__weakref__",)

    def keep(self, key: Key, opened: Opened) -> None:
        self[key] = opened
        _order.append((weakref.ref(self), key))
        if len(_order) > MAX_MAPS:
            _thin_out()


#: What is in all `Kept` of the process, the oldest first. No lock: each step is one that other threads see whole, and
#: a finalizer, which may come here at any point, waits for no thread.
_order: deque[tuple[weakref.ref[Kept[Any, Any]], Any]] = deque()


def _thin_out() -> None:
    """Forget what is gone; where that is little, let go of the oldest."""
    with suppress(IndexError):  # another thread does it, too
        for _ in range(len(_order)):
            kept, key = _order.popleft()
            if key in (kept() or ()):
                _order.append((kept, key))
        while len(_order) > MAX_MAPS * 3 // 4:
            kept, key = _order.popleft()
            if (holder := kept()) is not None:
                holder.pop(key, None)


@processes.in_child
def _forget_what_was_inherited() -> None:
    """A forked child opens again what it reads, since it pins it then: what its parent has pinned ends with that."""
    for kept, _ in _order:
        if (holder := kept()) is not None:
            holder.clear()
    _order.clear()


class Packs:
    """The packs of one repository that are mapped, each as long as anybody has it. No descriptor is held.

    A reader of a pack keeps it open: a run keeps the file that it lies in, a snapshot the packs that its runs have led
    to (see `Kept`), a view what it shows. Nothing else does: a file that a vacuum has deleted takes space as long as it
    is mapped.
    """

    is_ranged = False

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.replaced: ReplacedValues | None = ReplacedValues(storage)
        self._open: dict[bytes, weakref.ref[OpenPack]] = {}
        self._swept_at = _SWEPT_FROM  # number of entries at which dead ones are swept

    def get(self, name: PackName, missing: Missing | None = None) -> OpenPack:
        found = self._open.get(name.id)
        pack = None if found is None else found()
        return self._map(name, missing) if pack is None else pack

    def _map(self, name: PackName, missing: Missing | None) -> OpenPack:
        path = name.path
        try:
            mapped = self._storage.map(path)
        except GONE as error:
            if missing is not None:
                missing()
            # Never a missing key (I4): zarr would turn it into fill values.
            raise MissingPackError(path, reason="the file is missing") from error
        pack = OpenPack(path, mapped, name.id)
        self._open[name.id] = weakref.ref(pack)
        if len(self._open) > self._swept_at:
            self._open = {key: found for key, found in list(self._open.items()) if found() is not None}
            self._swept_at = max(_SWEPT_FROM, 2 * len(self._open))
        return pack
