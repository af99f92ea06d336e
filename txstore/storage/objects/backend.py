"""The interface of one kind of object store, one request at a time: no retries, and the library's own errors.

A `Backend` belongs to one process and one root. `client` makes an `ObjectStore` of it.
"""

from __future__ import annotations

import email.utils
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from txstore import processes

if TYPE_CHECKING:
    from typing_extensions import Buffer

READ_ONLY = "none"  # a `creation`: exclusively not at all
OF_PROCESS = "lock"  # a `creation`: what there is, one process sees
SINGLE_WRITER = "single writer"  # a `creation`: the caller has promised to be alone
LONGEST_SECONDS = 600  # of one call: the libraries' time-outs do not cover a connection that takes no more bytes
PARALLEL_REQUESTS = 32  # of one call

#: The directory of files that get their final names by a rename, and the age after which such a file has no writer.
PARTIAL, ABANDONED_SECONDS = ".partial", 86400.0


class Object(NamedTuple):
    """One name in a listing. A directory has size 0 and no time."""

    name: str
    size: int  # bytes
    modified: float | None  # seconds since 1970 by the server's clock


class Version(NamedTuple):
    """What a name held for a while, on a server that keeps versions."""

    name: str
    id: str
    is_deletion: bool  # it held nothing then


#: What was read: of libraries that keep it in memory of their own, a view of that.
Content: TypeAlias = bytes | memoryview
#: `get_range` that is awaited; and one that is not tried again: it returns None after any error.
AwaitRange: TypeAlias = Callable[[str, int, int], Awaitable[Content]]
TryRange: TypeAlias = Callable[[str, int, int], Awaitable[Content | None]]
Objects: TypeAlias = list[Object]  # within classes that have a method of the name `list`


class Versions(Protocol):
    """What can be asked of a server that keeps versions. See `interface.ObjectStore`."""

    def list_versions(self, directory: str) -> Sequence[Version]: ...
    def get_version(self, path: str, version: str) -> bytes: ...
    def delete_versions(self, path: str, versions: Sequence[str]) -> None: ...


class Backend(Protocol):
    """The methods are those of `interface.ObjectStore`, and mean the same."""

    @property
    def versions_begun(self) -> int: ...

    @property
    def versions(self) -> Versions | None:
        """What asks for them; None if the library can't."""

    @property
    def await_range(self) -> AwaitRange | None:
        """What reads a range on any event loop, as `get_range` does; None if the library has no such thing."""

    def get(self, path: str) -> bytes: ...
    def get_range(self, path: str, offset: int, length: int) -> Content: ...
    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Content]: ...
    def get_tail(self, path: str, length: int) -> tuple[bytes, int]: ...
    def list(self, directory: str) -> list[Object]: ...
    def list_after(self, directory: str, name: str, limit: int) -> Objects | None: ...
    def is_link(self, path: str) -> bool: ...
    def put(self, path: str, parts: Sequence[Buffer]) -> None: ...
    def create(self, path: str, parts: Sequence[Buffer]) -> None: ...
    def delete(self, paths: Sequence[str]) -> None: ...
    def now(self) -> float: ...


class VersionsTold:
    """Counts how often a server's answers have begun to tell that it keeps what objects were before.

    An answer of before that may come late: it takes nothing back, and the caller counts one more.
    """

    def __init__(self) -> None:
        self.begun = 0
        self._are_told = False
        self._lock = processes.new_lock()

    def note(self, *, are_told: bool) -> None:
        with self._lock:
            self.begun += are_told and not self._are_told
            self._are_told = are_told


class Refusal(Exception):
    """An answer of the server that is not a success, where the library raises no error of its own."""

    def __init__(self, status: int, reason: str, *, date: str | None = None) -> None:
        self.status_code = status
        self.reason = reason
        self.date = date
        super().__init__(f"status {status}: {reason}")


def above(found: Iterable[Object], name: str, limit: int) -> Objects:
    """Return the first `limit` of what was found above a name. An object and a directory of one name are one."""
    by_name: dict[str, Object] = {}
    for each in found:
        if each.name > name and (each.name not in by_name or each.modified is not None):
            by_name[each.name] = each
    return [by_name[each] for each in sorted(by_name)[:limit]]


def joined(parts: Sequence[Buffer]) -> Buffer:
    """Return the parts as one content; a single part is not copied."""
    return parts[0] if len(parts) == 1 else b"".join(parts)


def as_bytes(content: Buffer) -> bytes:
    return content if isinstance(content, bytes) else bytes(content)


def clock_of(date: str | None) -> float:
    """Return the time that a response's Date header gives."""
    if date is None:
        raise OSError("the server does not say what time it is")
    return email.utils.parsedate_to_datetime(date).timestamp()


def size_of(content_range: str) -> int:
    """Return the size of the object from "bytes 10-19/200"."""
    return int(content_range.rpartition("/")[2])
